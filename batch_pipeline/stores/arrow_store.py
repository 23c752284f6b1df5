"""Objects of the stores that Arrow's own file systems reach, `gs://` and `abfs://`: listed, looked
at, read.

The one module that speaks to `pyarrow.fs`, and imported only where a URI names such a store. Arrow
tells no ETags here: size and modification time are the version. Nothing is written, for Arrow can
put no object on the condition that none is there.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyarrow import fs
from typing_extensions import Buffer

from batch_pipeline.domain.location import split_root
from batch_pipeline.stores.facts import FileFacts
from batch_pipeline.stores.failures import OTHER_VERSION, NoBucketError, UnreachableError
from batch_pipeline.stores.positions import PositionedReader

RETRY_SECONDS = 60  # Arrow's own limit for Google is 15 minutes

# By scheme: what gives the file system of a bucket, and the bucket's path in it; else Arrow does.
FILE_SYSTEMS: dict[str, Callable[[str], tuple[fs.FileSystem, str]]] = {}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_TEXT = 300
_NO_BUCKET = "there is no such bucket or container"
_NO_ACCESS = re.compile("UNAUTHENTICATED|access token|credential|authenticat", re.IGNORECASE)
_OF_GOOGLE = re.compile(r"google::cloud::Status\((.*?)(?: error_info=.*|\)?$)")
_CREDENTIALS = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, log in by gcloud, or give the machine an account",
    "abfs": "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, log in by az, or give "
    "the machine an identity",
}
_made: dict[tuple[int, str], tuple[fs.FileSystem, str]] = {}  # by process: none survives a fork


def look(uri: str) -> FileFacts:
    """Ask for the facts of an object.

    Raises:
        InvalidValueError: the URI names none.
        OSError: it is not there, or cannot be looked at.
    """
    root, key = split_root(uri)
    with _told(uri):
        system, bucket = _file_system(root)
        found = system.get_file_info(f"{bucket}/{key}")
        if found.type is fs.FileType.NotFound:
            _check_bucket(system, bucket)
    if found.type is not fs.FileType.File:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), uri)
    return _facts(found)


def objects(prefix: str, after: str = "") -> Iterator[tuple[str, FileFacts]]:
    """List the objects below a prefix, given as a URI, by key in the order of their bytes.

    All keys are asked for, also where those up to `after` are left out.

    Raises:
        OSError: the store cannot be asked, or refuses.
    """
    root, start = split_root(prefix)
    with _told(prefix):
        system, bucket = _file_system(root)
        found = _below(system, bucket, start.rstrip("/"))
    files = [one for one in found if one.type is fs.FileType.File]
    keys = {one.path.removeprefix(f"{bucket}/"): one for one in files}
    for key in sorted(keys, key=str.encode):
        if key.encode() > after.encode():
            yield key, _facts(keys[key])


class ArrowReader(PositionedReader):
    """An object, open for reading; `facts` are those from just before it was opened."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._file: Any = None
        self.facts = look(uri)
        self._file_position = 0  # Arrow would ask the store where it is
        root, key = split_root(uri)
        with _told(uri):
            system, bucket = _file_system(root)
            self._file = system.open_input_file(f"{bucket}/{key}")

    def again(self) -> "ArrowReader":
        """Give another reader, at the start of the object as it is now."""
        return ArrowReader(self.uri)

    def readinto(self, buffer: Buffer) -> int:
        """Read what the store gives next, at most what the buffer holds.

        Raises:
            FileExistsError: the object ends before it should, so that it is another one now.
            OSError: the object is gone or cannot be read.
        """
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self.facts.size_bytes - self._position)
        if wanted <= 0:
            return 0
        with _told(self.uri):
            if self._position != self._file_position:
                self._file.seek(self._position)
            count = int(self._file.readinto(view[:wanted]))
        if not count:
            raise FileExistsError(errno.EEXIST, OTHER_VERSION, self.uri)
        self._position += count
        self._file_position = self._position
        return count

    def close(self) -> None:
        """Let go of the object."""
        if self._file is not None:
            self._file.close()
        super().close()


def _file_system(root: str) -> tuple[fs.FileSystem, str]:
    """Give the file system of a bucket, and the bucket's path in it."""
    which = os.getpid(), root
    if which not in _made:
        make = FILE_SYSTEMS.get(root.partition(":")[0], _of_arrow)
        _made[which] = make(root)
    return _made[which]


def _of_arrow(root: str) -> tuple[fs.FileSystem, str]:
    limit = f"?retry_limit_seconds={RETRY_SECONDS}" if root.startswith("gs:") else ""
    system, path = fs.FileSystem.from_uri(f"{root}/{limit}")
    return system, path.rstrip("/")


def _below(system: fs.FileSystem, bucket: str, start: str) -> list[fs.FileInfo]:
    folder = f"{bucket}/{start}" if start else bucket
    asked = fs.FileSelector(folder, recursive=True, allow_not_found=True)  # no key may begin so
    found: list[fs.FileInfo] = system.get_file_info(asked)
    if not found:
        _check_bucket(system, bucket)
    return found


def _check_bucket(system: fs.FileSystem, bucket: str) -> None:
    with suppress(PermissionError):  # who may read objects need not be allowed to look at it
        if system.get_file_info(bucket).type is fs.FileType.NotFound:
            raise NoBucketError


def _facts(found: fs.FileInfo) -> FileFacts:
    modified_at = _EPOCH + timedelta(microseconds=found.mtime_ns // 1000)
    return FileFacts(size_bytes=found.size, modified_at=modified_at)


@contextmanager
def _told(uri: str) -> Iterator[None]:
    """Give every failure in the block as an `OSError` that names the URI.

    Raises:
        FileNotFoundError: there is no such object or, a `NoBucketError`, bucket.
        PermissionError: the store refuses this to who asks.
        UnreachableError: it cannot be asked.
    """
    try:
        yield
    except NoBucketError as error:
        raise NoBucketError(errno.ENOENT, _NO_BUCKET, uri) from error
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), uri) from error
    except pa.ArrowInvalid as error:  # a path that Arrow cannot have, such as one with `//`
        raise OSError(errno.EINVAL, _text(error), uri) from error
    except (OSError, pa.lib.ArrowException) as error:
        raise _of_answer(error, uri) from error


def _of_answer(error: Any, uri: str) -> OSError:
    text = _text(error)
    if _NO_ACCESS.search(text.replace(split_root(uri)[1], "")):  # a key may hold any word
        what = _CREDENTIALS["gs" if uri.lower().startswith("gs:") else "abfs"]
        text = f"no credentials were found, or they are not accepted; {what} ({text})"
        return UnreachableError(errno.EACCES, text, uri)
    if isinstance(error, PermissionError):
        return PermissionError(errno.EACCES, f"the store refuses: {text}", uri)
    return UnreachableError(errno.EHOSTUNREACH, f"it cannot be asked: {text}", uri)


def _text(error: Any) -> str:
    lines = (getattr(error, "strerror", None) or str(error)).strip().splitlines() or [""]
    text = _OF_GOOGLE.sub(r"\1", lines[0])[:_MOST_TEXT].rstrip(".")
    return text or type(error).__name__
