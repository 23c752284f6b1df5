"""Whole files are encoded by a task, and the part files are compared with an oracle.

The part files are read with other libraries.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from batch_pipeline.encode.task import TaskReport
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.location import to_path
from batch_pipeline.model.schema import RecordSchema
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
from batch_pipeline_tests.guarantees.fuzz.harness import Check, Outcome, expect

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
        self.bad = list(_quarantined(report))

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


def _quarantined(report: TaskReport) -> Iterator[dict[str, Any]]:
    for part in report.quarantine_files:
        for line in gzip.decompress(Path(to_path(part.uri)).read_bytes()).splitlines():
            yield json.loads(line)


_TEXTS = {
    SourceFormat.JSONL: _check_jsonl,
    SourceFormat.JSON: _check_documents,
    SourceFormat.CSV: _check_csv,
}
