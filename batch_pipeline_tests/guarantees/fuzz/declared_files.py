"""Files with declared columns: each text becomes the value that it denotes, or is rescued.

The oracle parses texts with the standard library.
"""

import base64
import binascii
import json
import re
import zlib
from dataclasses import replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from batch_pipeline.encode.task import TaskReport
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.record_rules import RESCUED, Evolution, SchemaRules
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline.spark.encoder import merge_misfits
from batch_pipeline_tests.encode.task_fixture import (
    ENCODINGS,
    TaskFixture,
    lines_of,
    quarantining_task,
    rows_of,
)
from batch_pipeline_tests.guarantees.fuzz import oracles
from batch_pipeline_tests.guarantees.fuzz.damage import CORPUS, FAULTS, Batch, Damage, rarely
from batch_pipeline_tests.guarantees.fuzz.harness import Check, Outcome, expect
from batch_pipeline_tests.guarantees.fuzz.whole_files import landed

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
_MAX_ATTEMPTS = 4


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
def tables(draw: st.DrawFn) -> Batch:
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


def open_check(folder: Path) -> Check:
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
            report, schema = _encode_with_widening(task, is_csv=is_csv)
            if report.items[0].bad_file is not None or report.bad_records:
                return Outcome.REFUSED
            if output is Format.JSONL:
                records = [dict(oracles.parse_strictly(line)[1]) for line in lines_of(report)]
            else:
                records = rows_of(report)
            _check(data, records, schema, is_csv=is_csv)
            return Outcome.READ

    return check


def _encode_with_widening(task: TaskFixture, *, is_csv: bool) -> tuple[TaskReport, RecordSchema]:
    schema = _DECLARED
    for encode_attempt in range(_MAX_ATTEMPTS):
        types = {column.name: column.type_text for column in schema.columns}
        report = task.encode(execution=f"{encode_attempt:08x}", **types)
        if not report.misfits:
            return report, schema
        misfits = merge_misfits([report], schema, text_source=is_csv)
        schema = schema.widened([misfit.column for misfit in misfits], text_source=is_csv)
    raise AssertionError(f"the schema does not fit yet: {schema.to_json()}")


def _check(data: bytes, records: list[Any], schema: RecordSchema, *, is_csv: bool) -> None:
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
