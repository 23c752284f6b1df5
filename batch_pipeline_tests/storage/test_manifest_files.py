"""Move manifest files aside within a storage root, on a disk and in S3."""

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
HERE, ASIDE = f"manifests/{NAME}", f"discarded/mark/manifests/{NAME}"


@pytest.fixture(params=["disk", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """A storage root with one manifest file."""
    if request.param == "s3":
        found = Root(f"{request.getfixturevalue('bucket')}/batches")
    else:
        found = Root((tmp_path / "batches").as_uri())
    found.put(HERE, b"manifest")
    return found


def set_aside(root: Root) -> bool:
    return PartFileStorage(Storage(root=root.uri)).set_aside(NAME, "mark")


def test_manifest_file_is_moved_whole_and_once(root: Root) -> None:
    assert set_aside(root)
    assert root.names() == [ASIDE]
    assert content(f"{root.uri}/{ASIDE}") == b"manifest"
    assert not set_aside(root)


def test_manifest_file_is_never_moved_over_another(root: Root) -> None:
    root.put(ASIDE, b"another")
    with pytest.raises(StorageUnavailableError, match="another file has its name there"):
        set_aside(root)
    assert root.names() == sorted([ASIDE, HERE])
    assert content(f"{root.uri}/{ASIDE}") == b"another"


def test_move_that_was_interrupted_keeps_the_manifest_file(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv(VARIABLE, "discard.copied=raise")
        with pytest.raises(RuntimeError, match=r"discard\.copied"):
            set_aside(root)
    assert root.names() == sorted([ASIDE, HERE])
    assert PartFileStorage(Storage(root=root.uri)).set_aside(NAME, "next")
    assert root.names() == sorted([ASIDE, ASIDE.replace("mark", "next")])


def test_manifest_file_in_s3_that_is_written_again_after_it_was_copied_stays(
    bucket: str, faults: Faults
) -> None:
    root = Root(bucket)
    root.put(HERE, b"manifest")
    newer = {"ETag": '"newer"', "Last-Modified": "Wed, 01 Apr 2026 12:00:00 GMT"}
    after_the_copy = Fault(deed=Deed.ANSWER, method="HEAD", target=HERE)
    faults.add(replace(after_the_copy, status=200, headers=newer))
    with pytest.raises(StorageUnavailableError, match="another version of the object is there"):
        set_aside(root)
    assert root.names() == sorted([ASIDE, HERE])
