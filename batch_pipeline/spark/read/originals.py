"""The file of an item where it landed, on a disk or in a store: opened, told from any other one.

A file of a disk is looked at before and after it is read. Of an object one version is asked for,
and its facts come with its bytes: nothing is asked afterwards. Stores without versions are treated
as disks are. No byte is understood here.
"""

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from io import BufferedReader
from typing import Any, BinaryIO, Protocol

from batch_pipeline.domain.errors import (
    BadFileError,
    InvalidValueError,
    SourceRefusedError,
    SourceUnavailableError,
)
from batch_pipeline.domain.item import FoundFile, modified_at
from batch_pipeline.domain.location import is_object, to_path
from batch_pipeline.domain.record_rules import BadFileKind
from batch_pipeline.domain.stream import Stream
from batch_pipeline.spark.read.objects import FetchedObject
from batch_pipeline.spark.readable import readable
from batch_pipeline.stores.facts import FileFacts, look
from batch_pipeline.stores.failures import NoBucketError, UnreachableError, reason_of
from batch_pipeline.stores.within import OutsideError, open_within

Fetch = Callable[[FoundFile], FetchedObject]
_LONGEST_REASON = 1_000
_CHANGED = "changed while it was read"


class Original(Protocol):
    """An open file as it lies; `raw` is to be closed by who opened it.

    `etag` and `version` are those of an object, a version only where the bucket keeps versions.
    """

    raw: "BufferedReader[Any]"
    etag: str | None
    version: str | None

    @property
    def facts(self) -> FileFacts:
        """What the file was like when it was opened."""
        ...

    @property
    def trouble(self) -> OSError | None:
        """What went wrong while it was read, where only the original knows."""
        ...

    def reopened(self) -> BinaryIO:
        """Open the same file once more, at its start.

        Raises:
            OSError: it cannot be opened any more.
        """
        ...

    def check(self) -> None:
        """Check, after reading, that all of it was the registered file.

        Raises:
            BadFileError: it was not.
            SourceUnavailableError: the store could not be reached.
        """
        ...


def open_original(file: FoundFile, stream: Stream, fetch: Fetch | None = None) -> Original:
    """Open the file of an item, if it is the registered one; `fetch` gets the bytes of objects.

    A location outside of the stream's roots is not even asked for.

    Raises:
        BadFileError: the file is not there, is not the one that was registered, lies outside of
            the roots, or cannot be read.
        SourceUnavailableError: the store cannot be reached.
    """
    try:
        if stream.source.within.refuse(file.location):
            raise _outside(stream, file.location)
        if is_object(file.location):
            return _InStore(file, stream, fetch or FetchedObject)
        return _OnDisk(file, stream)
    except InvalidValueError as error:
        raise bad_file(stream, file.location, f"is not {error.expected}") from error


class _OnDisk:
    """A file of a disk."""

    etag: str | None = None
    version: str | None = None
    trouble: OSError | None = None

    def __init__(self, file: FoundFile, stream: Stream) -> None:
        self._file = file
        self._stream = stream
        self._path = to_path(file.location)
        self._before = self._checked()  # before opening: opening a pipe would wait for ever
        try:
            self.raw: BufferedReader[Any] = self._opened()
        except OSError as error:
            raise unreadable(stream, file.location, error) from error

    @property
    def facts(self) -> FileFacts:
        return FileFacts.of_stat(self._before)

    def reopened(self) -> BinaryIO:
        return self._opened()

    def _opened(self) -> "BufferedReader[Any]":
        try:
            return open_within(self._file.location, self._stream.source.within)
        except OutsideError as error:
            raise _outside(self._stream, self._file.location) from error

    def check(self) -> None:
        before, after = self._before, self._checked()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            location = self._file.location
            raise bad_file(self._stream, location, _CHANGED, kind=BadFileKind.CHANGED)

    def _checked(self) -> os.stat_result:
        stream, location = self._stream, self._file.location
        try:
            status = os.stat(self._path)  # noqa: PTH116 - twice for each of many small files
        except OSError as error:
            raise unreadable(stream, location, error) from error
        if not stat.S_ISREG(status.st_mode):
            raise bad_file(stream, location, "is not a regular file")
        if change := _size_change(self._file, status.st_size) or _time_change(
            self._file, modified_at(status)
        ):
            raise _changed(stream, location, change)
        return status


class _InStore:
    """An object of a store."""

    def __init__(self, file: FoundFile, stream: Stream, fetch: Fetch) -> None:
        self._file = file
        self._stream = stream
        try:
            self._fetched = fetch(file)
        except FileExistsError as error:
            raise self._other_version() from error
        except OSError as error:
            raise unreadable(stream, file.location, error) from error
        self.raw: BufferedReader[Any] = self._fetched.raw
        self.etag, self.version = self.facts.etag, self.facts.version
        if change := _size_change(file, self.facts.size_bytes):
            self.raw.close()
            raise _changed(stream, file.location, change)

    @property
    def facts(self) -> FileFacts:
        return self._fetched.facts

    @property
    def trouble(self) -> OSError | None:
        return self._fetched.trouble

    def reopened(self) -> BinaryIO:
        return self._fetched.reopened()

    def check(self) -> None:
        error = self.trouble
        if isinstance(error, FileExistsError):
            location = self._file.location
            raise bad_file(self._stream, location, _CHANGED, kind=BadFileKind.CHANGED) from error
        if error is not None:
            raise unreadable(self._stream, self._file.location, error) from error

    def _other_version(self) -> BadFileError | SourceUnavailableError:
        file = self._file
        if file.etag is None:  # replaced within the moment that it took to fetch it
            return bad_file(self._stream, file.location, _CHANGED, kind=BadFileKind.CHANGED)
        try:
            now = look(file.uri)
        except OSError as error:
            return unreadable(self._stream, file.location, error)
        size, etag = _size_change(file, now.size_bytes), f"etag {file.etag} -> {now.etag}"
        return _changed(self._stream, file.location, f"{size}, {etag}" if size else etag)


def _size_change(file: FoundFile, size_bytes: int) -> str | None:
    known, part = file.size_bytes, file.range
    if known is None and part is not None:
        known = part.file_bytes
    return None if known in {None, size_bytes} else f"size {known} -> {size_bytes} B"


def _time_change(file: FoundFile, now: datetime) -> str | None:
    if file.modified_at is None:
        return None
    before = file.modified_at.astimezone(UTC)
    return f"modified {before.isoformat()} -> {now.isoformat()}" if before != now else None


def _outside(stream: Stream, location: str) -> BadFileError:
    return bad_file(stream, location, stream.source.within.advice)


def _changed(stream: Stream, location: str, change: str) -> BadFileError:
    reason = f"changed since it was registered: {change}"
    return bad_file(stream, location, reason, kind=BadFileKind.CHANGED)


def unreadable(
    stream: Stream, location: str, error: OSError
) -> BadFileError | SourceUnavailableError:
    """Make the error that says that a file cannot be read.

    A store that is out of reach, has no such bucket or refuses who asks makes no bad file.
    """
    if isinstance(error, UnreachableError):
        return SourceUnavailableError(location, reason_of(error))
    if is_object(location) and isinstance(error, NoBucketError | PermissionError):
        return SourceRefusedError(location, reason_of(error))
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return bad_file(stream, location, "is not there", kind=BadFileKind.MISSING)
    return bad_file(stream, location, f"cannot be read ({reason_of(error)})")


def bad_file(
    stream: Stream,
    location: str,
    reason: str,
    *,
    line: int | None = None,
    kind: BadFileKind = BadFileKind.CORRUPT,
) -> BadFileError:
    """Make the error that says that this whole file is bad, in one line of letters and signs.

    Libraries put bytes of a file into what they say of it.
    """
    shown = readable(reason)[:_LONGEST_REASON]
    return BadFileError(stream.name, location, line, shown, kind=kind)
