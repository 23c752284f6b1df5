"""Writing objects: visible when complete and not before, once, also when answers are lost."""

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
LOST_WITH_ITS_PROCESS = """
import sys
from batch_pipeline.storage.s3 import ObjectUpload
upload = ObjectUpload(sys.argv[1])
upload.write(bytes(9 * 2**20))
upload.finish()
upload.commit()
"""


@pytest.fixture
def few_attempts(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than two requests where the usual number takes seconds."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    s3_client.forget()


def written(uri: str, octets: bytes = LARGE) -> ObjectUpload:
    """Send all bytes, piece by piece; the object is not complete yet."""
    upload = ObjectUpload(uri)
    for first in range(0, len(octets), MIB):
        upload.write(octets[first : first + MIB])
    upload.finish()
    return upload


def keys(bucket: str) -> list[str]:
    """List what can be seen."""
    return [one.name for one in S3.list(f"{bucket}/")]


def unfinished(bucket: str) -> list[str]:
    """List what was begun."""
    return [one.name for one in S3.unfinished(f"{bucket}/")]


def read(uri: str) -> bytes:
    """Return the bytes of an object."""
    with S3.open(uri) as file:
        return file.read()


@pytest.mark.parametrize("octets", [b"", b"hello", bytes(8 * MIB)], ids=["empty", "five", "part"])
def test_small_object_is_one_request(bucket: str, faults: Faults, octets: bytes) -> None:
    written(f"{bucket}/a", octets).commit()
    assert read(f"{bucket}/a") == octets
    assert (faults.count("PUT"), faults.count("POST")) == (1, 0)


def test_large_object_is_seen_when_complete(bucket: str, faults: Faults) -> None:
    upload = written(f"{bucket}/large")
    assert (keys(bucket), unfinished(bucket)) == ([], ["large"])
    upload.commit()
    assert (keys(bucket), unfinished(bucket)) == (["large"], [])
    assert digest(f"{bucket}/large") == hashlib.sha256(LARGE).hexdigest()
    assert faults.count("PUT") == 3


def test_large_write_goes_in_parts(bucket: str) -> None:
    upload = ObjectUpload(f"{bucket}/large")
    upload.write(memoryview(LARGE))
    upload.finish()
    upload.commit()
    assert digest(f"{bucket}/large") == hashlib.sha256(LARGE).hexdigest()


@pytest.mark.parametrize("octets", [b"mine", LARGE], ids=["small", "large"])
def test_abort_leaves_what_others_wrote(bucket: str, octets: bytes) -> None:
    S3.put(f"{bucket}/a", b"theirs")
    ObjectUpload(f"{bucket}/a").abort()
    mine = written(f"{bucket}/a", octets)
    mine.commit()
    S3.put(f"{bucket}/a", b"theirs")
    mine.abort()
    assert read(f"{bucket}/a") == b"theirs"


def test_unsealed_upload_is_not_completed(bucket: str) -> None:
    upload = ObjectUpload(f"{bucket}/a")
    upload.write(b"hello")
    with pytest.raises(OSError, match="not all of its bytes were sent"):
        upload.commit()
    assert keys(bucket) == []


def test_lost_reply_of_complete_is_found_out(bucket: str, faults: Faults) -> None:
    upload = written(f"{bucket}/large")
    faults.add(Fault(deed=Deed.LOSE, method="POST", target="uploadId="))
    faults.refuse(404, "NoSuchUpload", method="POST", target="uploadId=", times=1)
    upload.commit()
    assert digest(f"{bucket}/large") == hashlib.sha256(LARGE).hexdigest()


@pytest.mark.parametrize("theirs", [[], ["large"]], ids=["nothing", "theirs"])
def test_upload_aborted_by_others_is_not_complete(
    bucket: str, faults: Faults, theirs: list[str]
) -> None:
    upload = written(f"{bucket}/large")
    for key in theirs:
        S3.put(f"{bucket}/{key}", b"theirs")
    for one in S3.unfinished(f"{bucket}/"):
        assert S3.abort_unfinished(one)
        assert not S3.abort_unfinished(one)
    faults.refuse(404, "NoSuchUpload", method="POST", times=1)  # moto fails in another way
    with pytest.raises(FileNotFoundError, match="was aborted, or is complete"):
        upload.commit()
    assert [read(f"{bucket}/{key}") for key in keys(bucket)] == [b"theirs"] * len(theirs)


@pytest.mark.usefixtures("few_attempts")
def test_abort_takes_back_a_completion_without_answer(bucket: str, faults: Faults) -> None:
    upload = written(f"{bucket}/large")
    faults.add(Fault(deed=Deed.LOSE, method="POST", target="uploadId="))
    faults.refuse(500, "InternalError", method="POST", target="uploadId=")
    with pytest.raises(UnreachableError, match="InternalError, after 2 requests"):
        upload.commit()
    assert keys(bucket) == ["large"]
    upload.abort()
    assert keys(bucket) == []


def test_part_is_sent_again_when_the_connection_breaks_off(bucket: str, faults: Faults) -> None:
    cut = Fault(deed=Deed.DROP, method="PUT", target="partNumber=", times=2, after_bytes=MIB)
    faults.add(cut)
    written(f"{bucket}/large").commit()
    assert digest(f"{bucket}/large") == hashlib.sha256(LARGE).hexdigest()
    assert faults.count("PUT") == 5


@pytest.mark.usefixtures("few_attempts")
def test_part_that_never_arrives_fails_the_upload(bucket: str, faults: Faults) -> None:
    faults.refuse(500, "InternalError", method="PUT", target="partNumber=2")
    upload = ObjectUpload(f"{bucket}/large")
    upload.write(LARGE)
    with pytest.raises(UnreachableError, match="the store is busy"):
        upload.finish()
    with pytest.raises(OSError, match="not all of its bytes were sent"):
        upload.commit()
    upload.abort()
    assert (keys(bucket), unfinished(bucket)) == ([], [])


def test_bytes_travel_with_their_sum(bucket: str, faults: Faults) -> None:
    S3.put(f"{bucket}/a", b"hello")
    assert faults.sums == [base64.b64encode(hashlib.sha256(b"hello").digest()).decode()]
    written(f"{bucket}/large").commit()
    parts = (LARGE[: 8 * MIB], LARGE[8 * MIB : 16 * MIB], LARGE[16 * MIB :])
    assert sorted(faults.sums[1:]) == sorted(
        base64.b64encode(hashlib.sha256(part).digest()).decode() for part in parts
    )


def test_process_killed_before_completion_shows_nothing(bucket: str) -> None:
    point = "upload.before_complete=kill"
    assert run_python(LOST_WITH_ITS_PROCESS, f"{bucket}/large", failpoints=point) == -9
    assert (keys(bucket), unfinished(bucket)) == ([], ["large"])


@pytest.mark.parametrize("there", [b"other", b"same and more", b"sam", b""])
def test_put_new_leaves_what_is_there(bucket: str, there: bytes) -> None:
    S3.put(f"{bucket}/pointer", there)
    assert not S3.create_if_absent(f"{bucket}/pointer", b"same")
    assert read(f"{bucket}/pointer") == there


def test_lost_reply_of_put_new_counts_as_won(bucket: str, faults: Faults) -> None:
    faults.add(Fault(deed=Deed.LOSE, method="PUT"))
    assert S3.create_if_absent(f"{bucket}/pointer", b"mine")
    assert faults.count("PUT") == 2


def test_put_new_repeats_after_a_collision(bucket: str, faults: Faults) -> None:
    faults.refuse(409, "ConditionalRequestConflict", method="PUT", times=2)
    assert S3.create_if_absent(f"{bucket}/pointer", b"mine")
    assert faults.count("PUT") == 3


def test_put_new_tries_again_where_the_rival_is_gone(bucket: str, faults: Faults) -> None:
    faults.refuse(412, "PreconditionFailed", method="PUT", times=1)
    assert S3.create_if_absent(f"{bucket}/pointer", b"mine")
    assert read(f"{bucket}/pointer") == b"mine"


def test_put_new_where_conditions_are_unknown_says_so(bucket: str, faults: Faults) -> None:
    faults.refuse(501, "NotImplemented", method="PUT")
    with pytest.raises(OSError, match="NotImplemented") as failed:
        S3.create_if_absent(f"{bucket}/pointer", b"mine")
    assert reason_of(failed.value) == "the store answers NotImplemented: said by a test"
