"""Files whose columns are declared: each text becomes the value that it says, or is rescued.

The oracle reads texts by the calendar and the decimals of the standard library.
"""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from random import Random
from typing import Any

from batch_pipeline.domain.encoding import Format
from batch_pipeline.domain.record_rules import RESCUED, Evolution
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema
from batch_pipeline.domain.stream import SourceFormat
from batch_pipeline.spark.results import misfits_of
from batch_pipeline.spark.task_values import TaskReport
from batch_pipeline_tests.guarantees.fuzz import oracles
from batch_pipeline_tests.guarantees.fuzz.harness.mutations import spoiled
from batch_pipeline_tests.guarantees.fuzz.harness.targets import Check, Outcome, expect
from batch_pipeline_tests.guarantees.fuzz.same import is_same_json
from batch_pipeline_tests.unit.test_task import Desk
from batch_pipeline_tests.unit.whole_tasks import ENCODINGS, desk_for, lines_of, rows_of

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
CELLS: tuple[tuple[str, ...], ...] = (
    ("true", "false", "TRUE", "0", "1", "yes"),
    ("0", "-1", "9223372036854775807", "9223372036854775808", "007", "1.0", "1e2", "-0", "+5"),
    ("1.25", "-9999999999.99", "9999999999.995", "0.001", "1e-2", "12345678901", "1.10", ".5"),
    ("0.1", "1e308", "1e400", "5e-324", "1e-400", "-0.0", "9007199254740993", "NaN", "Infinity"),
    ("", " ", "a", "null", "ä\u2028", "007", "2026-01-31", '"', "a,b", "\\N", "two\nlines"),
    ("AP8=", "AP8", "", "====", "AP9=", "AP 8=", "AP8=\n", "_-8="),
    ("2026-01-31", "2026-02-30", "0001-01-01", "9999-12-31", "10000-01-01", "2026-1-31"),
    ("20260131", "2026-W05-6", "2026-031", " 2026-01-31", "2026-01-31Z", "0000-01-01"),
    ("12:30", "12:30:00.000001", "24:00:00", "23:59:60", "12:30:00.0000001", "12", "12:30Z"),
    ("2026-01-31T12:00:00Z", "2026-01-31 12:00:00+01:00", "2026-01-31T12:00Z", "2026-01-31T12Z"),
    ("2026-01-31T12:00:00.1234567Z", "2026-01-31T12:00:00.123456000Z", "2026-01-31T24:00:00Z"),
    ("2026-01-31T12:00:00+0130", "2026-01-31T12:00:00+24:00", "2026-01-31T12:00:00-00:00"),
    ("0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2026-01-31t12:00:00z"),
    ("2026-01-31T12:00:00", "2026-01-31 12:00", "2026-01-31T12:00:00.5", "2026-06-31T00:00"),
    ("2026-01-31T12:00:00,5Z", "2026-01-31T12:60:00Z", "+2026-01-31T12:00:00Z", "1e3", "{}"),
)
_DAY = r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})"
_TIME = r"(?P<time>[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?)"
_ZONE = r"(?P<zone>Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_FORMS = {
    ColumnType.DATE: re.compile(_DAY),
    ColumnType.TIME: re.compile(_TIME),
    ColumnType.TIMESTAMP: re.compile(f"{_DAY}[T ]{_TIME}{_ZONE}"),
    ColumnType.LOCAL_TIMESTAMP: re.compile(f"{_DAY}[T ]{_TIME}"),
}
_FRACTION = re.compile(r"\.([0-9]+)")
_LOOKS = 4


def corpus(_number: int) -> list[str]:
    """All texts of all kinds."""
    return [cell for cells in CELLS for cell in cells]


def made(random: Random, texts: Sequence[str]) -> bytes:
    """Put texts into columns, most of them where they belong."""
    names = random.sample([*_TYPES][:-1], random.randrange(1, 6))
    rows = []
    for _ in range(random.choice((1, 1, 2, 5))):
        texts_of_row = {name: _cell(random, name, texts) for name in names}
        rows.append(texts_of_row)
    if random.random() < 0.5:
        return "".join(_line(random, row) + "\n" for row in rows).encode()
    lines = [",".join(names), *(",".join(map(_quoted, row.values())) for row in rows)]
    return "".join(line + "\n" for line in lines).encode()


def _cell(random: Random, name: str, texts: Sequence[str]) -> str:
    own = random.choice(CELLS[[*_TYPES].index(name)]) if random.random() < 0.4 else ""
    text = own or random.choice(texts)
    if random.random() < 0.3:
        text = spoiled(random, text.encode()).decode("utf-8", "replace")
    return text


def _line(random: Random, row: dict[str, str]) -> str:
    fields = []
    for name, text in row.items():
        is_plain = re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e-?[0-9]+)?|true|false", text)
        value = text if is_plain and random.random() < 0.7 else json.dumps(text)
        fields.append(f"{json.dumps(name)}:{value}")
    return f"{{{','.join(fields)}}}"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') or not text else text


def open_check(folder: Path) -> Check:
    """Values of all types, in lines and in columns."""
    desk = desk_for(folder, SourceFormat.AUTO, Format.JSONL)
    rescues = replace(desk.stream.schema, evolution=Evolution.RESCUE)
    source = desk.stream.source

    def check(data: bytes) -> Outcome:
        output = (Format.JSONL, Format.ARROW)[zlib.crc32(data) % 2]
        is_csv = not data.startswith(b"{")
        format_ = SourceFormat.CSV if is_csv else SourceFormat.JSONL
        desk.stream = replace(
            desk.stream,
            source=replace(source, format=format_),
            encoding=ENCODINGS[output],
            schema=rescues,
        )
        desk.items.clear()
        desk.land(data, "input")
        try:
            report, schema = _settled(desk, is_csv=is_csv)
            if report.items[0].bad_file is not None or report.bad_records:
                return Outcome.REFUSED
            is_text = output is Format.JSONL
            found = [dict(oracles.shown(line)[1]) for line in lines_of(report)] if is_text else []
            _check(data, found or rows_of_columns(report, is_text=is_text), schema, is_csv=is_csv)
            return Outcome.READ
        finally:
            for path in desk.root.rglob("*"):
                if path.is_file():
                    path.unlink()

    return check


def rows_of_columns(report: TaskReport, *, is_text: bool) -> list[dict[str, Any]]:
    """Give the rows of part files of columns."""
    return [] if is_text else rows_of(report)


def _settled(desk: Desk, *, is_csv: bool) -> tuple[TaskReport, RecordSchema]:
    schema = RecordSchema.from_json(list(_TYPES.items()))
    for look in range(_LOOKS):
        types = {column.name: column.type_text for column in schema.columns}
        report = desk.encode(execution=f"{look:08x}", **types)
        if not report.misfits:
            return report, schema
        found = misfits_of([report], schema, text_source=is_csv)
        schema = schema.widened([one.column for one in found], text_source=is_csv)
    raise AssertionError(f"the schema did not settle: {schema.to_json()}")


def _check(data: bytes, found: list[Any], schema: RecordSchema, *, is_csv: bool) -> None:
    rows: list[dict[str, Any]]
    if is_csv:
        header, *cells = oracles.csv_rows(data) or [[]]
        rows = [dict(zip(header, row, strict=True)) for row in cells]
    else:
        rows = [dict(oracles.record(line)[1]) for _, line in oracles.json_lines(data)]
    expect(len(found) == len(rows), len(found), len(rows))
    for record, row in zip(found, rows, strict=True):
        rescued = dict(oracles.shown(record[RESCUED])[1]) if record.get(RESCUED) else {}
        for name, was in row.items():
            value = record.get(name)
            if value is None:
                kept = rescued.get(name)
                is_kept = was in {None, ""} if is_csv and kept is None else _is_kept(kept, was)
                expect(is_kept, name, "is null and was", was, "rescued", rescued)
            else:
                is_same = _is_same(value, was, schema.by_name()[name], is_csv=is_csv)
                expect(is_same, name, value, "was", was)


def _is_kept(kept: Any, was: Any) -> bool:
    return kept in (was, ("number", was))


def _is_same(value: Any, was: Any, column: Column, *, is_csv: bool) -> bool:
    """Tell whether a value is what a text says, or the text if that says something."""
    if is_csv and column.type in {ColumnType.INTEGER, ColumnType.DECIMAL, ColumnType.NUMBER}:
        was = ("number", was)
    if is_csv and column.type is ColumnType.BOOLEAN:
        was = {"true": True, "false": False}.get(was, was)
    if not isinstance(was, str) or column.type is ColumnType.STRING:
        return value == was or is_same_json(value, was, column)
    said = _said(was, column)
    return said is not None and value in (was, said)


def _said(text: str, column: Column) -> Any:
    """Give the value that a text says, None for none."""
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
