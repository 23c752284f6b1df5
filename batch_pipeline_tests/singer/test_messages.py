"""SCHEMA, BATCH and STATE messages: content and conformance."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from singer_sdk.helpers._batch import SDKBatchMessage
from singer_sdk.singerlib.encoding.simple import SchemaMessage, StateMessage

from batch_pipeline.model.batch import IdRange
from batch_pipeline.singer.messages import (
    JSON_SCHEMA,
    Bookmark,
    batch_message,
    messages,
    schema_message,
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
