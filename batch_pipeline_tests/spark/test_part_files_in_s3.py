"""Part files as objects: same bytes as on disks, visible when complete, removed on failure."""

import gzip
import random
from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.encode.cancellation import (
    CancellationCheck,
    CancellationFlag,
    TaskCancelledError,
)
from batch_pipeline.encode.writers.json_lines import Lines, LineWriter
from batch_pipeline.encode.writers.part_writer import PartNames, PartWriter, remove
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import StorageUnavailableError
from batch_pipeline.model.record_rules import BadFileRules, OnBadFile
from batch_pipeline.model.stream import PartLimits, Storage
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.encode.landed_files import STREAM
from batch_pipeline_tests.storage.places import between, task
from batch_pipeline_tests.storage_roots import Root, content, new_folder, new_prefix
from batch_pipeline_tests.store_faults import Faults

MIB = 2**20
LARGE = [b"%01023d" % number for number in range(10 * 2**10)]  # 10 MiB: more than one request
NAME = "orders-1-00030000-00c0ffee.jsonl"


def names(root: str) -> PartNames:
    """Return the names of the files of task 3."""
    return PartNames(root=root, stem="orders-1", task=3, execution="00c0ffee", suffix="jsonl")


def large_writer(root: str, **limits: int) -> PartWriter[Lines]:
    """Return a writer of uncompressed lines."""
    return LineWriter(names(root), PartLimits(**limits), Compression.NONE)


@pytest.fixture
def storage(bucket: str) -> Root:
    """An empty prefix for part files."""
    return new_prefix(bucket)


def uploads(storage: Root) -> int:
    return len(list(S3.unfinished(f"{storage.uri}/")))


def test_large_part_is_visible_when_writer_is_closed(storage: Root, tmp_path: Path) -> None:
    on_disk = new_folder(tmp_path / "batches").uri
    written = []
    for root in (on_disk, storage.uri):
        writer = large_writer(root, max_bytes=10 * MIB)
        writer.append(Lines.of(LARGE))
        writer.append(Lines.of([b"one more"]))
        if root == storage.uri:
            assert (storage.names(), uploads(storage)) == ([], 1)  # the first part is finished
        written.append(writer.close())
    parts = written[1]
    assert (storage.names(), uploads(storage)) == ([NAME, NAME.replace("0000-0", "0001-0")], 0)
    assert parts[0].uri == f"{storage.uri}/{NAME}"
    assert [content(part.uri).splitlines() for part in parts] == [LARGE, [b"one more"]]
    renamed = [replace(part, uri=part.uri.replace(storage.uri, on_disk)) for part in parts]
    assert written[0] == tuple(renamed)
    for part in (*parts, *parts):
        remove(part)
    assert storage.names() == []


@pytest.mark.parametrize("is_closed", [False, True])
def test_aborted_writer_leaves_neither_objects_nor_uploads(storage: Root, is_closed: bool) -> None:
    writer = large_writer(storage.uri, max_bytes=11 * MIB)
    for records in (LARGE, LARGE, [b"small"]):
        writer.append(Lines.of(records))
    assert uploads(storage) == 2
    if is_closed:
        assert len(writer.close()) == 2
        assert len(storage.names()) == 2
    writer.abort()
    assert (storage.names(), uploads(storage)) == ([], 0)


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("records", [[b"1"], LARGE], ids=["small", "large"])
def test_missing_bucket_is_storage_unavailable(records: list[bytes]) -> None:
    writer = large_writer("s3://no-such-bucket-of-ours/batches")
    with pytest.raises(StorageUnavailableError, match="there is no such bucket"):  # noqa: PT012 - large parts fail before the end
        writer.append(Lines.of(records))
        writer.close()
    writer.abort()


def test_task_reports_storage_failure_at_completion(
    faults: Faults, storage: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3_client.forget()
    landing, output = new_prefix(storage.uri), new_prefix(storage.uri)
    noise = random.Random(7).randbytes(9 * MIB).hex()  # noqa: S311 - only to be incompressible
    file = landing.land("a.jsonl", b'{"id":"%b"}\n' % noise.encode())
    stream = between(STREAM, landing, output)
    stream = replace(stream, read_limits=replace(stream.read_limits, max_record_bytes=32 * MIB))
    faults.refuse(403, "AccessDenied", method="POST", target="uploadId=", times=1)
    report = task(stream, [file], id="string")
    assert report.storage_error == "the store refuses s3:PutObject (AccessDenied)"
    assert (output.names(), uploads(output)) == ([], 0)


@pytest.mark.parametrize(
    "encoding",
    [
        Encoding(format=Format.JSONL, compression=Compression.GZIP),
        Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
        Encoding(format=Format.ARROW, compression=Compression.ZSTD),
    ],
    ids=["jsonl", "parquet", "arrow"],
)
def test_task_between_any_two_roots_writes_same_bytes(
    bucket: str, tmp_path: Path, encoding: Encoding
) -> None:
    rules = BadFileRules.all(OnBadFile.QUARANTINE)
    stream = replace(
        STREAM, encoding=encoding, on_bad_file=rules, part_limits=PartLimits(max_records=2)
    )
    data = {
        "a.csv": b"id,name\n1,a\n2,b\n3,c\n",
        "b.jsonl.gz": gzip.compress(b'{"id":4,"name":"d"}\n', mtime=0),
        "torn.csv.gz": gzip.compress(b"id\n5\n", mtime=0)[:-1],
    }
    outputs = []
    landings: list[Root] = [new_folder(tmp_path / "landing"), new_prefix(bucket)]
    for number, landing in enumerate(landings):
        files = [landing.land(name, content_) for name, content_ in data.items()]
        storages: list[Root] = [new_folder(tmp_path / f"batches-{number}"), new_prefix(bucket)]
        for storage in storages:
            report = task(between(stream, landing, storage), files, id="integer", name="string")
            assert len(storage.names()) == 3
            assert [item.written for item in report.items] == [3, 1, 0]
            (bad,) = report.quarantine_files
            assert b"ends early" in gzip.decompress(content(bad.uri))
            outputs.append([(p.records, p.size_bytes, p.sha256) for p in report.part_files])
    assert len(outputs[0]) == 2
    assert outputs == [outputs[0]] * 4


def test_cancellation_flag_in_s3_is_checked_once_a_second(storage: Root) -> None:
    flag = CancellationFlag.of(Storage(root=storage.uri, prefix="p-"), "orders-1-2-a1", "0a0b")
    seconds = [0.0]
    check = CancellationCheck(flag, now=lambda: seconds[0]).check
    check()
    assert flag.set()
    assert storage.names() == [".p-orders-1-2-a1-0a0b.stop"]
    seconds[0] = 0.9
    check()
    seconds[0] = 1.0
    with pytest.raises(TaskCancelledError):
        check()
    flag.clear()
    seconds[0] = 3.0
    check()
    assert storage.names() == []
    assert not CancellationFlag.of(Storage(root="s3://no-such-bucket-of-ours"), "a", "b").set()
