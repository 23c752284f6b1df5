"""Encodes of items that are ranges of a file: each record once, with its line in the file."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.model.encode_request import EncodeResult
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import BadRecordRules, LineageColumn
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline.spark import task_planning
from batch_pipeline_tests.spark.encode_fixture import EncodeRun, records, set_range_bytes

KIB = 2**10
COUNT = 2_000
UNCHANGED = "batch_pipeline_tests.spark.transforms:unchanged"


def land(
    run: EncodeRun,
    data: bytes,
    *,
    max_bytes: int = 10 * KIB,
    format_: SourceFormat = SourceFormat.CSV,
) -> LandedFile:
    """Land a file as several items."""
    run.configure(source=replace(run.stream.source, format=format_))
    run.land(data)
    file = run.items[-1].file
    ranges = ItemCutter(stream=run.stream, most_bytes=max_bytes).ranges(file)
    run.items = [
        Item(id=number, file=file_range) for number, file_range in enumerate(ranges, start=1)
    ]
    assert len(run.items) > 2
    return file


def csv_text(*, bad_at: int | None = None) -> bytes:
    """Return csv of two-line records; the one at `bad_at` has too few cells."""
    rows = [f'{number},"two\nlines"' for number in range(COUNT)]
    if bad_at is not None:
        rows[bad_at] = f'"{bad_at}\n"'
    return "\n".join(["id,text", *rows]).encode()


def written_ids(result: EncodeResult) -> list[int]:
    return [one["id"] for one in records(result.part_files)]


def test_large_ranges_are_split_over_tasks(run: EncodeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    set_range_bytes(monkeypatch, KIB)
    land(run, csv_text())
    result = run.encode(id="integer", text="string")
    assert written_ids(result) == list(range(COUNT))
    assert sum(item.read for item in result.items) == COUNT
    assert [item.location for item in result.items] == [one.file.location for one in run.items]
    assert len(run.files()) > len(run.items)
    lines = b"".join(b'{"id":%d}\n' % number for number in range(COUNT))
    land(run, lines, format_=SourceFormat.JSONL)
    assert written_ids(run.encode(id="integer", text="string")) == list(range(COUNT))


@pytest.mark.parametrize(
    "range_bytes", [task_planning.RANGE_BYTES, KIB], ids=["one piece", "split"]
)
def test_bad_record_of_range_has_its_line_in_the_file(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    set_range_bytes(monkeypatch, range_bytes)
    file = land(run, csv_text(bad_at=1_500))
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))

    result = run.encode(id="integer", text="string")

    assert written_ids(result) == [*range(1_500), *range(1_501, COUNT)]
    [bad] = result.bad_records
    assert (bad.line, bad.reason) == (3_002, "expected fields: 2, found: 1")
    assert bad.location == run.items[bad.item_id - 1].file.location
    assert bad.location.startswith(f"{file.location}#bytes=")
    [quarantine_file] = result.quarantine_files
    text = gzip.decompress(Path(to_path(quarantine_file.uri)).read_bytes())
    assert json.loads(text)["line"] == 3_002


def test_misfit_of_range_has_its_line_in_the_file(run: EncodeRun) -> None:
    data = csv_text().replace(b"1999,", b"x1999,")
    land(run, data)
    result = run.encode(id="integer", text="string")
    [misfit] = result.misfits
    assert (misfit.item_id, misfit.line) == (len(run.items), 2 * 1_999 + 2)


def test_ranges_are_transformed(run: EncodeRun) -> None:
    """Their source file is the whole file."""
    file = land(run, csv_text())
    columns = (LineageColumn.ITEM_ID, LineageColumn.SOURCE_FILE)
    run.configure(lineage=columns, transform=UNCHANGED)
    _, result = run.encode_with_inferred_schema()
    rows = records(result.part_files)
    assert sorted(row["id"] for row in rows) == list(range(COUNT))
    assert {row["_source_file"] for row in rows} == {file.location}
    assert {row["_item_id"] for row in rows} == {item.id for item in run.items}
