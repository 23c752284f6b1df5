"""Whole files are encoded by a task, and the part files are compared with an oracle.

The part files are read with other libraries. In files with declared columns, each text becomes the
value that it denotes, or is rescued; there the oracle parses texts with the standard library.
"""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from batch_pipeline.encode.task import TaskReport
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.record_rules import RESCUED, Evolution, SchemaRules
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.model.stream import CsvOptions, SourceFiles, SourceFormat
from batch_pipeline_tests.encode.task_fixture import (
    ENCODINGS,
    TaskFixture,
    encode_with_inferred_schema,
    lines_of,
    quarantining_task,
    rows_of,
)
from batch_pipeline_tests.guarantees.fuzz import oracles
from batch_pipeline_tests.guarantees.fuzz.damage import CORPUS, FAULTS, Batch, Damage, rarely
from batch_pipeline_tests.guarantees.fuzz.harness import Check, Outcome, expect
from batch_pipeline_tests.storage_roots import records

_LONGEST_REASON = 1_000
_RAW_BYTES = 60_000  # of a quarantined record; longer ones may be truncated


class Encoded:
    """The results of one file: report, records, and lines of the quarantine file."""

    def __init__(self, report: TaskReport, schema: RecordSchema, output: Format) -> None:
        self.report = report
        self.schema = schema
        self.is_text = output is Format.JSONL
        self.lines = lines_of(report) if self.is_text else []
        self.rows = [] if self.is_text else rows_of(report)
        self.bad = records(report.quarantine_files)

    @property
    def records(self) -> list[Any]:
        """The records: lines parsed by `oracles.parse_strictly`, or rows of columns."""
        if not self.is_text:
            return self.rows
        return [dict(oracles.parse_strictly(line)[1]) for line in self.lines]


def open_check(folder: Path, *, declared: tuple[SourceFormat, ...]) -> Check:
    """Return the check of files that are declared to have one of some formats."""
    task = quarantining_task(folder, SourceFormat.AUTO, Format.JSONL)
    sources = [replace(task.stream.source, format=format_) for format_ in declared]

    def check(data: bytes) -> Outcome:
        with _encoded(task, data, sources) as encoded:
            outcome = _outcome(encoded)
            if outcome is Outcome.READ:
                _compare(data, encoded)
            return outcome

    return check


def open_dialects(folder: Path) -> Check:
    """Return the check of text in other dialects and charsets, which have no oracle."""
    task = quarantining_task(folder, SourceFormat.CSV, Format.JSONL)
    usual = task.stream.source
    sources = [
        replace(usual, csv=CsvOptions(delimiter=";", quote="'", escape="\\")),
        replace(usual, csv=CsvOptions(escape="\\")),
        replace(usual, csv=CsvOptions(names=("a", "b", "c"))),
        replace(usual, charset="cp1252"),
        replace(usual, format=SourceFormat.AUTO, charset="utf-16-le"),
        replace(usual, format=SourceFormat.JSONL, charset="shift_jis"),
    ]

    def check(data: bytes) -> Outcome:
        with _encoded(task, data, sources) as encoded:
            return _outcome(encoded)

    return check


@contextmanager
def _encoded(task: TaskFixture, data: bytes, sources: Sequence[SourceFiles]) -> Iterator[Encoded]:
    """Encode a file as one of some sources, into lines or columns."""
    choice = zlib.crc32(data)  # so that a stored input has the same result
    output = (Format.JSONL, Format.JSONL, Format.ARROW, Format.PARQUET)[choice % 4]
    source = sources[choice // 4 % len(sources)]
    task.stream = replace(task.stream, source=source, encoding=ENCODINGS[output])
    with landed(task, data):
        report, schema = encode_with_inferred_schema(task)
        yield Encoded(report, schema, output)


@contextmanager
def landed(task: TaskFixture, data: bytes) -> Iterator[None]:
    """Land one file, and delete it and all output at the end."""
    task.items.clear()
    task.land(data, "input")
    try:
        yield
    finally:
        for path in task.root.rglob("*"):
            if path.is_file():
                path.unlink()


def _outcome(encoded: Encoded) -> Outcome:
    report = encoded.report
    [item] = report.items
    reasons = [bad["reason"] for bad in encoded.bad]
    for reason in reasons:
        is_readable = reason.isprintable() and 0 < len(reason) <= _LONGEST_REASON
        expect(is_readable, "an unreadable reason", reason)
    if item.bad_file is not None:
        is_reported = reasons == [item.bad_file] and not report.part_files
        expect(is_reported, "a bad file is not reported, or is published", reasons)
        return Outcome.REFUSED
    return Outcome.READ


def _compare(data: bytes, encoded: Encoded) -> None:
    [format_] = encoded.report.formats
    if format_ is SourceFormat.AVRO:
        _check_typed(oracles.avro_records(oracles.decompress(data) or b""), encoded)
    elif format_ is SourceFormat.PARQUET:
        _check_typed(oracles.parquet_rows(oracles.decompress(data) or b""), encoded)
    else:
        decompressed = oracles.decompress(data)
        expect(decompressed is not None, "was read, but cannot be decompressed")
        text = oracles.as_utf8(decompressed or b"")
        expect(text is not None, "was read, but cannot be decoded")
        _TEXTS[format_](text or b"", encoded)


def _check_jsonl(text: bytes, encoded: Encoded) -> None:
    if not encoded.is_text and oracles.has_nonfinite(text):
        return  # columns may contain such numbers
    _check_json(oracles.json_lines(text), encoded, has_lines=True)


def _check_documents(text: bytes, encoded: Encoded) -> None:
    if not encoded.is_text and oracles.has_nonfinite(text):
        return
    try:
        values = oracles.json_values(text.decode())
    except UnicodeError:
        values = None
    if values is not None:
        numbered = [(number, value.encode()) for number, value in enumerate(values, start=1)]
        _check_json(numbered, encoded, has_lines=False)
        return
    # The document is invalid. Good records must be unchanged.
    expect(bool(encoded.bad), "invalid JSON was not reported")
    flat = text.translate(bytes.maketrans(b"\r\n", b"  "))
    position = 0
    for line in encoded.lines:
        actual = flat.find(line.encode(), position)
        expect(actual >= 0, "a record that is not in the file", line)
        position = actual + len(line.encode())


def _check_json(numbered: list[tuple[int, bytes]], encoded: Encoded, *, has_lines: bool) -> None:
    bad_lines = {bad["line"] for bad in encoded.bad}
    good: list[Any] = []
    undecided = 0
    for number, value in numbered:
        try:
            good.append(oracles.parse_columns(value))
        except oracles.NotARecordError:
            is_quarantined = number in bad_lines or not has_lines
            expect(is_quarantined, "a line that is not a record is not quarantined", value)
        except oracles.Undecided:
            undecided += 1
    if undecided:
        return
    records = encoded.records
    expect(len(records) == len(good), "records", len(records), "expected", len(good))
    for actual, (_, pairs) in zip(records, good, strict=True):
        if encoded.is_text:
            expect(list(actual.items()) == pairs, "a record", actual, "was", pairs)
            continue
        written = dict(pairs)
        unknown = written.keys() - set(encoded.schema.names)
        expect(not unknown, "keys without a column", unknown)
        for column in encoded.schema.columns:
            value = actual.get(column.name)
            source = written.get(column.name)
            is_same = oracles.is_same_json(value, source, column)
            expect(is_same, column, value, "was", source)


def _check_csv(text: bytes, encoded: Encoded) -> None:
    lines = oracles.physical_lines(text)
    for bad in encoded.bad:
        if len(bad["raw"]) > _RAW_BYTES:
            return
        first = bad["line"] - 1
        line_count = len(oracles.physical_lines(bad["raw"].encode()))
        lines[first : first + line_count] = [b"\n"] * line_count
    rows = oracles.csv_rows(b"".join(lines))
    expect(rows is not None, "rows of invalid csv were read")
    if not rows:
        expect(not encoded.report.part_files, "records of an empty file")
        return
    header, *good = rows
    records = encoded.records
    expect(len(records) == len(good), "records", len(records), "expected", len(good))
    for actual, row in zip(records, good, strict=True):
        expect(len(row) == len(header), "a row that does not fit its header", row)
        for name, cell in zip(header, row, strict=True):
            column = encoded.schema.by_name()[name]
            is_same = oracles.is_same_cell(actual[name], cell, column, is_text=encoded.is_text)
            expect(is_same, column, actual[name], "was", cell)


def _check_typed(expected: list[Any] | None, encoded: Encoded) -> None:
    if expected is None:
        return
    bad_numbers = {bad["line"] for bad in encoded.bad}
    good = [row for number, row in enumerate(expected, start=1) if number not in bad_numbers]
    count = len(encoded.lines) if encoded.is_text else len(encoded.rows)
    expect(count == len(good), "records", count, "expected", len(good))
    for actual, row in zip(encoded.rows, good, strict=not encoded.is_text):
        for column in encoded.schema.columns:
            value, source = actual[column.name], row[column.name]
            is_same = oracles.is_same_typed(value, source, column)
            expect(is_same, column, value, "was", source)


_TEXTS = {
    SourceFormat.JSONL: _check_jsonl,
    SourceFormat.JSON: _check_documents,
    SourceFormat.CSV: _check_csv,
}


# Files with declared columns

_TYPES = {
    "b": "boolean",
    "i": "integer",
    "d": "decimal(12,2)",
    "n": "number",
    "s": "string",
    "x": "binary",
    "day": "date",
    "time": "time",
    "at": "timestamp",
    "local": "local_timestamp",
    RESCUED: "string",
}
_DECLARED = RecordSchema.from_json(list(_TYPES.items()))
_CELLS: dict[str, list[str]] = CORPUS["declared cells"]
_DAY = r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})"
_TIME = r"(?P<time>[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?)"
_ZONE = r"(?P<zone>Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_FORMS = {
    ColumnType.DATE: re.compile(_DAY),
    ColumnType.TIME: re.compile(_TIME),
    ColumnType.TIMESTAMP: re.compile(f"{_DAY}[T ]{_TIME}{_ZONE}"),
    ColumnType.LOCAL_TIMESTAMP: re.compile(f"{_DAY}[T ]{_TIME}"),
}
_PLAIN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e-?[0-9]+)?|true|false")
_FRACTION = re.compile(r"\.([0-9]+)")


def _cell(text: str, fault: Damage[bytes] | None) -> str:
    return fault(text.encode(), ()).decode("utf-8", "replace") if fault else text


_ALL_CELLS = st.sampled_from([cell for cells in _CELLS.values() for cell in cells])
_ROWS_OF_CELLS = 6
_LAYOUTS = st.tuples(
    st.lists(st.sampled_from([*_CELLS]), min_size=1, max_size=5, unique=True),
    st.sampled_from((1, 1, 2, 5)),
    st.sampled_from(("csv", "jsonl", "plain jsonl")),
)


@st.composite
def declared_tables(draw: st.DrawFn) -> Batch:
    """Draw texts for all columns, most of them valid there, and tables of them."""
    cells = {}
    for name, own in _CELLS.items():
        texts = st.builds(_cell, st.sampled_from(own) | _ALL_CELLS, rarely(3, FAULTS))
        cells[name] = draw(st.lists(texts, min_size=_ROWS_OF_CELLS, max_size=_ROWS_OF_CELLS))
    layouts = draw(st.lists(_LAYOUTS, min_size=24, max_size=24))
    return (
        _table(cells, *layout, first=first) for first in range(_ROWS_OF_CELLS) for layout in layouts
    )


def _table(
    cells: dict[str, list[str]], names: list[str], count: int, form: str, *, first: int
) -> bytes:
    rows = [
        {
            name: cells[name][(first + row * step) % _ROWS_OF_CELLS]
            for step, name in enumerate(names, start=1)
        }
        for row in range(count)
    ]
    if form == "csv":
        lines = [",".join(names), *(",".join(map(_quoted, row.values())) for row in rows)]
    else:
        lines = [_line(row, is_plain=form == "plain jsonl") for row in rows]
    return "".join(line + "\n" for line in lines).encode()


def _line(row: dict[str, str], *, is_plain: bool) -> str:
    """Return a record as JSON, with numbers and booleans as such or as text."""
    fields = []
    for name, text in row.items():
        value = text if is_plain and _PLAIN.fullmatch(text) else json.dumps(text)
        fields.append(f"{json.dumps(name)}:{value}")
    return f"{{{','.join(fields)}}}"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') or not text else text


def open_declared(folder: Path) -> Check:
    """Return the check of values of all types, in lines and in columns."""
    task = quarantining_task(folder, SourceFormat.AUTO, Format.JSONL)
    rules = SchemaRules(declared=_DECLARED, evolution=Evolution.RESCUE)
    source = task.stream.source

    def check(data: bytes) -> Outcome:
        output = (Format.JSONL, Format.ARROW)[zlib.crc32(data) % 2]
        is_csv = not data.startswith(b"{")
        format_ = SourceFormat.CSV if is_csv else SourceFormat.JSONL
        task.stream = replace(
            task.stream,
            source=replace(source, format=format_),
            encoding=ENCODINGS[output],
            schema=rules,
        )
        with landed(task, data):
            report, schema = encode_with_inferred_schema(task, _DECLARED)
            if report.items[0].bad_file is not None or report.bad_records:
                return Outcome.REFUSED
            if output is Format.JSONL:
                records = [dict(oracles.parse_strictly(line)[1]) for line in lines_of(report)]
            else:
                records = rows_of(report)
            _check_declared(data, records, schema, is_csv=is_csv)
            return Outcome.READ

    return check


def _check_declared(data: bytes, records: list[Any], schema: RecordSchema, *, is_csv: bool) -> None:
    rows: list[dict[str, Any]]
    if is_csv:
        header, *cells = oracles.csv_rows(data) or [[]]
        rows = [dict(zip(header, row, strict=True)) for row in cells]
    else:
        rows = [dict(oracles.parse_record(line)[1]) for _, line in oracles.json_lines(data)]
    expect(len(records) == len(rows), len(records), len(rows))
    for record, row in zip(records, rows, strict=True):
        rescued = dict(oracles.parse_strictly(record[RESCUED])[1]) if record.get(RESCUED) else {}
        for name, source_value in row.items():
            value = record.get(name)
            if value is None:
                rescued_value = rescued.get(name)
                is_empty = is_csv and rescued_value is None and source_value in {None, ""}
                is_rescued = rescued_value in (source_value, ("number", source_value))
                expect(is_empty or is_rescued, name, "is null and was", source_value, rescued)
            else:
                is_same = _is_same(value, source_value, schema.by_name()[name], is_csv=is_csv)
                expect(is_same, name, value, "was", source_value)


def _is_same(value: Any, source_value: Any, column: Column, *, is_csv: bool) -> bool:
    """Return whether a value is the value that the text denotes, or the valid text itself."""
    if is_csv and column.type in {ColumnType.INTEGER, ColumnType.DECIMAL, ColumnType.NUMBER}:
        source_value = ("number", source_value)
    if is_csv and column.type is ColumnType.BOOLEAN:
        source_value = {"true": True, "false": False}.get(source_value, source_value)
    if not isinstance(source_value, str) or column.type is ColumnType.STRING:
        return value == source_value or oracles.is_same_json(value, source_value, column)
    parsed = _parsed(source_value, column)
    return parsed is not None and value in (source_value, parsed)


def _parsed(text: str, column: Column) -> Any:
    """Return the value that a text denotes, None if it is invalid."""
    try:
        if column.type is ColumnType.BINARY:
            return base64.b64decode(text, validate=True)
        form = _FORMS.get(column.type)
        return _moment(text, column.type) if form and form.fullmatch(text) else None
    except (binascii.Error, ValueError, OverflowError):
        return None


def _moment(text: str, kind: ColumnType) -> date | time | None:
    fraction = _FRACTION.search(text)
    if fraction and fraction[1][6:].strip("0"):
        return None
    short = _FRACTION.sub(lambda match: match[0][:7], text)
    if kind is ColumnType.DATE:
        return date.fromisoformat(short)
    if kind is ColumnType.TIME:
        return time.fromisoformat(short)
    moment = datetime.fromisoformat(short)
    return moment.astimezone(UTC) if kind is ColumnType.TIMESTAMP else moment
