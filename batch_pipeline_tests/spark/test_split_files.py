"""Large files that several tasks read at once: the same records, in order, each once."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from batch_pipeline.model.record_rules import (
    BadFileKind,
    BadFileRules,
    BadRecordRules,
    LineageColumn,
    OnBadFile,
    ReadLimits,
)
from batch_pipeline.model.stream import CsvOptions
from batch_pipeline.spark import spark_job, task_planning
from batch_pipeline_tests.spark.encode_fixture import (
    MIB,
    EncodeRun,
    numbered_csv,
    numbered_jsonl,
    numbered_parquet,
    records,
)

KIB = 2**10
COUNT = 3_000  # records of 1 KiB and some: three slices of one MiB


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of 1 MiB, so that files can be small."""
    monkeypatch.setattr(task_planning, "SLICE_BYTES", MIB)


JSONL, CSV = numbered_jsonl(COUNT, KIB), numbered_csv(COUNT, KIB)
PARQUET = numbered_parquet(COUNT, KIB)
TYPES = {"id": "integer", "text": "string"}


def parts_of(result_names: list[str]) -> set[str]:
    """Return the task numbers in the names of part files."""
    return {name.split("-")[3][:4] for name in result_names}


@pytest.mark.parametrize(
    "inline_bytes", [spark_job.INLINE_PAYLOAD_BYTES, 0], ids=["inline", "as rows"]
)
def test_split_jsonl_gives_all_records_in_order(
    run: EncodeRun, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    """Three tasks read the file, with payloads inline or as rows; their reports are added up."""
    monkeypatch.setattr(spark_job, "INLINE_PAYLOAD_BYTES", inline_bytes)
    run.land(b'{"id":-1,"text":""}\n')
    run.land(JSONL)
    run.land(b'{"id":3000,"text":""}\n')

    result = run.encode(**TYPES)

    assert [one["id"] for one in records(result.part_files)] == list(range(-1, COUNT + 1))
    assert [(item.read, item.written) for item in result.items] == [(1, 1), (COUNT, COUNT), (1, 1)]
    assert parts_of(run.files()) == {"0000", "0001", "0002", "0003", "0004"}


@pytest.mark.parametrize(
    ("ending", "data", "texts"),
    [
        ("csv", CSV, {'a,\n"b' * (KIB // 6)}),
        ("parquet", PARQUET, {f"{number:08d}" * (KIB // 8) for number in range(COUNT)}),
    ],
    ids=["csv", "parquet"],
)
def test_split_file_gives_all_records_in_order(
    run: EncodeRun, ending: str, data: bytes, texts: set[str]
) -> None:
    """Of csv, a first job counts quotes; of parquet, each task reads row groups of its own."""
    run.land(data, ending=ending)

    found = records(run.encode(**TYPES).part_files)

    assert [one["id"] for one in found] == list(range(COUNT))
    assert {one["text"] for one in found} == texts
    assert len(parts_of(run.files())) == 3


@pytest.mark.guarantee("G7")
def test_split_file_gives_the_same_bytes_each_time(run: EncodeRun) -> None:
    """Where it is cut depends on its size alone."""
    run.land(JSONL)

    first = run.encode(**TYPES)
    second = run.encode(**TYPES)

    assert [part.sha256 for part in first.part_files] == [p.sha256 for p in second.part_files]


def test_split_jsonl_with_a_bad_record_tells_its_line_in_the_file(run: EncodeRun) -> None:
    """Lines count from the start of the file, whichever task met the record."""
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))
    run.land(numbered_jsonl(COUNT, KIB, line2500='{"id":'))

    result = run.encode(**TYPES)

    assert [bad.line for bad in result.bad_records] == [2_501]
    assert [one["line"] for one in records(result.quarantine_files)] == [2_501]
    assert [(item.read, item.quarantined) for item in result.items] == [(COUNT, 1)]


@pytest.mark.parametrize(
    ("odd", "kept"), [("2500,a,b", COUNT - 1), ('2500,a"b', COUNT)], ids=["bad", "odd quote"]
)
def test_split_csv_that_breaks_the_rules_is_read_in_one_piece(
    run: EncodeRun, odd: str, kept: int
) -> None:
    """Which quotes count then takes the whole file to tell; nothing of the parts is left."""
    run.configure(on_bad_record=BadRecordRules(max_bad_records=1))
    run.land(b"id,text\n-1,\n")
    run.land(numbered_csv(COUNT, KIB, line2500=odd))

    result = run.encode(**TYPES)

    found = [one["id"] for one in records(result.part_files)]
    assert len(found) == kept + 1
    assert found == sorted(set(found))
    assert [item.read for item in result.items] == [1, COUNT]
    assert parts_of(run.files()) <= {"0000", "0001"}
    lines_before = 1 + 2_500 * (1 + KIB // 6)
    assert [bad.line for bad in result.bad_records] == [lines_before + 1] * (COUNT - kept)


def test_split_file_that_is_bad_leaves_nothing_of_itself(run: EncodeRun) -> None:
    """One part meets a record that is too long: its neighbours' files are dropped, others stay."""
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


def test_large_file_that_is_not_the_registered_one_is_left_for_the_task_to_report(
    run: EncodeRun,
) -> None:
    """The look that finds out whether to split never fails."""
    run.configure(on_bad_file=BadFileRules.all(OnBadFile.SKIP))
    run.land(JSONL)
    (item,) = run.items
    registered = item.file.modified_at
    assert registered is not None
    earlier = replace(item.file, modified_at=registered - timedelta(days=1))
    gone = replace(item.file, location=f"{item.file.location}.gone")
    run.items = [replace(item, file=earlier), replace(item, id=2, file=gone)]

    result = run.encode(**TYPES)

    assert [one.bad_kind for one in result.items] == [BadFileKind.CHANGED, BadFileKind.MISSING]
    assert run.files() == []


def test_large_file_of_which_nothing_was_noted_is_split_like_any_other(run: EncodeRun) -> None:
    """A user's table may only know the weight; all parts then read the file as it is now."""
    run.land(JSONL)
    (item,) = run.items
    unknown = replace(item.file, size_bytes=None, modified_at=None)
    run.items = [replace(item, file=unknown, row_weight=item.weight)]

    result = run.encode(**TYPES)

    assert [item.read for item in result.items] == [COUNT]
    assert len(parts_of(run.files())) == 3


def test_large_files_that_cannot_be_cut_are_tasks_of_their_own(run: EncodeRun) -> None:
    """With record numbers, or an escape that takes the meaning from a quote, nothing is split."""
    numbered = replace(run.stream, lineage=(LineageColumn.RECORD_NUMBER,))
    escaped = CsvOptions(escape="\\")
    run.land(CSV)

    run.configure(source=replace(run.stream.source, csv=escaped))
    run.encode(**TYPES)
    with_escapes = run.files()
    run.stream = numbered
    result = run.encode(id="integer", text="string", _record_number="integer")

    assert parts_of(with_escapes) == {"0000"}
    assert parts_of(run.files()) == {"0000"}
    assert [one["_record_number"] for one in records(result.part_files)][-1] == COUNT
