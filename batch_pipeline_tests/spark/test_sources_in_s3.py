"""Objects as sources: one version of each, few requests, and classification of errors."""

import gzip
import os
from dataclasses import replace

import pytest

from batch_pipeline.encode import source_file
from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.encode.source_file import Prefetcher
from batch_pipeline.encode.task import SourceFailure
from batch_pipeline.model.errors import (
    BadFileError,
    PipelineError,
    SourceRefusedError,
    SourceUnavailableError,
)
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import join_uri
from batch_pipeline.model.record_rules import BadFileKind, BadFileRules, OnBadFile
from batch_pipeline.model.stream import Stream
from batch_pipeline.storage import s3_client
from batch_pipeline_tests.encode.landed_files import STREAM
from batch_pipeline_tests.storage.places import Requests, between, task
from batch_pipeline_tests.storage_roots import Root, content, new_prefix
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
