"""Bookmarks: written by the tap, printed by a target, and read again."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.batch import MAX_ID
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.singer.messages import (
    Bookmark,
    bookmark_json,
    line,
    parse_bookmark,
    read_bookmark,
    state_message,
)
from batch_pipeline_tests.factories import batch, manifest

numbers = st.integers(0, MAX_ID)


def test_bookmark_in_state_file_round_trips(tmp_path: Path) -> None:
    bookmark = Bookmark(numbers={"orders": 7, "orders.2023": 2})
    message = state_message(manifest(), bookmark, stream="orders")
    state = tmp_path / "state.json"
    for text in (line(message), line(message["value"])):
        state.write_text(text, encoding="utf-8")
        assert read_bookmark(state, "orders") == bookmark
        assert read_bookmark(state, "clicks") == Bookmark()


@given(others=st.dictionaries(st.text(min_size=1), numbers), job=st.text(min_size=1), last=numbers)
def test_bookmark_of_any_jobs_round_trips(others: dict[str, int], job: str, last: int) -> None:
    sent = manifest(batch=batch(job=job))
    bookmark = Bookmark(numbers=others).after(sent, last)
    written = json.loads(json.dumps(bookmark_json(sent, bookmark)))
    parsed = parse_bookmark(written, "orders", path="state.json")
    assert (parsed, parsed.last) == (bookmark, (job, sent.batch.label, sent.generation))


def test_bookmark_of_earlier_release_is_that_of_incremental_job() -> None:
    old = {"job": "orders", "batch_id": "00000001-00000003", "generation": 1}
    for written in ({"publish_number": 7}, {**old, "publish_number": 7}):
        parsed = parse_bookmark(written, "orders", path="state.json")
        assert parsed == Bookmark(numbers={"orders": 7})


def test_read_bookmark_of_state_without_stream_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for state in ("{}", '{"bookmarks": {}}', '{"value": {}}', '{"bookmarks": {"orders": null}}'):
        path.write_text(state)
        assert read_bookmark(path, "orders") == Bookmark()


NO_JSON = [b"", b"{", b'{"bookmarks": {}}\n{"bookmarks": {}}\n', b"\xff\xfe", b"[" * 100_000]
NO_BOOKMARKS = [
    *(b"null", b"[]", b'"text"', b'{"value": null}', b'{"bookmarks": []}'),
    b'{"orders": {"publish_number": 7}}',
]
NO_NUMBERS = [b"7", b"{}"] + [
    b'{"publish_number": %b}' % number
    for number in (b'"7"', b"7.0", b"true", b"-1", b"9223372036854775808")
]
NO_OTHERS = [b"[2]", b'{"a": "2"}']


def bookmarked(orders: bytes) -> bytes:
    """Return a state with this bookmark of `orders`."""
    return b'{"bookmarks": {"orders": %b}}' % orders


@pytest.mark.parametrize(
    ("problem", "states"),
    [
        ("is not JSON", [*NO_JSON, b"1" * 5_000]),
        ("no object `bookmarks`", NO_BOOKMARKS),
        ("no `publish_number`", map(bookmarked, NO_NUMBERS)),
        ("`job` that is not a name", [bookmarked(b'{"publish_number": 1, "job": 2}')]),
        (
            "no numbers in `other_jobs`",
            [bookmarked(b'{"publish_number": 1, "other_jobs": %b}' % jobs) for jobs in NO_OTHERS],
        ),
    ],
)
def test_read_bookmark_rejects_malformed_state_file(
    tmp_path: Path, problem: str, states: Iterable[bytes]
) -> None:
    """Starting from the first batch would deliver all batches twice."""
    path = tmp_path / "state.json"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_bookmark(path, "orders")
    for state in states:
        path.write_bytes(state)
        with pytest.raises(ConfigurationError, match=problem) as caught:
            read_bookmark(path, "orders")
        assert str(caught.value).startswith(f"{path}: ")
