"""A stream whose files land in a bucket, as Dagster sees it: sensor, asset, resource."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from dagster_aws.s3 import S3Resource

from batch_pipeline.app import Pipeline
from batch_pipeline.cli import cli
from batch_pipeline.cli.run import report_failures
from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.in_process_runs import run_until_idle
from batch_pipeline.defs.names import register_job
from batch_pipeline.defs.partition_sync import PartitionSync
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.s3_resource import StoreResource
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.model.stream import Arrivals, KeyOrder, Source, Stream
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.s3 import S3FileSystem
from batch_pipeline_tests.storage.bucket_landing import BucketLanding

KEY = "00000001-00000002"


@pytest.fixture
def place(bucket: str) -> BucketLanding:
    """A new bucket with two files."""
    place = BucketLanding(bucket)
    place.put("in/a.csv")
    place.put("in/b.csv")
    return place


@pytest.fixture
def stream(
    place: BucketLanding, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stream:
    """The stream `orders`, whose files land in the bucket."""
    attributes = {
        "stream": "orders",
        "source": {"uri": place.uri, "format": "csv"},
        "storage": {"root": str(tmp_path / "batches")},
    }
    path = tmp_path / "streams/orders/defs.yaml"
    path.parent.mkdir(parents=True)
    document = {"type": "batch_pipeline.BatchStream", "attributes": attributes}
    path.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BATCH_PIPELINE_STREAMS", str(tmp_path / "streams"))
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", database_url)
    return read_stream_file(path)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance of Dagster that ends with the test."""
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


def _tick(
    stream: Stream, instance: dg.DagsterInstance, store: S3Resource | None = None
) -> dg.SensorResult | dg.SkipReason:
    sensor = build_definitions([stream]).resolve_sensor_def("orders_new_files")
    resources = {
        "batch_pipeline": PipelineResource(),
        "batch_pipeline_s3": store or StoreResource.of_environment(),
    }
    with dg.build_sensor_context(instance=instance, resources=resources) as context:
        result = sensor(context)
    assert isinstance(result, dg.SensorResult | dg.SkipReason)
    return result


def _keys(result: dg.SensorResult | dg.SkipReason) -> list[str]:
    assert isinstance(result, dg.SensorResult), result
    return [key for add in result.dynamic_partitions_requests or () for key in add.partition_keys]


def test_sensor_registers_plans_and_launches_what_is_in_the_bucket(
    stream: Stream, instance: dg.DagsterInstance
) -> None:
    """Expect a partition of both files, and a run for it."""
    result = _tick(stream, instance)
    assert _keys(result) == [KEY]
    assert isinstance(result, dg.SensorResult)
    assert len(result.run_requests or ()) == 1


def test_sensor_asks_with_the_resource_that_it_is_given(
    stream: Stream, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect Dagster's own resource, with keys in its configuration, to reach the bucket where the
    environment's keys would not.
    """
    client, names = s3_client.client(), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    key, secret = (os.environ[name] for name in names)
    store = S3Resource(
        endpoint_url=client.meta.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    )
    for name in names:
        monkeypatch.delenv(name)
    assert _keys(_tick(stream, instance, store)) == [KEY]


def test_sensor_says_why_the_bucket_cannot_be_listed_and_goes_on(
    stream: Stream, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect a skipped tick with the reason, and the next one to find the files."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    nowhere = StoreResource(endpoint_url="http://127.0.0.1:9", region_name="us-east-1")
    told = _tick(stream, instance, nowhere)
    assert isinstance(told, dg.SkipReason)
    assert "cannot be listed or read (it does not answer" in str(told.skip_message)
    assert _keys(_tick(stream, instance)) == [KEY]


def test_asset_of_the_meta_table_registers_what_is_in_the_bucket(
    stream: Stream, instance: dg.DagsterInstance
) -> None:
    """Expect the Dagster job to register both files and to add their partition."""
    job = build_definitions([stream]).resolve_job_def(register_job(stream))
    assert job.execute_in_process(instance=instance).success
    assert instance.get_dynamic_partitions("orders.batches") == [KEY]


def test_key_that_cannot_be_registered_keeps_no_other_from_being_planned(
    stream: Stream, place: BucketLanding, instance: dg.DagsterInstance
) -> None:
    """Expect the tick to plan both files, and the asset to show what is left out."""
    place.put("in/0.csv#bytes=0-9")
    assert _keys(_tick(stream, instance)) == [KEY]
    job = build_definitions([stream]).resolve_job_def(register_job(stream))
    [shown] = job.execute_in_process(instance=instance).get_asset_materialization_events()
    assert "0.csv#bytes=0-9" in str(shown.materialization.metadata["landing_error"].value)
    assert instance.get_dynamic_partitions("orders.batches") == [KEY]


def test_drain_ends_with_what_it_could_not_register(
    stream: Stream, place: BucketLanding, instance: dg.DagsterInstance
) -> None:
    """Expect an error of each stream alone, and exit code 1, once there is nothing left to do; a
    tick on which nothing is due tells it, too.
    """
    for key in ("in/a.csv", "in/b.csv"):
        place.delete(key)
    place.put("in/0.csv#bytes=0-9")
    pipeline = Pipeline.from_environment()
    drained = list(run_until_idle(pipeline, [stream, replace(stream, name="clicks")], instance))
    pipeline.close()
    assert [one.files_found for one in drained] == [0, 0]
    for one in drained:
        assert "0.csv#bytes=0-9' was not registered, for its key ends as" in str(one.error)
    assert report_failures(drained) == 1
    result = _tick(stream, instance)
    assert isinstance(result, dg.SensorResult)
    assert "0.csv#bytes=0-9' was not registered" in str(result.skip_reason)


@pytest.mark.usefixtures("stream")
def test_command_registers_what_it_can_and_tells_the_rest(place: BucketLanding) -> None:
    """Expect both files in the answer for programs, and then the key as an error."""
    place.put("in/0.csv#bytes=0-9")
    result = CliRunner().invoke(cli, ["plan", "orders", "--json"])
    assert '"items_registered": 2' in result.output
    assert isinstance(result.exception, ConfigurationError)
    assert "was not registered, for its key" in str(result.exception)


def test_looks_that_compare_everything_leave_the_relist_to_its_time(
    stream: Stream, instance: dg.DagsterInstance
) -> None:
    """Expect all keys to be listed while the meta table begins, and not once in so many looks."""
    assert isinstance(stream.source, Source)
    arrivals = Arrivals(order=KeyOrder.ASCENDING)
    ascending = replace(stream, source=replace(stream.source, arrivals=arrivals))
    client, starts = s3_client.new_client(), list[str]()

    def note(params: dict[str, str], **_: object) -> None:
        starts.append(params.get("StartAfter", ""))

    client.meta.events.register("provide-client-params.s3.ListObjectsV2", note)
    look, pipeline = PartitionSync(full_every=2), Pipeline.from_environment()
    for _ in range(6):
        look.register_and_plan(
            pipeline, ascending, instance, drain=False, filesystem=S3FileSystem(lambda: client)
        )
    pipeline.close()
    assert starts == ["", "", *["in/b.csv"] * 4]


def test_definitions_of_folders_alone_have_no_store(stream: Stream) -> None:
    """Expect the resource only where a stream lands in a bucket: it takes long to import."""
    on_disk = replace(stream, name="clicks", source=Source(uri="file:///landing"))
    assert "batch_pipeline_s3" not in (build_definitions([on_disk]).resources or {})
    assert "batch_pipeline_s3" in (build_definitions([on_disk, stream]).resources or {})


def test_resource_tells_where_and_who_but_no_secret(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect endpoint, region and profile in the definitions, and no key."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_PROFILE", "landing")
    store = (build_definitions([stream]).resources or {})["batch_pipeline_s3"]
    assert isinstance(store, S3Resource)
    told = {name: value for name, value in store.model_dump().items() if value is not None}
    assert (told["endpoint_url"], told["region_name"]) == ("http://127.0.0.1:1", "eu-central-1")
    assert told["profile_name"] == "landing"
    assert not {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"} & told.keys()


def test_definitions_of_local_streams_do_not_import_dagster_aws() -> None:
    module = "batch_pipeline.defs.in_process_runs"
    code = f"import sys; import {module}; print('dagster_aws' in sys.modules)"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "False\n"
