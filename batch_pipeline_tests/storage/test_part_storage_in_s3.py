"""A storage root in S3: unfinished uploads and errors."""

import json
from datetime import timedelta

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import GarbageLeftError, StorageUnavailableError
from batch_pipeline.model.garbage import Folder, Reason, StoredFile
from batch_pipeline.storage.s3 import PART_BYTES, S3, ObjectUpload
from batch_pipeline_tests.factories import manifest
from batch_pipeline_tests.pipeline.garbage_fixture import open_bucket_harness, paths
from batch_pipeline_tests.storage_roots import content, storage_at
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

STEM = "orders-00000001-00000003-a1-12345678"
PART = f"{STEM}-00000000-abcdef01.jsonl.gz"
LARGE = bytes(range(251)) * (2 * PART_BYTES // 251 + 1)


def start_upload(uri: str) -> ObjectUpload:
    """Start an upload that is not completed, like a task that dies."""
    upload = ObjectUpload(uri)
    upload.write(LARGE)
    upload.finish()
    return upload


def uploads(root: str) -> list[str]:
    return [one.name for one in S3.unfinished(f"{root}/")]


def listed(root: str) -> list[str]:
    return sorted(file.path for file in storage_at(root).files())


def file_at(root: str, path: str) -> StoredFile:
    [found] = [file for file in storage_at(root).files() if file.path == path]
    return found


def test_storage_lists_files_of_root_and_its_folders(bucket: str) -> None:
    root = f"{bucket}/batches"
    names = [PART, f"quarantine/{PART}", "manifests/a.json"]
    for name in (*names, "deeper/a", "quarantine/deeper/a", "manifests.json"):
        S3.put(f"{root}/{name}", b"seven..")
    S3.put(f"{bucket}/batches-of-others/{PART}", b"")
    start_upload(f"{root}/quarantine/{PART}")
    start_upload(f"{root}/deeper/{PART}")
    expected = [*names, "manifests.json", f"quarantine/.{PART}.tmp"]
    assert listed(root) == sorted(expected)
    found = file_at(root, PART)
    assert (found.folder, found.name, found.size_bytes) == (Folder.ROOT, PART, 7)
    assert found.modified_at.utcoffset() == timedelta(0)


def test_unfinished_upload_of_attempt_is_collected(database: Database, bucket: str) -> None:
    harness = open_bucket_harness(database, f"{bucket}/batches")
    left = harness.failed()
    root, stem = harness.stream.storage.root, left[0].removesuffix("-00000000-abcdef01.jsonl.gz")
    start_upload(f"{root}/{stem}-00010000-abcdef01.jsonl.gz")
    start_upload(f"{root}/not-ours.bin")
    assert harness.collect().garbage == ()  # the attempt has just ended
    harness.age()
    collected = harness.collect()
    assert f".{stem}-00010000-abcdef01.jsonl.gz.tmp" in paths(collected)
    assert (collected.files(Reason.UNPUBLISHED), collected.removed_files) == (5, 5)
    assert uploads(root) == ["not-ours.bin"]


def test_remove_returns_whether_file_existed(bucket: str) -> None:
    root, storage = bucket, storage_at(bucket)
    S3.put(f"{root}/{PART}", b"")
    start_upload(f"{root}/manifests/{PART}")
    start_upload(f"{root}/manifests/{PART}-and-more")
    for path in (PART, f"manifests/.{PART}.tmp"):
        file = file_at(root, path)
        assert (storage.remove(file), storage.remove(file)) == (True, False)
    assert uploads(root) == [f"manifests/{PART}-and-more"]
    assert listed(root) == [f"manifests/.{PART}-and-more.tmp"]


def put_part(root: str) -> str:
    S3.put(f"{root}/{PART}", b"ten bytes.")
    return f"{root}/{PART}"


def test_listing_without_permission_names_the_action(bucket: str, faults: Faults) -> None:
    put_part(bucket)
    faults.refuse(403, "AccessDenied", target="?uploads", times=1)
    faults.refuse(403, "AccessDenied", target="list-type=2", skip=3)
    for right in ("ListBucketMultipartUploads", "ListBucket"):
        message = rf"refuses s3:{right} \(AccessDenied\).*batch-pipeline gc"
        with pytest.raises(GarbageLeftError, match=message) as caught:
            list(storage_at(bucket).files())
        assert caught.value.uri == bucket


def test_prepare_without_permission_names_the_action(bucket: str, faults: Faults) -> None:
    faults.refuse(403, "AccessDenied", method="PUT", times=1)
    faults.refuse(403, "AccessDenied", method="DELETE")
    for right in ("PutObject", "DeleteObject"):
        with pytest.raises(StorageUnavailableError, match=f"refuses s3:{right}"):
            storage_at(bucket).prepare()


@pytest.mark.guarantee("G5", "G11")
def test_point_to_retry_after_lost_response_succeeds(bucket: str, faults: Faults) -> None:
    """The repeated request finds the manifest file that the first one wrote."""
    faults.add(Fault(deed=Deed.LOSE, method="PUT", target="/manifests/"))
    uri = storage_at(bucket).point_to(manifest())
    assert faults.count(f"PUT /{bucket.removeprefix('s3://')}/manifests/") == 2
    assert json.loads(content(uri))["token"] == str(manifest().token)
