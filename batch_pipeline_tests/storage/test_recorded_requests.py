"""S3 requests need exactly the permissions that the page "Deploy" lists."""

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
# From AWS's "Actions, resources, and condition keys for Amazon S3".
PERMISSIONS = {
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
def requests(bucket: str) -> Iterator[set[str]]:
    """The names of all requests that the client of this process makes."""
    names: set[str] = set()

    def record(model: Any, **_others: Any) -> None:
        names.add(xform_name(model.name))

    events = s3_client.client().meta.events
    events.register("before-call.s3", record)
    yield names
    events.unregister("before-call.s3", record)


def test_reading_a_landing_needs_documented_permissions(bucket: str, requests: set[str]) -> None:
    S3.put(f"{bucket}/orders/one.csv", b"id\n1\n")
    requests.clear()
    assert [one.name for one in S3.list(f"{bucket}/orders/")] == ["one.csv"]
    assert S3.head(f"{bucket}/orders/one.csv").size_bytes == 5
    with S3.open(f"{bucket}/orders/one.csv") as file:
        assert file.read() == b"id\n1\n"
    assert _permissions_for(requests) == _documented_permissions("reads a landing")


def test_landing_target_needs_documented_permissions(bucket: str, requests: set[str]) -> None:
    for data in (b"x", b"x" * (PART_BYTES + 1)):
        landing = LandingFile(f"{bucket}/orders", f"{len(data)}.jsonl")
        landing.file.write(data)
        assert landing.land().size_bytes == len(data)
        upload = ObjectUpload(f"{bucket}/orders/refused")
        upload.write(data)
        upload.finish()
        upload.abort()
    assert _permissions_for(requests) == _documented_permissions("target that lands")


def test_writing_a_storage_needs_documented_permissions(bucket: str, requests: set[str]) -> None:
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
    assert _permissions_for(requests) == _documented_permissions("writes a storage")


def _permissions_for(requests: set[str]) -> set[str]:
    return set().union(*(PERMISSIONS[name] for name in requests))


def _documented_permissions(user: str) -> set[str]:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {user}")]
    return set(re.findall(r"`(s3:\w+)`", row))
