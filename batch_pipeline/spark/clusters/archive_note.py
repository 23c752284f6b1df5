"""What a packed archive says of itself, in its first file, and whether it is of use here.

Nothing is packed or unpacked. What executors compare with is this note, too.
"""

import hashlib
import json
import platform
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from batch_pipeline.domain.errors import PackedUnusableError

PACKED_FOLDER = "batch_pipeline_packed"
NOTE = "batch_pipeline_packed.json"
ENDINGS = (".tar.gz", ".tgz")  # by which Spark tells what it can unpack
# What tasks import, by the distributions that have it. There is no pyspark: executors have theirs.
REQUIRED: Mapping[str, str] = {
    "boto3": "boto3",
    "fastavro": "fastavro",
    "isal": "isal",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "psutil": "psutil",
    "pyarrow": "pyarrow",
    "simpleeval": "simpleeval",
    "typing-extensions": "typing_extensions",
    "zstandard": "zstandard",
}
OPTIONAL = "isal"  # there is no wheel for some platforms; executors must have it if the driver has
_SOURCES = (".json", ".py", ".sql")
_FOR_PEOPLE = {"docs"}  # no task reads them


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveNote:
    """For which Python and kind of machine an archive is, and what is in it.

    `package` is the digest of this package's sources; `distributions` are versions by name.
    """

    python: str
    platform: str
    release: str
    package: str
    distributions: Mapping[str, str]

    @classmethod
    def of_here(cls, distributions: Mapping[str, str]) -> "ArchiveNote":
        """Describe what would be packed by this process."""
        return cls(
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            platform=f"{sys.platform}-{platform.machine()}",
            release=version("batch-pipeline"),
            package=package_digest(),
            distributions=dict(distributions),
        )

    def to_json(self) -> str:
        """Give the content of the note's file."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def check_archive(archive: Path) -> ArchiveNote:
    """Check that an archive fits this process, which its executors work for, and give its note.

    The kind of machine may be another one: the driver need not be like the executors.

    Raises:
        PackedUnusableError: there is no such archive, or it is for another Python or release.
    """
    note = _read(archive)
    here = ArchiveNote.of_here({})
    if note.python != here.python:
        reason = f"it is for Python {note.python}, and this is Python {here.python}"
        raise PackedUnusableError(str(archive), reason)
    if note.package != here.package:
        reason = f"it holds batch-pipeline {note.release}, not as it is installed here"
        raise PackedUnusableError(str(archive), reason)
    return note


def package_folder() -> Path:
    """Give the folder of this package."""
    return Path(__file__).parents[2]


def package_files(folder: Path) -> Iterator[Path]:
    """Give the files of a package that tasks may need, in the order of their paths.

    Sources and what belongs to them, but nothing of the folder `docs`.
    """
    for path in sorted(folder.rglob("*")):
        is_for_people = path.relative_to(folder).parts[0] in _FOR_PEOPLE
        if path.suffix in _SOURCES and not is_for_people and path.is_file():
            yield path


def package_digest() -> str:
    """Give the digest of the package's sources: equal where the same release is installed."""
    digest = hashlib.sha256()
    folder = package_folder()
    for path in package_files(folder):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _read(archive: Path) -> ArchiveNote:
    if not archive.name.endswith(ENDINGS):
        raise PackedUnusableError(str(archive), f"its name does not end in {' or '.join(ENDINGS)}")
    try:
        with tarfile.open(archive) as tar:
            first = tar.next()
            file = None if first is None or first.name != NOTE else tar.extractfile(first)
            if file is None:
                raise PackedUnusableError(str(archive), "`batch-pipeline pack` did not make it")
            return ArchiveNote(**json.load(file))
    except OSError as error:
        raise PackedUnusableError(str(archive), (error.strerror or str(error)).lower()) from error
    except (tarfile.TarError, EOFError, ValueError, TypeError) as error:
        raise PackedUnusableError(str(archive), "it is no archive, or damaged") from error
