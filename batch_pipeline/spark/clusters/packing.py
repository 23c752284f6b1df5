"""Packs what tasks import into one archive: this package and the distributions that it needs.

Driver side, without Spark. Files are taken as they are installed here; nothing is downloaded.
"""

import importlib.util
import io
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, packages_distributions
from pathlib import Path, PurePosixPath
from typing import Any

from batch_pipeline.domain.errors import PackedUnusableError
from batch_pipeline.spark.clusters.archive_note import (
    ENDINGS,
    NOTE,
    OPTIONAL,
    REQUIRED,
    ArchiveNote,
    package_files,
    package_folder,
)
from batch_pipeline.spark.gzip_codec import HAS_ISAL

# What no task reads: tests, and what only compilers of other packages need.
_LEFT_OUT = re.compile(
    r"(^|/)__pycache__/|\.py[co]$|^pyarrow/(tests|include|src|includes)/|\.(pxd|pxi|pyx|pyi|h)$"
    r"|^numpy/(.*/)?tests/"
)


def pack(archive: Path, added: Sequence[str] = ()) -> ArchiveNote:
    """Write an archive and tell what is in it; `added` are more modules, such as of transforms.

    It appears whole or not at all, and is the same for the same installed files.

    Raises:
        PackedUnusableError: its name does not say that it is an archive, it cannot be written, or
            something that belongs in it is not installed here.
    """
    if not archive.name.endswith(ENDINGS):
        reason = f"its name must end in {' or '.join(ENDINGS)}"
        raise PackedUnusableError(str(archive), reason)
    modules = [_Module(archive, name) for name in added]
    roots = [*REQUIRED, *(name for module in modules for name in module.distributions)]
    found = {
        one.metadata["Name"]: one for one in _with_requirements(archive, roots) if not _is_ours(one)
    }
    note = ArchiveNote.of_here({name: found[name].version for name in sorted(found, key=str.lower)})
    folder = package_folder()
    files = {
        f"batch_pipeline/{path.relative_to(folder).as_posix()}": path
        for path in package_files(folder)
    }
    for module in modules:
        files |= module.files
    for one in found.values():
        files |= _files(one)
    _write(archive, note, files)
    return note


class _Module:
    """A module that a user adds: with its distribution, or as files where it belongs to none."""

    def __init__(self, archive: Path, name: str) -> None:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None:
            raise PackedUnusableError(str(archive), f"there is no module {name!r} here")
        self.distributions = packages_distributions().get(name, [])
        self.files: dict[str, Path] = {}
        for folder in map(Path, spec.submodule_search_locations or ()):
            paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
            self.files |= {f"{name}/{path.relative_to(folder).as_posix()}": path for path in paths}
        if spec.submodule_search_locations is None and spec.origin is not None:
            self.files[Path(spec.origin).name] = Path(spec.origin)
        self.files = {name: path for name, path in self.files.items() if _is_wanted(name)}


def _with_requirements(archive: Path, roots: Iterable[str]) -> Iterator[Distribution]:
    """Give distributions and, once each, all that these require."""
    seen: set[str] = set()
    left = [(name, name != OPTIONAL) for name in roots]
    while left:
        name, is_needed = left.pop()
        if _normal(name) in seen:
            continue
        seen.add(_normal(name))
        try:
            one = Distribution.from_name(name)
        except PackageNotFoundError as error:
            if is_needed:
                reason = f"the distribution {name} is not installed here"
                raise PackedUnusableError(str(archive), reason) from error
            continue
        yield one
        if _is_ours(one):
            continue
        for requirement in one.requires or ():
            what, _, marker = requirement.partition(";")
            required = re.match(r"[\w.-]+", what.strip())
            if required is not None and "extra" not in marker:
                # What holds under a condition is there if the condition does.
                left.append((required.group(), not marker))


def _files(one: Distribution) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in one.files or ():
        name = PurePosixPath(file).as_posix()
        if not name.startswith(("../", "/")) and _is_wanted(name):
            path = Path(str(one.locate_file(file)))
            if path.is_file():
                found[name] = path
    return found


def _write(archive: Path, note: ArchiveNote, files: dict[str, Path]) -> None:
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".pack-") as folder:
            unfinished = Path(folder, archive.name)
            with (
                unfinished.open("wb") as file,
                _compressed(file) as stream,
                tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                text = note.to_json().encode()
                tar.addfile(_entry(NOTE, len(text)), io.BytesIO(text))
                for name, path in sorted(files.items()):
                    with path.open("rb") as content:
                        tar.addfile(_entry(name, path.stat().st_size), content)
            unfinished.replace(archive)
    except OSError as error:
        raise PackedUnusableError(str(archive), (error.strerror or str(error)).lower()) from error


def _compressed(file: Any) -> Any:
    """Compress what is written, quickly, without a time or a name."""
    module = import_module("isal.igzip" if HAS_ISAL else "gzip")
    kind = module.IGzipFile if HAS_ISAL else module.GzipFile
    return kind(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0)


def _entry(name: str, size_bytes: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size_bytes
    return entry


def _is_wanted(name: str) -> bool:
    return _LEFT_OUT.search(name) is None


def _is_ours(one: Distribution) -> bool:
    return _normal(one.metadata["Name"]) == "batch-pipeline"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
