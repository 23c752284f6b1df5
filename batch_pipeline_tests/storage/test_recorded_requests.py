"""S3 requests need exactly the permissions that the page "Deploy" lists."""

import re
from importlib.resources import files

from batch_pipeline.singer.target.landing_files import LandingFile
from batch_pipeline.storage.s3 import PART_BYTES, S3, ObjectUpload
from batch_pipeline_tests.storage.places import Requests

PAGE = (files("batch_pipeline") / "docs/how_to/deploy.md").read_text(encoding="utf-8")
# From AWS's "Actions, resources, and condition keys for Amazon S3"; others have the request's name.
PERMISSIONS = {
    "CompleteMultipartUpload": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "DeleteObjects": "DeleteObject",
    "HeadObject": "GetObject",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjectsV2": "ListBucket",
    "UploadPart": "PutObject",
}


def permissions_for(requests: Requests) -> set[str]:
    return {f"s3:{PERMISSIONS.get(name, name)}" for name in requests.sent}


def documented_permissions(user: str) -> set[str]:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| {user}")]
    return set(re.findall(r"`(s3:\w+)`", row))


def test_reading_a_landing_needs_documented_permissions(bucket: str) -> None:
    S3.put(f"{bucket}/orders/one.csv", b"id\n1\n")
    with Requests() as requests:
        assert [one.name for one in S3.list(f"{bucket}/orders/")] == ["one.csv"]
        assert S3.head(f"{bucket}/orders/one.csv").size_bytes == 5
        with S3.open(f"{bucket}/orders/one.csv") as file:
            assert file.read() == b"id\n1\n"
    assert permissions_for(requests) == documented_permissions("reads a landing")


def test_landing_target_needs_documented_permissions(bucket: str) -> None:
    with Requests() as requests:
        for data in (b"x", b"x" * (PART_BYTES + 1)):
            landing = LandingFile(f"{bucket}/orders", f"{len(data)}.jsonl")
            landing.file.write(data)
            assert landing.land().size_bytes == len(data)
            upload = ObjectUpload(f"{bucket}/orders/refused")
            upload.write(data)
            upload.finish()
            upload.abort()
    assert permissions_for(requests) == documented_permissions("target that lands")


def test_writing_a_storage_needs_documented_permissions(bucket: str) -> None:
    uri = f"{bucket}/orders"
    whole, broken, left = (ObjectUpload(f"{uri}/{name}") for name in ("large", "broken", "left"))
    with Requests() as requests:
        for upload in (whole, broken, left):
            upload.write(b"x" * (PART_BYTES + 1))
            upload.finish()
        whole.commit()
        broken.abort()
        for one in S3.unfinished(f"{uri}/"):
            assert S3.abort_unfinished(one)
        for _ in range(2):
            assert S3.create_if_absent(f"{uri}/pointer.json", b"{}")
        S3.delete(f"{uri}/pointer.json")
        assert [one.name for one in S3.list(f"{uri}/")] == ["large"]
        S3.delete(f"{uri}/large", f"{uri}/none")
    assert permissions_for(requests) == documented_permissions("writes a storage")
