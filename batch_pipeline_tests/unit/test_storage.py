"""Part-file storage on disk: preparing, removing an attempt, pointing to a manifest."""

import json
from functools import partial
from pathlib import Path

import pytest

from batch_pipeline.domain.errors import StorageUnavailableError
from batch_pipeline.domain.failpoint import VARIABLE, FailpointError
from batch_pipeline.domain.location import to_path, to_uri
from batch_pipeline.domain.stream import Storage
from batch_pipeline.files.storage import FolderStorage
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import manifest

STEM = "orders-000000000001-000000000003-a1-12345678"


def _storage(root: Path, prefix: str = "") -> FolderStorage:
    return FolderStorage(Storage(root=to_uri(root), prefix=prefix))


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_prepare_makes_the_folders_and_leaves_no_trace(tmp_path: Path) -> None:
    """Expect the root with its two folders, no file, and nothing to change the second time."""
    root = tmp_path / "deep" / "batches"
    for _ in range(2):
        _storage(root).prepare()
        assert sorted(path.name for path in root.iterdir()) == ["manifests", "quarantine"]
    assert _files(root) == []


def test_prepare_of_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """Expect the root and the reason to be named."""
    (tmp_path / "batches").write_text("")
    with pytest.raises(StorageUnavailableError, match="file exists") as caught:
        _storage(tmp_path / "batches").prepare()
    assert caught.value.uri == to_uri(tmp_path / "batches")


def test_remove_attempt_takes_finished_unfinished_and_quarantined_files(tmp_path: Path) -> None:
    """Expect every file of the attempt to go, and everything else to stay."""
    storage = _storage(tmp_path)
    storage.prepare()
    mine = [f"{STEM}-0.jsonl.gz", f".{STEM}-1.jsonl.gz", f"quarantine/{STEM}-0.jsonl.gz"]
    others = [
        f"{STEM}9-0.jsonl.gz",  # a longer token that begins alike
        STEM.replace("-a1-", "-a11-") + "-0.jsonl.gz",
        f"x{STEM}-0.jsonl.gz",
        "manifests/orders-000000000001-000000000003.g1.json",
    ]
    for name in (*mine, *others):
        (tmp_path / name).write_text("")
    assert storage.remove_attempt(STEM) == 3
    assert _files(tmp_path) == sorted(others)
    assert storage.remove_attempt(STEM) == 0


def test_remove_attempt_knows_the_prefix(tmp_path: Path) -> None:
    """Expect names to begin with the prefix of the storage."""
    storage = _storage(tmp_path, prefix="eu-")
    for name in (f"eu-{STEM}-0.jsonl", f"{STEM}-0.jsonl"):
        (tmp_path / name).write_text("")
    assert storage.remove_attempt(STEM) == 1
    assert _files(tmp_path) == [f"{STEM}-0.jsonl"]


def test_remove_attempt_without_a_root_has_nothing_to_do(tmp_path: Path) -> None:
    """Expect a storage that is gone to hold no file."""
    assert _storage(tmp_path / "nowhere").remove_attempt(STEM) == 0


def test_remove_attempt_that_fails_is_told(tmp_path: Path) -> None:
    """Expect a storage that cannot be listed to leave as a domain error."""
    (tmp_path / "batches").write_text("")
    with pytest.raises(StorageUnavailableError, match="not a directory"):
        _storage(tmp_path / "batches").remove_attempt(STEM)


def test_point_to_writes_the_manifest_and_nothing_else(tmp_path: Path) -> None:
    """Expect one JSON file named by batch and generation."""
    uri = _storage(tmp_path, prefix="eu-").point_to(manifest(generation=2))
    name = "manifests/eu-orders-000000000001-000000000003.g2.json"
    assert uri == to_uri(tmp_path / name)
    assert _files(tmp_path) == [name]
    assert json.loads((tmp_path / name).read_text()) == manifest(generation=2).to_json()


def test_point_to_again_leaves_the_file_alone(tmp_path: Path) -> None:
    """Expect the same URI and the same bytes."""
    storage = _storage(tmp_path)
    uri = storage.point_to(manifest())
    before = Path(to_path(uri)).stat()
    assert storage.point_to(manifest()) == uri
    assert Path(to_path(uri)).stat() == before


def test_point_to_by_many_at_once_gives_one_whole_file(tmp_path: Path) -> None:
    """Expect rivals to agree and to leave no file aside."""
    uris = together(*[partial(_storage(tmp_path).point_to, manifest()) for _ in range(8)])
    assert len(set(map(str, uris))) == 1
    assert _files(tmp_path) == ["manifests/orders-000000000001-000000000003.g1.json"]
    assert json.loads(Path(to_path(str(uris[0]))).read_text()) == manifest().to_json()


def test_point_to_that_ends_before_the_link_shows_no_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect a crash to leave at most a hidden file, and the next call to make the pointer."""
    monkeypatch.setenv(VARIABLE, "pointer.before_link=raise")
    with pytest.raises(FailpointError):
        _storage(tmp_path).point_to(manifest())
    assert all(Path(name).name.startswith(".") for name in _files(tmp_path))
    monkeypatch.delenv(VARIABLE)
    assert Path(to_path(_storage(tmp_path).point_to(manifest()))).exists()


def test_point_to_that_cannot_write_is_told(tmp_path: Path) -> None:
    """Expect the pointer's URI and the reason, and nothing left aside."""
    (tmp_path / "manifests").write_text("")
    with pytest.raises(StorageUnavailableError, match=r"g1\.json"):
        _storage(tmp_path).point_to(manifest())
    assert _files(tmp_path) == ["manifests"]
