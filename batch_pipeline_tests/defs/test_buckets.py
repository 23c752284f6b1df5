"""A stream whose files land in a bucket: sensor, asset and resource."""

import os
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster_aws.s3 import S3Resource

from batch_pipeline.app import Pipeline
from batch_pipeline.cli.run import report_failures
from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.in_process_runs import run_until_idle
from batch_pipeline.defs.names import register_job
from batch_pipeline.defs.partition_sync import PartitionSync
from batch_pipeline.defs.partitions import batches_of as partitioned
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.defs.s3_resource import StoreResource
from batch_pipeline.model.stream import Arrivals, KeyOrder, Source, Stream
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.s3 import S3FileSystem
from batch_pipeline_tests.cli.commands import invoke
from batch_pipeline_tests.defs.defs_fixture import empty_instance, set_environment, write_stream
from batch_pipeline_tests.storage.bucket_landing import BucketLanding

KEY = "00000001-00000002"


@pytest.fixture
def landing(bucket: str) -> BucketLanding:
    """A landing in a new bucket with two files."""
    landing = BucketLanding(bucket)
    landing.put("in/a.csv")
    landing.put("in/b.csv")
    return landing


@pytest.fixture
def stream(
    landing: BucketLanding, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stream:
    """The stream `orders`, whose files land in the bucket."""
    set_environment(monkeypatch, tmp_path, database_url)
    return read_stream_file(write_stream(tmp_path, "orders", uri=landing.uri))


@pytest.fixture
def instance() -> dg.DagsterInstance:
    """An empty Dagster instance."""
    return empty_instance()


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


def test_sensor_uses_the_credentials_of_its_s3_resource(
    stream: Stream, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_sensor_skips_a_tick_if_the_bucket_cannot_be_listed(
    stream: Stream, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    unreachable = StoreResource(endpoint_url="http://127.0.0.1:9", region_name="us-east-1")
    skipped = _tick(stream, instance, unreachable)
    assert isinstance(skipped, dg.SkipReason)
    assert "cannot be listed or read (it does not answer" in str(skipped.skip_message)
    result = _tick(stream, instance)
    assert _keys(result) == [KEY]
    assert isinstance(result, dg.SensorResult)
    assert len(result.run_requests or ()) == 1


def test_invalid_key_does_not_stop_other_keys(
    stream: Stream, landing: BucketLanding, instance: dg.DagsterInstance
) -> None:
    """The materialization of the asset reports it, and `plan` after registering the others."""
    landing.put("in/0.csv#bytes=0-9")
    result = invoke("plan", "orders", "--json")
    assert '"items_registered": 2' in result.output
    assert result.exit_code == 1
    assert "was not registered: its key" in " ".join(result.stderr.split())
    job = build_definitions([stream]).resolve_job_def(register_job(stream))
    [event] = job.execute_in_process(instance=instance).get_asset_materialization_events()
    assert "0.csv#bytes=0-9" in str(event.materialization.metadata["landing_error"].value)
    assert instance.get_dynamic_partitions("orders.batches") == [KEY]


def test_invalid_key_is_reported_by_run_and_by_an_idle_tick(
    stream: Stream, landing: BucketLanding, instance: dg.DagsterInstance
) -> None:
    """`run` reports it for each stream and exits with code 1."""
    for key in ("in/a.csv", "in/b.csv"):
        landing.delete(key)
    landing.put("in/0.csv#bytes=0-9")
    pipeline = Pipeline.from_environment()
    results = list(run_until_idle(pipeline, [stream, replace(stream, name="clicks")], instance))
    pipeline.close()
    assert [result.files_found for result in results] == [0, 0]
    for result in results:
        assert "0.csv#bytes=0-9' was not registered: its key ends like" in str(result.error)
    assert report_failures(results) == 1
    tick = _tick(stream, instance)
    assert isinstance(tick, dg.SensorResult)
    assert "0.csv#bytes=0-9' was not registered" in str(tick.skip_reason)


def test_full_comparison_does_not_list_the_whole_bucket(
    stream: Stream, instance: dg.DagsterInstance
) -> None:
    """With `order: ascending`, all keys are listed at first and then only by `relist`."""
    assert isinstance(stream.source, Source)
    arrivals = Arrivals(order=KeyOrder.ASCENDING)
    asset = partitioned(replace(stream, source=replace(stream.source, arrivals=arrivals)))
    client, starts = s3_client.new_client(), list[str]()

    def record_start(params: dict[str, str], **_: object) -> None:
        starts.append(params.get("StartAfter", ""))

    client.meta.events.register("provide-client-params.s3.ListObjectsV2", record_start)
    sync, pipeline = PartitionSync(asset, full_every=2), Pipeline.from_environment()
    for _ in range(4):
        sync.register_and_plan(pipeline, instance, filesystem=S3FileSystem(lambda: client))
    pipeline.close()
    assert starts == ["", "", *["in/b.csv"] * 2]


def test_s3_resource_of_streams_in_buckets_has_endpoint_region_and_profile_but_no_secret(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = replace(stream, name="clicks", source=Source(uri="file:///landing"))
    assert "batch_pipeline_s3" not in (build_definitions([on_disk]).resources or {})
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_PROFILE", "landing")
    store = (build_definitions([on_disk, stream]).resources or {})["batch_pipeline_s3"]
    assert isinstance(store, S3Resource)
    fields = {name: value for name, value in store.model_dump().items() if value is not None}
    assert (fields["endpoint_url"], fields["region_name"]) == ("http://127.0.0.1:1", "eu-central-1")
    assert fields["profile_name"] == "landing"
    assert not {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"} & fields.keys()
