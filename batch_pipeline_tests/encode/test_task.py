"""Encode tasks: records, reports, misfits, quarantine, and the files they leave."""

import gzip
import os
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode import task as task_module
from batch_pipeline.encode.readers import csv as csv_module
from batch_pipeline.encode.readers.csv_parsers import parse_with_arrow
from batch_pipeline.encode.readers.decoded_file import BLOCK_BYTES
from batch_pipeline.encode.source_file import SourceFile
from batch_pipeline.encode.task import TaskReport, merge_item_reports, run_tasks
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.item import Item
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import ItemReport
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.record_rules import (
    BadFileKind,
    BadFileRules,
    BadRecordRules,
    LineageColumn,
    OnBadFile,
    ReadLimits,
)
from batch_pipeline.model.stream import PartLimits, SourceFormat
from batch_pipeline_tests.encode.task_fixture import (
    TaskFixture,
    counts,
    encode_with_inferred_schema,
    lines_of,
    misfits,
    quarantining_task,
)
from batch_pipeline_tests.encode.writers.part_factories import file_size_limit
from batch_pipeline_tests.storage_roots import records


@pytest.fixture
def task(tmp_path: Path) -> TaskFixture:
    """An empty landing folder and an empty storage."""
    return TaskFixture(tmp_path)


@pytest.mark.guarantee("G7")
def test_task_with_same_items_writes_same_bytes(task: TaskFixture) -> None:
    task.stream = replace(task.stream, part_limits=PartLimits(max_records=2))
    task.land(b"a\n1\n2\n3\n")
    first, second = (task.encode(execution=name, a="integer") for name in ("0" * 8, "1" * 8))

    assert [part.sha256 for part in first.part_files] == [part.sha256 for part in second.part_files]
    assert [part.records for part in first.part_files] == [2, 1]
    assert len(task.files()) == 4


def test_task_with_misfits_reports_all_and_leaves_no_file(task: TaskFixture) -> None:
    task.stream = replace(task.stream, part_limits=PartLimits(max_records=1))
    task.land(b"a,b\n1,1\n2,2\n")
    task.land(b"c,b,a\n,1.5,3\n")
    task.land(b"a,d\nx,y\n")
    task.land(b"e\n")

    report = task.encode(a="integer", b="integer")

    expected = {"a": "string", "b": "number", "c": "unknown", "d": "string", "e": "unknown"}
    assert list(misfits(report).items()) == list(expected.items())
    assert (report.part_files, task.files()) == ((), [])
    assert counts(report) == [(0, 0, 0)] * 4


def test_task_reports_wide_integers_that_fit(task: TaskFixture) -> None:
    """Another task may read fractions in this column; as doubles the integers would be rounded."""
    task.land(b"a,b\n9007199254740993,1\n")

    report = task.encode(a="integer", b="integer")

    assert (report.misfits, report.wide) == ((), ("a",))


def test_task_quarantines_files_that_add_too_many_columns(tmp_path: Path) -> None:
    task = quarantining_task(tmp_path, SourceFormat.CSV, Format.JSONL)
    task.stream = replace(task.stream, read_limits=ReadLimits(max_columns=4))
    for data in (b"a,b\n1,2\n", b"b,c\n1,2\n", b"d,e\n1,2\n", b"c,d\n1,2\n", b"a\n1\n"):
        task.land(data)

    report, schema = encode_with_inferred_schema(task)

    assert schema.names == ("a", "b", "c", "d")
    assert [item.written for item in report.items] == [1, 1, 0, 1, 1]
    reason = "has columns that would make more than `read_limits.max_columns` allows (4)"
    assert report.items[2].bad_file == reason


def test_task_over_bad_record_limit_leaves_no_files(task: TaskFixture) -> None:
    task.stream = replace(task.stream, on_bad_record=BadRecordRules(max_bad_records=25))
    task.land(b"a,b\n1,x\n" + b"2\n" * 20)
    task.land(b"a,b\n" + b"2\n" * 6)
    task.land(b"a,b\n1,x\n")

    report = task.encode(a="integer", b="string")

    assert counts(report) == [(20, 0, 20), (6, 0, 6), (0, 0, 0)]
    assert [bad.line for bad in report.bad_records] == list(range(3, 23))
    assert (report.part_files, report.quarantine_files, task.files()) == ((), (), [])


def truncated_gzip() -> bytes:
    """Return a truncated gzip file with several blocks of good records."""
    row = b"x" * 999 + b"\n"
    return gzip.compress(b"a\n" + row * (3 * BLOCK_BYTES // len(row)))[:-20]


def test_task_quarantines_bad_files_and_writes_the_others(task: TaskFixture) -> None:
    """Folders, named pipes and circular links neither block nor crash the task."""
    task.stream = replace(task.stream, on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE))
    task.land(b"a\n1\n")
    damaged = task.land(b"a,a\n1,2\n")
    folder, pipe, link = (Path(to_path(task.land(b"").file.location)) for _ in range(3))
    for path in (folder, pipe, link):
        path.unlink()
    folder.mkdir()
    os.mkfifo(pipe)
    link.symlink_to(link)
    task.land(b"a\n3\n")

    report = task.encode(a="integer")

    reason = "line 1: header: column 'a' is duplicated"
    assert records(report.part_files) == [{"a": 1}, {"a": 3}]
    assert counts(report) == [(n, n, 0) for n in (1, 0, 0, 0, 0, 1)]
    first, *others = records(report.quarantine_files)
    assert list(first.values()) == [2, damaged.file.location, None, reason, None]
    assert [bad["reason"][:30] for bad in others] == [
        *["is not a regular file"] * 2,
        "cannot be read (too many level",
    ]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets an entry for each pass over the items of a task."""
    counts: list[int] = []
    run_once = task_module.TaskRun.report

    def counted(run: task_module.TaskRun) -> TaskReport:
        counts.append(1)
        return run_once(run)

    monkeypatch.setattr(task_module.TaskRun, "report", counted)
    return counts


def test_task_removes_records_of_files_that_fail_late(task: TaskFixture, runs: list[int]) -> None:
    task.stream = replace(
        task.stream,
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE),
        part_limits=PartLimits(max_records=1_000),
    )
    task.land(b"a\n-1\n")
    for _ in range(3):
        task.land(truncated_gzip())
    task.land(b"a\n-2\n")

    report = task.encode(a="string")

    truncated = "gzip data ends early"
    assert [item.bad_file for item in report.items] == [None, truncated, truncated, truncated, None]
    assert records(report.part_files) == [{"a": "-1"}, {"a": "-2"}]
    assert len(task.files()) == 2
    assert len(runs) == 2  # the second run skips all bad files


@pytest.mark.parametrize("value", [b"7", b'"seven"'])
def test_file_with_a_lineage_column_does_not_affect_other_files(
    tmp_path: Path, value: bytes, runs: list[int]
) -> None:
    task = quarantining_task(tmp_path, SourceFormat.JSONL, Format.JSONL)
    task.stream = replace(task.stream, lineage=(LineageColumn.ITEM_ID,))
    own = b'{"_item_id":%s}' % value
    for line in (b'{"a":1}', own, own, b'{"a":4}', own):
        task.land(line + b"\n")
    report, schema = encode_with_inferred_schema(task)
    assert counts(report) == [(1, 1, 0), (0, 0, 0), (0, 0, 0), (1, 1, 0), (0, 0, 0)]
    reason = "has the column _item_id, which `lineage` adds"
    assert [item.bad_file for item in report.items] == [None, reason, reason, None, reason]
    assert lines_of(report) == ['{"a":1,"_item_id":1}', '{"a":4,"_item_id":4}']
    assert schema.names == ("a",)
    runs.clear()
    task.encode(a="integer")
    assert len(runs) == 2  # however many files have the column


def test_task_with_bad_file_that_fails_batch_leaves_no_files(task: TaskFixture) -> None:
    task.land(b"a\n1\n")
    task.land(truncated_gzip())
    task.land(b"a\n3\n")

    report = task.encode(a="string")

    assert [item.bad_file for item in report.items] == [None, "gzip data ends early", None]
    assert counts(report) == [(0, 0, 0)] * 3
    assert task.files() == []


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("format_", Format)
def test_task_reports_storage_write_error_and_cleans_up(task: TaskFixture, format_: Format) -> None:
    task.stream = replace(
        task.stream,
        encoding=Encoding(format=format_, compression=Compression.NONE),
        part_limits=PartLimits(max_records=1),
    )
    task.land(b"a\nsmall\n" + b"large" * 20_000 + b"\n")

    with file_size_limit(50_000):
        report = task.encode(a="string")

    assert report.storage_error == "file too large"
    assert task.files() == []


def test_task_reports_missing_storage_root(task: TaskFixture) -> None:
    """The root is not created: it may be an unmounted disk."""
    task.land(b"a\n1\n")
    task.root.rmdir()

    assert task.encode(a="integer").storage_error == "no such file or directory"


def test_run_tasks_returns_one_report_per_spec(task: TaskFixture) -> None:
    task.land(b"a\n1\n")
    limits = Limits(max_weight=1, max_count=1, max_wait=timedelta(microseconds=7))
    task.stream = replace(task.stream, limits=limits)
    specs = [replace(task.spec(a="integer"), number=number) for number in (0, 1)]
    batch = pa.record_batch({"spec": list(map(msgspec.json.encode, specs))})

    rows = [row for result in run_tasks(iter([batch])) for row in result.to_pylist()]

    reports = [msgspec.json.decode(row["report"], type=TaskReport) for row in rows]
    assert [row["number"] for row in rows] == [0, 1]
    assert [counts(report) for report in reports] == [[(1, 1, 0)], [(1, 1, 0)]]
    assert len({name.split("-")[3].split(".")[0] for name in task.files()}) == 2


_CELLS = ["1", "x", "", "007", '""', '"a,b"', '"a\nb"', '"open', 'a"b', "9007199254740993", "é"]
_REGULAR_FILES = st.sampled_from(
    [b"id,name\n1,x\n2,\n", b"id,name\n", b'id,name\n3,"y,z"', b"id,name\n,\n", b"name,id\nx,4\n"]
)
_ANY_FILES = st.builds(
    lambda header, rows, end: (header + "\n".join(rows) + end).encode(),
    st.sampled_from(
        ["id,name\n", "id,name\r\n", "name,id\n", "\ufeffid,name\n", "id,name", "id,name2\n", "\n"]
    ),
    st.lists(
        st.tuples(*[st.sampled_from(_CELLS)] * 2).map(",".join)
        | st.sampled_from(["1,x", "2,y\r", "", "only one", "1,2,3", "\ufeff1,x"]),
        max_size=4,
    ),
    st.sampled_from(["\n", "", "\r", "\r\n", "\n\n"]),
)
_ODD_FILES = st.sampled_from([b"id,name\n1,\xff\n", b'{"id":1}\n'])


@settings(max_examples=100)
@given(
    files=st.lists(_REGULAR_FILES | _REGULAR_FILES | _ANY_FILES | _ODD_FILES, max_size=5),
    id_type=st.sampled_from(["integer", "string", "decimal(20,0)"]),
    output=st.sampled_from([Format.JSONL, Format.PARQUET]),
    has_lineage=st.booleans(),
)
@example([b'id,name\n1,"x"y\n'], "integer", Format.JSONL, False)
@example([b"id,name", b"id,name2,5\n1,x\n"], "string", Format.JSONL, False)
@example([b"id,name\n9007199254740993,x\n"], "integer", Format.JSONL, False)
def test_joined_small_csv_files_equal_separate_ones(
    files: list[bytes], id_type: str, output: Format, has_lineage: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        task = quarantining_task(Path(folder), SourceFormat.AUTO, output)
        if has_lineage:
            columns = (LineageColumn.SOURCE_FILE, LineageColumn.RECORD_NUMBER)
            task.stream = replace(task.stream, lineage=columns)
        for data in files:
            task.land(data)

        together = task.encode(id=id_type, name="string"), _take_files(task)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task_module, "MAX_JOINED_FILE_BYTES", -1)
            alone = task.encode(id=id_type, name="string"), _take_files(task)

    assert together == alone


def test_ranges_of_small_csv_file_read_each_record_once(tmp_path: Path) -> None:
    task = quarantining_task(tmp_path, SourceFormat.CSV, Format.JSONL)
    file = task.land(b"a\n1\n2\n3\n").file
    task.items = [
        Item(id=number, file=replace(file, location=f"{file.location}#bytes={ids}"))
        for number, ids in enumerate(("0-3", "4-7"), start=1)
    ]
    report = task.encode(a="integer")
    assert counts(report) == [(1, 1, 0), (2, 2, 0)]
    assert lines_of(report) == ['{"a":1}', '{"a":2}', '{"a":3}']


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_small_csv_file_that_changes_while_read_is_reported(
    changed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = quarantining_task(tmp_path, SourceFormat.CSV, Format.JSONL)
    items = [task.land(b"a\n%d\n" % number) for number in range(3)]
    check = SourceFile.check

    def check_after_change(source: SourceFile) -> None:
        if source._file is items[changed].file:
            with Path(to_path(source._file.location)).open("ab") as file:
                file.write(b"9\n")
        check(source)

    monkeypatch.setattr(SourceFile, "check", check_after_change)
    report = task.encode(a="integer")
    assert [bool(item.bad_file) for item in report.items] == [n == changed for n in range(3)]
    assert "changed" in str(report.items[changed].bad_file)
    assert lines_of(report) == [f'{{"a":{number}}}' for number in range(3) if number != changed]


def _take_files(task: TaskFixture) -> dict[str, bytes]:
    """Return the content of all files in the storage and delete them."""
    paths = [task.root / name for name in task.files()]
    content = {str(path): path.read_bytes() for path in paths}
    for path in paths:
        path.unlink()
    return content


def test_small_csv_files_are_parsed_fifty_at_a_time(
    task: TaskFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def parse(*args: Any) -> pa.RecordBatch | None:
        calls.append(args[2])
        return parse_with_arrow(*args)

    monkeypatch.setattr(csv_module, "parse_with_arrow", parse)
    for number in range(120):
        task.land(b"id,name\n%d,n\n" % number)

    report = task.encode(id="integer", name="string")

    assert [record["id"] for record in records(report.part_files)] == list(range(120))
    assert len(calls) == 3


def test_merge_item_reports_adds_counts_and_keeps_bad_file_of_any_part() -> None:
    part = ItemReport(
        item_id=1, location="file:///a", read=16, written=9, quarantined=4, filtered=3, rescued=2
    )
    more = replace(part, read=160, written=90, quarantined=40, filtered=30, rescued=20)
    other = replace(part, item_id=2, location="file:///b")
    both = replace(part, read=176, written=99, quarantined=44, filtered=33, rescued=22)
    fault: dict[str, Any] = {"bad_file": "is not UTF-8", "bad_kind": BadFileKind.CORRUPT}

    assert merge_item_reports([part, other, more]) == (both, other)
    for parts in ([part, replace(more, **fault)], [replace(part, **fault), more]):
        assert merge_item_reports(parts) == (replace(both, **fault),)
