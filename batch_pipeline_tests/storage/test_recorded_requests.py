"""The requests that S3 gets need exactly the rights that the page "Deploy" lists."""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from botocore import xform_name

from batch_pipeline.singer.target.landing_files import LandingFile
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.s3 import PART_BYTES, S3, ObjectUpload

PAGE = (files("batch_pipeline") / "docs/how_to/deploy.md").read_text(encoding="utf-8")
# Rights that a request needs: AWS's "Actions, resources, and condition keys for Amazon S3".
TAKES = {
    "abort_multipart_upload": {"s3:AbortMultipartUpload"},
    "complete_multipart_upload": {"s3:PutObject"},
    "create_multipart_upload": {"s3:PutObject"},
    "delete_object": {"s3:DeleteObject"},
    "delete_objects": {"s3:DeleteObject"},
    "get_object": {"s3:GetObject"},
    "head_object": {"s3:GetObject"},
    "list_multipart_uploads": {"s3:ListBucketMultipartUploads"},
    "list_objects_v2": {"s3:ListBucket"},
    "put_object": {"s3:PutObject"},
    "upload_part": {"s3:PutObject"},
}


@pytest.fixture
def recorded(bucket: str) -> Iterator[set[str]]:
    """The names of all requests of this process's client, as they are made."""
    found: set[str] = set()

    def note(model: Any, **_others: Any) -> None:
        found.add(xform_name(model.name))

    events = s3_client.client().meta.events
    events.register("before-call.s3", note)
    yield found
    events.unregister("before-call.s3", note)


def test_landing_is_read_with_the_rights_of_a_reader(bucket: str, recorded: set[str]) -> None:
    S3.put(f"{bucket}/orders/one.csv", b"id\n1\n")
    recorded.clear()
    assert [one.name for one in S3.list(f"{bucket}/orders/")] == ["one.csv"]
    assert S3.head(f"{bucket}/orders/one.csv").size_bytes == 5
    with S3.open(f"{bucket}/orders/one.csv") as file:
        assert file.read() == b"id\n1\n"
    assert _taken(recorded) == _allowed("reads a landing")


def test_landing_is_written_with_the_rights_of_a_target(bucket: str, recorded: set[str]) -> None:
    for octets in (b"x", b"x" * (PART_BYTES + 1)):
        landing = LandingFile(f"{bucket}/orders", f"{len(octets)}.jsonl")
        landing.file.write(octets)
        assert landing.land().size_bytes == len(octets)
        upload = ObjectUpload(f"{bucket}/orders/refused")
        upload.write(octets)
        upload.finish()
        upload.abort()
    assert _taken(recorded) == _allowed("target that lands")


def test_storage_is_written_with_the_rights_of_a_writer(bucket: str, recorded: set[str]) -> None:
    whole, broken, left = (
        ObjectUpload(f"{bucket}/orders/{n}") for n in ("large", "broken", "left")
    )
    for upload in (whole, broken, left):
        upload.write(b"x" * (PART_BYTES + 1))
        upload.finish()
    whole.commit()
    broken.abort()
    for one in S3.unfinished(f"{bucket}/orders/"):
        assert S3.abort_unfinished(one)
    assert S3.create_if_absent(f"{bucket}/orders/pointer.json", b"{}")
    assert S3.create_if_absent(f"{bucket}/orders/pointer.json", b"{}")
    S3.delete(f"{bucket}/orders/pointer.json")
    names = [one.name for one in S3.list(f"{bucket}/orders/")]
    assert names == ["large"]
    S3.delete(f"{bucket}/orders/large", f"{bucket}/orders/none")
    assert _taken(recorded) == _allowed("writes a storage")


def _taken(requests: set[str]) -> set[str]:
    return set().union(*(TAKES[name] for name in requests))


def _allowed(user: str) -> set[str]:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {user}")]
    return set(re.findall(r"`(s3:\w+)`", row))
