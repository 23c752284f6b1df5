"""Part files and pointer files on a local disk."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from batch_pipeline.domain.batch import Attempt
from batch_pipeline.domain.errors import (
    GarbageLeftError,
    PartFilesElsewhereError,
    PointerUnavailableError,
    StorageUnavailableError,
)
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.location import to_path, to_uri
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.domain.stored_file import Folder, StoredFile
from batch_pipeline.domain.stream import Storage
from batch_pipeline.files.pointers import (
    already_there,
    check_pointer,
    pointer_name,
    pointer_text,
)
from batch_pipeline.stores.durable import NO_LINKS, sync_folder
from batch_pipeline.stores.failures import reason_of

_QUARANTINE = Folder.QUARANTINE
_MANIFESTS = Folder.MANIFESTS


@dataclass(frozen=True, slots=True)
class FolderStorage:
    """A storage root on a local disk: part files flat in it, manifests and quarantine one below."""

    storage: Storage

    @property
    def _root(self) -> Path:
        return Path(to_path(self.storage.root))

    def prepare(self) -> None:
        """Create the folders and check that a file can be written.

        Raises:
            StorageUnavailableError: it cannot.
        """
        probe = self._root / f".probe-{uuid4().hex}"
        try:
            for folder in (self._root, self._root / _QUARANTINE, self._root / _MANIFESTS):
                folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise StorageUnavailableError(self.storage.root, reason_of(error)) from error

    def check_unpointed(self, attempt: Attempt) -> None:
        """Look for the pointer file that an attempt is to have.

        Raises:
            InventoryOlderError: it is there already.
            StorageUnavailableError: nobody can tell.
        """
        if attempt.generation is None:
            return
        one = attempt.batch
        name = pointer_name(self.storage, one.job, one.key, attempt.generation)
        if self._size(to_uri(self._root / _MANIFESTS / name)) is not None:
            raise already_there(attempt, name, self.storage.root)

    def check_written(self, parts: Iterable[PartFile]) -> None:
        """Look at each part file: executors of a cluster may have disks of their own.

        Raises:
            PartFilesElsewhereError: one is not there, or not of its size.
            StorageUnavailableError: one cannot be looked at.
        """
        for part in parts:
            found = self._size(part.uri)
            if found != part.size_bytes:
                raise PartFilesElsewhereError(self.storage.root, part.uri, part.size_bytes, found)

    def remove_attempt(self, stem: str) -> int:
        """Delete every file of one attempt, finished or not, and give their number.

        Raises:
            StorageUnavailableError: a folder cannot be listed or a file not be deleted.
        """
        names = f"{self.storage.prefix}{stem}-"
        removed = 0
        try:
            for folder in (self._root, self._root / _QUARANTINE):
                with suppress(FileNotFoundError):
                    for path in folder.iterdir():
                        if path.name.removeprefix(".").startswith(names):
                            path.unlink(missing_ok=True)
                            removed += 1
        except OSError as error:
            raise StorageUnavailableError(self.storage.root, reason_of(error)) from error
        return removed

    def files(self) -> Iterator[StoredFile]:
        """List the files of the root and the folders that belong to it, in no order.

        Links and other folders are left out; a root that is gone holds no file.

        Raises:
            GarbageLeftError: a folder cannot be listed.
        """
        try:
            for folder in Folder:
                with suppress(FileNotFoundError), os.scandir(self._root / folder) as entries:
                    for entry in entries:
                        if entry.is_file(follow_symlinks=False):
                            with suppress(FileNotFoundError):  # somebody deleted it just now
                                yield _stored(folder, entry)
        except OSError as error:
            raise GarbageLeftError(self.storage.root, reason_of(error)) from error

    def remove(self, file: StoredFile) -> bool:
        """Delete a file; tells whether it was there.

        Raises:
            GarbageLeftError: it cannot be deleted.
        """
        try:
            (self._root / file.path).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise GarbageLeftError(self.storage.root, reason_of(error)) from error
        return True

    def pointer_uri(self, manifest: Manifest) -> str:
        """Give where the pointer file of a manifest is, or was."""
        return to_uri(self._pointer(manifest))

    def point_to(self, manifest: Manifest) -> str:
        """Write the pointer file unless it is there, by linking a finished file to its name.

        One that is there has to be that of the same attempt.

        Raises:
            PointerUnavailableError: it cannot be written.
            PointerTakenError: there is another attempt's.
        """
        pointer = self._pointer(manifest)
        uri = to_uri(pointer)
        try:
            if not pointer.exists():
                self._write(pointer, manifest)
            there = pointer.read_bytes()
        except OSError as error:
            raise PointerUnavailableError(uri, reason_of(error)) from error
        check_pointer(there, manifest, uri)
        return uri

    def _size(self, uri: str) -> int | None:
        try:
            return Path(to_path(uri)).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageUnavailableError(self.storage.root, reason_of(error)) from error

    def _write(self, pointer: Path, manifest: Manifest) -> None:
        aside = pointer.with_name(f".{pointer.name}-{uuid4().hex}.tmp")
        try:
            pointer.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("x", encoding="utf-8") as file:
                file.write(pointer_text(manifest))
                file.flush()
                os.fsync(file.fileno())
            failpoint("pointer.before_link")
            _name(aside, pointer)
            aside.unlink(missing_ok=True)
            sync_folder(pointer.parent)
        except OSError:
            with suppress(OSError):
                aside.unlink()
            raise

    def _pointer(self, manifest: Manifest) -> Path:
        key, generation = manifest.batch.key, manifest.generation
        name = pointer_name(self.storage, manifest.stream, key, generation)
        return self._root / _MANIFESTS / name


def _name(aside: Path, pointer: Path) -> None:
    """Give a finished file its name, unless another one has it."""
    try:
        pointer.hardlink_to(aside)
    except FileExistsError:
        pass  # somebody was faster
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if not pointer.exists():  # who comes between writes the same text
            aside.rename(pointer)


def _stored(folder: Folder, entry: os.DirEntry[str]) -> StoredFile:
    facts = entry.stat(follow_symlinks=False)
    return StoredFile(
        folder=folder,
        name=entry.name,
        size_bytes=facts.st_size,
        modified_at=datetime.fromtimestamp(facts.st_mtime, UTC),
    )
