"""Writing objects: visible only when complete, exactly once even if responses are lost."""

import base64
import hashlib

import pytest

from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import UnreachableError, digest, reason_of
from batch_pipeline.storage.s3 import S3, ObjectUpload
from batch_pipeline_tests.concurrency import run_python
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

MIB = 2**20
PIECE = bytes(range(256)) * 4_096  # 1 MiB
LARGE = PIECE * 20
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


@pytest.mark.parametrize("data", [b"", b"hello", bytes(8 * MIB)], ids=["empty", "five", "part"])
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


@pytest.mark.parametrize("others", [[], ["large"]], ids=["nothing", "others"])
def test_commit_of_upload_aborted_by_others_raises(
    bucket: str, faults: Faults, others: list[str]
) -> None:
    upload = upload_parts(f"{bucket}/large")
    for key in others:
        S3.put(f"{bucket}/{key}", b"theirs")
    for one in S3.unfinished(f"{bucket}/"):
        assert S3.abort_unfinished(one)
        assert not S3.abort_unfinished(one)
    faults.refuse(404, "NoSuchUpload", method="POST", times=1)  # moto fails in another way
    with pytest.raises(FileNotFoundError, match="was aborted, or is complete"):
        upload.commit()
    assert [read(f"{bucket}/{key}") for key in keys(bucket)] == [b"theirs"] * len(others)


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


def test_create_if_absent_is_retried_after_conflict(bucket: str, faults: Faults) -> None:
    faults.refuse(409, "ConditionalRequestConflict", method="PUT", times=2)
    assert S3.create_if_absent(f"{bucket}/pointer", b"mine")
    assert faults.count("PUT") == 3


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
