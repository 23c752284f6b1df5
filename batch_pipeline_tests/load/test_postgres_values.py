"""Values of published records in a Postgres table, in exact and in wider column types."""

import base64
import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from psycopg.types.json import set_json_loads

from batch_pipeline.load.types import arrow_type_of
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import BatchDataError, PartFileChangedError
from batch_pipeline.model.schema import Column
from batch_pipeline_tests import factories
from batch_pipeline_tests.load.warehouse import (
    APPEND,
    ID,
    LINES,
    UPSERT,
    Warehouse,
    compress,
    schema_of,
    write_part,
    written_table,
)

PARQUET = Encoding(format=Format.PARQUET, compression=Compression.ZSTD)
FORTY_DIGITS = "12345678901234567890123456789012345678.90"
EVENING = datetime.fromisoformat("1969-12-31T23:59:59.999999")
NOON = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)

# JSON texts of values by column type, and the expected values in the table.
VALUES: dict[str, dict[str, object]] = {
    "boolean": {"true": True, "false": False},
    "integer": {
        "-9223372036854775808": -(2**63),
        "9223372036854775807": 2**63 - 1,
        "-0": 0,
    },
    "decimal(38,0)": {"99999999999999999999999999999999999999": Decimal(10**38 - 1)},
    "decimal(38,38)": {"-0." + "0" * 37 + "1": Decimal("-1e-38")},
    "decimal(12,2)": {"-1234567890.05": Decimal("-1234567890.05")},
    "decimal(5,3)": {"0.000": Decimal("0.000")},
    "decimal(20,4)": {"10000.0001": Decimal("10000.0001")},
    "number": {
        "0.1": 0.1,
        "-1.7976931348623157e308": -1.7976931348623157e308,
        "5e-324": 5e-324,
        "7": 7.0,
    },
    "string": {
        '"größe \\ud83d\\ude00 \\\\ \\n\\t,;\\""': 'größe 😀 \\ \n\t,;"',
        '""': "",
        '"null"': "null",
        '"\\\\N"': "\\N",
    },
    "binary": {'"AP8="': b"\x00\xff"},
    "date": {'"0001-01-01"': date(1, 1, 1), '"9999-12-31"': date(9999, 12, 31)},
    "time": {'"23:59:59.999999"': time(23, 59, 59, 999999), '"12:30:00"': time(12, 30)},
    "timestamp": {
        '"2026-03-01T13:00:00.000001+01:00"': NOON,
        '"2026-03-01T12:00:00.000001000Z"': NOON,
        '"0001-01-01T00:00:00Z"': datetime(1, 1, 1, tzinfo=UTC),
    },
    "local_timestamp": {'"1969-12-31 23:59:59.999999"': EVENING},
    "object": {'{"a": {"b": [1, null]}}': {"a": {"b": [1, None]}}},
    "array": {f"[{FORTY_DIGITS}]": [Decimal(FORTY_DIGITS)]},
    "any": {"18446744073709551616": 2**64, '"text"': "text", "false": False},
}


def load_lines(warehouse: Warehouse, kind: str, *lines: str, first_id: int = 1) -> None:
    """Load records, given as JSON text, whose column `v` has the given type."""
    octets = compress("".join(f"{line}\n" for line in lines).encode(), LINES)
    part = write_part(warehouse.folder / "part.jsonl.gz", octets, len(lines))
    schema = schema_of(ID, ("v", kind))
    warehouse.publish_and_load(schema=schema, part_files=(part,), first_id=first_id)


def load_values(warehouse: Warehouse, kind: str, first_id: int = 1) -> None:
    """Load all values of a type as a batch; the ids of the records begin with `first_id`."""
    lines = (f'{{"id":{at},"v":{text}}}' for at, text in enumerate(VALUES[kind], start=first_id))
    load_lines(warehouse, kind, *lines, '{"id":98,"v":null}', '{"id":99}', first_id=first_id)


def loaded_values(warehouse: Warehouse) -> list[Any]:
    """Return the values of the column `v` in record order, numbers in JSON as decimals."""
    with warehouse.connected() as connection:
        set_json_loads(partial(json.loads, parse_float=Decimal), connection)
        rows = connection.execute("SELECT v FROM orders ORDER BY id").fetchall()
    return [value for (value,) in rows]


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_loaded_exactly_and_preserved_in_a_wider_column(
    warehouse: Warehouse, kind: str
) -> None:
    values = list(VALUES[kind].values())
    for wider in ["any"] if kind in {"object", "array", "any"} else ["string", "any"]:
        warehouse.drop_tables()
        load_values(warehouse, kind)
        assert loaded_values(warehouse) == [*values, None, None]
        load_lines(warehouse, wider, '{"id":50,"v":"x"}', first_id=11)
        load_values(warehouse, kind, first_id=21)
        found = [parse_value(value, kind) for value in loaded_values(warehouse) if value != "x"]
        assert found == [*values, *values, None, None, None, None]


def parse_value(value: Any, kind: str) -> Any:
    """Convert a value's text or JSON back to its original type."""
    parsers: dict[str, Callable[[Any], Any]] = {
        "binary": base64.b64decode,
        "boolean": json.loads,
        "number": float,
        "time": time.fromisoformat,
    }
    if not isinstance(value, str) or kind in {"string", "any"}:
        return float(value) if kind == "number" and value is not None else value
    if kind in parsers:
        return parsers[kind](value)
    return pa.scalar(value).cast(arrow_type_of(Column.from_text("v", kind))).as_py()


def test_column_of_nulls_only_is_not_created(warehouse: Warehouse) -> None:
    nulls = schema_of(("id", "unknown"), ("v", "unknown"))
    warehouse.publish_and_load([{"id": None, "v": None}], schema=nulls, first_id=21)
    warehouse.publish_and_load([{}, {}], schema=schema_of(), first_id=11)
    labels = [("00000011-00000020",)] * 2 + [("00000021-00000030",)]
    assert warehouse.rows("_batch_id") == labels
    warehouse.drop_tables()
    load_lines(warehouse, "unknown", '{"id":1,"v":null}')
    assert "v" not in warehouse.types()
    wide = schema_of(ID, ("v", "integer"))
    warehouse.publish_and_load([{"id": 2, "v": 5}], schema=wide, first_id=11)
    assert loaded_values(warehouse) == [None, 5]


def test_nan_and_infinities_are_loaded(warehouse: Warehouse) -> None:
    values = pa.table({"id": [1, 2, 3], "v": [math.nan, math.inf, -math.inf]})
    schema = schema_of(ID, ("v", "number"))
    for number, kind in enumerate(["double precision", "numeric"]):
        warehouse.execute(f"CREATE TABLE t{number} (id bigint, v {kind})")
        part = written_table(warehouse.folder / f"{number}.parquet", values, PARQUET)
        loading = warehouse.loading(schema=schema, part_files=(part,), encoding=PARQUET)
        warehouse.load(loading, replace(APPEND, table=f"t{number}"))
        rows = [float(value) for _, value in warehouse.rows("id", "v", table=f"t{number}")]
        assert math.isnan(rows[0])
        assert rows[1:] == [math.inf, -math.inf]


INCOMPATIBLE = [
    ("string", '"a\\u0000b"', "0x00"),
    ("object", '{"a":"\\u0000"}', "Unicode"),
    ("integer", "9223372036854775808", "9223372036854775808 is not of type integer"),
    ("integer", '"1"', "is not of type integer"),
    ("decimal(5,2)", "1.005", "1.005 is not of type decimal"),
    ("number", "1e400", "1e400 is not of type number"),
    ("string", "5", "5 is not of type string"),
    ("date", '"2026-02-30"', "is not of type date"),
    ("timestamp", '"2026-03-01T12:00:00"', "is not of type timestamp"),
    ("timestamp", '"2026-03-01T12:00:00.0000001Z"', "is not of type timestamp"),
    ("binary", '"AP8"', "is not of type binary"),
    ("boolean", "1", "1 is not of type boolean"),
]


def test_incompatible_value_is_rejected_with_its_record(warehouse: Warehouse) -> None:
    for kind, text, problem in INCOMPATIBLE:
        warehouse.drop_tables()
        lines = '{"id":1}', '{"id":2}', f'{{"id":3,"v":{text}}}', '{"id":4}'
        with pytest.raises(BatchDataError, match="record 3 of ") as raised:
            load_lines(warehouse, kind, *lines)
        assert problem in str(raised.value)
        assert "/part.jsonl.gz, column 'v': " in str(raised.value)
        assert warehouse.rows("id") == []


def test_invalid_record_is_rejected(warehouse: Warehouse) -> None:
    for line in ("[1]", '{"id":2,"v":"\\ud800"}', '{"id":2', "2"):
        with pytest.raises(BatchDataError, match=r"record 2 .* is not a JSON object"):
            load_lines(warehouse, "string", '{"id":1}', line)
    with pytest.raises(BatchDataError, match=r"record 1 .*column 'w': is not a column"):
        load_lines(warehouse, "integer", '{"id":1,"w":1}')
    records: list[dict[str, Any]] = [{"id": 1}, {"id": None}]
    with pytest.raises(BatchDataError, match=r"record 2 .*a key must not be null"):
        warehouse.publish_and_load(records, schema=schema_of(ID), target=UPSERT)


TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no %', NEW.v; END$$;
CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.v = 4)
EXECUTE FUNCTION refuse()
"""


def test_record_that_violates_a_constraint_is_rejected(warehouse: Warehouse) -> None:
    """It fails its batch; an error of the configuration would stop all others."""
    warehouse.execute("CREATE TABLE orders (id bigint, v bigint NOT NULL CHECK (v < 5))")
    warehouse.execute(TRIGGER)
    schema = schema_of(ID, ("v", "integer"))
    for value, problem in ((None, ", column 'v': null value in column"), (4, ": no 4")):
        records: list[dict[str, Any]] = [{"id": 1, "v": 1}, {"id": 2, "v": value}]
        with pytest.raises(BatchDataError, match=f"record 2 of .*{problem}"):
            warehouse.publish_and_load(records, schema=schema)
    with pytest.raises(BatchDataError, match='violates check constraint "orders_v_check"'):
        warehouse.publish_and_load([{"id": 1, "v": 5}], schema=schema, target=UPSERT)
    assert warehouse.rows("id") == []
    warehouse.drop_tables()
    long_key = [{"id": "".join(map(chr, range(256, 2256)))}]
    with pytest.raises(BatchDataError, match="a record: index row"):
        warehouse.publish_and_load(long_key, schema=schema_of(("id", "string")), target=UPSERT)


def test_integer_that_a_double_cannot_represent_is_rejected(warehouse: Warehouse) -> None:
    load_lines(warehouse, "number", '{"id":1,"v":0.5}')
    load_lines(warehouse, "integer", f'{{"id":2,"v":{2**53}}}', first_id=11)
    with pytest.raises(BatchDataError, match="cannot hold 9007199254740993 exactly"):
        load_lines(warehouse, "integer", f'{{"id":3,"v":{2**53 + 1}}}', first_id=21)
    assert loaded_values(warehouse) == [0.5, 2.0**53]


def test_missing_or_changed_file_is_rejected(warehouse: Warehouse) -> None:
    path, octets = warehouse.folder / "part.jsonl.gz", compress(b'{"id":1}\n', LINES)
    part = write_part(path, octets, 1)
    path.write_bytes(compress(b'{"id":2}\n', LINES))
    short = write_part(warehouse.folder / "short.jsonl.gz", octets, 2)
    for one, problem in (
        (factories.part_file(), r"orders-0\.jsonl\.gz is missing"),
        (part, "has the SHA-256"),
        (short, "has a record count of 1, published: 2"),
    ):
        with pytest.raises(PartFileChangedError, match=problem):
            warehouse.publish_and_load(schema=schema_of(ID), part_files=(one,))
        assert warehouse.rows("id") == []
