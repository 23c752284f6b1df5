"""The interface of the file systems that files are read from and written to, and their registry.

A file system is one class: `LocalFileSystem` for disks, `S3FileSystem` for object stores that speak
S3. Callers get it from `filesystem_of` and never look at a URI's scheme themselves. All failures
are `OSError`; that a file is missing is a `FileNotFoundError`. What may pass when it is repeated,
and what is wrong with the access as a whole, is an `UnreachableError`: it says nothing about a
file.
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
from pathlib import Path
from typing import IO, Any, Protocol

from batch_pipeline.model.location import Roots, as_s3, join_uri, scheme_of, split_location, to_path

NO_BUCKET = "there is no such bucket"
OTHER_VERSION = "another version of the object is there"
_CHUNK = 2**20
_MAX_NAME_BYTES = 255
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
State = int | str
IsKnown = Callable[[str, int, State], bool]  # of a name, a size in bytes and a state


class UnreachableError(ConnectionError):
    """A store does not answer, is too busy, or refuses the credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Facts of one version of a file; `modified_at` is UTC, in a store in whole seconds.

    `etag` and `version` identify the content in a store; `version` only where the bucket keeps
    versions. `sha256` is in hexadecimal digits and only there if it was asked for and the store
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
        """The ETag; without one, the microseconds of the epoch at which the file was modified."""
        return (self.modified_at - _EPOCH) // _MICROSECOND if self.etag is None else self.etag


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as a listing returns it; `name` is its path below the listed folder.

    `facts` is None if they were not asked for.
    """

    name: str
    facts: FileFacts | None = None
    is_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedFile:
    """A file that a writer has neither committed nor aborted; `uri` is what it was to become."""

    uri: str
    name: str
    started_at: datetime
    size_bytes: int = 0
    upload_id: str | None = None


class FileWriter(Protocol):
    """A file while it is written. All calls but `abort` raise an `OSError` on failure."""

    @property
    def uri(self) -> str:
        """The URI that the file has once it is committed."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""

    def finish(self) -> None:
        """Send the rest; nothing is written afterwards.

        A file that is not larger than one request is visible from here on, so that a task with
        many small files needs one request for each. Larger ones become visible by `commit`.
        """

    def commit(self) -> None:
        """Make a finished file visible as a whole. Repeating it is harmless."""

    def abort(self) -> bool:
        """Remove what was written, also after `commit`; return whether nothing is left."""


class StagedFile(Protocol):
    """A file that is collected on this machine, by any number of writes, before it is visible."""

    file: IO[bytes]

    def commit(self) -> FileFacts:
        """Make the file visible as a whole, and durable; return its facts.

        Raises:
            OSError: it is not visible, unless `abort` returns False.
        """

    def abort(self) -> bool:
        """Discard the file unless it was committed; return whether nothing is left."""


class PinnedFile(Protocol):
    """One version of a file, which every read refers to."""

    @property
    def facts(self) -> FileFacts:
        """The facts of this version."""

    @property
    def error(self) -> OSError | None:
        """The first failure of the store that a read met; a reader may take it for damage."""

    def open(self) -> "BufferedReader[Any]":
        """Open this version at its start, with `seek`.

        Raises:
            OSError: it cannot be opened.
        """

    def check_unchanged(self) -> None:
        """Check, after reading, that all that was read belongs to this version.

        Raises:
            FileExistsError: another version is there now.
            OSError: it could not be read, or is gone.
        """

    def close(self) -> None:
        """Release the connection of a version that was not opened."""


class FileSystem(Protocol):
    """Files by URI. What subclasses do not override is the behaviour of an object store.

    A prefix is a URI whose last part may be the beginning of a name: `…/orders/` lists a folder,
    `…/orders/2026-` the names in it that begin so.
    """

    is_local: bool = False  # files have paths on this machine, which others may not see
    has_events: bool = False  # new files can be announced by a queue
    settle_seconds: float = 0  # a file counts as complete when it is that old
    poll_seconds: float = 1  # how often to check for a single file
    list_limit: int | None = 100_000  # names that one poll of a landing lists, None: all

    def join(self, folder: str, name: str) -> str:
        """Return the URI of a name below a folder, as listings return it."""
        return join_uri(folder, name)

    def resolve(self, folder: str, written: str) -> str | None:
        """Return the name below a folder that a person means; None if it lies elsewhere."""
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
        """List committed files in the byte order of their names, beginning behind `after`.

        Only those that `facts_for` accepts have facts, None: all. Files that `is_known` accepts are
        left out, except links; it is called once for each file, in no order.

        Raises:
            FileNotFoundError: the folder or the bucket is not there.
            OSError: it cannot be listed.
        """

    def head(self, uri: str, *, checksum: bool = False) -> FileFacts:
        """Return the facts of a file; nothing of it is read, also for the checksum."""

    def open(self, uri: str, etag: str | None = None) -> "BufferedReader[Any]":
        """Open a file for reading with `seek`; in a store the version with this ETag.

        Raises:
            FileExistsError: another version is there.
        """

    def pin(self, uri: str, *, etag: str | None = None, roots: Roots | None = None) -> PinnedFile:
        """Choose the version of a file that is there now, or the one with this ETag.

        With `roots` it is not opened if links lead outside of them.

        Raises:
            FileExistsError: another version is there.
        """

    def create(self, uri: str) -> FileWriter:
        """Start writing a file that becomes visible as a whole."""

    def stage(self, uri: str) -> StagedFile:
        """Start a file that may stay open for long.

        Raises:
            OSError: there is no space for it on this machine.
        """
        return StagedUpload(self, uri)

    def remove_abandoned(self, folder: str, names: "re.Pattern[str]") -> int:
        """Remove staged files with such names whose process ended; return their number."""
        return 0  # temporary files end with their process

    def put(self, uri: str, data: bytes) -> None:
        """Write a small file, replacing one of its name; it need not survive a power cut."""

    def create_if_absent(self, uri: str, data: bytes) -> bool:
        """Write a small file unless there is one of its name; return whether it is there now.

        Of concurrent writers one wins. A file with the same bytes counts as written: it may be our
        own, whose confirmation was lost.
        """

    def delete(self, *uris: str) -> None:
        """Delete files; one that is missing is not an error."""

    def unfinished(self, prefix: str, *, recursive: bool = True) -> Iterator[UnfinishedFile]:
        """List files below a prefix that writers have left unfinished, in no order."""

    def abort_unfinished(self, file: UnfinishedFile) -> bool:
        """Remove an unfinished file; return whether it was there."""

    def make_folder(self, uri: str, *, parents: bool = False) -> None:
        """Make a folder, where there are folders."""
        return

    def sync_folder(self, uri: str) -> None:
        """Make the names in a folder survive a power cut, where that needs a call of its own."""
        return

    def leads_outside(self, uri: str, roots: Roots) -> bool:
        """Return whether a link at this place leads to a place outside of all roots."""
        return False

    def ping(self, uri: str) -> datetime | None:
        """Check that a place can be listed; return the clock of its server, if it has one.

        Raises:
            OSError: it cannot be listed.
        """
        next(self.list(f"{uri}/"), None)
        return None


class StagedUpload:
    """A temporary file of this machine that is uploaded when it is complete.

    An upload is not begun before: its buffers take more memory than a target with many streams has.
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

    A URI of an unknown scheme is left to the local file system, which refuses it.
    """
    return _BY_SCHEME.get(scheme_of(uri)) or _BY_SCHEME["file"]


def digest(uri: str) -> str:
    """Return the SHA-256 of a file in hexadecimal digits; memory is constant.

    Raises:
        InvalidValueError: the URI names no file.
        OSError: it is missing or cannot be read.
    """
    with filesystem_of(uri).open(uri) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def local_file(uri: str, etag: str | None = None) -> Iterator[Path]:
    """Provide a path where a file can be read: its own, or that of a temporary copy.

    Raises:
        InvalidValueError: the URI names no file.
        OSError: it is missing, is another version, or cannot be copied.
    """
    if filesystem_of(uri).is_local:
        yield Path(to_path(uri))
        return
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        path = Path(folder, _copy_name(uri))
        with filesystem_of(uri).open(uri, etag) as source, path.open("xb") as target:
            shutil.copyfileobj(source, target, _CHUNK)
        yield path


def no_facts(_name: str) -> bool:
    """Return False: `facts_for` of a listing of names alone."""
    return False


def is_about_file(uri: str, error: OSError) -> bool:
    """Return whether an error says something about this file, and not about its whole store.

    It does not if the store is unreachable or refuses access, or if a disk has no room for a copy.
    """
    is_refused = isinstance(error, UnreachableError | PermissionError)
    no_space = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return filesystem_of(uri).is_local or not (is_refused or no_space)


def is_missing_bucket(error: OSError) -> bool:
    """Return whether there is no such bucket, which says nothing about any object."""
    return error.strerror == NO_BUCKET


def reason_of(error: OSError) -> str:
    """Return the reason why the system, or a store, refused."""
    text = error.strerror or str(error) or type(error).__name__
    is_plain = error.errno is not None and text == os.strerror(error.errno)
    return text.lower() if is_plain else text


@contextmanager
def raise_as(build: Callable[[str], Exception]) -> Iterator[None]:
    """Raise an `OSError` of the block as the error that `build` makes of its reason."""
    try:
        yield
    except OSError as error:
        raise build(reason_of(error)) from error


def _copy_name(uri: str) -> str:
    """Return the last name of a URI where it can be a file name; readers go by its suffix."""
    name = split_location(uri)[0].rpartition("/")[2]
    is_usable = name not in {"", ".", ".."} and len(os.fsencode(name)) <= _MAX_NAME_BYTES
    return name if is_usable and "\0" not in name else "object"
