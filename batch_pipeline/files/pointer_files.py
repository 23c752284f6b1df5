"""The pointer files of a storage root, by their names: listed, read and set aside.

What they mean is not known here. Nothing is written or deleted but by moving.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.domain.location import is_object, join_uri, to_path
from batch_pipeline.domain.restored import ManifestUnfitError, StorageUnlistedError
from batch_pipeline.domain.stored_file import Folder
from batch_pipeline.domain.stream import Storage
from batch_pipeline.files import object_archive
from batch_pipeline.files.archive import move
from batch_pipeline.stores.failures import reason_of
from batch_pipeline.stores.listing import objects
from batch_pipeline.stores.reading import open_uri

DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class PointerFiles:
    """The folder `manifests` of a storage root on a disk or in a bucket."""

    storage: Storage

    @property
    def root(self) -> str:
        """The URI of the storage root."""
        return self.storage.root

    def names(self, start: str) -> Iterator[str]:
        """List the names that begin so, in no order; of a root that is gone there are none.

        Nothing is opened. Links and folders are left out.

        Raises:
            StorageUnlistedError: they cannot be listed.
        """
        with self._unlisted():
            yield from self._listed(start)

    def read(self, name: str, most: int) -> bytes:
        """Read a pointer file.

        Raises:
            ManifestUnfitError: it is not there, or has more bytes than `most`.
            StorageUnlistedError: it cannot be read.
        """
        with self._unlisted():
            try:
                with open_uri(self._uri(name)) as file:
                    text = file.read(most + 1)
            except FileNotFoundError as error:
                raise ManifestUnfitError(name, "it is not there any more") from error
        if len(text) > most:
            raise ManifestUnfitError(name, f"it has more than {most} bytes")
        return text

    def set_aside(self, name: str, mark: str) -> bool:
        """Move a pointer file to `discarded/<mark>/manifests`; tells whether it was there.

        Nothing is overwritten.

        Raises:
            StorageUnlistedError: it cannot be moved, and stays.
        """
        path, folder = f"{Folder.MANIFESTS}/{name}", self.discarded(mark)
        with self._unlisted():
            if is_object(self.root):
                return object_archive.archive(self.root, path, folder)
            try:
                move(self._folder / name, Path(to_path(folder)) / path)
            except FileNotFoundError:
                if (self._folder / name).exists():
                    raise
                return False
        return True

    def discarded(self, mark: str) -> str:
        """Give the URI of the folder that a mark stands for."""
        return join_uri(self.root, f"{DISCARDED}/{mark}")

    @property
    def _folder(self) -> Path:
        return Path(to_path(self.root)) / Folder.MANIFESTS

    def _uri(self, name: str) -> str:
        return join_uri(self.root, f"{Folder.MANIFESTS}/{name}")

    def _listed(self, start: str) -> Iterator[str]:
        try:
            if is_object(self.root):
                for one in objects(self._uri(start), folder_only=True):
                    yield one.key.rpartition("/")[2]
                return
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.startswith(start) and entry.is_file(follow_symlinks=False):
                        yield entry.name
        except (FileNotFoundError, NotADirectoryError):
            return  # who writes there says so

    @contextmanager
    def _unlisted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageUnlistedError(self._uri(""), reason_of(error)) from error
