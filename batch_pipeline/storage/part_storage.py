"""Part files and manifest files of a storage root, on any file system.

Part files lie flat in the root, manifests and quarantined records one folder below. A file that a
writer has left unfinished counts as a hidden file. Which files may be deleted is decided elsewhere.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from batch_pipeline.model.batch import Attempt
from batch_pipeline.model.errors import (
    ConfigurationError,
    GarbageLeftError,
    ManifestFileUnavailableError,
    StorageUnavailableError,
)
from batch_pipeline.model.garbage import Folder, StoredFile, hidden_name, shown_name
from batch_pipeline.model.location import join_uri
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.model.stream import Storage
from batch_pipeline.storage.errors import is_missing_bucket, reason_of
from batch_pipeline.storage.filesystem import FileFacts, FileSystem, filesystem_of, no_facts
from batch_pipeline.storage.manifest_files import (
    already_there,
    check_manifest_file,
    manifest_file_name,
    manifest_file_text,
)


@dataclass(frozen=True, slots=True)
class PartFileStorage:
    """A storage root. Its folders are made on demand, buckets never."""

    storage: Storage

    def prepare(self) -> None:
        """Make the folders and check that a file can be written and deleted.

        Raises:
            StorageUnavailableError: it cannot.
        """
        probe = self._uri(Folder.ROOT, f".probe-{uuid4().hex}")
        with self._unavailable():
            for folder in Folder:
                self._files.make_folder(join_uri(self.storage.root, folder), parents=True)
            self._files.put(probe, b"")
            self._files.delete(probe)

    def check_unpointed(self, attempt: Attempt) -> None:
        """Check that the manifest file which an attempt is to write is not there yet.

        Raises:
            InventoryOlderError: it is there already.
            StorageUnavailableError: the storage cannot be asked.
        """
        if attempt.generation is None:
            return
        batch = attempt.batch
        name = manifest_file_name(self.storage, batch.job, batch.key, attempt.generation)
        with self._unavailable():
            facts = self._facts(self._uri(Folder.MANIFESTS, name))
        if facts is not None:
            raise already_there(attempt, name, self.storage.root)

    def check_written(self, parts: Iterable[PartFile]) -> None:
        """Check that part files are there: executors of a cluster may have disks of their own.

        A store has acknowledged each file to the task that wrote it; it is not asked again.

        Raises:
            ConfigurationError: one is not there, or not of its size.
            StorageUnavailableError: one cannot be looked at.
        """
        if not self._files.is_local:
            return
        for part in parts:
            with self._unavailable():
                facts = self._facts(part.uri)
            found = None if facts is None else facts.size_bytes
            if found != part.size_bytes:
                raise _part_files_elsewhere(self.storage.root, part.uri, part.size_bytes, found)

    def remove_attempt(self, stem: str) -> int:
        """Delete every file of one attempt, finished or not, and return their number.

        Raises:
            StorageUnavailableError: the files cannot be listed or deleted.
        """
        names = f"{self.storage.prefix}{stem}-"
        removed = 0
        with self._unavailable():
            for folder, start in (
                (Folder.ROOT, names),
                (Folder.ROOT, f".{names}"),
                (Folder.QUARANTINE, names),
            ):
                removed += self._remove_all(folder, start)
        return removed

    def files(self) -> Iterator[StoredFile]:
        """List the files of the root and of its folders, unfinished ones included, in no order.

        Links and what lies deeper are left out; a root that is gone has no files.

        Raises:
            GarbageLeftError: they cannot be listed.
        """
        with self._garbage_left():
            for folder in Folder:
                with _missing_is_empty():
                    yield from self._finished(folder)
                    yield from self._unfinished(folder)

    def remove(self, file: StoredFile) -> bool:
        """Delete a file as `files` lists it; return whether it was there.

        Raises:
            GarbageLeftError: it cannot be deleted.
        """
        with self._garbage_left():
            if self._abort(file):
                return True
            uri = self._uri(file.folder, file.name)
            if self._facts(uri) is None:
                return False
            self._files.delete(uri)
        return True

    def pointer_uri(self, manifest: Manifest) -> str:
        """Return where the manifest file of a manifest is, or was."""
        key, generation = manifest.batch.key, manifest.generation
        name = manifest_file_name(self.storage, manifest.job, key, generation)
        return self._uri(Folder.MANIFESTS, name)

    def point_to(self, manifest: Manifest) -> str:
        """Write the manifest file unless it is there; of several writers one wins.

        An existing one has to be that of the same attempt.

        Raises:
            ManifestFileUnavailableError: it cannot be written.
            ManifestFileTakenError: the file of another attempt is there.
        """
        uri = self.pointer_uri(manifest)
        try:
            if self._files.create_if_absent(uri, manifest_file_text(manifest).encode()):
                return uri
            with self._files.open(uri) as file:
                there = file.read()
        except OSError as error:
            raise ManifestFileUnavailableError(uri, reason_of(error)) from error
        check_manifest_file(there, manifest, uri)
        return uri

    @property
    def _files(self) -> FileSystem:
        return filesystem_of(self.storage.root)

    def _uri(self, folder: Folder, name: str) -> str:
        return self._files.join(join_uri(self.storage.root, folder), name)

    def _prefix(self, folder: Folder, start: str = "") -> str:
        return f"{join_uri(self.storage.root, folder)}/{start}"

    def _facts(self, uri: str) -> FileFacts | None:
        try:
            return self._files.head(uri)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _remove_all(self, folder: Folder, start: str) -> int:
        prefix, removed = self._prefix(folder, start), 0
        with _missing_is_empty():
            for file in self._files.unfinished(prefix, recursive=False):
                removed += self._files.abort_unfinished(file)
            listed = self._files.list(prefix, recursive=False, facts_for=no_facts)
            uris = [self._uri(folder, one.name) for one in listed]
            if uris:
                self._files.delete(*uris)
            removed += len(uris)
        return removed

    def _finished(self, folder: Folder) -> Iterator[StoredFile]:
        for one in self._files.list(self._prefix(folder), recursive=False):
            facts = one.facts
            if facts is not None and facts.is_regular and not one.is_link:
                yield StoredFile(
                    folder=folder,
                    name=one.name,
                    size_bytes=facts.size_bytes,
                    modified_at=facts.modified_at,
                )

    def _unfinished(self, folder: Folder) -> Iterator[StoredFile]:
        for one in self._files.unfinished(self._prefix(folder), recursive=False):
            yield StoredFile(
                folder=folder,
                name=hidden_name(one.name),
                size_bytes=one.size_bytes,
                modified_at=one.started_at,
            )

    def _abort(self, file: StoredFile) -> bool:
        """Remove the unfinished files that a hidden name stands for; return whether one was."""
        name = shown_name(file.name)
        if name is None:
            return False
        prefix = self._prefix(file.folder, name)
        unfinished = self._files.unfinished(prefix, recursive=False)
        same = [one for one in unfinished if one.name == name]
        aborted = [self._files.abort_unfinished(one) for one in same]
        return any(aborted)

    @contextmanager
    def _unavailable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageUnavailableError(self.storage.root, reason_of(error)) from error

    @contextmanager
    def _garbage_left(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise GarbageLeftError(self.storage.root, reason_of(error)) from error


@contextmanager
def _missing_is_empty() -> Iterator[None]:
    """Treat a folder that is missing as empty; a missing bucket stays an error."""
    try:
        yield
    except FileNotFoundError as error:
        if is_missing_bucket(error):
            raise


def _part_files_elsewhere(
    root: str, uri: str, size_bytes: int, found_bytes: int | None
) -> ConfigurationError:
    found = "is not there" if found_bytes is None else f"has {found_bytes} B"
    return ConfigurationError(
        f"Storage {root}: an executor wrote {uri} with "
        f"{size_bytes} B, and seen from here it {found}. Executors write "
        f"to another disk. Nothing was published; what they wrote is left on their disks. "
        f"Share the folder with all machines of the cluster at the same path, or let "
        f"`storage.root` be in S3, then run again."
    )
