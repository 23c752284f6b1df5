"""Bookmarks: written by the tap, printed by a target, and read again."""

import json
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


@pytest.mark.parametrize(
    "state",
    ["{}", '{"bookmarks": {}}', '{"value": {}}', '{"bookmarks": {"orders": null}}'],
)
def test_read_bookmark_of_state_without_stream_is_empty(tmp_path: Path, state: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(state)
    assert read_bookmark(path, "orders") == Bookmark()


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b'{"bookmarks": {}}\n{"bookmarks": {}}\n', "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"1" * 5_000, "is not JSON"),
        (b"null", "no object `bookmarks`"),
        (b"[]", "no object `bookmarks`"),
        (b'"text"', "no object `bookmarks`"),
        (b'{"value": null}', "no object `bookmarks`"),
        (b'{"bookmarks": []}', "no object `bookmarks`"),
        (b'{"orders": {"publish_number": 7}}', "no object `bookmarks`"),
        (b'{"bookmarks": {"orders": 7}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {}}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {"publish_number": "7"}}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {"publish_number": 7.0}}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {"publish_number": true}}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {"publish_number": -1}}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {"publish_number": 1, "job": 2}}}', "`job` that is not a name"),
        (
            b'{"bookmarks": {"orders": {"publish_number": 1, "other_jobs": [2]}}}',
            "no numbers in `other_jobs`",
        ),
        (
            b'{"bookmarks": {"orders": {"publish_number": 1, "other_jobs": {"a": "2"}}}}',
            "no numbers in `other_jobs`",
        ),
        (
            b'{"bookmarks": {"orders": {"publish_number": 9223372036854775808}}}',
            "no `publish_number`",
        ),
    ],
)
def test_read_bookmark_rejects_malformed_state_file(
    tmp_path: Path, state: bytes, problem: str
) -> None:
    """Starting from the first batch would deliver all batches twice."""
    path = tmp_path / "state.json"
    path.write_bytes(state)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        read_bookmark(path, "orders")
    assert str(caught.value).startswith(f"{path}: ")


def test_read_bookmark_rejects_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_bookmark(tmp_path / "state.json", "orders")
