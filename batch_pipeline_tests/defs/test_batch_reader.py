from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline import BatchReader, batches_of, partitions_of
from batch_pipeline.defs.names import RANGE_END_TAG, RANGE_START_TAG
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
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


@pytest.fixture(params=["inventory", "storage"])
def reader(
    request: pytest.FixtureRequest, published: PublishedStream, database_url: str, tmp_path: Path
) -> BatchReader:
    if request.param == "inventory":
        return BatchReader(inventory_conn=database_url, home=str(tmp_path / "home"))
    return BatchReader(storage=str(published.root))


def materialize(
    reader: BatchReader, published: PublishedStream, **options: Any
) -> dg.ExecuteInProcessResult:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("orders.batches", published.keys)
        return dg.materialize(
            [orders_by_city],
            resources={"batches": reader},
            instance=instance,
            raise_on_error=False,
            **options,
        )


def test_load_of_one_partition_returns_its_batch(
    reader: BatchReader, published: PublishedStream
) -> None:
    key = published.keys[1]
    assert materialize(reader, published, partition_key=key).success
    assert [((key,), [1])] == READ


def test_load_of_a_partition_range_returns_all_batches(
    reader: BatchReader, published: PublishedStream
) -> None:
    first, last = published.keys[:2]
    tags = {RANGE_START_TAG: first, RANGE_END_TAG: last}
    assert materialize(reader, published, tags=tags).success
    assert [((first, last), [0, 1])] == READ


def test_unpublished_partition_fails_with_the_next_step(
    published: PublishedStream, database_url: str, tmp_path: Path
) -> None:
    reader = BatchReader(inventory_conn=database_url, home=str(tmp_path / "home"))
    result = materialize(reader, published, partition_key=published.keys[2])
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "is not published (its state is planned)" in str(failure.step_failure_data.error)


def test_load_outside_of_an_asset_accepts_stream_and_keys(
    reader: BatchReader, published: PublishedStream
) -> None:
    assert ids(reader.load("orders", published.keys[0]).to_arrow()) == [0]
    assert ids(reader.current("orders").to_arrow()) == [0, 1]
    reader.close()
    assert len(reader.load("orders", *published.keys[:2])) == 2
    reader.close()


def test_load_without_a_key_is_rejected(reader: BatchReader) -> None:
    with pytest.raises(ConfigurationError, match="without a partition key"):
        reader.load("orders")


@pytest.mark.parametrize("deps", [[], [batches_of("orders"), batches_of("sales")]])
def test_asset_must_depend_on_exactly_one_stream(
    deps: list[dg.AssetKey], reader: BatchReader, published: PublishedStream
) -> None:
    @dg.asset(deps=[*deps, "cities"], partitions_def=partitions_of("orders"))
    def by_city(context: dg.AssetExecutionContext, batches: BatchReader) -> None:
        batches.load(context)

    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("orders.batches", published.keys)
        with pytest.raises(ConfigurationError, match="the one stream in `deps`") as caught:
            dg.materialize(
                [by_city],
                resources={"batches": reader},
                instance=instance,
                partition_key=published.keys[0],
            )
    assert ("orders, sales" if deps else "none") in str(caught.value)


def test_partition_mapping_is_applied(reader: BatchReader, published: PublishedStream) -> None:
    upstream = dg.AssetSpec(batches_of("orders"), partitions_def=partitions_of("orders"))

    @dg.asset(deps=[dg.AssetDep(upstream, partition_mapping=dg.LastPartitionMapping())])
    def newest(context: dg.AssetExecutionContext, batches: BatchReader) -> None:
        READ.append((batches.load(context).keys, []))

    keys = published.keys[:2]
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("orders.batches", keys)
        assert dg.materialize(
            [dg.AssetsDefinition(specs=[upstream]), newest],
            selection=[newest],
            resources={"batches": reader},
            instance=instance,
        ).success
    assert [((keys[1],), [])] == READ


def test_example_of_the_docs_loads_its_partition(
    published: PublishedStream, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code, *_) = [block.text for block in blocks("python") if "read_batches.md" in str(block.page)]
    names: dict[str, dg.Definitions] = {}
    exec(code.replace('"sales"', '"orders"').replace('"amount"', '"id"'), names)  # noqa: S102
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", database_url)
    published.encode(published.batches[2], 1, 2)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("orders.batches", published.keys)
        result = dg.materialize(
            [names["defs"].resolve_assets_def("sales_by_city")],
            instance=instance,
            partition_key=published.keys[2],
        )
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["cities"].value == 2


@pytest.mark.parametrize("name", ["", "sales/batches", "sales report", "-sales"])
@pytest.mark.parametrize("function", [batches_of, partitions_of])
def test_malformed_stream_name_is_rejected(name: str, function: Callable[[str], object]) -> None:
    with pytest.raises(InvalidValueError, match=r"stream is .*; expected to match \[A-Za-z0-9_\]"):
        function(name)
