"""Files through the whole chain that a task runs, and what comes out against an oracle.

The chain is read, check, write; the part files are read back by other libraries.
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
_RAW_BYTES = 60_000  # of a record in quarantine; more of it may be cut


class Encoded:
    """What became of one file: its report, its records, the lines in its quarantine file."""

    def __init__(self, report: TaskReport, schema: RecordSchema, output: Format) -> None:
        self.report = report
        self.schema = schema
        self.is_text = output is Format.JSONL
        self.lines = lines_of(report) if self.is_text else []
        self.rows = [] if self.is_text else rows_of(report)
        self.bad = list(_quarantined(report))

    @property
    def records(self) -> list[Any]:
        """The records as `oracles.shown` reads lines, or as rows of columns."""
        if not self.is_text:
            return self.rows
        return [dict(oracles.shown(line)[1]) for line in self.lines]


def open_check(folder: Path, *, declared: tuple[SourceFormat, ...]) -> Check:
    """Return the check of files that are said to be of one of some formats, by turns."""
    task = quarantining_task(folder, SourceFormat.AUTO, Format.JSONL)
    sources = [replace(task.stream.source, format=one) for one in declared]

    def check(data: bytes) -> Outcome:
        with _encoded(task, data, sources) as encoded:
            outcome = _outcome(encoded)
            if outcome is Outcome.READ:
                _compare(data, encoded)
            return outcome

    return check


def open_dialects(folder: Path) -> Check:
    """Return the check of text in other dialects and charsets, for which there is no oracle."""
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
    """Encode a file as one of some sources, into lines or columns, by turns."""
    turn = zlib.crc32(data)  # by the input itself: a kept one does the same again
    output = (Format.JSONL, Format.JSONL, Format.ARROW, Format.PARQUET)[turn % 4]
    source = sources[turn // 4 % len(sources)]
    task.stream = replace(task.stream, source=source, encoding=ENCODINGS[output])
    with landed(task, data):
        report, schema = encode_with_inferred_schema(task)
        yield Encoded(report, schema, output)


@contextmanager
def landed(task: TaskFixture, data: bytes) -> Iterator[None]:
    """Land one file, and delete it in the end with all that was made from it."""
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
        expect(is_readable, "a reason that nobody can read", reason)
    if item.bad_file is not None:
        is_reported = reasons == [item.bad_file] and not report.part_files
        expect(is_reported, "a bad file is not reported, or is published", reasons)
        return Outcome.REFUSED
    return Outcome.READ


def _compare(data: bytes, encoded: Encoded) -> None:
    [format_] = encoded.report.formats
    if format_ is SourceFormat.AVRO:
        _check_typed(oracles.avro_records(oracles.unpacked(data) or b""), encoded)
    elif format_ is SourceFormat.PARQUET:
        _check_typed(oracles.parquet_rows(oracles.unpacked(data) or b""), encoded)
    else:
        plain = oracles.unpacked(data)
        expect(plain is not None, "was read, and cannot be decompressed")
        text = oracles.in_utf8(plain or b"")
        expect(text is not None, "was read, and cannot be decoded")
        _TEXTS[format_](text or b"", encoded)


def _check_jsonl(text: bytes, encoded: Encoded) -> None:
    if not encoded.is_text and oracles.has_nonfinite(text):
        return  # columns may keep such numbers
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
    # Records stand apart, and something else is wrong: those that are good are there as written.
    expect(bool(encoded.bad), "nothing is wrong with what is not JSON")
    flat = text.translate(bytes.maketrans(b"\r\n", b"  "))
    at = 0
    for line in encoded.lines:
        found = flat.find(line.encode(), at)
        expect(found >= 0, "a record that does not stand in the file", line)
        at = found + len(line.encode())


def _check_json(numbered: list[tuple[int, bytes]], encoded: Encoded, *, has_lines: bool) -> None:
    bad_lines = {bad["line"] for bad in encoded.bad}
    good: list[Any] = []
    unclear = 0
    for number, value in numbered:
        try:
            good.append(oracles.record_of_columns(value))
        except oracles.NoRecordError:
            is_set_aside = number in bad_lines or not has_lines
            expect(is_set_aside, "a record that is none is not set aside", value)
        except oracles.Unclear:
            unclear += 1
    if unclear:
        return
    records = encoded.records
    expect(len(records) == len(good), "records", len(records), "expected", len(good))
    for found, (_, pairs) in zip(records, good, strict=True):
        if encoded.is_text:
            expect(list(found.items()) == pairs, "a record", found, "was", pairs)
            continue
        written = dict(pairs)
        unknown = written.keys() - set(encoded.schema.names)
        expect(not unknown, "keys without a column", unknown)
        for column in encoded.schema.columns:
            value = found.get(column.name)
            was = written.get(column.name)
            expect(oracles.is_same_json(value, was, column), column, value, "was", was)


def _check_csv(text: bytes, encoded: Encoded) -> None:
    lines = oracles.physical_lines(text)
    for bad in encoded.bad:
        if len(bad["raw"]) > _RAW_BYTES:
            return
        first = bad["line"] - 1
        taken = len(oracles.physical_lines(bad["raw"].encode()))
        lines[first : first + taken] = [b"\n"] * taken
    rows = oracles.csv_rows(b"".join(lines))
    expect(rows is not None, "rows that are read, and are no csv")
    if not rows:
        expect(not encoded.report.part_files, "records out of nothing")
        return
    header, *good = rows
    records = encoded.records
    expect(len(records) == len(good), "records", len(records), "expected", len(good))
    for found, row in zip(records, good, strict=True):
        expect(len(row) == len(header), "a row that does not fit its header", row)
        for name, cell in zip(header, row, strict=True):
            column = encoded.schema.by_name()[name]
            is_same = oracles.is_same_cell(found[name], cell, column, is_text=encoded.is_text)
            expect(is_same, column, found[name], "was", cell)


def _check_typed(expected: list[Any] | None, encoded: Encoded) -> None:
    if expected is None:
        return
    bad_numbers = {bad["line"] for bad in encoded.bad}
    good = [row for number, row in enumerate(expected, start=1) if number not in bad_numbers]
    count = len(encoded.lines) if encoded.is_text else len(encoded.rows)
    expect(count == len(good), "records", count, "expected", len(good))
    for found, row in zip(encoded.rows, good, strict=not encoded.is_text):
        for column in encoded.schema.columns:
            value, was = found[column.name], row[column.name]
            expect(oracles.is_same_typed(value, was, column), column, value, "was", was)


def _quarantined(report: TaskReport) -> Iterator[dict[str, Any]]:
    for part in report.quarantine_files:
        for line in gzip.decompress(Path(to_path(part.uri)).read_bytes()).splitlines():
            yield json.loads(line)


_TEXTS = {
    SourceFormat.JSONL: _check_jsonl,
    SourceFormat.JSON: _check_documents,
    SourceFormat.CSV: _check_csv,
}
