"""Packed archives: the files they contain, and rejected archives."""

import io
import tarfile
from dataclasses import replace
from importlib.metadata import Distribution, PackageNotFoundError
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
    path = folder / "packed.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
    return path


def rejection(archive: Path) -> str:
    with pytest.raises(ConfigurationError, match="cannot be used") as raised:
        check_archive(archive)
    beginning, _, rest = str(raised.value).partition(" cannot be used: ")
    assert beginning == f"The packed archive {archive}"
    return rest.partition(". Nothing was started.")[0]


def test_package_files_are_sources_sql_and_json(tmp_path: Path) -> None:
    """Neither documentation, byte code nor stray files such as keys are included."""
    sources = ["a.py", "b/c.sql", "b/d.json"]
    others = [".env", "b/x.env", "b/key.pem", "docs/s3.md", "docs/conf.py", "__pycache__/a.pyc"]
    for name in (*sources, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list(package_files(tmp_path)) == sources


def test_check_archive_of_this_release_and_python_returns_its_note(tmp_path: Path) -> None:
    """The platform may differ: executors compare it themselves."""
    note = replace(ArchiveNote.of_this_process({"pyarrow": "1"}), platform="plan9-z80")
    assert check_archive(archive_with(tmp_path, note.to_json())) == note


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"python": "3.99"}, "it is for Python 3.99, and this is Python {here.python}"),
        ({"package": "0"}, "its batch-pipeline {here.release} differs from the one installed here"),
    ],
)
def test_check_archive_of_other_python_or_sources_raises(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    """Checkouts of the same version may differ."""
    here = ArchiveNote.of_this_process({})
    other = replace(here, **changes).to_json()  # type: ignore[arg-type]
    assert rejection(archive_with(tmp_path, other)) == reason.format(here=here)


def test_check_archive_of_other_file_raises(tmp_path: Path) -> None:
    missing, wrong, damaged = (tmp_path / name for name in ("a.tgz", "a.zip", "b.tar.gz"))
    damaged.write_bytes(b"no archive")
    assert rejection(missing) == "no such file or directory"
    assert rejection(wrong) == "its name must end in .tar.gz or .tgz"
    assert rejection(damaged) == "it is not an archive, or damaged"
    assert rejection(archive_with(tmp_path, "{}")) == "it is not an archive, or damaged"
    other = archive_with(tmp_path, ArchiveNote.of_this_process({}).to_json(), name="other")
    assert rejection(other) == "`batch-pipeline pack` did not make it"


@pytest.mark.parametrize(
    ("name", "modules", "reason"),
    [
        ("packed.zip", [], "its name must end in .tar.gz or .tgz"),
        ("packed.tgz", ["no_such_module"], "there is no module 'no_such_module' here"),
        ("packed.tgz", ["json.decoder"], "there is no module 'json.decoder' here"),
        ("gone/packed.tgz", [], "no such file or directory"),
    ],
)
def test_build_archive_of_invalid_arguments_writes_nothing(
    tmp_path: Path, name: str, modules: list[str], reason: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        build_archive(tmp_path / name, modules)
    assert f" cannot be made: {reason}. Nothing was written. Correct" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_build_archive_without_the_extra_singer_omits_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_singer, find = {"simpleeval", "singer-sdk"}, Distribution.from_name

    def find_others(name: str) -> Distribution:
        if name in of_singer:
            raise PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(Distribution, "from_name", find_others)
    note = build_archive(tmp_path / "packed.tgz")
    assert "pyarrow" in note.distributions
    assert of_singer.isdisjoint(note.distributions)
