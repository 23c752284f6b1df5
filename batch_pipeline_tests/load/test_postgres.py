"""Loading published batches into a Postgres table, each exactly once."""

from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pytest

from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError, ItemIdsMissingError
from batch_pipeline.model.load import Loaded
from batch_pipeline_tests.factories import NOON
from batch_pipeline_tests.load.warehouse import (
    ID,
    NAME,
    UPSERT,
    Warehouse,
    schema_of,
    written_table,
)

BACKFILL_LABEL = "2023:00000001-00000010"
SCHEMA = schema_of(ID, NAME)
ITEM_ID = ("_item_id", "integer")
WITH_ITEMS = schema_of(ID, NAME, ITEM_ID)
ANN, BOB, CAT = ({"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}, {"id": 3, "name": "Cat"})


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD, Compression.NONE])
def test_json_lines_of_all_files_are_loaded(warehouse: Warehouse, compression: Compression) -> None:
    encoding = Encoding(format=Format.JSONL, compression=compression)
    loading = warehouse.loading([ANN, BOB], [CAT], schema=SCHEMA, encoding=encoding)
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
def test_columnar_files_are_loaded(warehouse: Warehouse, encoding: Encoding) -> None:
    table = pa.table({"id": [1, 2], "name": ["Ann", None], "tags": ['["a"]', None]})
    part = written_table(warehouse.folder / f"part.{encoding.suffix}", table, encoding)
    schema = schema_of(ID, NAME, ("tags", "array"))
    loading = warehouse.loading(schema=schema, encoding=encoding, part_files=(part,))
    warehouse.load(loading)
    assert warehouse.rows("id", "name", "tags") == [(1, "Ann", ["a"]), (2, None, None)]


def test_generation_is_loaded_and_recorded_once_unless_requested(warehouse: Warehouse) -> None:
    loading = warehouse.loading([ANN, BOB], schema=SCHEMA, generation=2)
    assert warehouse.load(loading) == Loaded(records=2)
    warehouse.execute("DELETE FROM orders WHERE id = 2")
    assert warehouse.load(loading) == Loaded(records=2, already=True)
    assert warehouse.rows("id") == [(1,)]
    assert warehouse.load(replace(loading, again=True)) == Loaded(records=2)
    assert warehouse.rows("id") == [(1,), (2,)]
    keys = "table_name", "stream", "batch", "generation", "token", "publish_number", "records"
    recorded = warehouse.rows(*keys, table="batch_pipeline_load")
    assert recorded == [("orders", "orders", "00000001-00000010", 2, UUID(int=1002), 1, 2)]


def test_new_generation_replaces_only_the_previous_one(warehouse: Warehouse) -> None:
    warehouse.publish_and_load([ANN, BOB], schema=SCHEMA)
    warehouse.publish_and_load([CAT], schema=SCHEMA, first_id=11)
    warehouse.publish_and_load([ANN], schema=SCHEMA, generation=2)
    assert warehouse.rows("id", "name") == [(1, "Ann"), (3, "Cat")]
    assert warehouse.publish_and_load(schema=SCHEMA, generation=3).records == 0
    assert warehouse.rows("id") == [(3,)]


def test_older_generation_or_one_of_a_recreated_inventory_is_rejected(
    warehouse: Warehouse,
) -> None:
    warehouse.publish_and_load([ANN, BOB], schema=SCHEMA, generation=2)
    with pytest.raises(ConfigurationError, match="generation 2"):
        warehouse.publish_and_load([ANN], schema=SCHEMA)
    with pytest.raises(ConfigurationError, match="inventory was created again"):
        warehouse.publish_and_load([ANN], schema=SCHEMA, generation=2, token=UUID(int=77))
    assert warehouse.rows("id") == [(1,), (2,)]


def test_late_batch_is_loaded_into_the_table_of_its_stream(warehouse: Warehouse) -> None:
    """The job that a manifest names does not count as another stream."""
    warehouse.publish_and_load([ANN], schema=SCHEMA)
    late = warehouse.loading([BOB], schema=SCHEMA, first_id=11)
    manifest = replace(late.manifest, job="orders.late")
    warehouse.load(replace(late, manifest=manifest, label="1, 2 of orders.late"))
    assert warehouse.rows("id") == [(1,), (2,)]


def test_upsert_keeps_the_last_record_of_a_key_in_the_newest_batch(warehouse: Warehouse) -> None:
    files = [ANN, {"id": 1, "name": "Anna"}], [{"id": 1, "name": "Annabel"}, BOB]
    warehouse.publish_and_load(*files, schema=SCHEMA, target=UPSERT)
    assert warehouse.rows("id", "name") == [(1, "Annabel"), (2, "Bob")]
    newer = [{"id": 1, "name": "Anne"}]
    warehouse.publish_and_load(newer, schema=SCHEMA, first_id=11, target=UPSERT)
    older = [ANN, {"id": 2, "name": "Bobby"}]
    warehouse.publish_and_load(older, schema=SCHEMA, generation=2, target=UPSERT)
    expected = [(1, "Anne", "00000011-00000020"), (2, "Bobby", "00000001-00000010")]
    assert warehouse.rows("id", "name", "_batch_id") == expected


def test_upsert_orders_by_item_id_if_present(warehouse: Warehouse) -> None:
    old = [{"id": 1, "name": "Ann", "_item_id": 3}]
    new = [{"id": 1, "name": "Anna", "_item_id": 12}]
    warehouse.publish_and_load(new, schema=WITH_ITEMS, first_id=11, target=UPSERT)
    warehouse.publish_and_load(old, schema=WITH_ITEMS, first_id=1, target=UPSERT)
    assert warehouse.rows("id", "name", "_batch_order") == [(1, "Anna", 12)]


def test_upsert_without_key_properties_is_rejected(warehouse: Warehouse) -> None:
    loading = warehouse.loading([ANN], schema=SCHEMA, key_properties=())
    with pytest.raises(ConfigurationError, match="published without"):
        warehouse.load(loading, UPSERT)


def test_backfill_and_next_generation_replace_the_rows_of_their_items(warehouse: Warehouse) -> None:
    """An item has its rows once, although a backfill loaded it under another batch name."""
    schema = schema_of(ID, ITEM_ID)
    before = [{"id": 1, "_item_id": 4}, {"id": 2, "_item_id": 5}]
    warehouse.publish_and_load(before, schema=schema)
    backfill = [{"id": 7, "_item_id": 5}]
    warehouse.publish_and_load(
        backfill, schema=schema, first_id=5, item_ids=(5,), is_backfill=True, label=BACKFILL_LABEL
    )
    assert warehouse.rows("id", "_item_id") == [(1, 4), (7, 5)]
    warehouse.publish_and_load(before, schema=schema, generation=2, item_ids=(4, 5))
    assert warehouse.rows("id", "_item_id") == [(1, 4), (2, 5)]


def test_batch_without_item_ids_is_loaded_if_there_is_no_backfill(warehouse: Warehouse) -> None:
    rejected = warehouse.loading(
        [ANN], schema=SCHEMA, item_ids=(1,), is_backfill=True, label=BACKFILL_LABEL
    )
    with pytest.raises(ItemIdsMissingError, match="Add `_item_id` to `lineage`"):
        warehouse.load(rejected)
    warehouse.publish_and_load([ANN, BOB], schema=SCHEMA, item_ids=(1, 2))
    warehouse.publish_and_load([ANN], schema=SCHEMA, generation=2, item_ids=(1, 2))
    assert warehouse.rows("id") == [(1,)]


def test_source_column_named_like_item_ids_does_not_select_rows_to_replace(
    warehouse: Warehouse,
) -> None:
    warehouse.lineage = ()
    records = [{"id": 1, "name": "Ann", "_item_id": 5}]
    warehouse.publish_and_load(records, schema=WITH_ITEMS)
    with pytest.raises(ItemIdsMissingError):
        warehouse.publish_and_load(
            records, schema=WITH_ITEMS, item_ids=(5,), is_backfill=True, label=BACKFILL_LABEL
        )
    assert warehouse.rows("id", "_item_id", "_batch_order") == [(1, 5, 1)]


def test_batch_without_item_ids_is_rejected_beside_a_backfill(warehouse: Warehouse) -> None:
    backfill = [ANN | {"_item_id": 1}]
    warehouse.publish_and_load(
        backfill, schema=WITH_ITEMS, item_ids=(1,), is_backfill=True, label=BACKFILL_LABEL
    )
    with pytest.raises(ItemIdsMissingError, match="Add `_item_id` to `lineage`"):
        warehouse.publish_and_load([ANN], schema=SCHEMA, generation=2, item_ids=(1,))
    assert warehouse.rows("id", "_batch_id") == [(1, BACKFILL_LABEL)]


def test_backfill_of_a_table_with_rows_without_item_ids_is_rejected(warehouse: Warehouse) -> None:
    """Otherwise, a record could be in the table twice."""
    warehouse.publish_and_load([ANN], schema=SCHEMA)
    reloaded = [ANN | {"_item_id": 1}]
    with pytest.raises(ItemIdsMissingError, match="rows without _item_id"):
        warehouse.publish_and_load(
            reloaded, schema=WITH_ITEMS, first_id=5, item_ids=(1,), is_backfill=True
        )
    assert warehouse.rows("id") == [(1,)]


def test_singer_columns_are_filled_in_unless_the_records_have_them(warehouse: Warehouse) -> None:
    warehouse.publish_and_load([ANN], schema=SCHEMA)
    names = ["extracted_at", "received_at", "batched_at", "sequence", "table_version", "deleted_at"]
    [row] = warehouse.rows(*(f"_sdc_{name}" for name in names))
    extracted, received, batched, sequence, version, deleted = row
    assert extracted == received == batched
    assert sequence == int(received.timestamp() * 1000)
    assert (version, deleted) == (None, None)
    schema = schema_of(ID, ("_sdc_sequence", "integer"), ("_sdc_extracted_at", "timestamp"))
    record = {"id": 1, "_sdc_sequence": 42, "_sdc_extracted_at": NOON.isoformat()}
    warehouse.publish_and_load([record], schema=schema, generation=2)
    assert warehouse.rows("_sdc_sequence", "_sdc_extracted_at") == [(42, NOON)]


def test_load_into_a_view_is_rejected(warehouse: Warehouse) -> None:
    warehouse.execute("CREATE VIEW orders AS SELECT 1 AS id")
    with pytest.raises(ConfigurationError, match="is not a table"):
        warehouse.publish_and_load([ANN], schema=SCHEMA)
