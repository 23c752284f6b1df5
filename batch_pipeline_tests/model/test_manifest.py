"""Manifests: totals, JSON form, and the conservation of records."""

import json
from collections.abc import Sequence

import pytest

from batch_pipeline.model.errors import InvariantError
from batch_pipeline.model.manifest import ItemReport, PartFile, check_batch_conservation
from batch_pipeline_tests.factories import item_report, manifest, part_file


def test_totals_of_a_manifest_are_sums_over_its_part_files() -> None:
    parts = (part_file("a", records=3, size_bytes=30), part_file("b", records=4, size_bytes=41))
    one = manifest(part_files=parts, quarantine_files=(part_file("bad", records=9),))
    assert (one.records, one.size_bytes) == (7, 71)
    assert (manifest(part_files=()).records, manifest(part_files=()).size_bytes) == (0, 0)


def test_manifest_as_json_says_everything_a_reader_needs() -> None:
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
        "part_files": [
            {
                "uri": "file:///batches/orders-0.jsonl.gz",
                "records": 5,
                "size_bytes": 100,
                "sha256": "ab" * 32,
            }
        ],
        "quarantine_files": [
            {
                "uri": "file:///batches/bad",
                "records": 1,
                "size_bytes": 100,
                "sha256": "ab" * 32,
            }
        ],
    }
    assert json.loads(json.dumps(manifest().to_json())) == manifest().to_json()


@pytest.mark.parametrize(
    ("items", "parts"),
    [
        ([], []),
        ([item_report(1), item_report(2)], [part_file(records=10)]),
        ([item_report(1), item_report(2)], [part_file("a", records=3), part_file("b", records=7)]),
        ([item_report(read=5, written=2, filtered=2, quarantined=1)], [part_file(records=2)]),
        ([item_report(read=0, written=0, bad_file="no gzip")], []),
    ],
)
def test_conservation_of_records_that_all_ended_somewhere_holds(
    items: Sequence[ItemReport], parts: Sequence[PartFile]
) -> None:
    check_batch_conservation(items, parts)


@pytest.mark.parametrize(
    ("items", "parts", "location", "numbers"),
    [
        ([item_report(written=4)], [part_file(records=4)], "orders-0001.csv", (5, 4)),
        ([item_report(written=6)], [part_file(records=6)], "orders-0001.csv", (5, 6)),
        ([item_report(quarantined=1)], [part_file()], "orders-0001.csv", (5, 6)),
        ([item_report(filtered=1)], [part_file()], "orders-0001.csv", (5, 6)),
        ([item_report(1), item_report(2)], [part_file(records=9)], "part files", (10, 9)),
        ([item_report(1)], [part_file(), part_file()], "part files", (5, 10)),
        ([item_report(1)], [], "part files", (5, 0)),
        # Two items that are wrong by one each way balance in the sum and are found all the same.
        (
            [item_report(1, written=4), item_report(2, written=6)],
            [part_file(records=10)],
            "orders-0001.csv",
            (5, 4),
        ),
    ],
)
def test_conservation_of_records_that_are_lost_or_doubled_fails(
    items: Sequence[ItemReport],
    parts: Sequence[PartFile],
    location: str,
    numbers: tuple[int, int],
) -> None:
    with pytest.raises(InvariantError, match="filtered or quarantined") as caught:
        check_batch_conservation(items, parts)
    message, (read, accounted) = str(caught.value), numbers
    assert f"{location}: records read: {read}, but {accounted} written," in message
