"""Creating and widening the table of a Postgres target."""

from dataclasses import replace
from hashlib import sha256

import pytest

from batch_pipeline.load.tables import short_name
from batch_pipeline.model.errors import BatchDataError, ConfigurationError
from batch_pipeline_tests.load.warehouse import APPEND, ID, NAME, UPSERT, Warehouse, schema_of

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


# Type, value, wider type, a later value and the type in the table.
WIDENED = [
    ("integer", 2**53 + 1, "number", 0.5, "numeric"),
    ("integer", 2**63 - 1, "decimal(20,0)", 2**63, "numeric"),
    ("string", "x", "any", {"a": 1}, "jsonb"),
    ("boolean", True, "any", [1], "jsonb"),
]


def test_columns_are_added_and_widened_but_never_narrowed(warehouse: Warehouse) -> None:
    names = [f"v{number}" for number in range(len(WIDENED))]
    kinds, values, wide_kinds, later_values, expected = zip(*WIDENED, strict=True)
    narrow = schema_of(ID, *zip(names, kinds, strict=True))
    wide = schema_of(ID, *zip(names, wide_kinds, strict=True), NAME)
    first = {"id": 1} | dict(zip(names, values, strict=True))
    later = {"id": 2, "name": "Bob"} | dict(zip(names, later_values, strict=True))
    warehouse.publish_and_load([first], schema=narrow)
    warehouse.publish_and_load([later], schema=wide, first_id=11)
    warehouse.publish_and_load([first | {"id": 3}], schema=narrow, first_id=21)
    types = warehouse.types()
    assert tuple(types[name] for name in names) == expected
    rows = [(1, *values, None), (2, *later_values, "Bob"), (3, *values, None)]
    assert warehouse.rows("id", *names, "name") == rows


def test_numbers_are_widened_exactly_if_the_server_prints_fewer_digits(
    warehouse: Warehouse,
) -> None:
    warehouse.url += "&options=-c%20extra_float_digits%3D0"
    for first_id, kind, value in ((1, "number", 0.1 + 0.2), (11, "any", "x")):
        warehouse.publish_and_load([{"v": value}], schema=schema_of(("v", kind)), first_id=first_id)
    assert sorted(warehouse.rows("v"), key=str) == [("x",), (0.1 + 0.2,)]


def test_compatible_existing_table_is_used(warehouse: Warehouse) -> None:
    warehouse.execute("CREATE TABLE orders (id numeric(30,4), name varchar, seen boolean)")
    warehouse.publish_and_load([{"id": 1, "name": "Ann"}], schema=schema_of(ID, NAME))
    assert warehouse.rows("id", "name", "seen") == [(1, "Ann", None)]
    assert warehouse.types()["id"] == "numeric(30,4)"


def test_incompatible_existing_table_is_rejected(warehouse: Warehouse) -> None:
    for kind in ("integer", "uuid", "numeric(10,0)", "text[]", "date"):
        warehouse.drop_tables()
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


def indexes_of(warehouse: Warehouse) -> list[tuple[int]]:
    with warehouse.connected() as connection:
        query = "SELECT indexrelid::bigint FROM pg_index WHERE indrelid = 'orders'::regclass"
        return connection.execute(query).fetchall()


def test_table_can_be_loaded_after_a_change_of_mode_or_keys(warehouse: Warehouse) -> None:
    schema, twice = schema_of(ID, NAME), [{"id": 1, "name": "Ann"}, {"id": 1, "name": "Bob"}]
    warehouse.publish_and_load(twice, schema=schema, target=UPSERT)
    keys = "id", "name"
    warehouse.publish_and_load(
        twice, schema=schema, first_id=11, key_properties=keys, target=UPSERT
    )
    assert warehouse.rows("id", "name") == [(1, "Ann"), (1, "Bob")]
    indexes = indexes_of(warehouse)
    warehouse.publish_and_load(schema=schema_of(), first_id=41, key_properties=keys, target=UPSERT)
    assert indexes_of(warehouse) == indexes
    warehouse.publish_and_load(twice, schema=schema, first_id=21)
    assert len(warehouse.rows("id")) == 4
    warehouse.execute("CREATE UNIQUE INDEX mine ON orders (id, name, _batch_id)")
    with pytest.raises(BatchDataError, match="duplicate key value violates"):
        warehouse.publish_and_load([*twice, *twice], schema=schema, first_id=31)


def test_upsert_into_a_table_with_duplicate_keys_is_rejected(warehouse: Warehouse) -> None:
    warehouse.publish_and_load([{"id": 1}, {"id": 1}], schema=schema_of(ID))
    again = warehouse.loading([{"id": 1}], schema=schema_of(ID), first_id=11)
    with pytest.raises(ConfigurationError, match=r"\(id\)=\(1\) is duplicated"):
        warehouse.load(again, UPSERT)
    assert warehouse.rows("id") == [(1,), (1,)]


def test_invalid_or_reserved_column_name_is_rejected(warehouse: Warehouse) -> None:
    for name in ("", "a\0b", "_batch_id", "_batch_order", "_load_position", "ctid"):
        with pytest.raises(ConfigurationError, match="name"):
            warehouse.publish_and_load(schema=schema_of(ID, (name, "integer")))
    with warehouse.connected() as connection:
        assert connection.execute("SELECT to_regclass('orders')").fetchone() == (None,)


def test_label_column_of_a_former_lineage_is_replaced(warehouse: Warehouse) -> None:
    """Schemas keep it, although `lineage` no longer has it and new records lack it."""
    warehouse.lineage = ()
    warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID, ("_batch_id", "string")))
    assert warehouse.rows("id", "_batch_id") == [(1, "00000001-00000010")]


def test_upsert_sets_columns_missing_in_a_newer_batch_to_null(warehouse: Warehouse) -> None:
    """Columns of the user are kept."""
    warehouse.execute("CREATE TABLE orders (id bigint, name text, note text DEFAULT 'mine')")
    people = [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}]
    warehouse.publish_and_load(people, schema=schema_of(ID, NAME), target=UPSERT)
    unknown = schema_of(ID, ("name", "unknown"))
    warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID), first_id=11, target=UPSERT)
    warehouse.publish_and_load([{"id": 2}], schema=unknown, first_id=21, target=UPSERT)
    assert warehouse.rows("id", "name", "note") == [(1, None, "mine"), (2, None, "mine")]
    warehouse.execute("ALTER TABLE orders DROP COLUMN name")
    warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID), first_id=31, target=UPSERT)
    assert warehouse.rows("id", "_batch_order") == [(1, 31), (2, 21)]


def test_table_of_another_stream_is_not_changed(warehouse: Warehouse) -> None:
    warehouse.publish_and_load([{"id": 1}], schema=schema_of(ID))
    before = warehouse.types()
    wider = schema_of(("id", "string"), NAME)
    loading = warehouse.loading([{"id": "x", "name": "Xaver"}], schema=wider, stream="people")
    with pytest.raises(ConfigurationError, match="is loaded with the stream 'orders'"):
        warehouse.load(loading)
    assert (warehouse.types(), warehouse.rows("id")) == (before, [(1,)])


def test_names_of_schema_and_table_are_quoted(warehouse: Warehouse) -> None:
    target = replace(UPSERT, schema='my "50%"', table="Order%; --")
    for generation in (1, 2):
        people, schema = [{"id": generation}], schema_of(ID)
        loading = warehouse.loading(people, schema=schema, generation=generation)
        assert warehouse.load(loading, target).records == 1
    with warehouse.connected() as connection:
        rows = connection.execute('SELECT id FROM "my ""50%"""."Order%; --"').fetchall()
    assert rows == [(2,)]


def test_bookkeeping_table_is_rejected_as_target(warehouse: Warehouse) -> None:
    for name in ("batch_pipeline_load", "batch_pipeline_column"):
        with pytest.raises(ConfigurationError, match=f"{name} records the loads"):
            warehouse.publish_and_load(schema=schema_of(ID), target=replace(APPEND, table=name))


def test_name_too_long_for_postgres_gets_a_digest() -> None:
    assert short_name("x" * 63) == "x" * 63
    assert short_name("x" * 64) == "x" * 54 + "_7ce10097"
    assert short_name("é" * 32) == "é" * 27 + "_2e5152e6"
