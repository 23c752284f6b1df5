"""The interface of the file systems that files are read from and written to, and their registry.

A file system is one class: `LocalFileSystem` for disks, `S3FileSystem` for S3-compatible object
stores. Callers get it from `filesystem_of` and never inspect a URI's scheme themselves. All
failures are `OSError`; a missing file is a `FileNotFoundError`. Transient failures, and problems
with access as a whole, are an `UnreachableError`, which says nothing about a file.
"""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BufferedReader
from typing import IO, Any, Protocol

from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import Roots, as_s3, join_uri, scheme_of

NO_BUCKET = "there is no such bucket"
OTHER_VERSION = "another version of the object is there"
_CHUNK = 2**20
_OUTAGES = {
    *(errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
State = int | str
IsKnown = Callable[[str, int, State], bool]  # name, size in bytes, state


class UnreachableError(ConnectionError):
    """A store does not answer, is too busy, or refuses the credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Facts of one version of a file; `modified_at` is in UTC, for objects in whole seconds.

    `etag` and `version` identify the content in a store; `version` is set only if the bucket keeps
    versions. `sha256` is in hexadecimal digits, and set only if it was requested and the store
    knows it.
    """

    size_bytes: int
    modified_at: datetime
    etag: str | None = None
    version: str | None = None
    is_regular: bool = True
    sha256: str | None = None

    @property
    def state(self) -> State:
        """The ETag; without an ETag, the modification time in microseconds since the epoch."""
        return (self.modified_at - _EPOCH) // _MICROSECOND if self.etag is None else self.etag

    def landed_as(self, location: str) -> LandedFile:
        """Return the file with these facts in the form in which it is registered."""
        return LandedFile(
            location=location,
            size_bytes=self.size_bytes,
            modified_at=self.modified_at,
            etag=self.etag,
        )


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as a listing returns it; `name` is its path below the listed folder.

    `facts` is None if they were not requested.
    """

    name: str
    facts: FileFacts | None = None
    is_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedFile:
    """A file that a writer has neither committed nor aborted; `uri` is its final URI."""

    uri: str
    name: str
    started_at: datetime
    size_bytes: int = 0
    upload_id: str | None = None


class FileWriter(Protocol):
    """A file that is being written. All calls except `abort` raise an `OSError` on failure."""

    @property
    def uri(self) -> str:
        """The URI that the file has once it is committed."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""

    def finish(self) -> None:
        """Send the rest; no bytes may be written afterwards.

        A local file is visible from then on, and so is one that fits in one request, so that a task
        with many small files needs one request for each. Others become visible on `commit`.
        """

    def commit(self) -> None:
        """Make a finished file visible atomically. Repeated calls are harmless."""

    def abort(self) -> bool:
        """Remove what was written, even after `commit`; return whether nothing is left."""


class StagedFile(Protocol):
    """A file that is assembled on this machine, by any number of writes, before it is visible."""

    file: IO[bytes]

    def commit(self) -> FileFacts:
        """Make the file visible atomically, and durable; return its facts.

        Raises:
            OSError: it failed; the file is not visible, unless `abort` returns False.
        """

    def abort(self) -> bool:
        """Discard the file unless it was committed; return whether nothing is left."""


class PinnedFile(Protocol):
    """One version of a file; every read refers to this version."""

    @property
    def facts(self) -> FileFacts:
        """The facts of this version."""

    @property
    def error(self) -> OSError | None:
        """The first store failure during a read; a reader may mistake it for damage."""

    def open(self) -> "BufferedReader[Any]":
        """Open this version at its start, with `seek`.

        Raises:
            OSError: it cannot be opened.
        """

    def check_unchanged(self) -> None:
        """Check, after reading, that everything that was read belongs to this version.

        Raises:
            FileExistsError: another version has replaced it.
            OSError: it could not be read, or no longer exists.
        """

    def close(self) -> None:
        """Release the connection of a version that was not opened."""


class FileSystem(Protocol):
    """Files by URI. The default implementations are those of an object store.

    A prefix is a URI whose last part may be the beginning of a name: `…/orders/` lists a folder,
    `…/orders/2026-` the names in it that start with `2026-`.
    """

    is_local: bool = False  # files have paths on this machine, which other machines may not see
    has_events: bool = False  # new files can be announced by a queue
    settle_seconds: float = 0  # a file counts as complete when it is that old
    poll_seconds: float = 1  # how often to check for a single file
    list_limit: int | None = 100_000  # names that one poll of a landing lists, None: all

    def join(self, folder: str, name: str) -> str:
        """Return the URI of a name below a folder, as listings return it."""
        return join_uri(folder, name)

    def resolve(self, folder: str, written: str) -> str | None:
        """Return the name below a folder that a user's input means; None if it lies outside."""
        is_name = "://" not in written and not written.startswith("/")
        uri = self.join(folder, written) if is_name else as_s3(written)
        return uri.removeprefix(f"{folder}/") if uri.startswith(f"{folder}/") else None

    def list(
        self,
        prefix: str,
        *,
        after: str = "",
        recursive: bool = True,
        facts_for: Callable[[str], object] | None = None,
        is_known: IsKnown | None = None,
    ) -> Iterator[ListedFile]:
        """List committed files in the byte order of their names, starting after `after`.

        Only files that `facts_for` accepts have facts; with None, all have. Files that `is_known`
        accepts are left out, except links; it is called once for each file, in no particular order.

        Raises:
            FileNotFoundError: the folder or the bucket does not exist.
            OSError: it cannot be listed.
        """

    def head(self, uri: str, *, checksum: bool = False) -> FileFacts:
        """Return the facts of a file without reading its content, even for the checksum."""

    def open(self, uri: str, etag: str | None = None) -> "BufferedReader[Any]":
        """Open a seekable file for reading; in a store, the version with this ETag.

        Raises:
            FileExistsError: another version has replaced it.
        """

    def pin(self, uri: str, *, etag: str | None = None, roots: Roots | None = None) -> PinnedFile:
        """Pin the current version of a file, or the version with this ETag.

        With `roots`, the file is not opened if links lead outside of them.

        Raises:
            FileExistsError: another version has replaced it.
        """

    def create(self, uri: str) -> FileWriter:
        """Start writing a file that becomes visible atomically."""

    def stage(self, uri: str) -> StagedFile:
        """Start a file that may stay open for a long time.

        Raises:
            OSError: there is no space for it on this machine.
        """
        return StagedUpload(self, uri)

    def remove_abandoned(self, folder: str, names: "re.Pattern[str]") -> int:
        """Remove staged files that match `names` and whose process ended; return their number."""
        return 0  # temporary files disappear with their process

    def put(self, uri: str, data: bytes) -> None:
        """Write a small file, replacing an existing one; it need not survive a power failure."""

    def create_if_absent(self, uri: str, data: bytes) -> bool:
        """Write a small file unless its name is taken; return whether it counts as written.

        One of several concurrent writers wins. A file with the same bytes counts as written: it may
        be our own, if its confirmation was lost.
        """

    def delete(self, *uris: str) -> None:
        """Delete files; a missing file is not an error."""

    def unfinished(self, prefix: str) -> Iterator[UnfinishedFile]:
        """List unfinished files of writers below a prefix, not in its subfolders, in any order."""

    def abort_unfinished(self, file: UnfinishedFile) -> bool:
        """Remove an unfinished file; return whether it existed."""

    def make_folder(self, uri: str, *, parents: bool = False) -> None:
        """Create a folder, on file systems that have folders."""
        return

    def sync_folder(self, uri: str) -> None:
        """Make the names in a folder survive a power failure, if that requires a separate call."""
        return

    def leads_outside(self, uri: str, roots: Roots) -> bool:
        """Return whether a link at this URI leads outside of all roots."""
        return False

    def ping(self, uri: str) -> datetime | None:
        """Check that a URI can be listed; return the time of its server, if it reports one.

        Raises:
            OSError: it cannot be listed.
        """
        next(self.list(f"{uri}/"), None)
        return None


class StagedUpload:
    """A temporary file on this machine that is uploaded when it is complete.

    It is not uploaded earlier: upload buffers take more memory than a target with many streams has.
    """

    def __init__(self, filesystem: FileSystem, uri: str) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - commit and abort close it
        self._filesystem = filesystem
        self._uri = uri
        self._is_clean = True

    def commit(self) -> FileFacts:
        upload = self._filesystem.create(self._uri)
        try:
            self.file.seek(0)
            shutil.copyfileobj(self.file, upload, _CHUNK)
            upload.finish()
            upload.commit()
            self.file.close()
            return self._filesystem.head(self._uri)
        except OSError:
            self._is_clean = upload.abort()
            raise

    def abort(self) -> bool:
        with suppress(OSError):
            self.file.close()
        return self._is_clean


_BY_SCHEME: dict[str, FileSystem] = {}


def register_filesystem(scheme: str, filesystem: FileSystem) -> None:
    """Use a file system for all URIs of a scheme."""
    _BY_SCHEME[scheme] = filesystem


def filesystem_of(uri: str) -> FileSystem:
    """Return the file system of a URI.

    A URI with an unknown scheme goes to the local file system, which refuses it.
    """
    return _BY_SCHEME.get(scheme_of(uri)) or _BY_SCHEME["file"]


def digest(uri: str) -> str:
    """Return the SHA-256 of a file in hexadecimal digits; memory use is constant.

    Raises:
        InvalidValueError: the URI does not name a file.
        OSError: it is missing or cannot be read.
    """
    with filesystem_of(uri).open(uri) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def no_facts(_name: str) -> bool:
    """Return False: the `facts_for` of listings that need only names."""
    return False


def is_about_file(uri: str, error: OSError) -> bool:
    """Return whether an error concerns this file, not its whole store.

    It does not if there is an outage, or if a store refuses access.
    """
    is_refusal = isinstance(error, PermissionError) and not filesystem_of(uri).is_local
    return not (is_refusal or is_outage(error))


def is_outage(error: OSError) -> bool:
    """Return whether a store or a mounted file system is gone, or this machine lacks resources."""
    return isinstance(error, ConnectionError) or error.errno in _OUTAGES


def is_missing_bucket(error: OSError) -> bool:
    """Return whether the error is a missing bucket, which says nothing about any object."""
    return error.strerror == NO_BUCKET


def reason_of(error: OSError) -> str:
    """Return the reason for a failure, as the system or a store reports it."""
    text = error.strerror or str(error) or type(error).__name__
    is_plain = error.errno is not None and text == os.strerror(error.errno)
    return text.lower() if is_plain else text


@contextmanager
def raise_as(build: Callable[[str], Exception]) -> Iterator[None]:
    """Convert an `OSError` of the block to the error that `build` returns for its reason."""
    try:
        yield
    except OSError as error:
        raise build(reason_of(error)) from error
