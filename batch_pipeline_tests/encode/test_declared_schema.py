"""Declared schemas after mapping: the schema in the manifest matches the records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.stream import SourceFormat, Stream
from batch_pipeline_tests.encode.task_fixture import fields_of, lines_of, quarantining_task

PROPERTIES: dict[str, Any] = {
    "id": {"type": "integer"},
    "email": {"type": ["null", "string"]},
    "paid": {"type": "string", "format": "date"},
    "tags": {"type": "array"},
    "address": {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "secret": {"type": "string"},
                    "extra": {"type": "object"},
                    "geo": {"type": "object", "properties": {"lat": {"type": "number"}}},
                    "else": {"$ref": "#/definitions/else"},
                },
            },
            {"type": "null"},
        ]
    },
}
HEAD = """\
type: batch_pipeline.BatchStream
attributes:
  stream: orders
  source: {uri: ./landing}
  schema: {file: orders.schema.json}
"""


def stream_of(folder: Path, *lines: str) -> Stream:
    """Read a stream file with a declared schema and a mapping."""
    schema = {"type": "object", "properties": PROPERTIES}
    (folder / "orders").mkdir()
    (folder / "orders" / "orders.schema.json").write_text(json.dumps(schema))
    path = folder / "orders" / "defs.yaml"
    path.write_text(HEAD + "".join(f"  {line}\n" for line in lines))
    return read_stream_file(path)


def columns_of(stream: Stream) -> dict[str, str]:
    """Return the types of the declared columns by name."""
    declared = stream.schema.declared
    assert declared is not None
    return {column.name: column.type_text for column in declared.columns}


UNMAPPED = {"id": "integer", "email": "string", "paid": "date", "tags": "array"}
FLAT = {"tags": "string", "address__city": "string", "address__secret": "string"}


@pytest.mark.parametrize(
    ("lines", "removed", "added"),
    [
        ([], set(), {"address": "object"}),
        (['select: ["*", "!email", "!address.city"]'], {"email"}, {"address": "object"}),
        (["stream_maps: {orders: {address: null, email: null}}"], {"email"}, {}),
        (
            ["stream_maps: {orders: {address: null, day: paid, paid: null}}"],
            {"paid"},
            {"day": "date"},
        ),
        (["stream_maps: {orders: {email: md5(email), n: id + 1}}"], set(), {"address": "object"}),
        (["stream_maps: {orders: {id: id, email: self, __else__: null}}"], {"paid", "tags"}, {}),
        (["flattening_enabled: true"], set(), FLAT | {"address__geo__lat": "number"}),
        (
            ["flattening_enabled: true", "flattening_max_depth: 1"],
            set(),
            FLAT | {"address__geo": "string", "address__extra": "string"},
        ),
        (
            ["flattening_enabled: true", 'select: ["*", "!address.secret", "!address.geo.*"]'],
            set(),
            {"tags": "string", "address__city": "string"},
        ),
        (
            ["flattening_enabled: true", "stream_maps: {orders: {address: null, home: address}}"],
            set(),
            {name.replace("address", "home"): kind for name, kind in FLAT.items()}
            | {"home__geo__lat": "number"},
        ),
    ],
)
def test_mapping_changes_declared_columns(
    tmp_path: Path, lines: list[str], removed: set[str], added: dict[str, str]
) -> None:
    kept = {name: kind for name, kind in UNMAPPED.items() if name not in removed}
    assert columns_of(stream_of(tmp_path, *lines)) == kept | added


RECORDS = [
    {
        "id": 1,
        "email": "a@b",
        "paid": "2026-01-31",
        "tags": [1, {"x": 2}],
        "address": {"city": "Cork", "secret": "y", "geo": {"lat": 1.5}},
    },
    {"id": 2, "address": None},
    {"id": 3, "address": {"city": "Bern", "geo": None, "extra": None}},
]


@pytest.mark.parametrize("output", [Format.JSONL, Format.PARQUET])
def test_mapped_records_fit_declared_schema(tmp_path: Path, output: Format) -> None:
    lines = ['select: ["*", "!email", "!address.secret"]', "flattening_enabled: true"]
    stream = stream_of(tmp_path, *lines)
    task = quarantining_task(tmp_path, SourceFormat.JSONL, output)
    task.stream = replace(task.stream, mapping=stream.mapping, schema=stream.schema)
    task.land(b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS))
    declared = stream.schema.declared
    assert declared is not None

    report = task.encode(**{column.name: column.type_text for column in declared.columns})

    assert (report.misfits, report.bad_records) == ((), ())
    if output is Format.JSONL:
        names = [set(fields_of(line)) for line in lines_of(report)]
        assert names == [set(declared.names), {"id"}, {"id", "address__city"}]
