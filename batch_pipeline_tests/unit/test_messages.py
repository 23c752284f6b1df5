"""SCHEMA, BATCH and STATE lines, and the bookmarks that come back."""

import json
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.singer.messages import (
    Bookmark,
    StateFileError,
    batch_message,
    line,
    messages,
    read_bookmark,
    schema_message,
    state_message,
)
from batch_pipeline_tests.factories import batch, manifest, part_file, record_schema


def _kinds(*published: Any) -> list[str]:
    return [message["type"] for message in messages(enumerate(published, start=1))]


def test_messages_of_two_manifests_announce_their_schema_once() -> None:
    """Expect SCHEMA first, then BATCH and STATE for each manifest."""
    second = manifest(batch=batch(4, 6), part_files=(part_file("b"),))
    assert _kinds(manifest(), second) == ["SCHEMA", "BATCH", "STATE", "BATCH", "STATE"]


def test_messages_repeat_the_schema_when_its_version_changes() -> None:
    """Expect each change, also back to an older version, to be announced before its BATCH."""
    wider = manifest(schema_version=2, schema=record_schema("order_id", "price"))
    assert _kinds(manifest(), wider, manifest()) == ["SCHEMA", "BATCH", "STATE"] * 3


def test_messages_repeat_the_schema_when_the_keys_change() -> None:
    """Expect new key properties, which SCHEMA carries too, to be announced."""
    assert _kinds(manifest(), manifest(key_properties=())) == ["SCHEMA", "BATCH", "STATE"] * 2


def test_messages_of_an_empty_manifest_move_the_state_only() -> None:
    """Expect neither SCHEMA nor BATCH where there is no file, and SCHEMA with the first file."""
    empty = manifest(part_files=(), schema_version=2)
    assert _kinds(empty) == ["STATE"]
    assert _kinds(empty, manifest(), empty, manifest()) == [
        "STATE",
        "SCHEMA",
        "BATCH",
        "STATE",
        "STATE",
        "BATCH",
        "STATE",
    ]


def test_messages_of_nothing_are_none() -> None:
    """Expect silence without a manifest."""
    assert _kinds() == []


def test_schema_message_holds_shape_and_keys() -> None:
    """Expect these keys and no other."""
    assert schema_message(manifest()) == {
        "type": "SCHEMA",
        "stream": "orders",
        "schema": {"type": "object", "properties": {"order_id": {"type": ["null", "integer"]}}},
        "key_properties": ["order_id"],
    }


def test_batch_message_holds_nothing_extra_in_its_encoding() -> None:
    """Expect facts of ours at the top level, files in record order."""
    parts = (part_file("b", records=2), part_file("a", records=3, sha256="cd" * 32))
    assert batch_message(manifest(part_files=parts, generation=3)) == {
        "type": "BATCH",
        "stream": "orders",
        "encoding": {"format": "jsonl", "compression": "gzip"},
        "manifest": ["file:///batches/b", "file:///batches/a"],
        "batch_id": "000000000001-000000000003",
        "generation": 3,
        "schema_version": 1,
        "record_count": 5,
        "bytes": 200,
        "sha256": ["ab" * 32, "cd" * 32],
    }


def test_batch_message_holds_paths_verbatim() -> None:
    """Expect spaces and percent signs as the file system has them, for the SDK decodes nothing."""
    part = part_file(uri="file:///data%20of%20100%25/%C3%A9.jsonl.gz")
    message = batch_message(manifest(part_files=(part,)))
    assert message["manifest"] == ["file:///data of 100%/é.jsonl.gz"]


def test_state_message_holds_a_bookmark_that_reads_back(tmp_path: Path) -> None:
    """Expect what we say to be what we understand, wrapped by a target or not."""
    message = state_message(manifest(), 7)
    assert message == {
        "type": "STATE",
        "value": {
            "bookmarks": {
                "orders": {
                    "job": "orders",
                    "batch_id": "000000000001-000000000003",
                    "generation": 1,
                    "publish_number": 7,
                }
            }
        },
    }
    state = tmp_path / "state.json"
    for text in (line(message), line(message["value"])):
        state.write_text(text, encoding="utf-8")
        assert read_bookmark(state, "orders") == Bookmark(publish_number=7)
        assert read_bookmark(state, "clicks") == Bookmark()


def test_line_is_one_line_of_json_with_its_ending() -> None:
    """Expect line breaks inside of values to be escaped and other letters to stay readable."""
    text = line({"a": "1\n2", "b": "é"})
    assert text == '{"a": "1\\n2", "b": "é"}\n'
    assert json.loads(text) == {"a": "1\n2", "b": "é"}


@pytest.mark.parametrize(
    "state",
    ["{}", '{"bookmarks": {}}', '{"value": {}}', '{"bookmarks": {"orders": null}}'],
)
def test_read_bookmark_of_a_state_without_ours_starts_from_the_first(
    tmp_path: Path, state: str
) -> None:
    """Expect a state that knows nothing of the stream to be a beginning."""
    path = tmp_path / "state.json"
    path.write_text(state)
    assert read_bookmark(path, "orders") == Bookmark(publish_number=0)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (b"", "is no JSON"),
        (b"{", "is no JSON"),
        (b'{"bookmarks": {}}\n{"bookmarks": {}}\n', "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"1" * 5_000, "is no JSON"),
        (b"null", "no object `bookmarks`"),
        (b"[]", "no object `bookmarks`"),
        (b'"text"', "no object `bookmarks`"),
        (b'{"value": null}', "no object `bookmarks`"),
        (b'{"bookmarks": []}', "no object `bookmarks`"),
        (b'{"bookmarks": {"orders": 7}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {}}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {"publish_number": "7"}}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {"publish_number": 7.0}}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {"publish_number": true}}}', "no `publish_number`"),
        (b'{"bookmarks": {"orders": {"publish_number": -1}}}', "no `publish_number`"),
        (
            b'{"bookmarks": {"orders": {"publish_number": 9223372036854775808}}}',
            "no `publish_number`",
        ),
    ],
)
def test_read_bookmark_of_another_file_is_refused(
    tmp_path: Path, state: bytes, problem: str
) -> None:
    """Expect the file and what is wrong with it, for starting over would deliver all twice."""
    path = tmp_path / "state.json"
    path.write_bytes(state)
    with pytest.raises(StateFileError, match=problem) as caught:
        read_bookmark(path, "orders")
    assert caught.value.path == str(path)


def test_read_bookmark_of_a_missing_file_is_refused(tmp_path: Path) -> None:
    """Expect a wrong path not to count as an empty state."""
    with pytest.raises(StateFileError, match="cannot be read"):
        read_bookmark(tmp_path / "state.json", "orders")
