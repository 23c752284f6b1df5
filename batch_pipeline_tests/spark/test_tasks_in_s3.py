"""Encode tasks that read and write objects: one version of each, few requests, errors."""

import gzip
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.encode import source_file
from batch_pipeline.encode.cancellation import (
    CancellationCheck,
    CancellationFlag,
    TaskCancelledError,
)
from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.encode.source_file import Prefetcher
from batch_pipeline.encode.task import SourceFailure
from batch_pipeline.encode.writers.json_lines import Lines, LineWriter
from batch_pipeline.encode.writers.part_writer import PartNames, PartWriter, remove
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import (
    BadFileError,
    PipelineError,
    SourceRefusedError,
    SourceUnavailableError,
    StorageUnavailableError,
)
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import join_uri
from batch_pipeline.model.record_rules import BadFileKind, BadFileRules, OnBadFile
from batch_pipeline.model.stream import PartLimits, Storage, Stream
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.encode.landed_files import STREAM
from batch_pipeline_tests.storage.places import Requests, between, task
from batch_pipeline_tests.storage_roots import Root, content, new_folder, new_prefix
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

MIB = 2**20
QUARANTINE = BadFileRules.all(OnBadFile.QUARANTINE)
AVRO_SCHEMA = b'{"type":"record","name":"r","fields":[{"name":"id","type":"bytes"}]}'
AVRO_START = b"Obj\1\2\x16avro.schema\x88\1" + AVRO_SCHEMA + b"\0" + b"sixteen bytes ok"


@pytest.fixture
def landing(bucket: str) -> Root:
    """An empty prefix for landed files."""
    return new_prefix(bucket)


@pytest.fixture
def storage(bucket: str) -> Root:
    """An empty prefix for part files."""
    return new_prefix(bucket)


def read_error(file: LandedFile) -> PipelineError:
    """Read an object that cannot be used and return the error."""
    with pytest.raises(PipelineError) as caught, open_source(file, STREAM) as source:
        source.read(9 * MIB)
    return caught.value


def bad_file_of(file: LandedFile) -> tuple[BadFileKind, str]:
    """Read an object that is a bad file and return its kind and reason."""
    error = read_error(file)
    assert isinstance(error, BadFileError)
    return BadFileKind(error.kind), error.reason


def test_small_object_is_read_with_one_request(landing: Root) -> None:
    file = landing.land("a b%20é.csv", b"id\n1\n2\n")
    with Requests() as requests, open_source(file, STREAM) as source:
        assert source.read(100) == b"id\n1\n2\n"
        source.seek(3)
        assert source.read(2) == b"1\n"
        assert source.file.read() == b"id\n1\n2\n"
        with source.reopened() as again:
            assert again.read(2) == b"id"
        assert (source.facts.etag, source.facts.size_bytes) == (file.etag, 7)
    assert requests.sent == ["GetObject"]


def test_large_object_can_be_read_at_any_offset(landing: Root) -> None:
    data = b"PAR1" + os.urandom(6 * MIB)
    file = landing.land("large.parquet", data)
    with Requests() as requests, open_source(file, STREAM) as source:
        whole = source.file
        assert whole.read() == data
        whole.seek(-10, os.SEEK_END)
        assert whole.read() == data[-10:]
        with source.reopened() as again:
            again.seek(5 * MIB)
            assert again.read(3) == data[5 * MIB :][:3]
    assert 2 <= len(requests.sent) <= 4
    assert set(requests.sent) == {"GetObject"}


@pytest.mark.guarantee("G9")
def test_object_with_other_etag_is_reported_as_changed(landing: Root) -> None:
    """Both ETags are named, also if the size is the same."""
    old = landing.land("orders.csv", b"id\n1\n")
    new = landing.land("orders.csv", b"id\n2\n")
    reason = f"changed since it was registered: etag {old.etag} -> {new.etag}"
    assert bad_file_of(old) == (BadFileKind.CHANGED, reason)
    longer = landing.land("orders.csv", b"id\n10\n")
    reason = f"changed since it was registered: size 5 -> 6 B, etag {old.etag} -> {longer.etag}"
    assert bad_file_of(old) == (BadFileKind.CHANGED, reason)
    reason = "changed since it was registered: size 5 -> 6 B"
    assert bad_file_of(replace(old, etag=None)) == (BadFileKind.CHANGED, reason)


@pytest.mark.guarantee("G9")
def test_missing_object_is_reported_as_missing(landing: Root) -> None:
    file = landing.land("orders.csv", b"id\n1\n")
    landing.remove("orders.csv")
    assert bad_file_of(file) == (BadFileKind.MISSING, "does not exist")
    assert bad_file_of(LandedFile(location="s3://no_such_bucket!/a"))[0] is BadFileKind.CORRUPT


def test_missing_bucket_is_not_a_bad_file(bucket: str) -> None:
    uri = f"{bucket}-none/a"
    error = read_error(LandedFile(location=uri))
    assert isinstance(error, SourceRefusedError)
    assert (error.uri, error.reason) == (uri, "there is no such bucket")


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("is_compressed", [False, True])
def test_object_replaced_while_read_is_reported_as_changed(
    landing: Root, is_compressed: bool
) -> None:
    """Bytes of two versions are never mixed, and the reason is not damage."""
    data = os.urandom(6 * MIB)
    file = landing.land(
        "orders", gzip.compress(data, 1, mtime=0) if is_compressed else b"Obj\1" + data
    )

    def read_while_it_is_replaced() -> None:
        with open_source(replace(file, etag=None), STREAM) as source:
            start = len(source.read(MIB))
            landing.land("orders", b"other")
            if is_compressed:
                source.reopened().read()
            else:
                source.seek(5 * MIB + start)
                source.read(MIB)

    with pytest.raises(BadFileError) as caught:
        read_while_it_is_replaced()
    expected = (BadFileKind.CHANGED, "changed while it was read")
    assert (caught.value.kind, caught.value.reason) == expected


@pytest.fixture
def faults_without_retries(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """A store whose faults are configured, and whose requests are not retried."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3_client.forget()
    return faults


def test_busy_store_is_not_a_bad_file(
    faults_without_retries: Faults, landing: Root, storage: Root
) -> None:
    first, second = landing.land("a.csv", b"id\n1\n"), landing.land("orders.csv", b"id\n1\n")
    faults_without_retries.slow_down(1, method="GET")
    error = read_error(second)
    assert isinstance(error, SourceUnavailableError)
    assert (error.uri, "SlowDown" in error.reason) == (second.location, True)
    faults_without_retries.slow_down(1, method="GET", target="orders.csv")
    stream = between(STREAM, landing, storage, on_bad_file=QUARANTINE)
    assert source_error(stream, first, second).uri == second.location
    assert storage.names() == []


def test_denied_access_is_not_a_bad_file(
    faults_without_retries: Faults, landing: Root, storage: Root
) -> None:
    file = landing.land("orders.csv", b"id\n1\n")
    faults_without_retries.refuse(403, "AccessDenied", method="GET", target="orders.csv")
    error = read_error(file)
    assert isinstance(error, SourceRefusedError)
    assert error.reason == (
        "the store refuses s3:GetObject (AccessDenied), or there is none and s3:ListBucket is "
        "refused"
    )
    stream = between(STREAM, landing, storage, on_bad_file=QUARANTINE)
    again = source_error(stream, file).error()
    assert isinstance(again, SourceRefusedError)
    assert str(again) == str(error)
    assert storage.names() == []


def source_error(stream: Stream, *files: LandedFile) -> SourceFailure:
    """Run a task that must fail because of its source, without items or part files."""
    report = task(stream, files, id="integer")
    assert (report.failure, report.items, report.part_files) == (None, (), ())
    assert report.source_error is not None
    return report.source_error


@pytest.mark.parametrize("kind", ["csv", "jsonl", "gzip", "parquet", "avro"])
def test_lost_connection_is_not_a_damaged_file(
    faults_without_retries: Faults, landing: Root, storage: Root, kind: str
) -> None:
    noise = os.urandom(5 * MIB)
    data = {
        "csv": b"id\n" + b"1234567\n" * (5 * MIB // 8),
        "jsonl": b'{"id":1}\n' * (5 * MIB // 9),
        "gzip": gzip.compress(noise.hex().encode(), 1, mtime=0),
        "parquet": b"PAR1" + noise + b"PAR1",
        "avro": AVRO_START + b"\2\x80\x80\x80\5" + noise,  # a block of one record, 5 MiB
    }[kind]
    file = landing.land("orders", data)
    cut = Fault(deed=Deed.CUT, method="GET", target="orders", after_bytes=300_000)
    busy = Fault(deed=Deed.ANSWER, method="GET", target="orders", times=99)
    faults_without_retries.add(cut, busy)
    source_error(between(STREAM, landing, storage), file)
    assert storage.names() == []


def test_small_objects_are_prefetched(
    landing: Root, storage: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_file, "_MAX_REQUESTS", 3)
    files = [landing.land(f"{number:02}.csv", b"id\n%d\n" % number) for number in range(10)]
    stream = between(STREAM, landing, storage)
    with Requests() as requests:
        report = task(stream, files, id="integer")
    assert requests.sent.count("GetObject") == 10
    assert [item.written for item in report.items] == [1] * 10
    assert [item.etag for item in report.items] == [file.etag for file in files]
    (part,) = report.part_files
    lines = gzip.decompress(content(part.uri)).splitlines()
    assert lines == [b'{"id":%d}' % number for number in range(10)]

    with Requests() as requests:
        prefetcher = Prefetcher(files)
        pinned = prefetcher.take(files[0])
        assert pinned is not None
        with pinned.open() as raw:
            assert raw.read() == b"id\n0\n"
        prefetcher.close()
    assert 1 <= len(requests.sent) <= 4


@pytest.mark.guarantee("G9")
def test_bad_objects_do_not_affect_good_ones(landing: Root, storage: Root) -> None:
    """Missing, changed and damaged objects are quarantined; the others are written."""
    good = [landing.land("a.csv", b"id\n1\n"), landing.land("z.csv", b"id\n2\n")]
    old = landing.land("changed.csv", b"id\n3\n")
    landing.land("changed.csv", b"id\n4\n")
    truncated = landing.land("torn.gz", gzip.compress(b"id\n5\n", mtime=0)[:-1])
    missing = replace(old, location=join_uri(landing.uri, "missing.csv"))
    stream = between(STREAM, landing, storage, on_bad_file=QUARANTINE)
    report = task(stream, [good[0], old, truncated, missing, good[1]], id="integer")
    kinds = [None, BadFileKind.CHANGED, BadFileKind.CORRUPT, BadFileKind.MISSING, None]
    assert [item.bad_kind for item in report.items] == kinds
    (part,) = report.part_files
    assert gzip.decompress(content(part.uri)) == b'{"id":1}\n{"id":2}\n'
    assert storage.names() == [
        "orders-1-00000000-00c0ffee.jsonl.gz",
        "quarantine/orders-1-00000000-00c0ffee.jsonl.gz",
    ]


LARGE = [b"%01023d" % number for number in range(10 * 2**10)]  # 10 MiB: more than one request
NAME = "orders-1-00030000-00c0ffee.jsonl"


def names(root: str) -> PartNames:
    """Return the names of the files of task 3."""
    return PartNames(root=root, stem="orders-1", task=3, execution="00c0ffee", suffix="jsonl")


def large_writer(root: str, **limits: int) -> PartWriter[Lines]:
    """Return a writer of uncompressed lines."""
    return LineWriter(names(root), PartLimits(**limits), Compression.NONE)


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
    faults_without_retries: Faults, storage: Root
) -> None:
    landing, output = new_prefix(storage.uri), new_prefix(storage.uri)
    noise = random.Random(7).randbytes(9 * MIB).hex()  # noqa: S311 - only to be incompressible
    file = landing.land("a.jsonl", b'{"id":"%b"}\n' % noise.encode())
    stream = between(STREAM, landing, output)
    stream = replace(stream, read_limits=replace(stream.read_limits, max_record_bytes=32 * MIB))
    faults_without_retries.refuse(403, "AccessDenied", method="POST", target="uploadId=", times=1)
    report = task(stream, [file], id="string")
    assert report.storage_error == "the store refuses s3:PutObject (AccessDenied)"
    assert (output.names(), uploads(output)) == ([], 0)


@pytest.mark.parametrize(
    "encoding",
    [
        Encoding(format=Format.JSONL, compression=Compression.GZIP),
        Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
    ],
    ids=["jsonl", "parquet"],
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
