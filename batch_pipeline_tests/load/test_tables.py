"""Creating and widening the table of a Postgres target."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.load.tables import short_name
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.load import PostgresTarget, WriteMode
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.load.warehouse import ID, NAME, Warehouse, schema_of

TYPES = {
    "boolean": "boolean",
    "integer": "bigint",
    "decimal(12,2)": "numeric",
    "number": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "time": "time without time zone",
    "timestamp": "timestamp with time zone",
    "local_timestamp": "timestamp without time zone",
    "object": "jsonb",
    "array": "jsonb",
    "any": "jsonb",
}
ADDED_COLUMNS = {
    "_batch_id": "text",
    "_batch_order": "bigint",
    "_sdc_extracted_at": "timestamp with time zone",
    "_sdc_received_at": "timestamp with time zone",
    "_sdc_batched_at": "timestamp with time zone",
    "_sdc_deleted_at": "timestamp with time zone",
    "_sdc_sequence": "bigint",
    "_sdc_table_version": "bigint",
}
UPSERT = PostgresTarget(name="warehouse", conn="$WAREHOUSE", mode=WriteMode.UPSERT)


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Warehouse:
    """An empty warehouse."""
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE")
    return Warehouse(url=empty_database_url, folder=tmp_path, target=target)


def test_table_is_created_from_the_schema(warehouse: Warehouse) -> None:
    warehouse.load(warehouse.loading(schema=schema_of(*((kind, kind) for kind in TYPES))))
    assert warehouse.types() == TYPES | ADDED_COLUMNS


def test_row_of_many_short_texts_is_not_toasted(warehouse: Warehouse) -> None:
    names = [f"text_{number}" for number in range(75)]
    record = {name: sha256(name.encode()).hexdigest()[:40] for name in names}
    schema = schema_of(*((name, "string") for name in names))
    warehouse.publish_and_load([record], schema=schema)
    with warehouse.connected() as connection:
        toast_sizes = connection.execute(
            "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE relname = 'orders'"
        ).fetchall()
    assert toast_sizes == [(0,)]


def test_new_column_is_added(warehouse: Warehouse) -> None:
    warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID))
    later = warehouse.loading([{"id": 2, "name": "Bob"}], schema=schema_of(ID, NAME), first_id=11)
    warehouse.load(later)
    assert warehouse.rows("id", "name") == [(1, None), (2, "Bob")]


@pytest.mark.parametrize(
    ("narrow", "value", "wide", "later", "expected"),
    [
        ("integer", 2**53 + 1, "number", 0.5, "numeric"),
        ("integer", 2**63 - 1, "decimal(20,0)", 2**63, "numeric"),
        ("decimal(3,1)", 0.5, "string", "half", "text"),
        ("boolean", True, "any", [1], "jsonb"),
        ("string", "x", "any", {"a": 1}, "jsonb"),
    ],
)
def test_widened_column_keeps_its_values(
    warehouse: Warehouse, narrow: str, value: Any, wide: str, later: Any, expected: str
) -> None:
    first = warehouse.loading([{"id": 1, "v": value}], schema=schema_of(ID, ("v", narrow)))
    warehouse.load(first)
    schema = schema_of(ID, ("v", wide))
    warehouse.publish_and_load([{"id": 2, "v": later}], schema=schema, first_id=11)
    assert warehouse.types()["v"] == expected
    values = [value for _, value in warehouse.rows("id", "v")]
    assert values == [str(value) if expected == "text" else value, later]


def test_column_is_never_narrowed(warehouse: Warehouse) -> None:
    warehouse.load(warehouse.loading([{"id": 1, "v": "x"}], schema=schema_of(ID, ("v", "string"))))
    older = warehouse.loading([{"id": 2, "v": 5}], schema=schema_of(ID, ("v", "integer")))
    warehouse.load(older)
    assert warehouse.types()["v"] == "text"


def test_compatible_existing_table_is_used(warehouse: Warehouse) -> None:
    warehouse.execute("CREATE TABLE orders (id numeric(30,4), name varchar, seen boolean)")
    warehouse.publish_and_load([{"id": 1, "name": "Ann"}], schema=schema_of(ID, NAME))
    assert warehouse.rows("id", "name", "seen") == [(1, "Ann", None)]
    assert warehouse.types()["id"] == "numeric(30,4)"


@pytest.mark.parametrize("kind", ["integer", "uuid", "numeric(10,0)", "text[]", "date"])
def test_incompatible_existing_table_is_rejected(warehouse: Warehouse, kind: str) -> None:
    warehouse.execute(f"CREATE TABLE orders (id {kind})")
    with pytest.raises(ConfigurationError, match="Nothing was sent") as raised:
        warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID))
    assert f"'id' has {kind}, and integer of the stream needs bigint" in str(raised.value)
    assert warehouse.types() == {"id": kind}


def test_upsert_works_after_a_key_column_was_widened(warehouse: Warehouse) -> None:
    schema = schema_of(("id", "integer"), NAME)
    warehouse.publish_and_load([{"id": 1, "name": "Ann"}], schema=schema, target=UPSERT)
    wider = schema_of(("id", "string"), NAME)
    records = [{"id": "1", "name": "Anna"}, {"id": "x", "name": "Xaver"}]
    warehouse.publish_and_load(records, schema=wider, first_id=11, target=UPSERT)
    assert warehouse.rows("id", "name") == [("1", "Anna"), ("x", "Xaver")]


def test_upsert_into_a_table_with_duplicate_keys_is_rejected(warehouse: Warehouse) -> None:
    warehouse.publish_and_load([{"id": 1}, {"id": 1}], schema=schema_of(ID))
    again = warehouse.loading([{"id": 1}], schema=schema_of(ID), first_id=11)
    with pytest.raises(ConfigurationError, match=r"\(id\)=\(1\) is duplicated"):
        warehouse.load(again, UPSERT)
    assert warehouse.rows("id") == [(1,), (1,)]


@pytest.mark.parametrize("name", ["", "a\0b", "_batch_order", "_load_position", "ctid"])
def test_invalid_or_reserved_column_name_is_rejected(warehouse: Warehouse, name: str) -> None:
    loading = warehouse.loading(schema=schema_of(ID, (name, "integer")))
    with pytest.raises(ConfigurationError, match="name"):
        warehouse.load(loading)
    with warehouse.connected() as connection:
        assert connection.execute("SELECT to_regclass('orders')").fetchone() == (None,)


@pytest.mark.parametrize("newer", [schema_of(ID), schema_of(ID, ("name", "unknown"))])
def test_upsert_sets_columns_missing_in_a_newer_batch_to_null(
    warehouse: Warehouse, newer: RecordSchema
) -> None:
    older = warehouse.loading([{"id": 1, "name": "Ann"}], schema=schema_of(ID, NAME))
    warehouse.load(older, UPSERT)
    warehouse.execute("ALTER TABLE orders ADD COLUMN note text DEFAULT 'mine'")
    warehouse.publish_and_load([{"id": 1}], schema=newer, first_id=11, target=UPSERT)
    assert warehouse.rows("id", "name", "note") == [(1, None, "mine")]


def test_upsert_into_an_existing_table_keeps_columns_not_loaded(warehouse: Warehouse) -> None:
    warehouse.execute("CREATE TABLE orders (id bigint, name text, note text DEFAULT 'mine')")
    older = warehouse.loading([{"id": 1, "name": "Ann"}], schema=schema_of(ID, NAME))
    warehouse.load(older, UPSERT)
    warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID), first_id=11, target=UPSERT)
    assert warehouse.rows("id", "name", "note") == [(1, None, "mine")]


def test_upsert_works_after_a_column_was_dropped(warehouse: Warehouse) -> None:
    older = warehouse.loading([{"id": 1, "name": "Ann"}], schema=schema_of(ID, NAME))
    warehouse.load(older, UPSERT)
    warehouse.execute("ALTER TABLE orders DROP COLUMN name")
    warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID), first_id=11, target=UPSERT)
    assert warehouse.rows("id", "_batch_order") == [(1, 11)]


def test_table_of_another_stream_is_not_changed(warehouse: Warehouse) -> None:
    warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID))
    before = warehouse.types()
    wider = schema_of(("id", "string"), NAME)
    loading = warehouse.loading([{"id": "x", "name": "Xaver"}], schema=wider, stream="people")
    with pytest.raises(ConfigurationError, match="is loaded with the stream 'orders'"):
        warehouse.load(loading)
    assert warehouse.types() == before


@pytest.mark.parametrize("name", ["batch_pipeline_load", "batch_pipeline_column"])
def test_bookkeeping_table_is_rejected_as_target(warehouse: Warehouse, name: str) -> None:
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE", table=name)
    with pytest.raises(ConfigurationError, match=f"{name} records the loads"):
        warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID), target=target)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x" * 63, "x" * 63),
        ("x" * 64, "x" * 54 + "_7ce10097"),
        ("é" * 32, "é" * 27 + "_2e5152e6"),
    ],
    ids=["at the limit", "too long", "too long in UTF-8"],
)
def test_name_too_long_for_postgres_gets_a_digest(name: str, expected: str) -> None:
    assert short_name(name) == expected
