"""Published batches become rows of a table: each exactly once, whatever is loaded again."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.load import PostgresTarget, WriteMode
from batch_pipeline_tests.load.warehouse import ID, NAME, Warehouse, schema_of, written_table

AGAIN = "2023:00000001-00000010"
PEOPLE = schema_of(ID, NAME)
APPEND = PostgresTarget(name="warehouse", conn="$WAREHOUSE")
UPSERT = replace(APPEND, mode=WriteMode.UPSERT)
ANN, BOB, CAT = ({"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}, {"id": 3, "name": "Cat"})


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Warehouse:
    """An empty warehouse that is appended to."""
    return Warehouse(url=empty_database_url, folder=tmp_path, target=APPEND)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD, Compression.NONE])
def test_load_of_lines_brings_all_records_of_all_files(
    warehouse: Warehouse, compression: Compression
) -> None:
    encoding = Encoding(format=Format.JSONL, compression=compression)
    loading = warehouse.loading([ANN, BOB], [CAT], schema=PEOPLE, encoding=encoding)
    loaded = warehouse.load(loading)
    assert (loaded.records, loaded.already) == (3, False)
    label = "00000001-00000010"
    expected = [(1, "Ann", label), (2, "Bob", label), (3, "Cat", label)]
    assert warehouse.rows("id", "name", "_batch_id") == expected


@pytest.mark.parametrize(
    "encoding",
    [
        Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
        Encoding(format=Format.ARROW, compression=Compression.NONE),
        Encoding(format=Format.ORC, compression=Compression.ZSTD),
    ],
)
def test_load_of_tables_brings_all_records(warehouse: Warehouse, encoding: Encoding) -> None:
    table = pa.table({"id": [1, 2], "name": ["Ann", None], "tags": ['["a"]', None]})
    part = written_table(warehouse.folder / f"part.{encoding.suffix}", table, encoding)
    schema = schema_of(ID, NAME, ("tags", "array"))
    loading = warehouse.loading(schema=schema, encoding=encoding, part_files=(part,))
    warehouse.load(loading)
    assert warehouse.rows("id", "name", "tags") == [(1, "Ann", ["a"]), (2, None, None)]


def test_load_of_the_same_generation_again_is_none(warehouse: Warehouse) -> None:
    loading = warehouse.loading([ANN], schema=PEOPLE)
    warehouse.load(loading)
    again = warehouse.load(loading)
    assert (again.records, again.already) == (1, True)
    assert warehouse.rows("id") == [(1,)]


def test_load_keeps_the_books(warehouse: Warehouse) -> None:
    """Expect a row that tells which generation of the batch the table has."""
    warehouse.bring([ANN], schema=PEOPLE, generation=2)
    found = warehouse.rows(
        "table_name",
        "stream",
        "batch",
        "generation",
        "token",
        "publish_number",
        "records",
        table="batch_pipeline_load",
    )
    label, token = "00000001-00000010", UUID(int=1002)
    assert found == [("orders", "orders", label, 2, token, 1, 1)]


def test_load_of_an_empty_generation_takes_the_rows_of_the_one_before(warehouse: Warehouse) -> None:
    warehouse.bring([ANN], schema=PEOPLE)
    loaded = warehouse.bring(schema=PEOPLE, generation=2)
    assert loaded.records == 0
    assert warehouse.rows("id") == []


def test_load_of_a_new_generation_replaces_exactly_the_one_before(warehouse: Warehouse) -> None:
    warehouse.bring([ANN, BOB], schema=PEOPLE)
    warehouse.bring([CAT], schema=PEOPLE, first_id=11)
    warehouse.bring([ANN], schema=PEOPLE, generation=2)
    assert warehouse.rows("id", "name") == [(1, "Ann"), (3, "Cat")]


def test_load_of_an_older_generation_is_refused(warehouse: Warehouse) -> None:
    warehouse.bring([ANN, BOB], schema=PEOPLE, generation=2)
    with pytest.raises(ConfigurationError, match="generation 2"):
        warehouse.bring([ANN], schema=PEOPLE)
    assert warehouse.rows("id") == [(1,), (2,)]


def test_load_from_an_inventory_made_anew_is_refused(warehouse: Warehouse) -> None:
    warehouse.bring([ANN], schema=PEOPLE)
    with pytest.raises(ConfigurationError, match="inventory was created again"):
        warehouse.bring([ANN, BOB], schema=PEOPLE, token=UUID(int=77))
    assert warehouse.rows("id") == [(1,)]


def test_load_that_is_asked_for_again_puts_the_rows_in_their_own_place(
    warehouse: Warehouse,
) -> None:
    loading = warehouse.loading([ANN, BOB], schema=PEOPLE)
    warehouse.load(loading)
    with warehouse.connected() as connection:
        connection.execute("DELETE FROM orders WHERE id = 2")
    assert warehouse.load(loading).already
    assert not warehouse.load(replace(loading, again=True)).already
    assert warehouse.rows("id") == [(1,), (2,)]


def test_load_of_a_late_batch_goes_into_the_table_of_its_stream(warehouse: Warehouse) -> None:
    """Expect the job of a batch, which a manifest names, not to count as another stream."""
    warehouse.bring([ANN], schema=PEOPLE)
    late = warehouse.loading([BOB], schema=PEOPLE, first_id=11)
    manifest = replace(late.manifest, job="orders.late")
    warehouse.load(replace(late, manifest=manifest, label="1, 2 of orders.late"))
    assert warehouse.rows("id") == [(1,), (2,)]


def test_load_of_another_stream_into_the_table_is_refused(warehouse: Warehouse) -> None:
    warehouse.bring([ANN], schema=PEOPLE)
    with pytest.raises(ConfigurationError, match="'orders'"):
        warehouse.bring([BOB], schema=PEOPLE, stream="people")
    assert warehouse.rows("id") == [(1,)]


def test_upsert_keeps_the_last_record_of_a_key(warehouse: Warehouse) -> None:
    files = [ANN, {"id": 1, "name": "Anna"}], [{"id": 1, "name": "Annabel"}, BOB]
    warehouse.bring(*files, schema=PEOPLE, target=UPSERT)
    assert warehouse.rows("id", "name") == [(1, "Annabel"), (2, "Bob")]


def test_upsert_lets_a_newer_batch_win(warehouse: Warehouse) -> None:
    warehouse.bring([ANN], schema=PEOPLE, target=UPSERT)
    newer = [{"id": 1, "name": "Anna"}]
    warehouse.bring(newer, schema=PEOPLE, first_id=11, target=UPSERT)
    expected = [(1, "Anna", "00000011-00000020")]
    assert warehouse.rows("id", "name", "_batch_id") == expected


def test_upsert_of_an_older_batch_again_leaves_newer_records_alone(warehouse: Warehouse) -> None:
    warehouse.bring([ANN, BOB], schema=PEOPLE, target=UPSERT)
    warehouse.bring([{"id": 1, "name": "Anna"}], schema=PEOPLE, first_id=11, target=UPSERT)
    older = [ANN, {"id": 2, "name": "Bobby"}]
    warehouse.bring(older, schema=PEOPLE, generation=2, target=UPSERT)
    assert warehouse.rows("id", "name") == [(1, "Anna"), (2, "Bobby")]


def test_upsert_orders_by_item_where_records_tell_it(warehouse: Warehouse) -> None:
    schema = schema_of(ID, NAME, ("_item_id", "integer"))
    old = [{"id": 1, "name": "Ann", "_item_id": 3}]
    new = [{"id": 1, "name": "Anna", "_item_id": 12}]
    warehouse.bring(new, schema=schema, first_id=11, target=UPSERT)
    warehouse.bring(old, schema=schema, first_id=1, target=UPSERT)
    assert warehouse.rows("id", "name", "_batch_order") == [(1, "Anna", 12)]


def test_upsert_without_key_properties_is_refused(warehouse: Warehouse) -> None:
    loading = warehouse.loading([ANN], schema=PEOPLE, key_properties=())
    with pytest.raises(ConfigurationError, match="key_properties"):
        warehouse.load(loading, UPSERT)


def test_new_cut_replaces_the_rows_of_its_items(warehouse: Warehouse) -> None:
    schema = schema_of(ID, ("_item_id", "integer"))
    before = [{"id": 1, "_item_id": 4}, {"id": 2, "_item_id": 5}]
    warehouse.bring(before, schema=schema)
    after = [{"id": 7, "_item_id": 5}]
    loading = warehouse.loading(
        after, schema=schema, first_id=5, item_ids=(5,), is_backfill=True, label=AGAIN
    )
    warehouse.load(loading)
    assert warehouse.rows("id", "_item_id") == [(1, 4), (7, 5)]


def test_next_generation_beside_a_new_cut_replaces_the_rows_of_its_items(
    warehouse: Warehouse,
) -> None:
    """Expect rows of an item once, although a backfill has brought it under another name."""
    schema = schema_of(ID, ("_item_id", "integer"))
    before = [{"id": 1, "_item_id": 4}, {"id": 2, "_item_id": 5}]
    warehouse.bring(before, schema=schema)
    cut = [{"id": 7, "_item_id": 5}]
    warehouse.bring(cut, schema=schema, first_id=5, item_ids=(5,), is_backfill=True, label=AGAIN)
    warehouse.bring(before, schema=schema, generation=2, item_ids=(4, 5))
    assert warehouse.rows("id", "_item_id") == [(1, 4), (2, 5)]


def test_batch_whose_records_do_not_name_items_is_loaded_while_no_new_cut_is_there(
    warehouse: Warehouse,
) -> None:
    refused = warehouse.loading([ANN], schema=PEOPLE, item_ids=(1,), is_backfill=True, label=AGAIN)
    with pytest.raises(ConfigurationError, match="Add `_item_id` to `lineage`"):
        warehouse.load(refused)
    warehouse.bring([ANN, BOB], schema=PEOPLE, item_ids=(1, 2))
    warehouse.bring([ANN], schema=PEOPLE, generation=2, item_ids=(1, 2))
    assert warehouse.rows("id") == [(1,)]


def test_batch_whose_records_do_not_name_items_is_refused_beside_a_new_cut(
    warehouse: Warehouse,
) -> None:
    schema = schema_of(ID, NAME, ("_item_id", "integer"))
    cut = [ANN | {"_item_id": 1}]
    warehouse.bring(cut, schema=schema, item_ids=(1,), is_backfill=True, label=AGAIN)
    with pytest.raises(ConfigurationError, match="Add `_item_id` to `lineage`"):
        warehouse.bring([ANN], schema=PEOPLE, generation=2, item_ids=(1,))
    assert warehouse.rows("id", "_batch_id") == [(1, AGAIN)]


def test_new_cut_without_item_ids_in_its_records_is_refused(warehouse: Warehouse) -> None:
    loading = warehouse.loading([ANN], schema=PEOPLE, item_ids=(1,), is_backfill=True)
    with pytest.raises(ConfigurationError, match="Add `_item_id` to `lineage`"):
        warehouse.load(loading)


def test_new_cut_of_a_table_with_rows_of_unknown_items_is_refused(warehouse: Warehouse) -> None:
    """Expect no row twice where older rows do not say which item they are of."""
    warehouse.bring([ANN], schema=PEOPLE)
    schema = schema_of(ID, NAME, ("_item_id", "integer"))
    again = [ANN | {"_item_id": 1}]
    with pytest.raises(ConfigurationError, match="rows without _item_id"):
        warehouse.bring(again, schema=schema, first_id=5, item_ids=(1,), is_backfill=True)
    assert warehouse.rows("id") == [(1,)]


def test_singer_columns_are_filled(warehouse: Warehouse) -> None:
    warehouse.bring([ANN], schema=PEOPLE)
    [row] = warehouse.rows(
        "_sdc_extracted_at",
        "_sdc_received_at",
        "_sdc_batched_at",
        "_sdc_sequence",
        "_sdc_table_version",
        "_sdc_deleted_at",
    )
    extracted, received, batched, sequence, version, deleted = row
    assert extracted == received == batched
    assert sequence == int(received.timestamp() * 1000)
    assert (version, deleted) == (None, None)


def test_singer_columns_of_records_win(warehouse: Warehouse) -> None:
    schema = schema_of(ID, ("_sdc_sequence", "integer"), ("_sdc_extracted_at", "timestamp"))
    record = {"id": 1, "_sdc_sequence": 42, "_sdc_extracted_at": "2026-03-01T12:00:00Z"}
    warehouse.bring([record], schema=schema)
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert warehouse.rows("_sdc_sequence", "_sdc_extracted_at") == [(42, noon)]


def test_names_are_quoted_and_long_ones_shortened(warehouse: Warehouse) -> None:
    long = "a" * 70
    names = ('say "hi"', "SELECT", "größe", f"{long}1", f"{long}2")
    schema = schema_of(ID, *((name, "integer") for name in names))
    record = {"id": 1} | {name: place for place, name in enumerate(names)}
    target = replace(APPEND, schema='my "schema"', table="Order; --")
    warehouse.bring([record], schema=schema, target=target)
    with warehouse.connected() as connection:
        row = connection.execute('SELECT * FROM "my ""schema"""."Order; --"').fetchone()
    assert row is not None
    assert row[:6] == (1, 0, 1, 2, 3, 4)


def test_load_into_a_view_is_refused(warehouse: Warehouse) -> None:
    warehouse.execute("CREATE VIEW orders AS SELECT 1 AS id")
    with pytest.raises(ConfigurationError, match="is not a table"):
        warehouse.bring([ANN], schema=PEOPLE)
