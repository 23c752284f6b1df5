"""Moving manifest files to the discarded folder of a storage root, on a disk and in S3."""

from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.model.errors import StorageUnavailableError
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.stream import Storage
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.storage_roots import Root, content
from batch_pipeline_tests.store_faults import Deed, Fault, Faults

NAME = "orders-00000001-00000002.g1.json"
ORIGINAL, DISCARDED = f"manifests/{NAME}", f"discarded/mark/manifests/{NAME}"


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """A storage root with one manifest file."""
    if request.param == "s3":
        root = Root(f"{request.getfixturevalue('bucket')}/batches")
    else:
        root = Root((tmp_path / "batches").as_uri())
    root.put(ORIGINAL, b"manifest")
    return root


def discard(root: Root) -> bool:
    return PartFileStorage(Storage(root=root.uri)).set_aside(NAME, "mark")


def test_manifest_file_is_moved_once(root: Root) -> None:
    assert discard(root)
    assert root.names() == [DISCARDED]
    assert content(f"{root.uri}/{DISCARDED}") == b"manifest"
    assert not discard(root)


def test_move_does_not_overwrite_another_file(root: Root) -> None:
    root.put(DISCARDED, b"another")
    with pytest.raises(StorageUnavailableError, match="another file has its name there"):
        discard(root)
    assert root.names() == sorted([DISCARDED, ORIGINAL])
    assert content(f"{root.uri}/{DISCARDED}") == b"another"


def test_interrupted_move_keeps_manifest_file(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv(VARIABLE, "discard.copied=raise")
        with pytest.raises(RuntimeError, match=r"discard\.copied"):
            discard(root)
    assert root.names() == sorted([DISCARDED, ORIGINAL])
    assert PartFileStorage(Storage(root=root.uri)).set_aside(NAME, "next")
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
