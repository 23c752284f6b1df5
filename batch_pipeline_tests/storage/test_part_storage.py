"""Part-file storage on a disk and in S3: folders, attempts, manifest files, unfinished uploads."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Attempt
from batch_pipeline.model.errors import (
    ConfigurationError,
    GarbageLeftError,
    InventoryOlderError,
    ManifestFileTakenError,
    StorageUnavailableError,
)
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.garbage import Folder, Reason, StoredFile
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.manifest import ManifestUnfitError
from batch_pipeline.storage.local import LocalFileSystem
from batch_pipeline.storage.s3 import PART_BYTES, S3, ObjectUpload
from batch_pipeline_tests.factories import batch, manifest, part_file
from batch_pipeline_tests.pipeline.garbage_fixture import open_bucket_harness, paths
from batch_pipeline_tests.storage_roots import Root, content, storage_at
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

STEM = "orders-00000001-00000003-a1-12345678"
MANIFEST_FILE = "manifests/orders-00000001-00000003.g1.json"


@pytest.fixture(params=["disk", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """An empty storage root: a folder, or a whole bucket."""
    is_disk = request.param == "disk"
    return Root(to_uri(tmp_path) if is_disk else request.getfixturevalue("bucket"))


def test_prepare_creates_folders_and_leaves_no_file(root: Root, tmp_path: Path) -> None:
    for _ in range(2):
        storage_at(f"{root.uri}/deep").prepare()
        assert root.names() == []
    folders = sorted(path.name for path in tmp_path.glob("deep/*"))
    assert folders == (["manifests", "quarantine"] if root.uri.startswith("file:") else [])


def test_root_that_is_a_file_is_unavailable(tmp_path: Path) -> None:
    storage = storage_at(to_uri(tmp_path / "batches"))
    assert storage.remove_attempt(STEM) == 0  # there is no such root yet
    (tmp_path / "batches").write_text("")
    with pytest.raises(StorageUnavailableError, match="file exists") as caught:
        storage.prepare()
    assert caught.value.uri == to_uri(tmp_path / "batches")
    with pytest.raises(StorageUnavailableError, match="not a directory"):
        storage.remove_attempt(STEM)


@pytest.mark.parametrize(("content", "problem"), [(None, "does not exist"), (b"", "has 0 B")])
def test_check_written_fails_for_files_on_another_disk(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    root = Root(to_uri(tmp_path))
    if content is not None:
        root.put("b", content)
    parts = [part_file(uri=root.put(name, b"x" * 100)) for name in ("a", "quarantine/a")]
    storage_at(root.uri).check_written(parts)
    parts.append(part_file(uri=to_uri(tmp_path / "b")))
    with pytest.raises(ConfigurationError, match="Executors write to another disk") as caught:
        storage_at(root.uri).check_written(parts)
    assert f"wrote {to_uri(tmp_path / 'b')} with 100 B, and from the driver it {problem}. " in str(
        caught.value
    )


def test_check_written_in_object_store_sends_no_request() -> None:
    storage_at("s3://no-such-bucket/batches").check_written([part_file()])


def test_remove_attempt_deletes_all_files_of_attempt(root: Root) -> None:
    storage, stem = storage_at(root.uri, prefix="eu-"), f"eu-{STEM}"
    storage.prepare()
    own = [f"{stem}-0.jsonl.gz", f".{stem}-1.stop", f"quarantine/{stem}-0.jsonl.gz"]
    others = [
        f"{stem}9-0.jsonl.gz",  # a longer token with the same start
        stem.replace("-a1-", "-a11-") + "-0.jsonl.gz",
        f"{STEM}-0.jsonl.gz",
        f"deeper/{stem}-0.jsonl.gz",
        "manifests/orders-00000001-00000003.g1.json",
    ]
    for name in (*own, *others):
        root.put(name)
    assert storage.remove_attempt(STEM) == 3
    assert root.names() == sorted(others)
    assert storage.remove_attempt(STEM) == 0


def test_point_to_writes_only_the_manifest_file(root: Root) -> None:
    storage = storage_at(root.uri, prefix="eu-")
    uri = storage.point_to(manifest(generation=2))
    name = "manifests/eu-orders-00000001-00000003.g2.json"
    assert uri == storage.pointer_uri(manifest(generation=2)) == f"{root.uri}/{name}"
    assert root.names() == [name]
    assert json.loads(content(uri)) == manifest(generation=2).to_json()


def test_existing_manifest_file_of_an_attempt_is_reported_for_its_stream(root: Root) -> None:
    storage, late = storage_at(root.uri), batch(job="orders.late")
    attempt = Attempt(id=1, batch=late, number=1, token=UUID(int=1), generation=1)
    storage.check_unpointed(attempt, "orders")
    storage.point_to(manifest(job=late.job, batch=late))
    with pytest.raises(InventoryOlderError, match="`batch-pipeline reconcile orders --discard`"):
        storage.check_unpointed(attempt, "orders")


def test_repeated_point_to_keeps_existing_file(tmp_path: Path) -> None:
    root, storage = Root(to_uri(tmp_path)), storage_at(to_uri(tmp_path))
    text = json.dumps(manifest().to_json() | {"more": 1}).encode()
    uri = root.put(MANIFEST_FILE, text)
    assert storage.point_to(manifest()) == uri
    assert content(uri) == text


@pytest.mark.parametrize("existing", ["{}", "{", "[]", "[" * 100_000])
def test_point_to_does_not_overwrite_another_file(tmp_path: Path, existing: str) -> None:
    root = Root(to_uri(tmp_path))
    uri = root.put(MANIFEST_FILE, existing.encode())
    with pytest.raises(ManifestFileTakenError, match="of another attempt has its name") as caught:
        storage_at(root.uri).point_to(manifest())
    assert caught.value.uri == uri
    assert content(uri) == existing.encode()


def test_point_to_write_error_raises(tmp_path: Path) -> None:
    (tmp_path / "manifests").write_text("")
    with pytest.raises(StorageUnavailableError, match=r"g1\.json"):
        storage_at(to_uri(tmp_path)).point_to(manifest())
    assert Root(to_uri(tmp_path)).names() == ["manifests"]


@pytest.mark.usefixtures("bucket")
def test_storage_in_missing_bucket_raises() -> None:
    storage = storage_at("s3://no-such-bucket-of-ours/batches")
    calls: list[Callable[[], object]] = [
        storage.prepare,
        partial(storage.remove_attempt, STEM),
        partial(storage.point_to, manifest()),
    ]
    for call in calls:
        with pytest.raises(StorageUnavailableError, match="there is no such bucket"):
            call()


def test_point_to_interrupted_before_link_leaves_no_manifest_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "pointer.before_link=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        storage_at(to_uri(tmp_path)).point_to(manifest())
    assert all(Path(name).name.startswith(".") for name in Root(to_uri(tmp_path)).names())
    monkeypatch.delenv(VARIABLE)
    assert Path(to_path(storage_at(to_uri(tmp_path)).point_to(manifest()))).exists()


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_point_to_without_hard_links_writes_manifest_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_hard_links(_path: Path, _target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "hardlink_to", no_hard_links)
    uri = storage_at(to_uri(tmp_path)).point_to(manifest())
    assert json.loads(content(uri)) == manifest().to_json()
    assert Root(to_uri(tmp_path)).names() == [MANIFEST_FILE]


def test_manifest_file_over_size_limit_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests/orders.json").write_bytes(b"x" * 11)
    assert storage_at(to_uri(tmp_path)).read_manifest("orders.json", 11) == b"x" * 11
    with pytest.raises(ManifestUnfitError, match="more than 10 bytes"):
        storage_at(to_uri(tmp_path)).read_manifest("orders.json", 10)


NAME = "orders-00000001-00000002.g1.json"
ORIGINAL, DISCARDED = f"manifests/{NAME}", f"discarded/mark/manifests/{NAME}"


def discard(root: Root, mark: str = "mark") -> bool:
    return storage_at(root.uri).set_aside(NAME, mark)


def test_manifest_file_is_moved_once(root: Root) -> None:
    root.put(ORIGINAL, b"manifest")
    assert discard(root)
    assert root.names() == [DISCARDED]
    assert content(f"{root.uri}/{DISCARDED}") == b"manifest"
    assert not discard(root)


def test_move_does_not_overwrite_another_file(root: Root) -> None:
    root.put(ORIGINAL, b"manifest")
    root.put(DISCARDED, b"another")
    with pytest.raises(StorageUnavailableError, match="another file has its name there"):
        discard(root)
    assert root.names() == sorted([DISCARDED, ORIGINAL])
    assert content(f"{root.uri}/{DISCARDED}") == b"another"


def test_interrupted_move_keeps_manifest_file(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.put(ORIGINAL, b"manifest")
    with monkeypatch.context() as patched:
        patched.setenv(VARIABLE, "discard.copied=raise")
        with pytest.raises(RuntimeError, match=r"discard\.copied"):
            discard(root)
    assert root.names() == sorted([DISCARDED, ORIGINAL])
    assert discard(root, "next")
    assert root.names() == sorted([DISCARDED, DISCARDED.replace("mark", "next")])


def test_manifest_object_overwritten_during_move_is_kept(bucket: str, faults: Faults) -> None:
    root = Root(bucket)
    root.put(ORIGINAL, b"manifest")
    newer = {"ETag": '"newer"', "Last-Modified": "Wed, 01 Apr 2026 12:00:00 GMT"}
    after_the_copy = Fault(deed=Deed.ANSWER, method="HEAD", target=ORIGINAL)
    faults.add(replace(after_the_copy, status=200, headers=newer))
    with pytest.raises(StorageUnavailableError, match="another version of the object is there"):
        discard(root)
    assert root.names() == sorted([DISCARDED, ORIGINAL])


PART = f"{STEM}-00000000-abcdef01.jsonl.gz"
LARGE = bytes(range(251)) * (2 * PART_BYTES // 251 + 1)


def start_upload(uri: str) -> ObjectUpload:
    """Start an upload that is not completed, like a task that dies."""
    upload = ObjectUpload(uri)
    upload.write(LARGE)
    upload.finish()
    return upload


def uploads(folder: str) -> list[str]:
    return [one.name for one in S3.unfinished(f"{folder}/")]


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
    assert (uploads(root), uploads(f"{root}/manifests")) == ([], [f"{PART}-and-more"])
    assert listed(root) == [f"manifests/.{PART}-and-more.tmp"]


def test_unfinished_file_on_disk_is_removed_without_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time would grow with the square of the number of files."""
    (tmp_path / f".{PART}.tmp").write_bytes(b"{")
    file = file_at(to_uri(tmp_path), f".{PART}.tmp")
    monkeypatch.delattr(LocalFileSystem, "unfinished")
    assert storage_at(to_uri(tmp_path)).remove(file)
    assert list(tmp_path.iterdir()) == []


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
