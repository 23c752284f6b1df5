"""Reading objects: seeks, pinned versions and lost connections."""

import io

import pytest
from botocore.response import StreamingBody

from batch_pipeline.storage.filesystem import UnreachableError, digest, local_file, reason_of
from batch_pipeline.storage.s3 import S3, ObjectReader
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

LARGE = bytes(range(256)) * 12_288  # 3 MiB
SHA256_OF_HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


def test_object_reads_like_a_file(bucket: str) -> None:
    S3.put(f"{bucket}/a.txt", b"one\ntwo\nthree")
    with S3.open(f"{bucket}/a.txt") as file:
        assert file.readline() == b"one\n"
        assert file.read(2) == b"tw"
        assert file.tell() == 6
        assert file.read() == b"o\nthree"
        assert file.read() == b""
    assert file.closed


@pytest.mark.parametrize(
    ("offset", "whence", "position"),
    [(0, io.SEEK_SET, 0), (2_000_000, io.SEEK_SET, 2_000_000), (-5, io.SEEK_END, 3_145_723)],
    ids=["start", "far", "end"],
)
def test_seek_to_any_byte(bucket: str, offset: int, whence: int, position: int) -> None:
    S3.put(f"{bucket}/large", LARGE)
    with S3.open(f"{bucket}/large") as file:
        file.read(10)
        assert file.seek(offset, whence) == position
        assert file.read(5) == LARGE[position : position + 5]
        file.seek(7, io.SEEK_CUR)
        assert file.read(3) == LARGE[position + 12 : position + 15]


def test_read_after_the_end_is_empty(bucket: str) -> None:
    S3.put(f"{bucket}/a", b"abc")
    with S3.open(f"{bucket}/a") as file:
        file.seek(10)
        assert file.read() == b""
        with pytest.raises(OSError, match="Invalid argument"):
            file.seek(-1)


def test_read_all_takes_large_pieces(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    S3.put(f"{bucket}/large", LARGE)
    sizes: list[int | None] = []

    def read(body: StreamingBody, size_bytes: int | None = None) -> bytes:
        sizes.append(size_bytes)
        data: bytes = original(body, size_bytes)
        return data

    original = StreamingBody.read
    monkeypatch.setattr(StreamingBody, "read", read)
    with S3.open(f"{bucket}/large") as file:
        assert file.read() == LARGE
    assert sizes == [2**20] * 3


def test_small_object_is_read_with_one_request(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/a", b"hello")
    with ObjectReader(f"{bucket}/a") as raw:
        assert raw.read() == b"hello"
        assert raw.facts == S3.head(f"{bucket}/a")
    assert faults.count("GET") == 1


def test_short_seek_sends_no_new_request(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/large", LARGE)
    with ObjectReader(f"{bucket}/large") as raw:
        raw.seek(500_000)
        assert raw.read(4) == LARGE[500_000:500_004]
        assert faults.count("GET") == 1
        raw.seek(3_000_000)
        assert raw.read(4) == LARGE[3_000_000:3_000_004]
    assert faults.count("GET") == 2


def test_open_reads_requested_version_only(bucket: str) -> None:
    S3.put(f"{bucket}/a", b"first")
    etag = S3.head(f"{bucket}/a").etag
    with S3.open(f"{bucket}/a", etag) as file:
        assert file.read() == b"first"
    S3.put(f"{bucket}/a", b"second")
    with pytest.raises(FileExistsError) as failed:
        S3.open(f"{bucket}/a", etag)
    assert reason_of(failed.value) == "another version of the object is there"
    assert failed.value.filename == f"{bucket}/a"


def test_object_overwritten_while_read_is_detected(bucket: str) -> None:
    S3.put(f"{bucket}/large", LARGE)
    with ObjectReader(f"{bucket}/large") as raw:
        assert raw.read(4) == LARGE[:4]
        S3.put(f"{bucket}/large", bytes(len(LARGE)))
        raw.seek(3_000_000)
        with pytest.raises(FileExistsError):
            raw.read(4)


def test_object_deleted_while_read_raises_file_not_found(bucket: str) -> None:
    S3.put(f"{bucket}/large", LARGE)
    with ObjectReader(f"{bucket}/large") as raw:
        S3.delete(f"{bucket}/large")
        raw.seek(3_000_000)
        with pytest.raises(FileNotFoundError):
            raw.read(4)


def test_read_continues_after_lost_connections(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/large", LARGE)
    cut = Fault(deed=Deed.CUT, method="GET", times=3, after_bytes=700_000)
    faults.add(cut)
    with S3.open(f"{bucket}/large") as file:
        assert file.read() == LARGE
    assert faults.count("GET") == 4


def test_repeatedly_lost_connection_is_unreachable_error(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/large", LARGE)
    with ObjectReader(f"{bucket}/large") as raw:
        faults.add(Fault(deed=Deed.CUT, method="GET", times=100))
        raw.seek(3_000_000)
        with pytest.raises(UnreachableError) as failed:
            raw.read(4)
    assert reason_of(failed.value) == "the connection is lost every time at byte 3,000,000"


def test_object_overwritten_before_reconnect_is_detected(
    bucket: str, faults: Faults, object_store: ObjectStore
) -> None:
    S3.put(f"{bucket}/large", LARGE)
    faults.add(Fault(deed=Deed.CUT, method="GET", after_bytes=700_000))
    with S3.open(f"{bucket}/large") as file:
        file.read(300_000)
        name = bucket.removeprefix("s3://")
        object_store.client().put_object(Bucket=name, Key="large", Body=bytes(len(LARGE)))
        with pytest.raises(FileExistsError):
            file.read()


def test_missing_object_raises_file_not_found(bucket: str) -> None:
    uri = f"{bucket}/none"
    for call in (S3.open, S3.head, digest):
        with pytest.raises(FileNotFoundError) as failed:
            call(uri)
        assert failed.value.filename == uri
    with pytest.raises(FileNotFoundError), local_file(uri):
        pass


def test_head_returns_facts_of_object(bucket: str) -> None:
    S3.put(f"{bucket}/a", b"hello")
    facts = S3.head(f"{bucket}/a")
    assert (facts.size_bytes, facts.etag) == (5, "5d41402abc4b2a76b9719d911017c592")
    assert facts.modified_at.microsecond == 0
    assert str(facts.modified_at.tzinfo) == "UTC"
    assert facts.version is None
    assert facts.is_regular


def test_head_returns_version_in_versioned_bucket(bucket: str, object_store: ObjectStore) -> None:
    object_store.client().put_bucket_versioning(
        Bucket=bucket.removeprefix("s3://"), VersioningConfiguration={"Status": "Enabled"}
    )
    S3.put(f"{bucket}/a", b"hello")
    first = S3.head(f"{bucket}/a").version
    assert first
    with ObjectReader(f"{bucket}/a") as raw:
        assert raw.facts.version == first
    S3.put(f"{bucket}/a", b"hello")
    assert S3.head(f"{bucket}/a").version not in {None, first}


def test_keys_with_special_characters(bucket: str) -> None:
    for key in ("a%20b", "a b", "größe?x=1", "a+b", "x&y'z"):
        S3.put(f"{bucket}/{key}", key.encode())
    for key in ("a%20b", "a b", "größe?x=1", "a+b", "x&y'z"):
        with S3.open(f"{bucket}/{key}") as file:
            assert file.read() == key.encode()
