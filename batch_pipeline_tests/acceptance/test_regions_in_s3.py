"""The feed from a bucket into a bucket, on this machine and on a cluster of two workers."""

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.model.location import split_object
from batch_pipeline_tests.acceptance.regions import (
    FILES,
    RECORDS,
    SUM_OF_POSITIVES,
    by_stream,
    write_streams,
)
from batch_pipeline_tests.acceptance.sandbox import Sandbox, new_sandbox
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.spark.spark_cluster import standalone_cluster

pytestmark = pytest.mark.long

STREAM = "regions"


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a run, and the BATCH messages of its published batches."""

    result: dict[str, Any]
    batches: list[dict[str, Any]]

    @property
    def digests(self) -> list[str]:
        """The SHA-256 of the part files in order."""
        return [digest for batch in self.batches for digest in batch["sha256"]]

    @property
    def uris(self) -> list[str]:
        """The URIs of the part files in order."""
        return [uri for batch in self.batches for uri in batch["manifest"]]


@pytest.fixture(scope="module")
def bucket_of_feed(landing: Path, object_store: ObjectStore) -> str:
    """A bucket with the whole feed."""
    bucket, client = object_store.new_bucket(), object_store.client()

    def put(path: Path) -> None:
        client.put_object(Bucket=bucket, Key=f"landing/{path.name}", Body=path.read_bytes())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, landing.iterdir()))
    return f"s3://{bucket}"


def run(sandbox: Sandbox) -> Published:
    """Run the stream and read its messages."""
    result = by_stream(sandbox.json_of("run"))[STREAM]
    lines = [json.loads(line) for line in sandbox.output_of("messages", STREAM).splitlines()]
    return Published(result, [line for line in lines if line["type"] == "BATCH"])


@pytest.fixture(scope="module")
def on_disk(landing: Path) -> Published:
    """The result of the feed from a folder into a folder."""
    with new_sandbox() as sandbox:
        write_streams(sandbox, landing, only=STREAM)
        return run(sandbox)


@pytest.fixture(scope="module", params=["this machine", "two workers"])
def in_bucket(
    request: pytest.FixtureRequest,
    bucket_of_feed: str,
    object_store: ObjectStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Published]:
    """The result of the feed from the bucket into the bucket."""
    with new_sandbox() as empty:
        root = f"{bucket_of_feed}/batches/{request.param.replace(' ', '-')}"
        sandbox = empty.with_variables(**object_store.environment)
        write_streams(sandbox, f"{bucket_of_feed}/landing", only=STREAM, root=root)
        if request.param == "this machine":
            yield run(sandbox)
            return
        variables = object_store.environment
        with standalone_cluster(
            tmp_path_factory.mktemp("cluster"), variables, variables
        ) as cluster:
            yield run(sandbox.with_variables(BATCH_PIPELINE_SPARK_MASTER=cluster.master))


def test_part_files_in_s3_are_identical_to_those_on_disk(
    on_disk: Published, in_bucket: Published
) -> None:
    assert (in_bucket.result["files_found"], in_bucket.result["items_registered"]) == (
        FILES,
        FILES,
    )
    assert (in_bucket.result["failed"], in_bucket.result["error"]) == ([], None)
    assert sum(batch["record_count"] for batch in in_bucket.batches) == RECORDS
    assert len(in_bucket.digests) >= 12
    assert in_bucket.digests == on_disk.digests


def test_records_in_s3_are_complete(in_bucket: Published, object_store: ObjectStore) -> None:
    values = []
    for uri in in_bucket.uris:
        bucket, key = split_object(uri)
        body = object_store.client().get_object(Bucket=bucket, Key=key)["Body"].read()
        lines = gzip.decompress(body).splitlines()
        values += [json.loads(line)["totale_positivi"] for line in lines]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)
