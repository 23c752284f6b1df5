"""Reading and listing objects: seeks, versions, lost connections, keys and pages."""

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.response import StreamingBody

from batch_pipeline.storage.filesystem import UnreachableError, reason_of
from batch_pipeline.storage.s3 import S3, ObjectReader
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

LARGE = bytes(range(256)) * 12_288  # 3 MiB


def test_object_is_read_from_any_byte(bucket: str) -> None:
    S3.put(f"{bucket}/large", LARGE)
    with S3.open(f"{bucket}/large") as file:
        file.read(10)
        for offset, whence, position in (
            (0, io.SEEK_SET, 0),
            (2_000_000, io.SEEK_SET, 2_000_000),
            (-50, io.SEEK_END, 3_145_678),
        ):
            assert file.seek(offset, whence) == position
            assert file.read(5) == LARGE[position : position + 5]
            file.seek(7, io.SEEK_CUR)
            assert file.tell() == position + 12
            assert file.read(3) == LARGE[position + 12 : position + 15]
        file.seek(10, io.SEEK_END)
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


def test_short_seek_sends_no_new_request(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/large", LARGE)
    with ObjectReader(f"{bucket}/large") as raw:
        raw.seek(500_000)
        assert raw.read(4) == LARGE[500_000:500_004]
        assert faults.count("GET") == 1
        raw.seek(3_000_000)
        assert raw.read(4) == LARGE[3_000_000:3_000_004]
    assert faults.count("GET") == 2


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


def test_head_returns_version_in_versioned_bucket(bucket: str, object_store: ObjectStore) -> None:
    S3.put(f"{bucket}/a", b"hello")
    assert S3.head(f"{bucket}/a").version is None
    object_store.client().put_bucket_versioning(
        Bucket=bucket.removeprefix("s3://"), VersioningConfiguration={"Status": "Enabled"}
    )
    S3.put(f"{bucket}/a", b"hello")
    first = S3.head(f"{bucket}/a").version
    assert first not in {None, "null"}
    with ObjectReader(f"{bucket}/a") as raw:
        assert raw.facts.version == first
    S3.put(f"{bucket}/a", b"hello")
    assert S3.head(f"{bucket}/a").version not in {None, first}


def test_keys_with_special_characters(bucket: str) -> None:
    keys = ["a b", "a%20b", "a&b<c>", "a+b", "größe?x=1", "x&y'z", "日本"]
    for key in keys:
        S3.put(f"{bucket}/{key}", key.encode())
    for key in keys:
        with S3.open(f"{bucket}/{key}") as file:
            assert file.read() == key.encode()
    assert [one.name for one in S3.list(bucket)] == keys
    S3.delete(*(f"{bucket}/{key}" for key in keys[1:]))
    assert [one.name for one in S3.list(bucket)] == keys[:1]


@pytest.mark.long
def test_list_and_delete_across_pages(bucket: str, faults: Faults) -> None:
    keys = [f"{number:05}" for number in range(1_234)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: S3.put(f"{bucket}/in/{key}", b"x"), keys))
    assert [one.name for one in S3.list(f"{bucket}/in/")] == keys
    assert faults.count("GET") == 2
    assert [one.name for one in S3.list(f"{bucket}/in/", after="00999")] == keys[1_000:]
    assert faults.count("GET") == 3
    assert next(S3.list(bucket)).name == "in/00000"
    assert faults.count("GET") <= 5  # one page is prefetched
    S3.delete(*(f"{bucket}/in/{key}" for key in keys))
    assert faults.count("POST") == 2
    assert list(S3.list(bucket)) == []
