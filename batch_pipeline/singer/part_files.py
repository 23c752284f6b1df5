"""The part files of a manifest as they are found: there, as long as published, with its checksum.

What is in them is not looked at here.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.domain.errors import BatchDataError, PartFileUnreachableError, PipelineError
from batch_pipeline.domain.location import is_object, shown
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.stores.copies import local_file
from batch_pipeline.stores.facts import look
from batch_pipeline.stores.failures import reason_of, tells_of_file


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
    path, batch = shown(part.uri), manifest.batch
    return PartFileError(batch.job, batch.label, manifest.generation, path, problem, line)


def check_sizes(manifest: Manifest) -> None:
    """Check that all part files are there, with as many bytes as were published.

    Raises:
        PartFileError: one is not.
        PartFileUnreachableError: the store of one cannot be asked now.
    """
    for part in manifest.part_files:
        try:
            found = look(part.uri).size_bytes
        except OSError as error:
            raise unreadable(manifest, part, error) from error
        if found != part.size_bytes:
            problem = f"has {found} B, published: {part.size_bytes} B"
            raise part_file_error(manifest, part, problem)


@contextmanager
def checked_files(manifest: Manifest) -> Iterator[Sequence[Path]]:
    """Give where each part file can be read, once all have the bytes that were published.

    Files of a store are fetched once: as copies, which are there until the block ends.

    Raises:
        PartFileError: one has other bytes.
        PartFileUnreachableError: one cannot be fetched now.
    """
    check_sizes(manifest)
    paths: list[Path] = []
    with ExitStack() as copies:
        for part in manifest.part_files:
            try:
                path = copies.enter_context(local_file(part.uri))
                with path.open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise unreadable(manifest, part, error) from error
            if found != part.sha256:
                problem = f"its SHA-256 is {found}, and {part.sha256} was published"
                raise part_file_error(manifest, part, problem)
            paths.append(path)
        yield paths


def unreadable(manifest: Manifest, part: PartFile, error: OSError) -> PipelineError:
    """Say why a part file cannot be read."""
    reason = reason_of(error)
    if is_object(part.uri) and not tells_of_file(error):
        return PartFileUnreachableError(part.uri, reason)
    gone = isinstance(error, FileNotFoundError)
    return part_file_error(manifest, part, "is gone" if gone else f"cannot be read ({reason})")
