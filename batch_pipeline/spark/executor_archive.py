"""The packed archive: the modules that tasks import, for executors with only Python and Spark.

`batch-pipeline pack` builds it from the packages installed here. Its first file is a note that
states its Python, its platform and its contents, so that a wrong archive is refused before a
session is opened, and an executor can be compared with the driver. Spark unpacks the archive in the
working folder of each executor.
"""

import hashlib
import importlib.util
import io
import json
import platform
import re
import shlex
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, packages_distributions, version
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.storage.filesystem import raise_as
from batch_pipeline.storage.part_formats.jsonl import GZIP

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

PACKAGE_FOLDER = Path(__file__).parents[1]
ARCHIVE_FOLDER = "batch_pipeline_packed"
NOTE_NAME = "batch_pipeline_packed.json"
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")  # by these, Spark recognizes a file that it can unpack
# The modules that tasks import, by distribution. Without pyspark: executors have their own.
TASK_DISTRIBUTIONS: Mapping[str, str] = {
    "boto3": "boto3",
    "fastavro": "fastavro",
    "isal": "isal",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "psutil": "psutil",
    "pyarrow": "pyarrow",
    "simpleeval": "simpleeval",
    "singer-sdk": "singer_sdk",
    "typing-extensions": "typing_extensions",
    "zstandard": "zstandard",
}
# Of the extra `singer`. Only stream maps and flattening need them, and are refused without it.
_OPTIONAL_DISTRIBUTIONS = frozenset({"simpleeval", "singer-sdk"})
_ATTACHED = "_batch_pipeline_packed"  # attribute of a session that has an archive
_SOURCE_SUFFIXES = (".json", ".py", ".sql")
# Files that no task reads: tests, and files that only compilers of other packages need.
_EXCLUDED = re.compile(
    r"(^|/)__pycache__/|\.py[co]$|^pyarrow/(tests|include|src|includes)/|\.(pxd|pxi|pyx|pyi|h)$"
    r"|^(certifi|fsspec|joblib|jsonschema|jsonschema_specifications|numpy|referencing|simplejson)/"
    r"(.*/)?tests?/"
)

TaskFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveNote:
    """The Python and the platform that an archive is for, and its contents.

    `package` is the digest of this package's sources; `distributions` has versions by name.
    """

    python: str
    platform: str
    release: str
    package: str
    distributions: Mapping[str, str]

    @classmethod
    def of_this_process(cls, distributions: Mapping[str, str]) -> "ArchiveNote":
        """Return the note of an archive that this process would build."""
        return cls(
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            platform=f"{sys.platform}-{platform.machine()}",
            release=version("batch-pipeline"),
            package=package_digest(),
            distributions=dict(distributions),
        )

    def to_json(self) -> str:
        """Return the content of the note's file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def package_files(folder: Path = PACKAGE_FOLDER) -> dict[str, Path]:
    """Return the files of this package that tasks may need, by name, without its `docs`."""
    return {
        name: path
        for path in sorted(folder.rglob("*"))
        if path.suffix in _SOURCE_SUFFIXES
        and not (name := path.relative_to(folder).as_posix()).startswith("docs/")
        and path.is_file()
    }


def package_digest() -> str:
    """Compute the SHA-256 of this package's sources: equal where the same release is installed.

    A version number would not suffice: checkouts of different commits have the same version.
    """
    digest = hashlib.sha256()
    for name, path in package_files().items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def check_archive(archive: Path) -> ArchiveNote:
    """Return the note of an archive if executors of this process can use it.

    The platform may differ: the driver need not run on a machine like the executors'.

    Raises:
        ConfigurationError: there is no such archive, or it is for another Python or release.
    """
    note = _read_note(archive)
    driver = ArchiveNote.of_this_process({})
    if note.python != driver.python:
        reason = f"it is for Python {note.python}, and this is Python {driver.python}"
        raise _unusable(archive, reason)
    if note.package != driver.package:
        reason = f"its batch-pipeline {note.release} differs from the one installed here"
        raise _unusable(archive, reason)
    return note


def _read_note(archive: Path) -> ArchiveNote:
    _check_suffix(archive, _unusable)
    try:
        with tarfile.open(archive) as tar:
            first = tar.next()
            file = None if first is None or first.name != NOTE_NAME else tar.extractfile(first)
            if file is None:
                raise _unusable(archive, "`batch-pipeline pack` did not make it")
            return ArchiveNote(**json.load(file))
    except OSError as error:
        raise _unusable(archive, (error.strerror or str(error)).lower()) from error
    except (tarfile.TarError, EOFError, ValueError, TypeError) as error:
        raise _unusable(archive, "it is not an archive, or damaged") from error


def _check_suffix(archive: Path, build: Callable[[Path, str], ConfigurationError]) -> None:
    if not archive.name.endswith(ARCHIVE_SUFFIXES):
        raise build(archive, f"its name must end in {' or '.join(ARCHIVE_SUFFIXES)}")


def _unusable(archive: Path, reason: str) -> ConfigurationError:
    path = archive
    if not archive.name.endswith(ARCHIVE_SUFFIXES):
        path = Path(f"{archive}{ARCHIVE_SUFFIXES[0]}")
    return ConfigurationError(
        f"The packed archive {archive} cannot be used: {reason}. Nothing was started. Run "
        f"`batch-pipeline pack {shlex.quote(str(path))}` with the Python that runs batch-pipeline, "
        f"and set BATCH_PIPELINE_SPARK_PACKED to its path."
    )


def _not_packed(archive: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"The packed archive {archive} cannot be made: {reason}. Nothing was written. Correct it "
        f"and run the command again."
    )


def attach_archive(session: "SparkSession", archive: Path) -> None:
    """Upload an archive for a Connect client's session to the server, for its executors."""
    session.addArtifacts(f"{archive.as_uri()}#{ARCHIVE_FOLDER}", archive=True)
    setattr(session, _ATTACHED, True)


def with_archive(session: "SparkSession", function: TaskFunction) -> TaskFunction:
    """Return a function that finds its modules in the archive attached to the session, if any."""
    return _ArchivedFunction(function) if getattr(session, _ATTACHED, False) else function


class _ArchivedFunction:
    """A function that extends `sys.path` by the archive before its modules are imported.

    A Connect server does not put a client's archives on the Python path of executors, so unpickling
    a function of this package would fail there. The object is pickled as code that needs only the
    standard library and pyspark; it extends the path and then unpickles the function.
    """

    def __init__(self, function: TaskFunction) -> None:
        self._function = function

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return self._function(batches)

    def __reduce__(self) -> tuple[Callable[[bytes], TaskFunction], tuple[bytes]]:
        from pyspark import cloudpickle

        pickled: bytes = cloudpickle.dumps(self._function)  # type: ignore[no-untyped-call]
        return _make_loader(), (pickled,)


def _make_loader() -> Callable[[bytes], TaskFunction]:
    archive_folder = ARCHIVE_FOLDER

    # Nested, so that cloudpickle sends it by value. Its return type is Any because annotations are
    # sent, too, and pyarrow must not be needed to read them.
    def load_function(pickled: bytes) -> Any:
        import pickle
        import sys
        from pathlib import Path

        from pyspark import SparkFiles

        folder = str(Path(SparkFiles.getRootDirectory(), archive_folder))
        if folder not in sys.path:
            sys.path.insert(1, folder)
        return pickle.loads(pickled)  # noqa: S301 - as Spark does with all code

    return load_function


def build_archive(archive: Path, extra_modules: Sequence[str] = ()) -> ArchiveNote:
    """Write an archive and return its note; `extra_modules` are a user's, such as transforms.

    The archive appears atomically, and the same installed files produce the same bytes.

    Raises:
        ConfigurationError: its name has a suffix that Spark does not accept, it cannot be written,
            or something that belongs in it is not installed here.
    """
    _check_suffix(archive, _not_packed)
    roots = list(TASK_DISTRIBUTIONS)
    files = {f"batch_pipeline/{name}": path for name, path in package_files().items()}
    for module in extra_modules:
        files |= _module_files(archive, module)
        roots += packages_distributions().get(module, [])
    distributions = {
        distribution.metadata["Name"]: distribution
        for distribution in _with_requirements(archive, roots)
    }
    for distribution in distributions.values():
        files |= _distribution_files(distribution)
    names = sorted(distributions, key=str.lower)
    note = ArchiveNote.of_this_process({name: distributions[name].version for name in names})
    _write_archive(archive, note, files)
    return note


def _module_files(archive: Path, module: str) -> dict[str, Path]:
    """Return the files of a user's module, which may belong to no distribution."""
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None:
        raise _not_packed(archive, f"there is no module {module!r} here")
    files: dict[str, Path] = {}
    for folder in map(Path, spec.submodule_search_locations or ()):
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        files |= {f"{module}/{path.relative_to(folder).as_posix()}": path for path in paths}
    if spec.submodule_search_locations is None and spec.origin is not None:
        files[Path(spec.origin).name] = Path(spec.origin)
    return {name: path for name, path in files.items() if not _EXCLUDED.search(name)}


def _with_requirements(archive: Path, roots: Iterable[str]) -> Iterator[Distribution]:
    """Yield distributions and all their requirements, each once, without this project."""
    seen = {"batch-pipeline"}
    pending = [(name, name not in _OPTIONAL_DISTRIBUTIONS) for name in roots]
    while pending:
        name, is_required = pending.pop()
        normalized = re.sub(r"[-_.]+", "-", name).lower()
        if normalized in seen:
            continue
        seen.add(normalized)
        try:
            distribution = Distribution.from_name(name)
        except PackageNotFoundError as error:
            if is_required:
                reason = f"the distribution {name} is not installed here"
                raise _not_packed(archive, reason) from error
            continue
        yield distribution
        for requirement in distribution.requires or ():
            specifier, _, marker = requirement.partition(";")
            required = re.match(r"[\w.-]+", specifier.strip())
            if required is not None and "extra" not in marker:
                # Markers are not evaluated: if the condition holds, the distribution is installed.
                pending.append((required.group(), not marker))


def _distribution_files(distribution: Distribution) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for file in distribution.files or ():
        name = PurePosixPath(file).as_posix()
        if not name.startswith(("../", "/")) and not _EXCLUDED.search(name):
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                files[name] = path
    return files


def _write_archive(archive: Path, note: ArchiveNote, files: dict[str, Path]) -> None:
    with (
        raise_as(partial(_not_packed, archive)),
        tempfile.TemporaryDirectory(dir=archive.parent, prefix=".pack-") as folder,
    ):
        unfinished = Path(folder, archive.name)
        with (
            unfinished.open("wb") as file,
            # Its header has no time or name, for reproducible bytes.
            GZIP.IGzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            text = note.to_json().encode()
            _add_file(tar, NOTE_NAME, io.BytesIO(text), len(text))
            for name, path in sorted(files.items()):
                with path.open("rb") as content:
                    _add_file(tar, name, content, path.stat().st_size)
        unfinished.replace(archive)


def _add_file(tar: tarfile.TarFile, name: str, content: IO[bytes], size_bytes: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size_bytes
    tar.addfile(entry, content)
