"""Encode tasks: records, reports, misfits, quarantine, and the files they leave."""

import gzip
import io
import os
import tempfile
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode import task as task_module
from batch_pipeline.encode.readers import csv as csv_module
from batch_pipeline.encode.readers.csv_parsers import parse_with_arrow
from batch_pipeline.encode.readers.decoded_file import BLOCK_BYTES, open_source
from batch_pipeline.encode.source_file import SourceFile
from batch_pipeline.encode.task import TaskReport, TaskSpec, merge_item_reports, run_tasks
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import BadFileError
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
)
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import (
    CsvOptions,
    PartLimits,
    Source,
    SourceFormat,
)
from batch_pipeline_tests.encode.task_fixture import (
    TaskFixture,
    counts,
    lines_of,
    misfits,
    quarantining_task,
    records,
)
from batch_pipeline_tests.encode.writers.part_factories import file_size_limit
from batch_pipeline_tests.factories import CONTEXT


@pytest.fixture
def task(tmp_path: Path) -> TaskFixture:
    """An empty landing folder and an empty storage."""
    return TaskFixture(tmp_path)


def test_task_with_mixed_file_formats_writes_records_in_order(task: TaskFixture) -> None:
    """Compression and format are detected from the bytes; empty files and headers are valid."""
    task.land(b"a,b\n1,x\n", "looks-like.jsonl.gz")
    task.land(gzip.compress(b'{"b":"y","a":2}\n') + gzip.compress(b'{"a":3}\n'), "looks-like.csv")
    task.land(b"")
    task.land(gzip.compress(b""))
    task.land(b"b,a\n")
    task.land(gzip.compress(b"\xef\xbb\xbfb\r\nz"))
    task.land(b'\xef\xbb\xbf \n{"a":null}')

    report = task.encode(a="integer", b="string")

    assert records(report.part_files) == [
        {"a": 1, "b": "x"},
        {"b": "y", "a": 2},
        {"a": 3},
        {"b": "z"},
        {"a": None},
    ]
    assert counts(report) == [(n, n, 0) for n in (1, 2, 0, 0, 0, 1, 1)]
    assert report.formats == (SourceFormat.CSV, SourceFormat.JSONL)
    assert task.files() == ["orders-1-00000000-00c0ffee.jsonl.gz"]


def test_task_writes_columns_of_wide_csv_only_into_its_records(
    task: TaskFixture,
) -> None:
    wide = [f"c{number}" for number in range(5_000)]
    task.land(b"id,name\n1,x\n2,\n")
    task.land(",".join(wide).encode() + b"\n" + b"," * 4_998 + b"7,\n")

    report = task.encode(id="integer", name="string", **dict.fromkeys(wide, "integer"))

    first, second, third = records(report.part_files)
    assert [first, second] == [{"id": 1, "name": "x"}, {"id": 2, "name": None}]
    assert list(third) == wide
    assert {name for name, value in third.items() if value is not None} == {"c4998"}


def test_task_with_declared_format_skips_detection(task: TaskFixture) -> None:
    task.stream = replace(task.stream, source=Source(uri="file:///l", format=SourceFormat.CSV))
    task.land(b"{a\n1\n")

    assert records(task.encode(**{"{a": "integer"}).part_files) == [{"{a": 1}]


@pytest.mark.guarantee("G7")
def test_task_with_same_items_writes_same_bytes(task: TaskFixture) -> None:
    task.stream = replace(task.stream, part_limits=PartLimits(max_records=2))
    task.land(b"a\n1\n2\n3\n")
    first, second = (task.encode(execution=name, a="integer") for name in ("0" * 8, "1" * 8))

    assert [part.sha256 for part in first.part_files] == [part.sha256 for part in second.part_files]
    assert [part.records for part in first.part_files] == [2, 1]
    assert len(task.files()) == 4


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["0", "-1", "999999999999999999"], "integer"),
        (["-0"], "integer"),
        (["1000000000000000000"], "integer"),
        (["01"], "string"),
        (["+1"], "string"),
        (["0x10"], "string"),
        (["1", ""], "integer"),
        (["1", '""'], "string"),
        (["1.5", "2", "-0.25", "1e5", "1.5E-9"], "number"),
        (["123456789.012345"], "number"),
        (["123456789.0123456"], "number"),
        (["123456789.01234567890"], "decimal(19,10)"),
        (["10000000000000000000", "-1"], "decimal(20,0)"),
        (["9" * 39], "string"),
        (["0.000000000000000123"], "number"),
        (["1e400"], "string"),
        (["1."], "string"),
        ([".5"], "string"),
        (["1.2.3"], "string"),
        (["1-2"], "string"),
        (["-"], "string"),
        (["00.5"], "string"),
        (["1", "1.5", "x"], "string"),
        (["1234567890123456", "1.5"], "number"),
        (["9007199254740993", "1.5"], "decimal(16,0)"),
        (["true"], "string"),
        (["", ""], "unknown"),
    ],
)
def test_task_infers_csv_type_that_keeps_cells_exact(
    task: TaskFixture, cells: list[str], kind: str
) -> None:
    task.land("\n".join(["k,a", *(f"k,{cell}" for cell in cells)]).encode())

    assert misfits(task.encode(k="string")) == {"a": kind}


def test_task_with_misfits_reports_all_and_leaves_no_file(task: TaskFixture) -> None:
    task.stream = replace(task.stream, part_limits=PartLimits(max_records=1))
    task.land(b"a,b\n1,1\n2,2\n")
    task.land(b"c,b,a\n,1.5,3\n")
    task.land(b"a,d\nx,y\n")
    task.land(b"e\n")

    report = task.encode(a="integer", b="integer")

    assert misfits(report) == {
        "a": "string",
        "b": "number",
        "c": "unknown",
        "d": "string",
        "e": "unknown",
    }
    assert list(misfits(report)) == ["a", "b", "c", "d", "e"]
    assert (report.part_files, task.files()) == ((), [])
    assert counts(report) == [(0, 0, 0)] * 4


def test_task_with_schema_of_reported_misfits_has_none(task: TaskFixture) -> None:
    task.land(b"a,b\n1,\n1.5,\n")
    task.land(b'{"a":[],"b":"x","c":{"d":1}}\n')
    first = task.encode()

    second = task.encode(**misfits(first))

    assert misfits(first) == {"a": "any", "b": "string", "c": "object"}
    assert second.misfits == ()
    assert records(second.part_files) == [
        {"a": "1", "b": None},
        {"a": "1.5", "b": None},
        {"a": [], "b": "x", "c": {"d": 1}},
    ]


def test_task_reports_wide_integers_that_fit(task: TaskFixture) -> None:
    """Another task may read fractions in this column; as doubles the integers would be rounded."""
    task.land(b"a,b\n9007199254740993,1\n")

    report = task.encode(a="integer", b="integer")

    assert (report.misfits, report.wide) == ((), ("a",))


def test_task_with_parquet_writes_typed_columns(task: TaskFixture) -> None:
    encoding = Encoding(format=Format.PARQUET, compression=Compression.ZSTD)
    task.stream = replace(task.stream, encoding=encoding)
    task.land(b"a,b\n1,2\n")
    task.land(b'{"b":2.5,"c":[1, 2]}\n')

    report = task.encode(a="integer", b="number", c="array")

    table = pa.parquet.read_table(to_path(report.part_files[0].uri))
    assert table.to_pylist() == [
        {"a": 1, "b": 2.0, "c": None},
        {"a": None, "b": 2.5, "c": "[1, 2]"},
    ]


def test_task_with_columnless_records_for_parquet_reports_bad_file(
    task: TaskFixture,
) -> None:
    """Parquet has no rows without columns, so the records would be lost silently."""
    encoding = Encoding(format=Format.PARQUET, compression=Compression.ZSTD)
    task.stream = replace(
        task.stream, encoding=encoding, on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE)
    )
    task.land(b"{}\n{}\n")

    report = task.encode()

    reason = "its records have no columns, so parquet cannot store them"
    assert [(item.read, item.bad_file) for item in report.items] == [(0, reason)]
    assert (report.part_files, len(report.quarantine_files)) == ((), 1)


def test_task_quarantines_bad_records(task: TaskFixture) -> None:
    task.stream = replace(task.stream, on_bad_record=BadRecordRules(max_bad_records=3))
    first = task.land(b"a,b\n1,x\n2\n3,\xff\n")
    second = task.land(b'{"a":4}\n{"a":\n')

    report = task.encode(a="integer", b="string")

    assert records(report.part_files) == [{"a": 1, "b": "x"}, {"a": 4}]
    assert counts(report) == [(3, 1, 2), (2, 1, 1)]
    assert [(bad.item_id, bad.line) for bad in report.bad_records] == [(1, 3), (1, 4), (2, 2)]
    common = ("item_id", "location", "line", "reason", "raw")
    assert [tuple(line[key] for key in common) for line in records(report.quarantine_files)] == [
        (1, first.file.location, 3, "expected fields: 2, found: 1", "2"),
        (1, first.file.location, 4, "is not UTF-8", "3,\\xff"),
        (2, second.file.location, 2, "is not valid JSON (Input data was truncated)", '{"a":'),
    ]
    assert task.files()[1].startswith("quarantine/orders-1-0000")


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


BAD_FILES = {
    "gzip data ends early": gzip.compress(b"a\n1\n")[:-9],
    "gzip checksum is wrong": gzip.compress(b"a\n1\n")[:-8] + b"\0" * 8,
    "line 1: header: column 'a' is duplicated": b"a,a\n1,2\n",
    "is a zip archive (or a spreadsheet), which cannot be read": b"PK\x03\x04" + b"\0" * 30,
}


@pytest.mark.parametrize("reason", BAD_FILES)
def test_task_quarantines_bad_file(task: TaskFixture, reason: str) -> None:
    task.stream = replace(task.stream, on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE))
    task.land(b"a\n1\n")
    bad = task.land(BAD_FILES[reason])
    task.land(b"a\n3\n")

    report = task.encode(a="integer")

    assert [item.bad_file for item in report.items] == [None, reason, None]
    assert counts(report) == [(1, 1, 0), (0, 0, 0), (1, 1, 0)]
    assert records(report.part_files) == [{"a": 1}, {"a": 3}]
    assert records(report.quarantine_files) == [
        {
            "item_id": 2,
            "location": bad.file.location,
            "line": None,
            "reason": reason,
            "raw": None,
        }
    ]


def test_task_removes_records_of_files_that_fail_late(
    task: TaskFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    run_once = task_module.TaskRun.report

    def counted(run: task_module.TaskRun) -> TaskReport:
        runs.append(1)
        return run_once(run)

    monkeypatch.setattr(task_module.TaskRun, "report", counted)
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


def test_task_with_bad_file_that_fails_batch_leaves_no_files(task: TaskFixture) -> None:
    task.land(b"a\n1\n")
    task.land(truncated_gzip())
    task.land(b"a\n3\n")

    report = task.encode(a="string")

    assert [item.bad_file for item in report.items] == [None, "gzip data ends early", None]
    assert counts(report) == [(0, 0, 0)] * 3
    assert task.files() == []


def test_task_reports_missing_or_changed_file_as_bad(task: TaskFixture) -> None:
    task.stream = replace(task.stream, on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE))
    for _ in range(3):
        task.land(b"a\n1\n")
    missing, longer, later = (Path(to_path(item.file.location)) for item in task.items)
    missing.unlink()
    longer.write_bytes(b"a\n1\n2\n")
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    task.items[2] = replace(task.items[2], file=replace(task.items[2].file, modified_at=noon))
    nanoseconds = int(noon.timestamp()) * 10**9
    os.utime(later, ns=(0, nanoseconds + 1_999))

    report = task.encode(a="integer")

    changed = "changed since it was registered:"
    assert [item.bad_file for item in report.items] == [
        "does not exist",
        f"{changed} size 4 -> 6 B",
        f"{changed} modified 2024-05-01T12:00:00+00:00 -> 2024-05-01T12:00:00.000001+00:00",
    ]
    os.utime(later, ns=(0, nanoseconds + 999))
    assert counts(task.encode(a="integer"))[2] == (1, 1, 0)


def test_task_reports_irregular_files_as_bad(task: TaskFixture) -> None:
    """Folders, named pipes and circular links neither block nor crash the task."""
    task.stream = replace(task.stream, on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE))
    for _ in range(3):
        task.land(b"")
    paths = [Path(to_path(item.file.location)) for item in task.items]
    for path in paths:
        path.unlink()
    paths[0].mkdir()
    os.mkfifo(paths[1])
    paths[2].symlink_to(paths[2])

    reasons = [str(item.bad_file) for item in task.encode().items]

    assert reasons[:2] == ["is not a regular file"] * 2
    assert reasons[2].startswith("cannot be read (too many levels")


def test_open_source_rejects_file_that_grows_while_read(task: TaskFixture) -> None:
    item = task.land(b"a\n1\n")
    path = Path(to_path(item.file.location))

    def read_while_it_grows() -> None:
        with open_source(item.file, task.stream) as source, path.open("ab") as writer:
            source.read(2**22)
            writer.write(b"2\n")

    with pytest.raises(BadFileError, match="size 4 -> 6 B"):
        read_while_it_grows()


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

    assert report.storage_error == "File too large"
    assert task.files() == []


def test_task_reports_missing_storage_root(task: TaskFixture) -> None:
    """The root is not created: it may be an unmounted disk."""
    task.land(b"a\n1\n")
    task.root.rmdir()

    assert task.encode(a="integer").storage_error == "No such file or directory"


def test_run_tasks_returns_one_report_per_spec(task: TaskFixture) -> None:
    task.land(b"a\n1\n")
    schema = RecordSchema.from_json([("a", "integer")])
    specs = [
        TaskSpec(
            number=number,
            stem="s",
            stream=replace(task.stream, limits=Limits(max_weight=1, max_count=1, max_wait=wait)),
            schema=schema,
            items=tuple(task.items),
            context=CONTEXT,
        )
        for number, wait in [(0, timedelta(minutes=5)), (1, timedelta(microseconds=7))]
    ]
    batch = pa.record_batch({"spec": [msgspec.json.encode(spec) for spec in specs]})

    rows = [row for result in run_tasks(iter([batch])) for row in result.to_pylist()]

    reports = [msgspec.json.decode(row["report"], type=TaskReport) for row in rows]
    assert [row["number"] for row in rows] == [0, 1]
    assert [counts(report) for report in reports] == [[(1, 1, 0)], [(1, 1, 0)]]
    assert len({name.split("-")[2].split(".")[0] for name in task.files()}) == 2


_REGULAR_FILES = st.builds(
    lambda header, rows, end: (header + "\n".join(rows) + end).encode(),
    st.sampled_from(["id,name\n"] * 4 + ["name,id\n"]),
    st.lists(st.sampled_from(["1,x", "2,", ",", '3,"y,z"']), max_size=3),
    st.sampled_from(["\n", ""]),
)
_CELLS = ["1", "x", "", "007", '""', '"a,b"', '"a\nb"', '"open', 'a"b', "9007199254740993", "é"]
_ANY_FILES = st.builds(
    lambda header, rows, end: (header + "\n".join(rows) + end).encode(),
    st.sampled_from(
        ["id,name\n", "id,name\r\n", "name,id\n", "\ufeffid,name\n", "id,name", "id,name2\n", "\n"]
    ),
    st.lists(
        st.builds(lambda *cells: ",".join(cells), *[st.sampled_from(_CELLS)] * 2)
        | st.sampled_from(["1,x", "2,y\r", "", "only one", "1,2,3", "\ufeff1,x"]),
        max_size=4,
    ),
    st.sampled_from(["\n", "", "\r", "\r\n", "\n\n"]),
)
_SMALL_FILES = st.one_of(
    _REGULAR_FILES,
    _REGULAR_FILES,
    _ANY_FILES,
    st.sampled_from([b"id,name\n1,\xff\n", b'{"id":1}\n']),
)


@settings(max_examples=400)
@given(
    files=st.lists(_SMALL_FILES, max_size=5),
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


def encode_in_two_passes(task: TaskFixture) -> list[dict[str, object]]:
    """Infer the schema in a first pass and return the records of a second one."""
    second = task.encode(**misfits(task.encode()))
    assert second.misfits == ()
    return records(second.part_files)


def test_csv_columns_are_matched_by_name(task: TaskFixture) -> None:
    task.land(b"id,name\n1,Ann\n")
    task.land(b"name,id,city\nBo,2,Rome\n")
    task.land(b"city\nOslo\n")

    assert encode_in_two_passes(task) == [
        {"id": 1, "name": "Ann"},
        {"id": 2, "name": "Bo", "city": "Rome"},
        {"city": "Oslo"},
    ]


@pytest.mark.parametrize(
    ("options", "data", "rows"),
    [
        (
            CsvOptions(delimiter=";", quote="'", escape="\\", names=("a", "b")),
            b"x\\;y;'it\\'s'\n1;\\N\n",
            [{"a": "x;y", "b": "it's"}, {"a": "1", "b": "\\N"}],
        ),
        # These options replace the source format `text`: lines have no delimiters and no quotes.
        (
            CsvOptions(delimiter="\x1f", quote="\x1e", names=("line",)),
            b'12 "Ann", late\n 3 Bo\n',
            [{"line": '12 "Ann", late'}, {"line": " 3 Bo"}],
        ),
    ],
)
def test_csv_dialect_options_are_used(
    task: TaskFixture, options: CsvOptions, data: bytes, rows: list[dict[str, str]]
) -> None:
    source = replace(task.stream.source, csv=options, format=SourceFormat.CSV)
    task.stream = replace(task.stream, source=source)
    task.land(data)

    assert encode_in_two_passes(task) == rows


TABLE = pa.table(
    {
        "i": pa.array([1, 2]),
        "d": pa.array([Decimal("1.10"), None], pa.decimal128(9, 2)),
        "day": pa.array([date(2026, 1, 31), None]),
        "at": pa.array([1_000, 2_001], pa.timestamp("ns", "UTC")),
        "o": pa.array([{"a": [1, None]}, None]),
    }
)


def test_task_with_parquet_quarantines_records_that_do_not_fit(
    task: TaskFixture,
) -> None:
    file = io.BytesIO()
    pq.write_table(TABLE, file)
    task.stream = replace(task.stream, on_bad_record=BadRecordRules(max_bad_records=1))
    task.land(file.getvalue())

    types = misfits(task.encode())
    second = task.encode(**types)

    assert types == {
        "i": "integer",
        "d": "decimal(9,2)",
        "day": "date",
        "at": "timestamp",
        "o": "object",
    }
    assert records(second.part_files) == [
        {
            "i": 1,
            "d": 1.1,
            "day": "2026-01-31",
            "at": "1970-01-01T00:00:00.000001Z",
            "o": {"a": [1, None]},
        }
    ]
    assert counts(second) == [(2, 1, 1)]
    (bad,) = second.bad_records
    assert (bad.line, bad.reason.split(" in whole")[0]) == (2, "column 'at' is not")


def test_task_with_avro_writes_its_records(task: TaskFixture) -> None:
    fields = [
        {"name": "i", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "u", "type": ["null", "string", "long"]},
    ]
    file = io.BytesIO()
    rows = [
        {"i": 1, "at": datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC), "u": "x"},
        {"i": 2, "at": datetime(2026, 1, 2, 0, 0, 0, 2000, tzinfo=UTC), "u": 5},
    ]
    fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows, codec="deflate")
    task.land(file.getvalue())

    assert encode_in_two_passes(task) == [
        {"i": 1, "at": "2026-01-01T00:00:00.001000Z", "u": "x"},
        {"i": 2, "at": "2026-01-02T00:00:00.002000Z", "u": 5},
    ]


FIRST_PART = ItemReport(
    item_id=1,
    location="file:///a.csv",
    read=16,
    written=9,
    quarantined=4,
    filtered=3,
    rescued=2,
)
SECOND_PART = replace(FIRST_PART, read=160, written=90, quarantined=40, filtered=30, rescued=20)
OTHER_ITEM = replace(FIRST_PART, item_id=2, location="file:///b.csv")


def test_merge_item_reports_adds_counts_of_parts() -> None:
    merged = replace(FIRST_PART, read=176, written=99, quarantined=44, filtered=33, rescued=22)
    assert merge_item_reports([FIRST_PART, OTHER_ITEM, SECOND_PART]) == (merged, OTHER_ITEM)


def test_merge_item_reports_keeps_bad_file_of_any_part() -> None:
    bad = replace(SECOND_PART, bad_file="is not UTF-8", bad_kind=BadFileKind.CORRUPT)
    for parts in ([FIRST_PART, bad], [bad, FIRST_PART]):
        [merged] = merge_item_reports(parts)
        assert (merged.bad_file, merged.bad_kind) == ("is not UTF-8", BadFileKind.CORRUPT)
