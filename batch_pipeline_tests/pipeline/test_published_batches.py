import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from batch_pipeline.inventory import manifests
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.manifests import Manifests
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.errors import (
    BatchNotPublishedError,
    ConfigurationError,
    UnknownBatchError,
)
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline.pipeline.published_batches import InventoryBatches, StoredBatches, _to_pandas
from batch_pipeline_tests.cli.commands import invoke
from batch_pipeline_tests.defs.defs_fixture import write_stream
from batch_pipeline_tests.docs.pages import blocks
from batch_pipeline_tests.factories import environment_of, limits, stream
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.pipeline.attempt_fixture import open_harness
from batch_pipeline_tests.published_files import PARQUET, RecordEncoder, schema_of
from batch_pipeline_tests.seeds import plan, register
from batch_pipeline_tests.spark.encode_fixture import session_of

SCHEMA = schema_of(id="integer", city="string")


class PublishedStream:
    """The stream `orders` with three planned batches of two items."""

    def __init__(self, database: Database, root: Path) -> None:
        harness = open_harness(database, root)
        self.context = replace(harness.context, encoder=RecordEncoder(root, SCHEMA))
        register(database, 6)
        self.batches = [harness.batch, *plan(database, limits(max_count=2))]
        self.database, self.root = database, root
        database.schemas.widen("orders", SCHEMA.columns, text_source=True)

    def encode(self, batch: Batch, *ids: int) -> None:
        encoder = self.context.encoder
        assert isinstance(encoder, RecordEncoder)
        encoder.batches.append([{"id": number, "city": f"city {number}"} for number in ids])
        encode(self.context, batch, run_id="run")

    @property
    def keys(self) -> list[str]:
        return [batch.key for batch in self.batches]


@pytest.fixture
def published(database: Database, tmp_path: Path) -> PublishedStream:
    return PublishedStream(database, tmp_path / "batches")


@pytest.fixture(params=["inventory", "storage"])
def source(request: pytest.FixtureRequest, published: PublishedStream) -> Any:
    if request.param == "inventory":
        return InventoryBatches(published.database)
    return StoredBatches(to_uri(published.root))


@pytest.fixture(scope="module", params=["local", pytest.param("connect", marks=pytest.mark.long)])
def spark(
    request: pytest.FixtureRequest,
    object_store: ObjectStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    """A session whose workers can read the tests' S3 server; they inherit the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_store.environment.items():
            patch.setenv(name, value)
        with session_of(request.param, tmp_path_factory.mktemp("spark")) as opened:
            yield opened


def ids(table: Any) -> list[int]:
    return list(table.column("id").to_pylist())


def test_partitions_are_read_in_key_order(published: PublishedStream, source: Any) -> None:
    published.encode(published.batches[0], 1, 2)
    published.encode(published.batches[1], 3)
    published.encode(published.batches[2])
    both = source.partitions("orders", [published.keys[1], published.keys[0]])
    assert ids(both.to_arrow()) == [3, 1, 2]
    assert both.keys == (published.keys[1], published.keys[0])
    assert [ids(batch.to_arrow()) for batch in both] == [[3], [1, 2]]
    assert [batch.manifest.records for batch in both] == [1, 2]
    assert len(both.files) == both[:].records - 1 == 2
    with pytest.raises(ConfigurationError, match="a single batch, but there are 2"):
        _ = both.manifest
    empty = source.partitions("orders", published.keys[2:]).to_arrow()
    assert (empty.num_rows, empty.schema.names) == (0, ["id", "city"])


def test_newest_generation_is_read(published: PublishedStream, source: Any) -> None:
    for number, batch in enumerate(published.batches):
        published.encode(batch, number)
    published.encode(published.batches[0], 1, 2, 9)
    (batch,) = source.partitions("orders", published.keys[:1])
    assert batch.manifest.generation == 2
    assert ids(batch.to_arrow()) == [1, 2, 9]
    current = source.current("orders").to_arrow()
    assert sorted(ids(current)) == [1, 1, 2, 2, 9]
    assert current.schema.names == ["id", "city"]


def test_batch_that_is_published_again_while_batches_are_listed_is_read_once(
    published: PublishedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, batch in enumerate(published.batches):
        published.encode(batch, 2 * number + 1)
    monkeypatch.setattr(manifests, "_PAGE", 2)
    pages = Manifests._read

    def publish_between_pages(self: Manifests, query: Any) -> Any:
        page = pages(self, query)
        if page and page[0][0] == 1:
            published.encode(published.batches[0], 7)
        return page

    monkeypatch.setattr(Manifests, "_read", publish_between_pages)
    current = InventoryBatches(published.database).current("orders")
    assert [manifest.generation for manifest in current.manifests] == [2, 1, 1]


def test_data_frames_have_the_schema_types(published: PublishedStream) -> None:
    published.encode(published.batches[0], 1, 2)
    batch = InventoryBatches(published.database).partitions("orders", published.keys[:1])
    assert str(batch.to_polars().schema) == "Schema([('id', Int64), ('city', String)])"
    assert batch.to_polars()["city"].to_list() == ["city 1", "city 2"]
    assert batch.to_pandas()["id"].tolist() == [1, 2]


def test_pandas_keeps_integers_and_booleans_beside_nulls() -> None:
    """As floats, integers above 2^53 would lose precision."""
    table = pa.table({"n": [2**53 + 1, None], "b": [True, None]})
    frame = _to_pandas(table)
    assert frame["n"].tolist()[0] == 2**53 + 1
    assert [str(kind) for kind in frame.dtypes] == ["Int64", "boolean"]


def test_unpublished_batch_is_rejected(published: PublishedStream) -> None:
    with pytest.raises(BatchNotPublishedError, match="its state is planned") as caught:
        InventoryBatches(published.database).partitions("orders", published.keys[:1])
    for word in (published.keys[0], "orders/batches", "Materialize"):
        assert word in str(caught.value)


def test_unknown_key_and_stream_are_rejected(published: PublishedStream, source: Any) -> None:
    published.encode(published.batches[0], 1)
    with pytest.raises(UnknownBatchError, match="00000077"):
        source.partitions("orders", ["00000070-00000077"])
    with pytest.raises(ConfigurationError, match="Did you mean 'orders'"):
        source.current("order")
    with pytest.raises(ConfigurationError, match="no stream 'sales'"):
        source.partitions("sales", published.keys[:1])


def test_unknown_key_in_a_storage_root_lists_the_keys(published: PublishedStream) -> None:
    published.encode(published.batches[0], 1)
    with pytest.raises(UnknownBatchError) as caught:
        StoredBatches(to_uri(published.root)).partitions("orders", ["late-00000012"])
    assert str(caught.value) == (
        f"orders: the storage root {published.root} has no manifest of 'late-00000012'. "
        f"Nothing was read. Its batches: {published.keys[0]}. The number of a late batch is not in "
        f"its manifest: give its range of ids."
    )


def test_late_batch_of_a_storage_root_is_read_by_its_range(published: PublishedStream) -> None:
    published.encode(published.batches[0], 1, 2)
    (path,) = (published.root / "manifests").iterdir()
    values = json.loads(path.read_text())
    values.update(stream="orders.late", batch_id="00000004-00000009")
    values["inventory"]["job"].update(name="orders.late", kind="late")
    values["inventory"]["batch"]["item_ids"] = [4, 9]
    (path.parent / "orders.late-00000004-00000009.g1.json").write_text(json.dumps(values))
    source = StoredBatches(to_uri(published.root))
    late = source.partitions("orders", ["00000004-00000009"])
    assert (late.keys, late.manifest.job) == (("00000004-00000009",), "orders.late")
    assert len(source.current("orders")) == 2


def test_batches_of_a_storage_root_are_in_the_order_of_their_ids(
    published: PublishedStream,
) -> None:
    """An id of more than eight digits is after shorter ones, unlike its text."""
    published.encode(published.batches[0], 1, 2)
    (path,) = (published.root / "manifests").iterdir()
    values = json.loads(path.read_text())
    later = ("99999998-99999999", "100000000-100000001")
    for key in later:
        values["batch_id"] = key
        (path.parent / f"orders-{key}.g1.json").write_text(json.dumps(values))
    current = StoredBatches(to_uri(published.root)).current("orders")
    assert current.keys == (published.keys[0], *later)


def test_manifest_of_a_storage_root_has_its_quarantine_files_and_counts(
    published: PublishedStream,
) -> None:
    """Other files beside the manifests are ignored."""
    published.encode(published.batches[0], 1, 2)
    (path,) = (published.root / "manifests").iterdir()
    (path.parent / ".DS_Store").write_bytes(b"\0")
    values = json.loads(path.read_text())
    quarantined = {**values["part_files"][0], "uri": "s3://elsewhere/quarantine/a.jsonl.gz"}
    values["quarantine_files"] = [quarantined]
    values["records"]["transformed"] = 2
    path.write_text(json.dumps(values))
    [manifest] = StoredBatches(to_uri(published.root)).current("orders").manifests
    [file] = manifest.quarantine_files
    assert file.uri == to_uri(published.root / "quarantine" / "a.jsonl.gz")
    assert manifest.records_transformed == 2


def test_incompatible_manifest_file_is_rejected(published: PublishedStream) -> None:
    published.encode(published.batches[0], 1)
    (path,) = (published.root / "manifests").iterdir()
    text = path.read_text()
    changes: list[tuple[Callable[[Any], object], str]] = [
        (lambda values: values["inventory"].update(version=2), "newer than this release"),
        (lambda values: values.pop("inventory"), "early releases"),
        (lambda values: values.update(batch_id="everything"), "partition key"),
        (lambda values: values["part_files"][0].pop("sha256"), "it has no 'sha256'"),
    ]
    for change, problem in changes:
        values = json.loads(text)
        change(values)
        path.write_text(json.dumps(values))
        with pytest.raises(ConfigurationError) as caught:
            StoredBatches(to_uri(published.root)).current("orders")
        assert problem in str(caught.value)
        assert path.name in str(caught.value)


def test_batches_on_disk_and_in_a_bucket_are_read_as_spark_frames(
    published: PublishedStream, bucket: str, object_store: ObjectStore, spark: SparkSession
) -> None:
    """The bucket has a copy of the root, and Spark reads it without Hadoop's S3 client."""
    published.encode(published.batches[0], 1, 2)
    parquet = stream(encoding=PARQUET, storage=published.context.stream.storage)
    published.context = replace(published.context, stream=parquet)
    published.encode(published.batches[1], 3)
    published.encode(published.batches[2])
    frame = InventoryBatches(published.database).current("orders").to_spark(spark)
    assert frame.filter("city = 'city 3'").count() == 1
    for path in published.root.rglob("*.*"):
        object_store.client().put_object(
            Bucket=bucket.removeprefix("s3://"),
            Key=f"orders/{path.relative_to(published.root)}",
            Body=path.read_bytes(),
        )
    shutil.rmtree(published.root)
    current = StoredBatches(f"{bucket}/orders").current("orders")
    assert current.files[0].startswith(f"{bucket}/orders/orders-")
    assert ids(current.to_arrow()) == [1, 2, 3]
    frame = current.to_spark(spark)
    assert frame.schema.simpleString() == "struct<id:bigint,city:string>"
    assert sorted(row["id"] for row in frame.collect()) == [1, 2, 3]
    assert current[2:].to_spark(spark).collect() == []


@pytest.fixture
def parquet_files(published: PublishedStream, database_url: str, tmp_path: Path) -> dict[str, str]:
    """The environment of commands, with three batches of `orders` that have parquet files."""
    parquet = stream(encoding=PARQUET, storage=published.context.stream.storage)
    published.context = replace(published.context, stream=parquet)
    for number, batch in enumerate(published.batches):
        published.encode(batch, number)
    published.encode(published.batches[0], 7)
    write_stream(tmp_path, "orders")
    return environment_of(tmp_path, database_url)


def test_files_command_lists_the_current_files(parquet_files: dict[str, str]) -> None:
    listed = invoke("files", "orders", env=parquet_files)
    assert listed.exit_code == 0, listed.output
    paths = listed.stdout.splitlines()
    assert polars.read_parquet(paths)["id"].to_list() == [1, 2, 7]
    as_json = invoke("files", "orders", "--json", env=parquet_files)
    values = json.loads(as_json.stdout)
    assert [to_path(file["uri"]) for file in values["files"]] == paths
    assert [file["generation"] for file in values["files"]] == [1, 1, 2]
    assert values["stream"] == "orders"


@pytest.mark.long
def test_files_are_a_source_of_dbt(parquet_files: dict[str, str], tmp_path: Path) -> None:
    """The newest dbt-core downloads part of itself from outside the package index."""
    [source] = [block.text for block in blocks("yaml") if "# models/sources.yml" in block.text]
    [export, build] = [
        line.removeprefix("$ ")
        for block in blocks("console")
        if "$ dbt build" in block.text
        for line in block.text.splitlines()
    ]
    folder = tmp_path / "dbt"
    (folder / "models").mkdir(parents=True)
    (folder / "models/sources.yml").write_text(source.replace("sales", "orders"))
    (folder / "models/total.sql").write_text(
        "select sum(id) as total from {{ source('batches', 'orders') }}"
    )
    (folder / "dbt_project.yml").write_text("{name: shop, profile: shop}")
    (folder / "profiles.yml").write_text(
        "shop: {target: dev, outputs: {dev: {type: duckdb, path: shop.duckdb}}}"
    )
    dbt = "uv run --isolated --no-project --with dbt-duckdb --with dbt-core<1.12 dbt"
    script = f"{export.replace('sales', 'orders')}\n{build.replace('dbt', shlex.join(dbt.split()))}"
    environment = os.environ | parquet_files | {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
    programs = f"{Path(sys.executable).parent}:{environment['PATH']}"
    built = subprocess.run(
        [str(shutil.which("bash")), "-euc", script],
        cwd=folder,
        env=environment | {"PATH": programs},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    with duckdb.connect(folder / "shop.duckdb", read_only=True) as connection:
        assert connection.execute("SELECT total FROM total").fetchall() == [(10,)]
