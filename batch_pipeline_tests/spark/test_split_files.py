"""Files that several tasks read in slices, or items in ranges: each record once, with its line."""

import gzip
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.model.encode_request import EncodeResult
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import (
    BadFileKind,
    BadFileRules,
    BadRecordRules,
    LineageColumn,
    OnBadFile,
    ReadLimits,
)
from batch_pipeline.model.stream import CsvOptions, SourceFormat
from batch_pipeline.spark import task_planning
from batch_pipeline_tests.spark.encode_fixture import (
    MIB,
    EncodeRun,
    numbered_csv,
    numbered_jsonl,
    numbered_parquet,
    records,
    set_range_bytes,
)

KIB = 2**10
COUNT = 3_000  # records just over 1 KiB: three ranges of one MiB


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    set_range_bytes(monkeypatch, MIB)


JSONL, CSV = numbered_jsonl(COUNT, KIB), numbered_csv(COUNT, KIB)
PARQUET = numbered_parquet(COUNT, KIB)
TYPES = {"id": "integer", "text": "string"}


def task_numbers(result_names: list[str]) -> set[str]:
    """Return the task numbers in the names of part files."""
    return {name.split("-")[3][:4] for name in result_names}


@pytest.mark.guarantee("G7")
def test_split_file_is_encoded_reproducibly(run: EncodeRun) -> None:
    """All records are in order, and the reports of the tasks are added up."""
    run.land(b'{"id":-1,"text":""}\n')
    run.land(JSONL)
    run.land(b'{"id":3000,"text":""}\n')

    result = run.encode(**TYPES)

    assert [one["id"] for one in records(result.part_files)] == list(range(-1, COUNT + 1))
    assert [(item.read, item.written) for item in result.items] == [(1, 1), (COUNT, COUNT), (1, 1)]
    assert task_numbers(run.files()) == {f"{number:04}" for number in range(5)}
    again = run.encode(**TYPES)
    assert [part.sha256 for part in again.part_files] == [p.sha256 for p in result.part_files]


@pytest.mark.parametrize(
    ("ending", "data", "texts"),
    [
        ("csv", CSV, {'a,\n"b' * (KIB // 6)}),
        ("parquet", PARQUET, {f"{number:08d}" * (KIB // 8) for number in range(COUNT)}),
    ],
    ids=["csv", "parquet"],
)
def test_split_file_has_all_records_in_order(
    run: EncodeRun, ending: str, data: bytes, texts: set[str]
) -> None:
    """Ranges of csv start inside quotes; for parquet, each task reads its own row groups."""
    run.land(data, ending=ending)

    rows = records(run.encode(**TYPES).part_files)

    assert [row["id"] for row in rows] == list(range(COUNT))
    assert {row["text"] for row in rows} == texts
    assert len(task_numbers(run.files())) == 3


def test_csv_range_that_was_read_from_a_wrong_start_is_read_again(run: EncodeRun) -> None:
    """The text of a cell reads like two records, and has no quotes for longer than a task looks."""
    rows = ["id,text", *(f"{number},x" for number in range(200_000))]
    rows[50_000:150_000] = ['7,"', *["8,y"] * 900_000, '"']
    run.land("\n".join(rows).encode())

    result = run.encode(**TYPES)

    ids = [row["id"] for row in records(result.part_files)]
    assert ids == [*range(49_999), 7, *range(149_999, 200_000)]
    assert task_numbers(run.files()) == {"0000", "0003"}  # the others have no record
    assert [(item.read, item.written) for item in result.items] == [(len(ids), len(ids))]
    assert len(run.files()) == len(result.part_files)


def test_bad_record_of_split_jsonl_has_its_line_in_the_file(run: EncodeRun) -> None:
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))
    run.land(numbered_jsonl(COUNT, KIB, line2500='{"id":'))

    result = run.encode(**TYPES)

    assert [bad.line for bad in result.bad_records] == [2_501]
    assert [one["line"] for one in records(result.quarantine_files)] == [2_501]
    assert [(item.read, item.quarantined) for item in result.items] == [(COUNT, 1)]


@pytest.mark.parametrize(
    ("line", "written"), [("2500,a,b", COUNT - 1), ('2500,a"b', COUNT)], ids=["bad", "odd quote"]
)
def test_malformed_csv_is_read_in_one_piece(run: EncodeRun, line: str, written: int) -> None:
    """Its quotes prove nothing; the part files of its slices are removed."""
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))
    run.land(b"id,text\n-1,\n")
    run.land(numbered_csv(COUNT, KIB, line2500=line))

    result = run.encode(**TYPES)

    ids = [row["id"] for row in records(result.part_files)]
    assert len(ids) == written + 1
    assert ids == sorted(set(ids))
    assert [item.read for item in result.items] == [1, COUNT]
    assert task_numbers(run.files()) <= {"0000", "0001"}
    lines_before = 1 + 2_500 * (1 + KIB // 6)
    assert [bad.line for bad in result.bad_records] == [lines_before + 1] * (COUNT - written)


def test_bad_split_file_leaves_no_part_files(run: EncodeRun) -> None:
    """One slice has a record that is too long; the part files of the other slices are removed."""
    run.configure(
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE),
        read_limits=ReadLimits(max_record_bytes=10 * KIB),
    )
    long = json.dumps({"id": 0, "text": "x" * 20 * KIB}).encode()
    run.land(b'{"id":-1,"text":""}\n')
    run.land(JSONL + b"\n" + long + b"\n")

    result = run.encode(**TYPES)

    assert [one["id"] for one in records(result.part_files)] == [-1]
    assert [item.bad_kind for item in result.items] == [None, BadFileKind.CORRUPT]
    assert [item.read for item in result.items] == [1, 0]
    assert len(records(result.quarantine_files)) == 1
    assert len(run.files()) == 2


def test_missing_or_changed_large_file_is_reported_by_its_task(run: EncodeRun) -> None:
    """Splitting never fails."""
    run.configure(on_bad_file=BadFileRules.all(OnBadFile.SKIP))
    run.land(JSONL)
    (item,) = run.items
    registered = item.file.modified_at
    assert registered is not None
    earlier = replace(item.file, modified_at=registered - timedelta(days=1))
    missing = replace(item.file, location=f"{item.file.location}.gone")
    run.items = [replace(item, file=earlier), replace(item, id=2, file=missing)]

    result = run.encode(**TYPES)

    assert [one.bad_kind for one in result.items] == [BadFileKind.CHANGED, BadFileKind.MISSING]
    assert run.files() == []


@pytest.mark.parametrize(("weight", "tasks"), [(2 * MIB, 3), (2**40, 12)])
def test_large_file_without_recorded_facts_is_split(
    run: EncodeRun, weight: int, tasks: int
) -> None:
    """A user's table may have only a weight, other than the size; all read the current file."""
    run.land(JSONL)
    (item,) = run.items
    unknown = replace(item.file, size_bytes=None, modified_at=None)
    run.items = [replace(item, file=unknown, row_weight=weight)]

    result = run.encode(**TYPES)

    assert [item.read for item in result.items] == [COUNT]
    assert len(task_numbers(run.files())) == tasks


def test_large_files_that_cannot_be_split_have_their_own_task(run: EncodeRun) -> None:
    """Files with record numbers or escapes are not split."""
    numbered = replace(run.stream, lineage=(LineageColumn.RECORD_NUMBER,))
    escaped = CsvOptions(escape="\\")
    run.land(CSV)

    run.configure(source=replace(run.stream.source, csv=escaped))
    run.encode(**TYPES)
    with_escapes = run.files()
    run.stream = numbered
    result = run.encode(id="integer", text="string", _record_number="integer")

    assert task_numbers(with_escapes) == {"0000"}
    assert task_numbers(run.files()) == {"0000"}
    assert [one["_record_number"] for one in records(result.part_files)][-1] == COUNT


RANGED = 2_000
UNCHANGED = "batch_pipeline_tests.spark.transforms:unchanged"


def land_ranges(
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
    rows = [f'{number},"two\nlines"' for number in range(RANGED)]
    if bad_at is not None:
        rows[bad_at] = f'"{bad_at}\n"'
    return "\n".join(["id,text", *rows]).encode()


def written_ids(result: EncodeResult) -> list[int]:
    return [one["id"] for one in records(result.part_files)]


def test_large_ranges_are_split_over_tasks(run: EncodeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    set_range_bytes(monkeypatch, KIB)
    land_ranges(run, csv_text())
    result = run.encode(id="integer", text="string")
    assert written_ids(result) == list(range(RANGED))
    assert sum(item.read for item in result.items) == RANGED
    assert [item.location for item in result.items] == [one.file.location for one in run.items]
    assert len(run.files()) > len(run.items)
    lines = b"".join(b'{"id":%d}\n' % number for number in range(RANGED))
    land_ranges(run, lines, format_=SourceFormat.JSONL)
    assert written_ids(run.encode(id="integer", text="string")) == list(range(RANGED))


@pytest.mark.parametrize(
    "range_bytes", [task_planning.RANGE_BYTES, KIB], ids=["one piece", "split"]
)
def test_bad_record_of_range_has_its_line_in_the_file(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    set_range_bytes(monkeypatch, range_bytes)
    file = land_ranges(run, csv_text(bad_at=1_500))
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))

    result = run.encode(id="integer", text="string")

    assert written_ids(result) == [*range(1_500), *range(1_501, RANGED)]
    [bad] = result.bad_records
    assert (bad.line, bad.reason) == (3_002, "expected fields: 2, found: 1")
    assert bad.location == run.items[bad.item_id - 1].file.location
    assert bad.location.startswith(f"{file.location}#bytes=")
    [quarantine_file] = result.quarantine_files
    text = gzip.decompress(Path(to_path(quarantine_file.uri)).read_bytes())
    assert json.loads(text)["line"] == 3_002


def test_misfit_of_range_has_its_line_in_the_file(run: EncodeRun) -> None:
    data = csv_text().replace(b"1999,", b"x1999,")
    land_ranges(run, data)
    result = run.encode(id="integer", text="string")
    [misfit] = result.misfits
    assert (misfit.item_id, misfit.line) == (len(run.items), 2 * 1_999 + 2)


def test_ranges_are_transformed(run: EncodeRun) -> None:
    """Their source file is the whole file."""
    file = land_ranges(run, csv_text())
    columns = (LineageColumn.ITEM_ID, LineageColumn.SOURCE_FILE)
    run.configure(lineage=columns, transform=UNCHANGED)
    _, result = run.encode_with_inferred_schema()
    rows = records(result.part_files)
    assert sorted(row["id"] for row in rows) == list(range(RANGED))
    assert {row["_source_file"] for row in rows} == {file.location}
    assert {row["_item_id"] for row in rows} == {item.id for item in run.items}
