"""Part-file storage on a disk and in S3: folders, removal of attempts, manifest files."""

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from batch_pipeline.model.errors import (
    ConfigurationError,
    ManifestFileTakenError,
    StorageUnavailableError,
)
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.manifest import ManifestUnfitError
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import manifest, part_file
from batch_pipeline_tests.storage_roots import Root, content, storage_at

STEM = "orders-00000001-00000003-a1-12345678"
MANIFEST_FILE = "manifests/orders-00000001-00000003.g1.json"


@pytest.fixture(params=["disk", "s3", "bucket"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """An empty storage root: a folder, a prefix of keys, or a whole bucket."""
    if request.param == "disk":
        return Root(to_uri(tmp_path))
    bucket: str = request.getfixturevalue("bucket")
    return Root(bucket if request.param == "bucket" else f"{bucket}/deep/batches")


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


def test_repeated_point_to_keeps_existing_file(root: Root) -> None:
    storage = storage_at(root.uri)
    text = json.dumps(manifest().to_json() | {"more": 1}).encode()
    uri = root.put(MANIFEST_FILE, text)
    assert storage.point_to(manifest()) == uri
    assert content(uri) == text


def test_concurrent_point_to_writes_one_complete_file(root: Root) -> None:
    uris = together(*[partial(storage_at(root.uri).point_to, manifest()) for _ in range(8)])
    assert set(map(str, uris)) == {f"{root.uri}/{MANIFEST_FILE}"}
    assert root.names() == [MANIFEST_FILE]
    assert json.loads(content(str(uris[0]))) == manifest().to_json()


@pytest.mark.parametrize("existing", ["of another attempt", "no JSON", "a list", "too deep"])
def test_point_to_does_not_overwrite_another_file(root: Root, existing: str) -> None:
    other = replace(manifest(), token=UUID(int=7))
    text = {
        "of another attempt": json.dumps(other.to_json()),
        "no JSON": "{",
        "a list": "[]",
        "too deep": "[" * 100_000,
    }
    uri = root.put(MANIFEST_FILE, text[existing].encode())
    with pytest.raises(ManifestFileTakenError, match="of another attempt has its name") as caught:
        storage_at(root.uri).point_to(manifest())
    assert caught.value.uri == uri
    assert content(uri) == text[existing].encode()


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


def test_point_to_write_error_raises(tmp_path: Path) -> None:
    (tmp_path / "manifests").write_text("")
    with pytest.raises(StorageUnavailableError, match=r"g1\.json"):
        storage_at(to_uri(tmp_path)).point_to(manifest())
    assert Root(to_uri(tmp_path)).names() == ["manifests"]


def test_point_to_without_hard_links_writes_manifest_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_hard_links(_path: Path, _target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

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
