"""Items that are ranges of a file, encoded: the records of the file, each once, with its lines."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.model.encode_request import EncodeResult
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import BadFileRules, BadRecordRules, LineageColumn, OnBadFile
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline.spark import task_planning
from batch_pipeline_tests.spark.encode_fixture import EncodeRun, records

KIB = 2**10
COUNT = 2_000
UNCHANGED = "batch_pipeline_tests.spark.transforms:unchanged"


def land(
    run: EncodeRun, data: bytes, *, most: int = 10 * KIB, form: SourceFormat = SourceFormat.CSV
) -> LandedFile:
    """Land a file as several items."""
    run.configure(source=replace(run.stream.source, format=form))
    run.land(data)
    file = run.items[-1].file
    pieces = ItemCutter(stream=run.stream, most_bytes=most).ranges(file)
    run.items = [Item(id=number, file=piece) for number, piece in enumerate(pieces, start=1)]
    assert len(run.items) > 2
    return file


def csv_text(*, bad_at: int | None = None) -> bytes:
    """Make csv whose records have two lines each; the one at `bad_at` has a cell too few."""
    rows = [f'{number},"two\nlines"' for number in range(COUNT)]
    if bad_at is not None:
        rows[bad_at] = f'"{bad_at}\n"'
    return "\n".join(["id,text", *rows]).encode()


def written(result: EncodeResult) -> list[int]:
    """Return the written ids in order."""
    return [one["id"] for one in records(result.part_files)]


def test_ranges_of_csv_give_all_records_in_order(run: EncodeRun) -> None:
    land(run, csv_text(), most=5 * KIB)
    schema, result = run.settled()
    assert {column.name for column in schema.columns} == {"id", "text"}
    assert written(result) == list(range(COUNT))
    assert sum(item.read for item in result.items) == COUNT
    assert result.items[1].location == run.items[1].file.location


def test_ranges_that_are_large_themselves_are_split_over_tasks(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_planning, "SLICE_BYTES", KIB)
    land(run, csv_text())
    assert written(run.encode(id="integer", text="string")) == list(range(COUNT))
    assert len(run.files()) > len(run.items)
    lines = b"".join(b'{"id":%d}\n' % number for number in range(COUNT))
    land(run, lines, form=SourceFormat.JSONL)
    assert written(run.encode(id="integer", text="string")) == list(range(COUNT))


@pytest.mark.parametrize(
    "slice_bytes", [task_planning.SLICE_BYTES, KIB], ids=["one piece", "split"]
)
def test_bad_record_of_a_range_is_told_with_its_line_in_the_file(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr(task_planning, "SLICE_BYTES", slice_bytes)
    file = land(run, csv_text(bad_at=1_500))
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))

    result = run.encode(id="integer", text="string")

    assert written(result) == [*range(1_500), *range(1_501, COUNT)]
    [bad] = result.bad_records
    assert (bad.line, bad.reason) == (3_002, "expected fields: 2, found: 1")
    assert bad.location == run.items[bad.item_id - 1].file.location
    assert bad.location.startswith(f"{file.location}#bytes=")
    [aside] = result.quarantine_files
    text = gzip.decompress(Path(to_path(aside.uri)).read_bytes())
    assert json.loads(text)["line"] == 3_002


def test_value_that_does_not_fit_is_told_with_its_line_in_the_file(run: EncodeRun) -> None:
    data = csv_text().replace(b"1999,", b"x1999,")
    land(run, data)
    result = run.encode(id="integer", text="string")
    [misfit] = result.misfits
    assert (misfit.item_id, misfit.line) == (len(run.items), 2 * 1_999 + 2)


def test_source_file_of_a_range_is_the_file(run: EncodeRun) -> None:
    file = land(run, csv_text())
    columns = (LineageColumn.ITEM_ID, LineageColumn.SOURCE_FILE)
    run.configure(lineage=columns)
    _, result = run.settled()
    found = records(result.part_files)
    assert {one["_source_file"] for one in found} == {file.location}
    assert [found[0]["_item_id"], found[-1]["_item_id"]] == [1, len(run.items)]


def test_changed_file_is_noticed_by_each_of_its_ranges(run: EncodeRun) -> None:
    file = land(run, csv_text())
    rules = BadFileRules.all(OnBadFile.QUARANTINE)
    run.configure(on_bad_file=rules)
    path = Path(to_path(file.location))
    path.write_bytes(csv_text() + b"\n")
    result = run.encode(id="integer", text="string")
    assert result.part_files == ()
    size = file.size_bytes
    reason = f"changed since it was registered: size {size} -> {(size or 0) + 1} B"
    assert {item.bad_file for item in result.items} == {reason}


def test_ranges_go_through_a_transform(run: EncodeRun) -> None:
    land(run, csv_text())
    run.configure(transform=UNCHANGED)
    _, result = run.settled()
    assert sorted(written(result)) == list(range(COUNT))
