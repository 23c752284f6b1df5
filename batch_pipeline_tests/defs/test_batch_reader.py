from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline import BatchReader, batches_of, partitions_of
from batch_pipeline.defs.names import RANGE_END_TAG, RANGE_START_TAG
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import (
    BatchNotPublishedError,
    ConfigurationError,
    InvalidValueError,
)
from batch_pipeline_tests.defs.defs_fixture import empty_instance
from batch_pipeline_tests.docs.pages import blocks
from batch_pipeline_tests.pipeline.test_published_batches import PublishedStream, ids

READ: list[tuple[tuple[str, ...], list[int]]] = []


@dg.asset(deps=[batches_of("orders")], partitions_def=partitions_of("orders"))
def orders_by_city(context: dg.AssetExecutionContext, batches: BatchReader) -> None:
    loaded = batches.load(context)
    READ.append((loaded.keys, ids(loaded.to_arrow())))


@pytest.fixture
def published(database: Database, tmp_path: Path) -> PublishedStream:
    READ.clear()
    published = PublishedStream(database, tmp_path / "batches")
    for number, batch in enumerate(published.batches[:2]):
        published.encode(batch, number)
    return published


@pytest.fixture
def reader(published: PublishedStream, database_url: str, tmp_path: Path) -> BatchReader:
    return BatchReader(inventory_conn=database_url, home=str(tmp_path / "home"))


def materialize(
    keys: Sequence[str],
    reader: BatchReader | None = None,
    assets: Sequence[dg.AssetsDefinition] = (orders_by_city,),
    **options: Any,
) -> dg.ExecuteInProcessResult:
    """Materialize assets in an instance that has these partitions of the stream."""
    instance = empty_instance()
    instance.add_dynamic_partitions("orders.batches", keys)
    resources = {"batches": reader} if reader else None
    return dg.materialize(assets, resources=resources, instance=instance, **options)


def test_load_of_a_partition_or_a_range_returns_its_batches(
    reader: BatchReader, published: PublishedStream
) -> None:
    """The first one without a database, from the manifest files of a storage root."""
    first, last, _ = published.keys
    of_storage = BatchReader(storage=str(published.root))
    assert materialize(published.keys, of_storage, partition_key=last).success
    tags = {RANGE_START_TAG: first, RANGE_END_TAG: last}
    assert materialize(published.keys, reader, tags=tags).success
    assert [((last,), [1]), ((first, last), [0, 1])] == READ


def test_unpublished_partition_fails_with_the_next_step(
    reader: BatchReader, published: PublishedStream
) -> None:
    with pytest.raises(BatchNotPublishedError) as caught:
        materialize(published.keys, reader, partition_key=published.keys[2])
    message = str(caught.value)
    assert f"{published.keys[2]} is not published (its state is planned)" in message
    assert "Materialize" in message
    assert "orders/batches" in message


def test_load_outside_of_an_asset_accepts_stream_and_keys(
    reader: BatchReader, published: PublishedStream
) -> None:
    assert ids(reader.load("orders", published.keys[0]).to_arrow()) == [0]
    assert ids(reader.current("orders").to_arrow()) == [0, 1]
    reader.close()
    assert len(reader.load("orders", *published.keys[:2])) == 2
    with pytest.raises(ConfigurationError, match="without a partition key"):
        reader.load("orders")
    reader.close()


@pytest.mark.parametrize("deps", [[], [batches_of("orders"), batches_of("sales")]])
def test_asset_must_depend_on_exactly_one_stream(deps: list[dg.AssetKey], tmp_path: Path) -> None:
    @dg.asset(deps=[*deps, "cities"], partitions_def=partitions_of("orders"))
    def by_city(context: dg.AssetExecutionContext, batches: BatchReader) -> None:
        batches.load(context)

    reader = BatchReader(storage=str(tmp_path))
    with pytest.raises(ConfigurationError, match="the one stream in `deps`") as caught:
        materialize(["1"], reader, [by_city], partition_key="1")
    assert ("orders, sales" if deps else "none") in str(caught.value)


def test_partition_mapping_is_applied(reader: BatchReader, published: PublishedStream) -> None:
    upstream = dg.AssetSpec(batches_of("orders"), partitions_def=partitions_of("orders"))

    @dg.asset(deps=[dg.AssetDep(upstream, partition_mapping=dg.LastPartitionMapping())])
    def newest(context: dg.AssetExecutionContext, batches: BatchReader) -> None:
        READ.append((batches.load(context).keys, []))

    keys = published.keys[:2]
    assets = [dg.AssetsDefinition(specs=[upstream]), newest]
    assert materialize(keys, reader, assets, selection=[newest]).success
    assert [((keys[1],), [])] == READ


def test_example_of_the_docs_loads_its_partition(
    published: PublishedStream, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code, *_) = [block.text for block in blocks("python") if "read_batches.md" in str(block.page)]
    names: dict[str, dg.Definitions] = {}
    exec(code.replace('"sales"', '"orders"').replace('"amount"', '"id"'), names)  # noqa: S102
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", database_url)
    published.encode(published.batches[2], 1, 2)
    asset = names["defs"].resolve_assets_def("sales_by_city")
    result = materialize(published.keys, assets=[asset], partition_key=published.keys[2])
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["cities"].value == 2


@pytest.mark.parametrize("function", [batches_of, partitions_of])
def test_malformed_stream_name_is_rejected(function: Callable[[str], object]) -> None:
    expected = r"stream is .*; expected to match \[A-Za-z0-9_\]"
    for name in ("", "sales/batches", "sales report", "-sales"):
        with pytest.raises(InvalidValueError, match=expected):
            function(name)
