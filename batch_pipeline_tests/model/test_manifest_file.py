"""Manifest files that are read back, and texts that are refused as manifest files."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from batch_pipeline.model.job import JobKind
from batch_pipeline.model.manifest import Manifest, Origin, OriginItem, OriginJob
from batch_pipeline.model.manifest_file import (
    MAX_BYTES,
    ManifestCounts,
    ManifestUnfitError,
    parse_manifest_file,
    stream_of,
)
from batch_pipeline.storage.part_storage import manifest_file_text
from batch_pipeline_tests.factories import NOON, batch, manifest, part_file, record_schema

NAME = "orders-00000001-00000003.g1.json"
TOKEN = UUID("12345678-1234-4234-8234-123456789012")
PART = "orders-00000001-00000003-a1-12345678-00000000-abcdef01.jsonl.gz"


def item(item_id: int, **overrides: Any) -> OriginItem:
    """A file of 10 bytes with five records."""
    facts: dict[str, Any] = {
        "id": item_id,
        "read": 5,
        "written": 5,
        "filtered": 0,
        "quarantined": 0,
        "location": f"file:///landing/{item_id}.csv",
        "size_bytes": 10,
        "modified_at": NOON,
    }
    return OriginItem(**(facts | overrides))


def origin(**overrides: Any) -> Origin:
    """Where the manifest of `written` comes from."""
    facts: dict[str, Any] = {
        "job": OriginJob(
            stream="orders",
            kind=JobKind.INCREMENTAL,
            meta_table="batch_pipeline.item",
            config={},
            max_attempts=3,
            bisect=False,
        ),
        "publish_number": 7,
        "run_id": "run-1",
        "started_at": NOON,
        "published_at": NOON,
        "planned_with": {"max_count": "10"},
        "facts": {"items": 1, "read": 5, "written": 5},
        "weight_read": 10,
        "schema": record_schema(),
        "items": (item(2, etag="abc", bad_file="torn"),),
    }
    return Origin(**(facts | overrides))


def written(**overrides: Any) -> Manifest:
    """A manifest with its origin, whose files are named as its attempt names them."""
    one = batch(id=0, oversized=True)
    facts = {"batch": one, "part_files": (part_file(PART),), "origin": origin()}
    return manifest(**(facts | overrides))


def test_pointer_file_read_back_has_its_records_and_publish_number() -> None:
    text = manifest_file_text(written()).encode()
    assert parse_manifest_file(text, NAME) == ManifestCounts(records=5, number=7)


def test_pointer_file_of_an_earlier_release_has_no_publish_number() -> None:
    text = manifest_file_text(manifest(part_files=(part_file(PART),))).encode()
    assert parse_manifest_file(text, NAME) == ManifestCounts(records=5, number=None)


def test_pointer_file_is_for_people_but_for_one_line() -> None:
    plain, whole = (
        manifest_file_text(manifest()),
        manifest_file_text(replace(manifest(), origin=origin())),
    )
    head = plain.removesuffix("\n}\n")
    assert whole.startswith(f'{head},\n  "inventory": {{"version": 1, ')
    assert whole.count("\n") == plain.count("\n") + 1
    assert json.loads(whole)["inventory"]["publish_number"] == 7


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"inventory": NaN}', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"inventory": 7}', "inventory is not a JSON object"),
        (b'{"inventory": {"publish_number": 0}}', "inventory.publish_number is not a whole number"),
        (b'{"inventory": {"publish_number": true}}', "publish_number is not a whole number"),
        (b'{"stream": "orders"}', "part_files is not a list"),
        (b'{"part_files": {}}', "part_files is not a list"),
        (b'{"part_files": [7]}', r"part_files\[0\] is not a JSON object"),
        (b'{"part_files": [{"records": 1.5}]}', "records is not a whole number"),
    ],
)
def test_pointer_file_that_is_none_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(ManifestUnfitError, match=problem):
        parse_manifest_file(text, NAME)


def test_pointer_file_tells_its_stream_or_nothing() -> None:
    assert stream_of(manifest_file_text(written()).encode(), NAME) == "orders"
    assert stream_of(b'{"inventory": {"job": {"stream": 7}}}', NAME) is None
    assert stream_of(b"no JSON", NAME) is None


def test_manifest_file_as_large_as_the_limit_is_read() -> None:
    text = manifest_file_text(written()).encode().ljust(MAX_BYTES)
    assert stream_of(text, NAME) == "orders"
    assert stream_of(text + b" ", NAME) is None
