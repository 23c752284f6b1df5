"""Manifests: totals, JSON form, record conservation, and parsing of manifest files."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from batch_pipeline.model.errors import InvariantError
from batch_pipeline.model.job import JobTerms
from batch_pipeline.model.manifest import (
    ItemReport,
    Manifest,
    ManifestCounts,
    ManifestUnfitError,
    PartFile,
    check_batch_conservation,
    parse_manifest_file,
)
from batch_pipeline.storage.part_storage import manifest_file_text
from batch_pipeline_tests.factories import (
    NOON,
    batch,
    item_report,
    manifest,
    part_file,
    record_schema,
)


def test_manifest_totals_are_sums_over_part_files() -> None:
    parts = (part_file("a", records=3, size_bytes=30), part_file("b", records=4, size_bytes=41))
    one = manifest(part_files=parts, quarantine_files=(part_file("bad", records=9),))
    assert (one.records, one.size_bytes) == (7, 71)
    assert (manifest(part_files=()).records, manifest(part_files=()).size_bytes) == (0, 0)


def test_manifest_to_json() -> None:
    size = {"size_bytes": 100, "sha256": "ab" * 32}
    assert manifest(quarantine_files=(part_file("bad", records=1),)).to_json() == {
        "stream": "orders",
        "batch_id": "00000001-00000003",
        "attempt": 1,
        "token": "12345678-1234-4234-8234-123456789012",
        "generation": 1,
        "encoding": {"format": "jsonl", "compression": "gzip"},
        "schema_version": 1,
        "schema": {"type": "object", "properties": {"order_id": {"type": ["null", "integer"]}}},
        "key_properties": ["order_id"],
        "items": 1,
        "records": {"read": 5, "written": 5, "filtered": 0, "quarantined": 0},
        "part_files": [{"uri": "file:///batches/orders-0.jsonl.gz", "records": 5, **size}],
        "quarantine_files": [{"uri": "file:///batches/bad", "records": 1, **size}],
    }
    assert json.loads(json.dumps(manifest().to_json())) == manifest().to_json()


def test_record_conservation_holds() -> None:
    check_batch_conservation([], [])
    mixed = item_report(2, written=2, filtered=2, quarantined=1)
    bad_file = item_report(3, read=0, written=0, bad_file="no gzip")
    parts = [part_file("a", records=3), part_file("b", records=4)]
    check_batch_conservation([item_report(1), mixed, bad_file], parts)


@pytest.mark.parametrize(
    ("items", "parts", "location", "numbers"),
    [
        ([item_report(written=4)], [part_file(records=4)], "orders-0001.csv", (5, 4)),
        ([item_report(written=6)], [part_file(records=6)], "orders-0001.csv", (5, 6)),
        ([item_report(filtered=1)], [part_file()], "orders-0001.csv", (5, 6)),
        ([item_report(1), item_report(2)], [part_file(records=9)], "part files", (10, 9)),
        ([item_report(1)], [part_file(), part_file()], "part files", (5, 10)),
        ([item_report(1)], [], "part files", (5, 0)),
        # The errors of two items cancel out in the sum, and are still detected.
        (
            [item_report(1, written=4), item_report(2, written=6)],
            [part_file(records=10)],
            "orders-0001.csv",
            (5, 4),
        ),
    ],
)
def test_record_conservation_fails_for_lost_or_duplicated_records(
    items: Sequence[ItemReport], parts: Sequence[PartFile], location: str, numbers: tuple[int, int]
) -> None:
    with pytest.raises(InvariantError, match="filtered or quarantined") as caught:
        check_batch_conservation(items, parts)
    message, (read, accounted) = str(caught.value), numbers
    assert f"{location}: records read: {read}, but {accounted} written," in message


NAME = "orders-00000001-00000003.g1.json"
TOKEN = UUID("12345678-1234-4234-8234-123456789012")
PART = "orders-00000001-00000003-a1-12345678-00000000-abcdef01.jsonl.gz"


def item(item_id: int, **overrides: Any) -> dict[str, Any]:
    """Return the origin of an item: a file of 10 bytes with five records."""
    counts = {"read": 5, "written": 5, "filtered": 0, "quarantined": 0}
    location = f"file:///landing/{item_id}.csv"
    file = {"location": location, "size_bytes": 10, "modified_at": NOON.isoformat()}
    return {"id": item_id, **counts, **file, **overrides}


def origin(**overrides: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "job": {
            "stream": "orders",
            "kind": "incremental",
            "meta_table": "batch_pipeline.item",
            "config": {},
            "max_attempts": 3,
            "bisect": False,
            "parent": None,
        },
        "publish_number": 7,
        "run_id": "run-1",
        "started_at": NOON.isoformat(),
        "published_at": NOON.isoformat(),
        "planned_with": {"max_count": "10"},
        "facts": {"items": 1, "read": 5, "written": 5},
        "weight_read": 10,
        "columns": record_schema().to_json(),
        "items": [item(2, etag="abc", bad_file="torn")],
        **overrides,
    }


def manifest_with_origin(**overrides: Any) -> Manifest:
    """Return a manifest with its origin and realistic file names."""
    one = batch(id=0, oversized=True)
    facts = {"batch": one, "part_files": (part_file(PART),), "origin": origin()}
    return manifest(**(facts | overrides))


def test_manifest_file_has_records_and_optional_publish_number() -> None:
    text = manifest_file_text(manifest_with_origin()).encode()
    assert parse_manifest_file(text, NAME) == ManifestCounts(
        records=5,
        number=7,
        job=JobTerms(name="orders", meta_table="batch_pipeline.item", stream="orders"),
    )
    text = manifest_file_text(manifest(part_files=(part_file(PART),))).encode()
    assert parse_manifest_file(text, NAME) == ManifestCounts(records=5)


def test_origin_is_one_line_of_manifest_file() -> None:
    without_origin = manifest_file_text(manifest())
    with_origin = manifest_file_text(manifest(origin=origin()))
    head = without_origin.removesuffix("\n}\n")
    assert with_origin.startswith(f'{head},\n  "inventory": {{"version": 1, ')
    assert with_origin.count("\n") == without_origin.count("\n") + 1
    assert json.loads(with_origin)["inventory"]["publish_number"] == 7


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "Expecting value"),
        (b"[]", "list indices must be integers"),
        (b"[" * 100_000, "recursion"),
        (b'{"inventory": NaN}', "it is not JSON: NaN"),
        (b"\xff\xff", "decode"),
        (b'{"inventory": 7}', "not subscriptable"),
        (b'{"inventory": {"publish_number": 0}}', "0 is not a whole number from 1"),
        (b'{"inventory": {"publish_number": true}}', "'True' is not of type int"),
        (b'{"stream": "orders"}', "it has no 'part_files'"),
        (b'{"part_files": {}}', "not of type list"),
        (b'{"part_files": [{"records": 1.5}]}', "'1.5' is not of type int"),
    ],
)
def test_malformed_manifest_file_is_rejected(text: bytes, problem: str) -> None:
    with pytest.raises(ManifestUnfitError, match=problem):
        parse_manifest_file(text, NAME)


def test_manifest_file_with_a_malformed_stream_is_rejected() -> None:
    written = json.loads(manifest_file_text(manifest_with_origin()))
    for stream in (7, "a" * 4_097, "a\0b", "\ud800"):
        written["inventory"]["job"]["stream"] = stream
        with pytest.raises(ManifestUnfitError) as caught:
            parse_manifest_file(json.dumps(written).encode(), NAME)
        assert len(str(caught.value)) < 400
