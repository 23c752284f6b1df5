"""Map records with the Singer SDK and with the product, for comparisons."""

import copy
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from singer_sdk.helpers._catalog import pop_deselected_record_properties
from singer_sdk.mapper import PluginMapper
from singer_sdk.singerlib.catalog import SelectionMask
from singer_sdk.singerlib.json import deserialize_json, serialize_json

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.mapping.mapper import Mapper
from batch_pipeline.model.record_rules import RecordMapping
from batch_pipeline_tests import factories
from batch_pipeline_tests.encode.writers.part_factories import json_records, table

FAILED = "failed"  # the outcome of a record on which an expression fails
FILTERED = "filtered"
Outcome = list[Any]


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """The outcome of each record: its properties in order, `FAILED` or `FILTERED`."""

    alias: str
    keys: tuple[str, ...]
    outcomes: Outcome


def schema_of(values: Iterable[Any]) -> dict[str, Any]:
    """Return the JSON Schema that a tap would send for these values."""
    values = list(values)
    objects = [value for value in values if isinstance(value, dict)]
    if objects:
        names = dict.fromkeys(name for one in objects for name in one)
        properties = {
            name: schema_of(one[name] for one in objects if name in one) for name in names
        }
        return {"type": ["object", "null"], "properties": properties}
    if any(isinstance(value, list) for value in values):
        return {"type": ["array", "null"]}
    return {"type": ["string", "null"]}


def mapped_by_sdk(
    lines: Sequence[bytes],
    config: Mapping[str, Any],
    *,
    keys: Sequence[str] = (),
    deselected: Sequence[str] = (),
) -> Mapped:
    """Map records with the SDK; `deselected` are dotted breadcrumbs without `properties`."""
    records = [deserialize_json(line) for line in lines]
    mask = SelectionMask({_breadcrumb(path): False for path in deselected})
    for record in records:
        pop_deselected_record_properties(record, {}, mask)
    mapper = PluginMapper(copy.deepcopy(dict(config)), logging.getLogger("singer"))
    mapper.register_raw_stream_schema("orders", schema_of(records), list(keys))
    stream_map = mapper.stream_maps["orders"][0]
    outcomes: Outcome = []
    for record in records:
        try:
            mapped = stream_map.transform(record)
            outcomes.append(FILTERED if mapped is None else _read(serialize_json(mapped)))
        except Exception:  # noqa: BLE001 - an expression may raise anything
            outcomes.append(FAILED)
    transformed_keys = tuple(stream_map.transformed_key_properties or ())
    return Mapped(alias=stream_map.stream_alias, keys=transformed_keys, outcomes=outcomes)


def _breadcrumb(path: str) -> tuple[str, ...]:
    return tuple(part for name in path.split(".") for part in ("properties", name))


def _read(text: str | bytes) -> Any:
    """Parse JSON, keeping the key order and the difference between 1 and true."""
    return _strict(json.loads(text, parse_float=Decimal))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {"object": [(name, _strict(one)) for name, one in value.items()]}
    if isinstance(value, list):
        return [_strict(one) for one in value]
    return str(value) if isinstance(value, bool) else value


def mapper_of(config: Mapping[str, Any], *, keys: Sequence[str] = ()) -> Mapper | None:
    """Return the mapper of a stream `orders` with the options of the SDK."""
    mapping = RecordMapping(**config)
    return Mapper.of(factories.stream(mapping=mapping, key_properties=tuple(keys)))


def mapped_by_mapper(
    records: Sequence[bytes] | Table, config: Mapping[str, Any], *, keys: Sequence[str] = ()
) -> Mapped:
    """Map a table, or lines of JSON."""
    chunk = records if isinstance(records, Table) else json_records(*records)
    mapper = mapper_of(config, keys=keys)
    mapped = chunk if mapper is None else mapper.mapped(chunk)
    assert chunk.good == mapped.good + len(mapped.bad) + mapped.filtered
    assert len(mapped.record_numbers) == len(mapped.line_numbers) == mapped.good
    rows = _rows(mapped) if isinstance(mapped, Table) else map(_read, mapped.lines)
    outcomes: Outcome = [FILTERED] * chunk.good
    for number, row in zip(mapped.record_numbers, rows, strict=True):
        outcomes[number - 1] = row
    for bad in mapped.bad:
        outcomes[bad.line - 1] = FAILED
    if mapper is None:
        return Mapped(alias="orders", keys=tuple(keys), outcomes=outcomes)
    return Mapped(alias=mapper.alias, keys=mapper.key_properties, outcomes=outcomes)


def table_of(lines: Sequence[bytes]) -> Table:
    """Return a table of JSON texts, with nulls for absent values."""
    records = [json.loads(line) for line in lines]
    columns = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [record.get(name) for record in records]
        cells = [None if value is None else json.dumps(value) for value in values]
        columns[name] = pa.array(cells, pa.string())
    return table(pa.record_batch(columns), json=frozenset(columns))


def _rows(table: Table) -> list[Any]:
    columns = []
    for name, array in zip(table.batch.schema.names, table.batch.columns, strict=True):
        cells = array.to_pylist()
        if name in table.json:
            cells = [None if cell is None else _read(cell) for cell in cells]
        else:
            cells = [_strict(Decimal(repr(c)) if isinstance(c, float) else c) for c in cells]
        columns.append([(name, cell) for cell in cells])
    return [{"object": [column[row] for column in columns]} for row in range(table.good)]
