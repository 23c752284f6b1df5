"""Packed archives: which files of the package they hold, and which are refused."""

import io
import json
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.spark.executor_archive import (
    NOTE_NAME,
    ArchiveNote,
    build_archive,
    check_archive,
    package_files,
)


def archive_with(folder: Path, text: str, *, name: str = NOTE_NAME) -> Path:
    """Write an archive of one file."""
    path = folder / "packed.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    return path


def refused(archive: Path) -> str:
    """Return why an archive is refused."""
    with pytest.raises(ConfigurationError, match="cannot be made or used") as raised:
        check_archive(archive)
    beginning, _, rest = str(raised.value).partition(" cannot be made or used: ")
    assert beginning == f"The packed archive {archive}"
    return rest.partition(". Nothing was started.")[0]


def put_files(folder: Path, *names: str) -> None:
    """Write empty files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_package_files_are_sources_sql_and_json(tmp_path: Path) -> None:
    """No documentation, no byte-code and no stray files such as keys."""
    put_files(tmp_path, "a.py", "b/c.sql", "b/d.json")
    put_files(
        tmp_path, ".env", "b/x.env", "b/key.pem", "docs/s3.md", "docs/conf.py", "__pycache__/a.pyc"
    )
    assert list(package_files(tmp_path)) == ["a.py", "b/c.sql", "b/d.json"]


def test_check_archive_of_this_release_and_python_returns_its_note(tmp_path: Path) -> None:
    """The kind of machine may be another one: executors compare that themselves."""
    note = replace(ArchiveNote.of_this_process({"pyarrow": "1"}), platform="plan9-z80")
    assert check_archive(archive_with(tmp_path, note.to_json())) == note


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"python": "3.99"}, "it is for Python 3.99, and this is Python {here.python}"),
        (
            {"package": "0"},
            "its batch-pipeline {here.release} differs from the one installed here",
        ),
    ],
)
def test_check_archive_for_another_python_or_of_other_sources_raises(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    """Checkouts of one version may differ, and so the messages between driver and tasks."""
    here = ArchiveNote.of_this_process({})
    other = replace(here, **changes).to_json()  # type: ignore[arg-type]
    assert refused(archive_with(tmp_path, other)) == reason.format(here=here)


def test_check_archive_of_another_file_raises(tmp_path: Path) -> None:
    """Each with its own reason."""
    missing, wrong, damaged = (tmp_path / name for name in ("a.tgz", "a.zip", "b.tar.gz"))
    damaged.write_bytes(b"no archive")
    assert refused(missing) == "no such file or directory"
    assert refused(wrong) == "its name must end in .tar.gz or .tgz"
    assert refused(damaged) == "it is not an archive, or damaged"
    assert refused(archive_with(tmp_path, "{}")) == "it is not an archive, or damaged"
    other = archive_with(
        tmp_path, json.dumps(asdict(ArchiveNote.of_this_process({}))), name="other"
    )
    assert refused(other) == "`batch-pipeline pack` did not make it"


@pytest.mark.parametrize(
    ("name", "added", "reason"),
    [
        ("packed.zip", [], "its name must end in .tar.gz or .tgz"),
        ("packed.tgz", ["no_such_module"], "there is no module 'no_such_module' here"),
        ("packed.tgz", ["json.decoder"], "there is no module 'json.decoder' here"),
        ("gone/packed.tgz", [], "no such file or directory"),
    ],
)
def test_build_archive_of_invalid_arguments_writes_nothing(
    tmp_path: Path, name: str, added: list[str], reason: str
) -> None:
    """The reason names what is wrong."""
    with pytest.raises(ConfigurationError, match="cannot be made or used") as raised:
        build_archive(tmp_path / name, added)
    assert f" cannot be made or used: {reason}. Nothing was" in str(raised.value)
    assert list(tmp_path.iterdir()) == []
