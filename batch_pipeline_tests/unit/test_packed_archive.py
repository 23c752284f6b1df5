"""Archives that are of no use, and why they are refused; what of this package goes into one."""

import io
import json
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from batch_pipeline.domain.errors import PackedUnusableError
from batch_pipeline.spark.clusters.archive_note import (
    NOTE,
    ArchiveNote,
    check_archive,
    package_files,
    package_folder,
)
from batch_pipeline.spark.clusters.packing import pack


def archive_with(folder: Path, text: str, *, name: str = NOTE) -> Path:
    """Write an archive of one file."""
    path = folder / "packed.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    return path


def refused(archive: Path) -> str:
    """Give why an archive is refused."""
    with pytest.raises(PackedUnusableError) as raised:
        check_archive(archive)
    assert raised.value.archive == str(archive)
    return raised.value.reason


def put_files(folder: Path, *names: str) -> None:
    """Write empty files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_packed_files_are_sources_and_what_belongs_to_them(tmp_path: Path) -> None:
    """Neither pages, nor byte-code, nor what somebody has left there."""
    put_files(tmp_path, "a.py", "b/c.sql", "b/d.json")
    put_files(
        tmp_path, ".env", "b/x.env", "b/key.pem", "docs/s3.md", "docs/conf.py", "__pycache__/a.pyc"
    )
    names = [path.relative_to(tmp_path).as_posix() for path in package_files(tmp_path)]
    assert names == ["a.py", "b/c.sql", "b/d.json"]


def test_packed_files_of_this_package_have_what_tasks_import() -> None:
    """Expect its sources, and none of its pages."""
    names = {
        path.relative_to(package_folder()).as_posix() for path in package_files(package_folder())
    }
    assert names >= {"__init__.py", "spark/task.py", "singer/messages.schema.json"}
    assert [name for name in names if name.startswith("docs/")] == []


def test_archive_of_this_release_and_python_is_taken(tmp_path: Path) -> None:
    """The kind of machine may be another one: executors compare that themselves."""
    note = replace(ArchiveNote.of_here({"pyarrow": "1"}), platform="plan9-z80")
    assert check_archive(archive_with(tmp_path, note.to_json())) == note


def test_archive_for_another_python_is_refused(tmp_path: Path) -> None:
    """Spark refuses workers of another minor version, and compiled modules do not load."""
    here = ArchiveNote.of_here({})
    other = archive_with(tmp_path, replace(here, python="3.99").to_json())
    assert refused(other) == f"it is for Python 3.99, and this is Python {here.python}"


def test_archive_of_another_release_is_refused(tmp_path: Path) -> None:
    """Driver and tasks talk in values that change between releases."""
    note = replace(ArchiveNote.of_here({}), release="0.0.1", package="0")
    reason = refused(archive_with(tmp_path, note.to_json()))
    assert reason == "it holds batch-pipeline 0.0.1, not as it is installed here"


def test_file_that_is_no_such_archive_is_refused(tmp_path: Path) -> None:
    """Each with its own reason."""
    missing, wrong, damaged = (tmp_path / name for name in ("a.tgz", "a.zip", "b.tar.gz"))
    damaged.write_bytes(b"no archive")
    assert refused(missing) == "no such file or directory"
    assert refused(wrong) == "its name does not end in .tar.gz or .tgz"
    assert refused(damaged) == "it is no archive, or damaged"
    assert refused(archive_with(tmp_path, "{}")) == "it is no archive, or damaged"
    other = archive_with(tmp_path, json.dumps(asdict(ArchiveNote.of_here({}))), name="other")
    assert refused(other) == "`batch-pipeline pack` did not make it"


@pytest.mark.parametrize(
    ("name", "added", "reason"),
    [
        ("packed.zip", [], "its name must end in .tar.gz or .tgz"),
        ("packed.tgz", ["no_such_module"], "there is no module 'no_such_module' here"),
        ("packed.tgz", ["json.decoder"], "there is no module 'json.decoder' here"),
    ],
)
def test_pack_of_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, added: list[str], reason: str
) -> None:
    """The reason names what is wrong."""
    with pytest.raises(PackedUnusableError) as raised:
        pack(tmp_path / name, added)
    assert raised.value.reason == reason
    assert list(tmp_path.iterdir()) == []


def test_pack_into_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    """It makes no folder."""
    with pytest.raises(PackedUnusableError, match="no such file or directory"):
        pack(tmp_path / "gone" / "packed.tgz")
