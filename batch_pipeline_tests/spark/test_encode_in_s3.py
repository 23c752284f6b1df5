"""Whole encodes from and to S3: the same records and bytes as on local disks."""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.model.encode_request import EncodeCallbacks, EncodeResult
from batch_pipeline.model.errors import ConflictError, SourceUnavailableError
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.record_rules import BadFileKind, BadFileRules, OnBadFile
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.session import SparkSettings, close_session, open_session
from batch_pipeline.spark.task_planning import split_files
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.encode.landed_files import STREAM
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.spark.encode_fixture import (
    encode_items,
    numbered_csv,
    numbered_jsonl,
    numbered_parquet,
    set_range_bytes,
)
from batch_pipeline_tests.storage.places import between
from batch_pipeline_tests.storage_roots import Root, new_folder, new_prefix, records
from batch_pipeline_tests.store_faults import Faults, proxy

MIB = 2**20
TEXT = 2 * 2**10
COUNT = 3_000  # records just over 2 KiB: three ranges of 2 MiB, and no small objects
UNCHANGED = "batch_pipeline_tests.spark.transforms:unchanged"


@pytest.fixture(scope="module")
def workers_store(object_store: ObjectStore) -> Iterator[Faults]:
    """A proxy in front of the store that Spark's workers use."""
    with proxy(object_store.endpoint) as faults:
        yield faults


@pytest.fixture(scope="module")
def session(
    object_store: ObjectStore, workers_store: Faults, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A local session of two cores, whose workers use the proxy without retries."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in object_store.environment.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", workers_store.endpoint)
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        home = tmp_path_factory.mktemp("spark")
        yield open_session(SparkSettings(home=home, master="local[2]"))
        close_session()


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    set_range_bytes(monkeypatch, 2 * MIB)


JSONL, CSV = numbered_jsonl(COUNT, TEXT), numbered_csv(COUNT, TEXT)
LANDED = {
    "1.csv": CSV,
    "3.parquet": numbered_parquet(COUNT, TEXT),
    "4.jsonl.gz": gzip.compress(b'{"id":7,"text":"seven"}\n', mtime=0),
    "5.csv": b"id,text\n8,eight\n",
}
SCHEMA = RecordSchema.from_json([("id", "integer"), ("text", "string")])
QUARANTINE = BadFileRules.all(OnBadFile.QUARANTINE)


def encode(
    session: SparkSession,
    stream: Stream,
    files: Sequence[LandedFile],
    watch: EncodeCallbacks | None = None,
) -> EncodeResult:
    items = [Item(id=number, file=file) for number, file in enumerate(files, 1)]
    return encode_items(session, stream, items, SCHEMA, watch or EncodeCallbacks())


def ids(result: EncodeResult) -> list[int]:
    return [record["id"] for record in records(result.part_files)]


def test_encode_between_any_two_roots_writes_same_bytes(
    session: SparkSession, bucket: str, tmp_path: Path
) -> None:
    """Reading from the store and writing to it are each compared with a disk."""
    pairs: list[tuple[Root, Root]] = [
        (new_prefix(bucket), new_folder(tmp_path / "from-store")),
        (new_folder(tmp_path / "to-store"), new_prefix(bucket)),
    ]
    results = []
    for landing, storage in pairs:
        files = [landing.land(name, data) for name, data in LANDED.items()]
        result = encode(session, between(STREAM, landing, storage), files)
        assert len(storage.names()) == len(result.part_files) == 7
        assert ids(result) == [*range(COUNT), *range(COUNT), 7, 8]
        assert [item.written for item in result.items] == [COUNT, COUNT, 1, 1]
        results.append(result)
    from_store, to_store = (
        [  # names are compared up to the token
            (part.uri.rpartition("/")[2][:17], part.records, part.size_bytes, part.sha256)
            for part in result.part_files
        ]
        for result in results
    )
    assert from_store == to_store


def test_slices_of_object_without_recorded_facts_are_of_one_version(bucket: str) -> None:
    landing, storage = new_prefix(bucket), new_prefix(bucket)
    stream = between(STREAM, landing, storage)
    file = landing.land("large.jsonl", JSONL)
    item = Item(id=1, file=LandedFile(location=file.location), row_weight=file.size_bytes)
    tasks = split_files([item], stream)[1]
    assert [task.items[0].file for task in tasks] == [file] * 3


@pytest.mark.long
def test_ranges_of_object_have_each_record_once(session: SparkSession, bucket: str) -> None:
    landing, storage = new_prefix(bucket), new_prefix(bucket)
    stream = between(STREAM, landing, storage)
    file = landing.land("large.csv", CSV)
    ranges = list(ItemCutter(stream=stream, most_bytes=MIB).ranges(file))
    assert len(ranges) == 6
    assert {one.etag for one in ranges} == {file.etag}
    result = encode(session, stream, ranges)
    assert ids(result) == list(range(COUNT))
    assert {item.etag for item in result.items} == {file.etag}

    landing.land("large.csv", CSV[:-2] + b'c"\n')
    result = encode(session, replace(stream, on_bad_file=QUARANTINE), ranges)
    assert {item.bad_kind for item in result.items} == {BadFileKind.CHANGED}


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(None, id="plain"),
        pytest.param(UNCHANGED, id="transformed", marks=pytest.mark.long),
    ],
)
def test_encode_with_unreachable_store_raises(
    session: SparkSession, workers_store: Faults, bucket: str, tmp_path: Path, transform: str | None
) -> None:
    landing, storage = new_prefix(bucket), new_folder(tmp_path / "batches")
    stream = between(STREAM, landing, storage, on_bad_file=QUARANTINE, transform=transform)
    files = [landing.land(name, LANDED["5.csv"]) for name in ("1.csv", "a {b}.csv")]
    # A transformed stream is read twice; the second read fails.
    workers_store.slow_down(1, target="a%20%7Bb%7D.csv", skip=int(transform is not None))
    with pytest.raises(SourceUnavailableError, match="SlowDown") as caught:
        encode(session, stream, files)
    assert caught.value.uri == files[1].location
    assert storage.names() == []


def test_encode_with_transform_reads_and_writes_objects(session: SparkSession, bucket: str) -> None:
    landing, storage = new_prefix(bucket), new_prefix(bucket)
    stream = between(STREAM, landing, storage, transform=UNCHANGED)
    files = [landing.land(name, LANDED[name]) for name in ("4.jsonl.gz", "5.csv")]
    assert sorted(ids(encode(session, stream, files))) == [7, 8]


def test_cancelled_encode_leaves_neither_objects_nor_uploads(
    session: SparkSession, bucket: str
) -> None:
    landing, storage = new_prefix(bucket), new_prefix(bucket)
    files = [landing.land(f"{number}.jsonl", JSONL) for number in range(4)]
    stop = EncodeCallbacks(is_cancelled=lambda: True)
    with pytest.raises(ConflictError, match="the encode was cancelled while it ran"):
        encode(session, between(STREAM, landing, storage), files, stop)
    assert storage.names() == []
    assert list(S3.unfinished(f"{storage.uri}/")) == []
