"""Part files of one run of one task: numbered, hashed on the way, all of them there or none.

On a disk a file has a hidden name while it is written, and the final one when it is whole; in a
store it is uploaded, and can be seen when it is whole. Knows names and bytes; what goes in and
where it is cut is the business of others.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.domain.location import is_object, join_uri, to_path
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.spark.write.open_parts import (
    FilePlace,
    ObjectPlace,
    OpenPart,
    Place,
    storage_errors,
)
from batch_pipeline.stores import upload
from batch_pipeline.stores.durable import sync_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNames:
    """How the files of one run of one task are called, flat below `root`.

    `execution` differs between two runs of the same task, so neither touches the other's files.
    """

    root: str
    stem: str
    task: int
    execution: str
    suffix: str
    folder: str = ""

    def name(self, part: int) -> str:
        """Give the name of part number `part`."""
        return f"{self.stem}-{self.task:04d}{part:04d}-{self.execution}.{self.suffix}"

    def open(self, part: int) -> OpenPart:
        """Open part number `part` for writing.

        Raises:
            StorageUnavailableError: it cannot be created.
        """
        with storage_errors(self.root):
            return OpenPart(self._place(self.name(part)), self.root)

    def _place(self, name: str) -> Place:
        if is_object(self.root):
            return ObjectPlace(join_uri(join_uri(self.root, self.folder), name))
        return FilePlace(self.path / name)

    @property
    def path(self) -> Path:
        """The folder of a disk that the files are in."""
        return Path(to_path(self.root), self.folder)

    def make_folder(self) -> None:
        """Make the folder below the root, where there are folders.

        Raises:
            StorageUnavailableError: it cannot be made.
        """
        if self.folder and not is_object(self.root):
            with storage_errors(self.root):
                self.path.mkdir(exist_ok=True)


class PartFiles:
    """The part files of one run of one task: finished ones, and at most one that is open."""

    def __init__(self, names: PartNames) -> None:
        self._names = names
        self._open: OpenPart | None = None
        self._finished: list[OpenPart] = []

    def start(self) -> OpenPart:
        """Open the next part file, which nobody sees yet.

        Raises:
            StorageUnavailableError: it cannot be created.
        """
        self._open = self._names.open(len(self._finished))
        return self._open

    def finish(self, records: int) -> None:
        """Write the open part file to its end.

        Raises:
            StorageUnavailableError: it cannot be written to the end.
        """
        if self._open is not None:
            self._open.finish(records)
            self._finished.append(self._open)
            self._open = None

    def close(self) -> tuple[PartFile, ...]:
        """Make sure of the finished files, and that they can be seen; give them in order.

        Raises:
            StorageUnavailableError: the storage cannot be written.
        """
        parts = tuple(part.complete() for part in self._finished)
        if parts and not is_object(self._names.root):
            with storage_errors(self._names.root):
                sync_folder(self._names.path)
        return parts

    def abort(self) -> None:
        """Remove all files."""
        if self._open is not None:
            self._open.abort()
            self._open = None
        for part in self._finished:
            part.abort()
        self._finished.clear()


def remove(part: PartFile) -> None:
    """Remove a part file, if it is there."""
    with suppress(OSError):
        if is_object(part.uri):
            upload.remove(part.uri)
        else:
            Path(to_path(part.uri)).unlink()
