"""Part files and manifest files of a storage root, on any file system.

Part files are directly in the root, manifests and quarantined records one folder below. A file that
a writer has left unfinished counts as a hidden file. Which files may be deleted is decided
elsewhere.
"""

import errno
import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from batch_pipeline.model.batch import Attempt
from batch_pipeline.model.errors import (
    ConfigurationError,
    GarbageLeftError,
    InventoryOlderError,
    ManifestFileTakenError,
    ManifestFileUnavailableError,
    StorageUnavailableError,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.garbage import Folder, StoredFile, hidden_name, shown_name
from batch_pipeline.model.location import join_uri
from batch_pipeline.model.manifest import Manifest, ManifestUnfitError, PartFile
from batch_pipeline.model.stream import Storage
from batch_pipeline.storage.filesystem import (
    OTHER_VERSION,
    FileFacts,
    FileSystem,
    filesystem_of,
    is_missing_bucket,
    no_facts,
    raise_as,
)

_ORIGIN = "inventory"


@dataclass(frozen=True, slots=True)
class PartFileStorage:
    """A storage root. Its folders are created on demand, buckets never."""

    storage: Storage

    def prepare(self) -> None:
        """Create the folders and check that a file can be written and deleted.

        Raises:
            StorageUnavailableError: one of these steps failed.
        """
        probe = self._uri(Folder.ROOT, f".probe-{uuid4().hex}")
        with self._unavailable():
            for folder in Folder:
                self._files.make_folder(join_uri(self.storage.root, folder), parents=True)
            self._files.put(probe, b"")
            self._files.delete(probe)

    def check_unpointed(self, attempt: Attempt, stream: str) -> None:
        """Check that the manifest file that an attempt will write does not exist yet.

        Raises:
            InventoryOlderError: it exists already.
            StorageUnavailableError: the storage cannot be queried.
        """
        if attempt.generation is None:
            return
        uri = self._manifest_uri(attempt.batch.job, attempt.batch.key, attempt.generation)
        with self._unavailable():
            facts = self._facts(uri)
        if facts is not None:
            raise InventoryOlderError.of(stream, self.storage.root, [uri.rpartition("/")[2]])

    def check_written(self, parts: Iterable[PartFile]) -> None:
        """Check that part files exist: executors of a cluster may have disks of their own.

        A store has acknowledged each file to the task that wrote it; it is not queried again.

        Raises:
            ConfigurationError: a file does not exist, or has another size.
            StorageUnavailableError: a file cannot be read.
        """
        if not self._files.is_local:
            return
        for part in parts:
            with self._unavailable():
                facts = self._facts(part.uri)
            if facts is None or facts.size_bytes != part.size_bytes:
                there = "does not exist" if facts is None else f"has {facts.size_bytes} B"
                raise ConfigurationError(
                    f"Storage {self.storage.root}: an executor wrote {part.uri} with "
                    f"{part.size_bytes} B, and from the driver it {there}. Executors write to "
                    f"another disk. Nothing was published; their files remain on their "
                    f"disks. Share the folder with all machines of the cluster at the same path, "
                    f"or set `storage.root` to S3, then run again."
                )

    def remove_attempt(self, stem: str) -> int:
        """Delete every file of one attempt, finished or not, and return their number.

        Raises:
            StorageUnavailableError: the files cannot be listed or deleted.
        """
        names = f"{self.storage.prefix}{stem}-"
        with self._unavailable():
            return (
                self._remove_all(Folder.ROOT, names)
                + self._remove_all(Folder.ROOT, f".{names}")
                + self._remove_all(Folder.QUARANTINE, names)
            )

    def files(self) -> Iterator[StoredFile]:
        """List the files of the root and its folders, including unfinished ones, in any order.

        Links and deeper files are left out; a missing root has no files.

        Raises:
            GarbageLeftError: they cannot be listed.
        """
        for folder in Folder:
            with self._garbage_left(), _missing_is_empty():
                for one in self._files.list(self._prefix(folder), recursive=False):
                    facts = one.facts
                    if facts is not None and facts.is_regular and not one.is_link:
                        yield StoredFile(
                            folder=folder,
                            name=one.name,
                            size_bytes=facts.size_bytes,
                            modified_at=facts.modified_at,
                        )
                for unfinished in self._files.unfinished(self._prefix(folder)):
                    yield StoredFile(
                        folder=folder,
                        name=hidden_name(unfinished.name),
                        size_bytes=unfinished.size_bytes,
                        modified_at=unfinished.started_at,
                    )

    def remove(self, file: StoredFile) -> bool:
        """Delete a file that `files` listed; return whether it existed.

        Raises:
            GarbageLeftError: it cannot be deleted.
        """
        uri, final = self._uri(file.folder, file.name), shown_name(file.name)
        with self._garbage_left():
            if self._facts(uri) is not None:
                self._files.delete(uri)
                return True
            if final is None:
                return False
            uploads = self._files.unfinished(self._prefix(file.folder, final))
            aborted = [self._files.abort_unfinished(one) for one in uploads if one.name == final]
            return any(aborted)

    def pointer_uri(self, manifest: Manifest) -> str:
        """Return the URI at which the manifest file of a manifest is, or was."""
        return self._manifest_uri(manifest.job, manifest.batch.key, manifest.generation)

    def point_to(self, manifest: Manifest) -> str:
        """Write the manifest file unless it exists; one of several writers wins.

        An existing file must belong to the same attempt.

        Raises:
            ManifestFileUnavailableError: it cannot be written.
            ManifestFileTakenError: the existing file belongs to another attempt.
        """
        uri = self.pointer_uri(manifest)
        with raise_as(partial(ManifestFileUnavailableError, uri)):
            if self._files.create_if_absent(uri, manifest_file_text(manifest).encode()):
                return uri
            with self._files.open(uri) as file:
                there = file.read()
        check_manifest_file(there, manifest, uri)
        return uri

    def manifest_names(self, start: str) -> Iterator[str]:
        """List the names of manifest files that begin with `start`; a missing root has none.

        No file is opened. Links and folders are left out.

        Raises:
            StorageUnavailableError: they cannot be listed.
        """
        # A missing root is reported when it is written to.
        with self._unlisted(), suppress(FileNotFoundError, NotADirectoryError):
            for one in self._files.list(
                self._prefix(Folder.MANIFESTS, start), recursive=False, facts_for=no_facts
            ):
                if not one.is_link:
                    yield one.name

    def read_manifest(self, name: str, most: int) -> bytes:
        """Read a manifest file.

        Raises:
            ManifestUnfitError: it does not exist, or has more bytes than `most`.
            StorageUnavailableError: it cannot be read.
        """
        with self._unlisted():
            try:
                with self._files.open(self._uri(Folder.MANIFESTS, name)) as file:
                    text = file.read(most + 1)
            except FileNotFoundError as error:
                raise ManifestUnfitError(name, "it no longer exists") from error
        if len(text) > most:
            raise ManifestUnfitError(name, f"it has more than {most} bytes")
        return text

    def set_aside(self, name: str, mark: str) -> bool:
        """Move a manifest file to `discarded/<mark>/manifests`; return whether it existed.

        Nothing is overwritten. The file is copied first, so that after a crash it may be in both
        places.

        Raises:
            StorageUnavailableError: it cannot be moved, or was written again; it stays in place.
        """
        source = self._uri(Folder.MANIFESTS, name)
        folder = join_uri(self.discarded(mark), Folder.MANIFESTS)
        with self._unlisted():
            try:
                pinned = self._files.pin(source)
                with pinned.open() as file:
                    text = file.read()
            except FileNotFoundError:
                return False
            self._files.make_folder(folder, parents=True)
            if not self._files.create_if_absent(join_uri(folder, name), text):
                raise FileExistsError(errno.EEXIST, "another file has its name there", source)
            self._files.sync_folder(folder)
            failpoint("discard.copied")
            now = self._facts(source)
            if now is None:
                return False  # another process moved it
            if now != pinned.facts:
                raise FileExistsError(errno.EEXIST, OTHER_VERSION, source)
            self._files.delete(source)
            self._files.sync_folder(self._prefix(Folder.MANIFESTS))
        return True

    def discarded(self, mark: str) -> str:
        """Return the URI of the folder for a mark."""
        return join_uri(self.storage.root, f"discarded/{mark}")

    @property
    def _files(self) -> FileSystem:
        return filesystem_of(self.storage.root)

    def _uri(self, folder: Folder, name: str) -> str:
        return self._files.join(join_uri(self.storage.root, folder), name)

    def _manifest_uri(self, job: str, key: str, generation: int) -> str:
        name = f"{self.storage.prefix}{job}-{key}.g{generation}.json"
        return self._uri(Folder.MANIFESTS, name)

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
            unfinished = self._files.unfinished(prefix)
            removed += sum(map(self._files.abort_unfinished, unfinished))
            listed = self._files.list(prefix, recursive=False, facts_for=no_facts)
            uris = [self._uri(folder, one.name) for one in listed]
            if uris:
                self._files.delete(*uris)
            removed += len(uris)
        return removed

    def _unavailable(self) -> AbstractContextManager[None]:
        return raise_as(partial(StorageUnavailableError, self.storage.root))

    def _unlisted(self) -> AbstractContextManager[None]:
        uri = self._prefix(Folder.MANIFESTS)

        def build(reason: str) -> StorageUnavailableError:
            text = (
                f"The manifests in {uri} cannot be read ({reason}), so it is unknown whether "
                f"the inventory is older than they are. Nothing was planned. Make them readable, "
                f"then try again."
            )
            return StorageUnavailableError(uri, reason, text)

        return raise_as(build)

    def _garbage_left(self) -> AbstractContextManager[None]:
        return raise_as(partial(GarbageLeftError, self.storage.root))


@contextmanager
def _missing_is_empty() -> Iterator[None]:
    """Treat a missing folder as empty; a missing bucket remains an error."""
    try:
        yield
    except FileNotFoundError as error:
        if is_missing_bucket(error):
            raise


def manifest_file_text(manifest: Manifest) -> str:
    """Return the text of a manifest file: indented for readability, with its origin on one line."""
    written = manifest.to_json()
    origin = written.pop(_ORIGIN, None)
    text = json.dumps(written, ensure_ascii=False, indent=2)
    if origin is None:
        return f"{text}\n"
    head, in_one_line = text.removesuffix("\n}"), json.dumps(origin, ensure_ascii=False)
    return f'{head},\n  "{_ORIGIN}": {in_one_line}\n}}\n'


def parse_manifest_object(there: bytes) -> dict[str, Any] | None:
    """Return the values of a manifest file; None if it is not valid JSON, or too deeply nested.

    JSON that is not an object has no values.
    """
    try:
        written = json.loads(there)
    except (ValueError, RecursionError):
        return None
    return written if isinstance(written, dict) else {}


def check_manifest_file(there: bytes, manifest: Manifest, uri: str) -> None:
    """Check that a manifest file, even of another release, belongs to a manifest.

    Raises:
        ManifestFileTakenError: it belongs to another attempt. An inventory assigns a generation to
            one attempt only, unless it was restored from an older backup.
    """
    written = parse_manifest_object(there)
    if written is None or written.get("token") != str(manifest.token):
        reason = (
            "the manifest file of another attempt has its name, as after a restore from an older "
            "backup; `batch-pipeline reconcile STREAM --discard` moves that file away"
        )
        raise ManifestFileTakenError(uri, reason)
