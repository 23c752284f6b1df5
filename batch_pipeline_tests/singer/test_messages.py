"""Messages of published batches, and the bookmarks of their STATE."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from singer_sdk.helpers._batch import SDKBatchMessage
from singer_sdk.singerlib.encoding.simple import SchemaMessage, StateMessage

from batch_pipeline.model.batch import MAX_ID, IdRange
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.singer.messages import (
    JSON_SCHEMA,
    Bookmark,
    batch_message,
    bookmark_json,
    line,
    messages,
    parse_bookmark,
    read_bookmark,
    schema_message,
    state_message,
)
from batch_pipeline_tests.encode.writers.part_factories import ENCODINGS, encoding_id
from batch_pipeline_tests.factories import batch, manifest, part_file, record_schema

VALID = Draft202012Validator(json.loads(JSON_SCHEMA.read_text(encoding="utf-8")))
READERS: dict[str, Any] = {
    "SCHEMA": SchemaMessage,
    "BATCH": SDKBatchMessage,
    "STATE": StateMessage,
}
# The SDK's targets read these keys and ignore other keys at the top level.
READ_OF_BATCH = ("type", "stream", "encoding", "manifest")


def _sent(*published: Any, **options: Any) -> list[Any]:
    return list(messages(enumerate(published, start=1), stream="orders", **options))


def _kinds(*published: Any) -> list[str]:
    return [message["type"] for message in _sent(*published)]


def _check(message: Any) -> None:
    """Check a message against the JSON Schema, and that the SDK reads the same values."""
    VALID.validate(message)
    kind = message["type"]
    read = {key: message[key] for key in READ_OF_BATCH} if kind == "BATCH" else dict(message)
    parsed = READERS[kind].from_dict(dict(read)).to_dict()
    assert parsed == read


def test_schema_is_sent_when_it_or_its_keys_change() -> None:
    whole = ["SCHEMA", "BATCH", "STATE"]
    second = manifest(batch=batch(4, 6), part_files=(part_file("b"),))
    assert _kinds(manifest(), second) == [*whole, "BATCH", "STATE"]
    wider = manifest(schema_version=2, schema=record_schema("order_id", "price"))
    assert _kinds(manifest(), wider, manifest()) == whole * 3
    assert _kinds(manifest(), manifest(key_properties=())) == whole * 2
    empty = manifest(part_files=(), schema_version=2)
    assert _kinds(empty, manifest(), empty, manifest())[:5] == ["STATE", *whole, "STATE"]
    assert _kinds(empty, manifest(), empty, manifest())[5:] == ["BATCH", "STATE"]
    assert _kinds() == []


def test_schema_message() -> None:
    schema = record_schema("order_id", "price")
    assert schema_message("orders", schema, ["order_id"], {"order_id"}) == {
        "type": "SCHEMA",
        "stream": "orders",
        "schema": {"type": "object", "properties": {"order_id": {"type": ["null", "integer"]}}},
        "key_properties": ["order_id"],
    }


def test_batch_message() -> None:
    parts = (part_file("b", records=2), part_file("a", records=3, sha256="cd" * 32))
    assert batch_message(manifest(part_files=parts, generation=3)) == {
        "type": "BATCH",
        "stream": "orders",
        "encoding": {"format": "jsonl", "compression": "gzip"},
        "manifest": ["file:///batches/b", "file:///batches/a"],
        "job": "orders",
        "batch_id": "00000001-00000003",
        "generation": 3,
        "schema_version": 1,
        "record_count": 5,
        "bytes": 200,
        "sha256": ["ab" * 32, "cd" * 32],
    }


def test_batch_message_has_unquoted_paths() -> None:
    """The SDK does not decode percent-encoded paths."""
    part = part_file(uri="file:///data%20of%20100%25/%C3%A9.jsonl.gz")
    message = batch_message(manifest(part_files=(part,)))
    assert message["manifest"] == ["file:///data of 100%/é.jsonl.gz"]


def test_batch_message_of_objects_fits_the_schema() -> None:
    _check(batch_message(manifest(part_files=(part_file(uri="s3://bucket/a.jsonl.gz"),))))


def test_batch_message_of_negative_ids_is_named_by_id_range() -> None:
    """Ranges of negative ids have no partition key."""
    negative = batch(1, 3, id_range=IdRange(first_id=-3, last_id=-1))
    _, message, state = _sent(manifest(batch=negative))
    assert message["batch_id"] == "-3..-1"
    assert state["value"]["bookmarks"]["orders"]["batch_id"] == "-3..-1"


def test_state_has_a_number_for_each_job() -> None:
    late, past = batch(2, 2, job="orders.late"), batch(1, 3, job="orders.2023")
    published = [(7, manifest()), (1, manifest(batch=late)), (4, manifest(batch=past))]
    sent = list(messages(published, stream="orders", bookmark=Bookmark(numbers={"orders.x": 9})))
    states = [one["value"]["bookmarks"]["orders"] for one in sent if one["type"] == "STATE"]
    first = {"job": "orders", "batch_id": "00000001-00000003", "generation": 1}
    assert states[0] == {**first, "publish_number": 7, "other_jobs": {"orders.x": 9}}
    assert states[2] == {
        **first,
        "job": "orders.2023",
        "publish_number": 4,
        "other_jobs": {"orders.x": 9, "orders": 7, "orders.late": 1},
    }
    jobs = [one["job"] for one in sent if one["type"] == "BATCH"]
    assert jobs == ["orders", "orders.late", "orders.2023"]
    assert {one["stream"] for one in sent if "stream" in one} == {"orders"}


@pytest.mark.parametrize("encoding", ENCODINGS, ids=encoding_id)
def test_messages_of_any_encoding_are_valid_and_readable_by_the_sdk(encoding: Any) -> None:
    one = manifest(encoding=encoding, batch=batch(1, 3, job="orders.2023"))
    bookmark = Bookmark(numbers={"orders": 3})
    for message in _sent(one, manifest(part_files=()), name="sales", bookmark=bookmark):
        _check(message)


def test_json_schema_rejects_other_batch_messages() -> None:
    message = batch_message(manifest())
    assert VALID.is_valid(message)
    others: tuple[dict[str, Any], ...] = (
        {"encoding": {"format": "jsonl", "compression": "gzip", "level": 1}},
        {"encoding": {"format": "avro", "compression": "none"}},
        *({"manifest": []}, {"manifest": ["/batches/a"]}, {"sha256": ["AB" * 32]}),
        *({"generation": 0}, {"record_count": -1}, {"version": 1}),
    )
    for changes in others:
        assert not VALID.is_valid({**message, **changes})


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
