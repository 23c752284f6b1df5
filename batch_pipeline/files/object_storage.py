"""Part files and pointer files in S3, by the rules of folders on a disk.

An upload that is neither complete nor aborted counts as the hidden file that it would be on a disk.
Whose files they are, and which may go, is not known here.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from batch_pipeline.domain.batch import Attempt
from batch_pipeline.domain.errors import (
    GarbageLeftError,
    PointerUnavailableError,
    StorageUnavailableError,
)
from batch_pipeline.domain.location import join_uri, split_object
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.domain.stored_file import Folder, StoredFile, hidden_name, shown_name
from batch_pipeline.domain.stream import Storage
from batch_pipeline.files.pointers import (
    already_there,
    check_pointer,
    pointer_name,
    pointer_text,
)
from batch_pipeline.stores.facts import look
from batch_pipeline.stores.failures import reason_of
from batch_pipeline.stores.listing import (
    abort_upload,
    objects,
    remove_all,
    unfinished_uploads,
)
from batch_pipeline.stores.reading import open_uri
from batch_pipeline.stores.upload import put, put_new, remove


@dataclass(frozen=True, slots=True)
class ObjectStorage:
    """A storage root in a bucket: part files right below it, manifests and quarantine one deeper.

    Buckets are never made. A root that holds nothing needs no making: keys have no folders.
    """

    storage: Storage

    def prepare(self) -> None:
        """Check that an object can be written and deleted.

        Raises:
            StorageUnavailableError: it cannot.
        """
        probe = join_uri(self.storage.root, f".probe-{uuid4().hex}")
        with _unavailable(self.storage.root):
            put(probe, b"")
            remove(probe)

    def check_unpointed(self, attempt: Attempt) -> None:
        """Look for the pointer file that an attempt is to have.

        Raises:
            InventoryOlderError: it is there already.
            StorageUnavailableError: nobody can tell.
        """
        if attempt.generation is None:
            return
        uri = self._pointer(attempt.batch.job, attempt.batch.key, attempt.generation)
        with _unavailable(self.storage.root):
            try:
                look(uri)
            except FileNotFoundError:
                return
        raise already_there(attempt, _name(uri), self.storage.root)

    def check_written(self, parts: Iterable[PartFile]) -> None:
        """Do nothing: the store has acknowledged each object to the task that wrote it."""

    def remove_attempt(self, stem: str) -> int:
        """Delete every object of one attempt and abort its uploads, and give their number.

        Raises:
            StorageUnavailableError: the store does not list, delete or abort them.
        """
        names = f"{self.storage.prefix}{stem}-"
        bucket, _ = split_object(self.storage.root)
        removed = 0
        with _unavailable(self.storage.root):
            for start in (names, f".{names}", f"{Folder.QUARANTINE}/{names}"):
                place = join_uri(self.storage.root, start)
                for upload in unfinished_uploads(place):
                    removed += abort_upload(bucket, upload)
                keys = [one.key for one in objects(place, folder_only=True)]
                remove_all(bucket, keys)
                removed += len(keys)
        return removed

    def files(self) -> Iterator[StoredFile]:
        """List the objects of the root and what belongs to it, and unfinished uploads, in no order.

        What lies deeper is left out.

        Raises:
            GarbageLeftError: the store does not list them.
        """
        with _garbage_left(self.storage.root):
            for folder in Folder:
                start = self._start(folder)
                for one in objects(start, folder_only=True):
                    yield StoredFile(
                        folder=folder,
                        name=_name(one.key),
                        size_bytes=one.facts.size_bytes,
                        modified_at=one.facts.modified_at,
                    )
            yield from self._unfinished()

    def remove(self, file: StoredFile) -> bool:
        """Delete an object, or abort an upload; tells whether it was there.

        Raises:
            GarbageLeftError: the store does not do it.
        """
        uri = join_uri(self.storage.root, file.path)
        with _garbage_left(self.storage.root):
            if self._abort(file):
                return True
            try:
                look(uri)
            except FileNotFoundError:
                return False
            remove(uri)
        return True

    def pointer_uri(self, manifest: Manifest) -> str:
        """Give where the pointer file of a manifest is, or was."""
        return self._pointer(manifest.stream, manifest.batch.key, manifest.generation)

    def point_to(self, manifest: Manifest) -> str:
        """Write the pointer file unless it is there; the store lets one of several writers win.

        One that is there has to be that of the same attempt.

        Raises:
            PointerUnavailableError: it cannot be written.
            PointerTakenError: there is another attempt's.
        """
        uri = self.pointer_uri(manifest)
        try:
            if put_new(uri, pointer_text(manifest).encode()):
                return uri
            with open_uri(uri) as file:
                there = file.read()
        except OSError as error:
            raise PointerUnavailableError(uri, reason_of(error)) from error
        check_pointer(there, manifest, uri)
        return uri

    def _pointer(self, job: str, key: str, generation: int) -> str:
        name = pointer_name(self.storage, job, key, generation)
        return join_uri(self.storage.root, f"{Folder.MANIFESTS}/{name}")

    def _start(self, folder: Folder) -> str:
        """Give what the keys of a folder begin with, as a URI."""
        return f"{join_uri(self.storage.root, folder)}/"

    def _unfinished(self) -> Iterator[StoredFile]:
        starts = {split_object(self._start(folder))[1]: folder for folder in Folder}
        for upload in unfinished_uploads(self._start(Folder.ROOT)):
            name = _name(upload.key)
            folder = starts.get(upload.key.removesuffix(name))
            if folder is not None:
                yield StoredFile(
                    folder=folder,
                    name=hidden_name(name),
                    size_bytes=0,
                    modified_at=upload.started_at,
                )

    def _abort(self, file: StoredFile) -> bool:
        """Abort the uploads that a hidden file stands for; tells whether there were any."""
        name = shown_name(file.name)
        if name is None:
            return False
        bucket, key = split_object(f"{self._start(file.folder)}{name}")
        uploads = unfinished_uploads(f"{self._start(file.folder)}{name}")
        aborted = [abort_upload(bucket, one) for one in uploads if one.key == key]
        return any(aborted)


def _name(key: str) -> str:
    return key.rpartition("/")[2]


@contextmanager
def _unavailable(uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(uri, reason_of(error)) from error


@contextmanager
def _garbage_left(uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GarbageLeftError(uri, reason_of(error)) from error
