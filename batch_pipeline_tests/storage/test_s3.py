"""Objects of S3: reads of one version, listings, and writes that are visible only when complete."""

import base64
import hashlib
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.response import StreamingBody

from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import UnreachableError, digest, reason_of
from batch_pipeline.storage.s3 import S3, ObjectReader, ObjectUpload
from batch_pipeline_tests.concurrency import run_python
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

THREE_MIB = bytes(range(256)) * 12_288


def test_object_is_read_from_any_byte(bucket: str) -> None:
    S3.put(f"{bucket}/large", THREE_MIB)
    with S3.open(f"{bucket}/large") as file:
        file.read(10)
        for offset, whence, position in (
            (0, io.SEEK_SET, 0),
            (2_000_000, io.SEEK_SET, 2_000_000),
            (-50, io.SEEK_END, 3_145_678),
        ):
            assert file.seek(offset, whence) == position
            assert file.read(5) == THREE_MIB[position : position + 5]
            file.seek(7, io.SEEK_CUR)
            assert file.tell() == position + 12
            assert file.read(3) == THREE_MIB[position + 12 : position + 15]
        file.seek(10, io.SEEK_END)
        assert file.read() == b""
        with pytest.raises(OSError, match="Invalid argument"):
            file.seek(-1)


def test_read_all_takes_large_pieces(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    S3.put(f"{bucket}/large", THREE_MIB)
    sizes: list[int | None] = []

    def read(body: StreamingBody, size_bytes: int | None = None) -> bytes:
        sizes.append(size_bytes)
        data: bytes = original(body, size_bytes)
        return data

    original = StreamingBody.read
    monkeypatch.setattr(StreamingBody, "read", read)
    with S3.open(f"{bucket}/large") as file:
        assert file.read() == THREE_MIB
    assert sizes == [2**20] * 3


def test_short_seek_sends_no_new_request(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/large", THREE_MIB)
    with ObjectReader(f"{bucket}/large") as raw:
        raw.seek(500_000)
        assert raw.read(4) == THREE_MIB[500_000:500_004]
        assert faults.count("GET") == 1
        raw.seek(3_000_000)
        assert raw.read(4) == THREE_MIB[3_000_000:3_000_004]
    assert faults.count("GET") == 2


def test_read_continues_after_lost_connections(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/large", THREE_MIB)
    cut = Fault(deed=Deed.CUT, method="GET", times=3, after_bytes=700_000)
    faults.add(cut)
    with S3.open(f"{bucket}/large") as file:
        assert file.read() == THREE_MIB
    assert faults.count("GET") == 4


def test_repeatedly_lost_connection_is_unreachable_error(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/large", THREE_MIB)
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


MIB = 2**20
PIECE = bytes(range(256)) * 4_096  # 1 MiB
LARGE = PIECE * 17
UPLOAD = """
import sys
from batch_pipeline.storage.s3 import ObjectUpload
upload = ObjectUpload(sys.argv[1])
upload.write(bytes(9 * 2**20))
upload.finish()
upload.commit()
"""


@pytest.fixture
def few_attempts(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit retries to save time."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    s3_client.forget()


def upload_parts(uri: str, data: bytes = LARGE) -> ObjectUpload:
    """Send all bytes without completing the object."""
    upload = ObjectUpload(uri)
    for first in range(0, len(data), MIB):
        upload.write(data[first : first + MIB])
    upload.finish()
    return upload


def keys(bucket: str) -> list[str]:
    return [one.name for one in S3.list(f"{bucket}/")]


def unfinished(bucket: str) -> list[str]:
    return [one.name for one in S3.unfinished(f"{bucket}/")]


def read(uri: str) -> bytes:
    with S3.open(uri) as file:
        return file.read()


@pytest.mark.parametrize("data", [b"", bytes(8 * MIB)], ids=["empty", "part"])
def test_small_object_is_written_with_one_request(bucket: str, faults: Faults, data: bytes) -> None:
    upload_parts(f"{bucket}/a", data).commit()
    assert read(f"{bucket}/a") == data
    assert (faults.count("PUT"), faults.count("POST")) == (1, 0)


@pytest.mark.parametrize("data", [b"mine", LARGE], ids=["small", "large"])
def test_abort_keeps_object_of_another_writer(bucket: str, data: bytes) -> None:
    S3.put(f"{bucket}/a", b"theirs")
    ObjectUpload(f"{bucket}/a").abort()
    own = upload_parts(f"{bucket}/a", data)
    own.commit()
    S3.put(f"{bucket}/a", b"theirs")
    own.abort()
    assert read(f"{bucket}/a") == b"theirs"


def test_commit_with_lost_response_succeeds(bucket: str, faults: Faults) -> None:
    upload = upload_parts(f"{bucket}/large")
    faults.add(Fault(deed=Deed.LOSE, method="POST", target="uploadId="))
    faults.refuse(404, "NoSuchUpload", method="POST", target="uploadId=", times=1)
    upload.commit()
    assert digest(f"{bucket}/large") == hashlib.sha256(LARGE).hexdigest()


def test_commit_of_upload_aborted_by_others_raises(bucket: str, faults: Faults) -> None:
    """The object of another writer under this name is not taken for its own."""
    upload = upload_parts(f"{bucket}/large")
    S3.put(f"{bucket}/large", b"theirs")
    [one] = S3.unfinished(f"{bucket}/")
    assert S3.abort_unfinished(one)
    faults.refuse(404, "NoSuchUpload", method="POST", times=1)  # moto fails in another way
    with pytest.raises(FileNotFoundError, match="was aborted, or is complete"):
        upload.commit()
    assert read(f"{bucket}/large") == b"theirs"


@pytest.mark.usefixtures("few_attempts")
def test_abort_deletes_object_completed_without_response(bucket: str, faults: Faults) -> None:
    upload = upload_parts(f"{bucket}/large")
    faults.add(Fault(deed=Deed.LOSE, method="POST", target="uploadId="))
    faults.refuse(500, "InternalError", method="POST", target="uploadId=")
    with pytest.raises(UnreachableError, match="InternalError, after 2 requests"):
        upload.commit()
    assert keys(bucket) == ["large"]
    upload.abort()
    assert keys(bucket) == []


def test_part_is_resent_after_lost_connection(bucket: str, faults: Faults) -> None:
    drop = Fault(deed=Deed.DROP, method="PUT", target="partNumber=", times=2, after_bytes=MIB)
    faults.add(drop)
    upload_parts(f"{bucket}/large").commit()
    assert digest(f"{bucket}/large") == hashlib.sha256(LARGE).hexdigest()
    assert faults.count("PUT") == 5


@pytest.mark.usefixtures("few_attempts")
def test_part_that_always_fails_fails_the_upload(bucket: str, faults: Faults) -> None:
    faults.refuse(500, "InternalError", method="PUT", target="partNumber=2")
    upload = ObjectUpload(f"{bucket}/large")
    upload.write(LARGE)
    with pytest.raises(UnreachableError, match="the store is busy"):
        upload.finish()
    with pytest.raises(OSError, match="not all of its bytes were sent"):
        upload.commit()
    upload.abort()
    assert (keys(bucket), unfinished(bucket)) == ([], [])


def test_uploads_have_checksums(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/a", b"hello")
    assert faults.sums == [base64.b64encode(hashlib.sha256(b"hello").digest()).decode()]
    upload = ObjectUpload(f"{bucket}/large")
    upload.write(memoryview(LARGE))  # one write for several parts
    upload.finish()
    upload.commit()
    parts = (LARGE[: 8 * MIB], LARGE[8 * MIB : 16 * MIB], LARGE[16 * MIB :])
    assert sorted(faults.sums[1:]) == sorted(
        base64.b64encode(hashlib.sha256(part).digest()).decode() for part in parts
    )
    assert digest(f"{bucket}/large") == hashlib.sha256(LARGE).hexdigest()


def test_process_killed_before_completion_leaves_no_object(bucket: str) -> None:
    point = "upload.before_complete=kill"
    assert run_python(UPLOAD, f"{bucket}/large", failpoints=point) == -9
    assert (keys(bucket), unfinished(bucket)) == ([], ["large"])


def test_create_if_absent_is_retried_if_existing_object_disappears(
    bucket: str, faults: Faults
) -> None:
    faults.refuse(412, "PreconditionFailed", method="PUT", times=1)
    assert S3.create_if_absent(f"{bucket}/pointer", b"mine")
    assert read(f"{bucket}/pointer") == b"mine"


def test_create_if_absent_without_conditional_writes_raises(bucket: str, faults: Faults) -> None:
    faults.refuse(501, "NotImplemented", method="PUT")
    with pytest.raises(OSError, match="NotImplemented") as failed:
        S3.create_if_absent(f"{bucket}/pointer", b"mine")
    assert reason_of(failed.value) == "the store answers NotImplemented: said by a test"
