"""The part files of a manifest as they are found: there, as long as published, with its checksum.

What is in them is not looked at here.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.domain.errors import BatchDataError
from batch_pipeline.domain.location import to_path
from batch_pipeline.domain.manifest import Manifest, PartFile


@dataclass(eq=False)
class PartFileError(BatchDataError):
    """A file of a published batch is gone, or is not what was published."""

    job: str
    batch: str
    generation: int
    path: str
    problem: str
    line: int | None = None

    def sentence(self) -> str:
        place = self.path if self.line is None else f"{self.path}, line {self.line}"
        return (
            f"{self.job}: a part file of batch {self.batch}, generation {self.generation}, cannot "
            f"be sent: {place}: {self.problem}. No STATE was written for this batch, so it comes "
            f"again. Put the file back, or materialize the partition again: its next generation "
            f"takes the place of this one. `batch-pipeline verify` looks at all files."
        )


def part_file_error(
    manifest: Manifest, part: PartFile, problem: str, line: int | None = None
) -> PartFileError:
    """Make the error that a part file is to blame for."""
    path, batch = to_path(part.uri), manifest.batch
    return PartFileError(batch.job, batch.label, manifest.generation, path, problem, line)


def path_of(part: PartFile) -> Path:
    """Give the place of a part file."""
    return Path(to_path(part.uri))


def check_sizes(manifest: Manifest) -> None:
    """Check that all part files are there, with as many bytes as were published.

    Raises:
        PartFileError: one is not.
    """
    for part in manifest.part_files:
        try:
            found = path_of(part).stat().st_size
        except OSError as error:
            raise unreadable(manifest, part, error) from error
        if found != part.size_bytes:
            problem = f"has {found} bytes, and {part.size_bytes} were published"
            raise part_file_error(manifest, part, problem)


def check_contents(manifest: Manifest) -> None:
    """Check that all part files have the bytes that were published; reads them once.

    Raises:
        PartFileError: one has not.
    """
    check_sizes(manifest)
    for part in manifest.part_files:
        try:
            with path_of(part).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise unreadable(manifest, part, error) from error
        if found != part.sha256:
            problem = f"its SHA-256 is {found}, and {part.sha256} was published"
            raise part_file_error(manifest, part, problem)


def unreadable(manifest: Manifest, part: PartFile, error: OSError) -> PartFileError:
    """Say why a part file cannot be read."""
    reason = error.strerror or type(error).__name__
    gone = isinstance(error, FileNotFoundError)
    return part_file_error(manifest, part, "is gone" if gone else f"cannot be read ({reason})")
