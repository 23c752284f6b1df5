"""Files on the disks of this machine.

A writer writes to a hidden name in the same folder and renames it, so that a file is visible
completely or not at all; listings leave these hidden names out. Files are opened only if they lie
in a permitted place after all links in their path are resolved. The resolved path is that of the
open descriptor, so that a concurrent change of a link cannot redirect it. A second name of a file
(a hard link) cannot be distinguished from the first one.
"""

import errno
import fcntl
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Self
from uuid import uuid4

from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.garbage import hidden_name, shown_name
from batch_pipeline.model.item import modified_at
from batch_pipeline.model.location import Roots, split_location, to_path, to_uri
from batch_pipeline.storage.filesystem import (
    OTHER_VERSION,
    FileFacts,
    FileSystem,
    IsKnown,
    ListedFile,
    UnfinishedFile,
    filesystem_of,
    reason_of,
    register_filesystem,
)

# The error codes of a file system without hard links, or without one for this file.
NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
# With these flags, opening a pipe or a terminal that has replaced a file does not block.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PREFIX = "batch-pipeline-"
_LOCK = ".locked"
_MAX_NAME_BYTES = 255
_COPY_BYTES = 2**20
_WRITE_BACK_BYTES = 2**20


class LocalFileSystem(FileSystem):
    """Files on disks; a prefix is a folder and the beginning of a name in it."""

    is_local = True
    settle_seconds = 1.0
    poll_seconds = 0.5
    list_limit = None  # all names have to be read anyway to sort them

    def join(self, folder: str, name: str) -> str:
        return to_uri(f"{to_path(folder)}/{name}")

    def resolve(self, folder: str, written: str) -> str | None:
        """Resolve a URI, an absolute path, or a path relative to the current folder or `folder`."""
        root = Path(to_path(folder))
        path = Path(to_path(written)) if written.startswith("file:") else Path(written)
        path = Path(os.path.normpath(path.absolute() if os.path.lexists(path) else root / path))
        return str(path.relative_to(root)) if path.is_relative_to(root) else None

    def list(
        self,
        prefix: str,
        *,
        after: str = "",
        recursive: bool = True,
        facts_for: Callable[[str], object] | None = None,
        is_known: IsKnown | None = None,
    ) -> Iterator[ListedFile]:
        """List files in the byte order of their names; hidden folders are left out."""
        folder, start = _split(prefix)
        names = [
            (os.fsencode(name), name, entry.is_symlink())
            for name, entry in _walk(folder, start, recursive=recursive, is_known=is_known)
            if shown_name(entry.name) is None
        ]
        behind = os.fsencode(after)
        for raw, name, is_link in sorted(names):
            if raw <= behind:
                continue
            if facts_for is not None and not facts_for(name):
                yield ListedFile(name, None, is_link)
                continue
            # Only now, because the file may change while the consumer handles earlier files.
            path = f"{folder}/{name}"
            try:
                status = os.stat(path)  # noqa: PTH116 - half the cost of Path.stat
            except (FileNotFoundError, NotADirectoryError):
                continue  # its folder may be a file by now
            except OSError as error:
                raise OSError(error.errno, f"{path}: {reason_of(error)}", path) from error
            yield ListedFile(name, facts_of_status(status), is_link)

    def head(self, uri: str, *, checksum: bool = False) -> FileFacts:
        return facts_of_status(os.stat(to_path(uri)))  # noqa: PTH116 - half the cost of Path.stat

    def open(self, uri: str, etag: str | None = None) -> "BufferedReader[Any]":
        return open(to_path(uri), "rb")  # noqa: PTH123 - many small files; the caller closes

    def pin(
        self, uri: str, *, etag: str | None = None, roots: Roots | None = None
    ) -> "PinnedLocalFile":
        return PinnedLocalFile(uri, roots)

    def create(self, uri: str) -> "LocalWriter":
        return LocalWriter(Path(to_path(uri)))

    def stage(self, uri: str) -> "StagedLocalFile":
        return StagedLocalFile(Path(to_path(uri)))

    def remove_abandoned(self, folder: str, names: "re.Pattern[str]") -> int:
        removed = 0
        for path in Path(to_path(folder)).glob(".*.tmp"):
            if not names.fullmatch(shown_name(path.name) or ""):
                continue
            # NFS locks only files that are open for writing.
            with suppress(OSError), path.open("r+b") as file:
                # Fails while a process writes the file.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                removed += 1
        return removed

    def put(self, uri: str, data: bytes) -> None:
        Path(to_path(uri)).write_bytes(data)

    def create_if_absent(self, uri: str, data: bytes) -> bool:
        path = Path(to_path(uri))
        if not path.exists():
            _write_new(path, data)
        with path.open("rb") as there:
            return there.read(len(data) + 1) == data

    def delete(self, *uris: str) -> None:
        for uri in uris:
            Path(to_path(uri)).unlink(missing_ok=True)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedFile]:
        folder, start = _split(prefix)
        for _, entry in _walk(folder, "", recursive=False):
            name = shown_name(entry.name)
            if name is None or not name.startswith(start) or entry.is_symlink():
                continue
            with suppress(FileNotFoundError):  # committed or aborted concurrently
                status = entry.stat(follow_symlinks=False)
                yield UnfinishedFile(
                    uri=to_uri(f"{folder}/{name}"),
                    name=name,
                    started_at=modified_at(status),
                    size_bytes=status.st_size,
                )

    def abort_unfinished(self, file: UnfinishedFile) -> bool:
        path = Path(to_path(file.uri))
        try:
            path.with_name(hidden_name(path.name)).unlink()
        except FileNotFoundError:
            return False
        return True

    def make_folder(self, uri: str, *, parents: bool = False) -> None:
        Path(to_path(uri)).mkdir(parents=parents, exist_ok=True)

    def sync_folder(self, uri: str) -> None:
        sync_folder(Path(to_path(uri)))

    def leads_outside(self, uri: str, roots: Roots) -> bool:
        return not _lies_below(os.path.realpath(to_path(uri)), roots)

    def ping(self, uri: str) -> datetime | None:
        with os.scandir(to_path(uri)):
            return None


class PinnedLocalFile:
    """The current version of a file; a later change shows in its size or modification time."""

    error: OSError | None = None

    def __init__(self, uri: str, roots: Roots | None) -> None:
        self._uri = uri
        self._path = to_path(uri)
        self._roots = roots
        self._status = os.stat(self._path)  # noqa: PTH116 - for each of many small files
        self.facts = facts_of_status(self._status)

    def open(self) -> "BufferedReader[Any]":
        if self._roots is not None:
            return open_within(self._uri, self._roots)
        return open(self._path, "rb")  # noqa: PTH123 - the caller closes

    def check_unchanged(self) -> None:
        before, now = self._status, os.stat(self._path)  # noqa: PTH116 - as above
        if (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
            raise FileExistsError(errno.EEXIST, OTHER_VERSION, self._path)

    def close(self) -> None:
        pass  # nothing is held


class LocalWriter:
    """A file with a hidden name until it is finished; opening fails if another writer has it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hidden = path.with_name(hidden_name(path.name))
        self._is_finished = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._hidden, flags, 0o666)
        self._is_open = True
        self._unsent = 0  # bytes since the last call of `_start_write_back`

    @property
    def uri(self) -> str:
        return to_uri(self._path)

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            written = os.write(self._file, rest)
            rest = rest[written:]
            self._unsent += written
        if self._unsent >= _WRITE_BACK_BYTES and sys.platform == "linux":
            self._start_write_back()

    def _start_write_back(self) -> None:
        # Linux starts to write the range, which stays cached. Otherwise all of a file is written by
        # `fsync`, while the task waits: 5 % of the time from csv to parquet.
        start = os.lseek(self._file, 0, os.SEEK_CUR) - self._unsent
        with suppress(OSError):  # only a hint
            os.posix_fadvise(self._file, start, self._unsent, os.POSIX_FADV_DONTNEED)
        self._unsent = 0

    def finish(self) -> None:
        os.fsync(self._file)
        self._is_open = False
        os.close(self._file)
        failpoint("encode.before_rename")
        self._hidden.rename(self._path)
        self._is_finished = True

    def commit(self) -> None:
        if not self._is_finished:
            raise OSError(errno.EINVAL, "not all of its bytes were written", str(self._path))

    def abort(self) -> bool:
        with suppress(OSError):
            if self._is_open:
                self._is_open = False
                os.close(self._file)
        path = self._path if self._is_finished else self._hidden
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return False
        return True


class StagedLocalFile:
    """A file with a hidden name in its final folder; an existing file is not replaced.

    It is locked while it is open, which distinguishes it from files of dead processes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hidden = path.with_name(hidden_name(path.name))
        self._is_left = False  # visible, after a failed commit
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file: IO[bytes] = self._open()
        if not os.fstat(self.file.fileno()).st_nlink:  # removed as abandoned before it was locked
            self.file.close()
            self.file = self._open()

    def commit(self) -> FileFacts:
        self.file.flush()
        os.fsync(self.file.fileno())
        if self._path.exists():
            raise FileExistsError(errno.EEXIST, "a file with this name exists")
        self._hidden.rename(self._path)
        try:
            self.file.close()
            sync_folder(self._path.parent)
            return facts_of_status(self._path.stat())
        except OSError:
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                self._is_left = True
            raise

    def abort(self) -> bool:
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self._hidden.unlink()
        return not self._is_left

    def _open(self) -> IO[bytes]:
        file = self._hidden.open("xb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            file.close()
            self._hidden.unlink()
            raise
        return file


def facts_of_status(status: os.stat_result) -> FileFacts:
    """Return the facts of a file from its `stat` result."""
    return FileFacts(
        size_bytes=status.st_size,
        modified_at=modified_at(status),
        is_regular=stat.S_ISREG(status.st_mode),
    )


def _split(prefix: str) -> tuple[str, str]:
    """Split a prefix into the path of a folder and the beginning of a name in it."""
    folder, _, start = to_path(prefix).rpartition("/")
    return folder, start


def _walk(
    folder: str, start: str, *, recursive: bool, is_known: IsKnown | None = None
) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Walk over the files of a folder and its subfolders whose paths begin with `start`.

    Links to folders are not followed. Known files are left out here, because sorting, matching and
    checking all of them would double the time of a poll of unchanged files.
    """
    subfolders = [""]
    while subfolders:
        below = subfolders.pop()
        for entry in _entries(folder, below):
            name = below + entry.name
            if not name.startswith(start):
                continue
            if entry.is_dir(follow_symlinks=False):
                if recursive and not entry.name.startswith("."):
                    subfolders.append(f"{name}/")
                continue
            # A link is never known, because it may lead to another target now.
            if is_known and not entry.is_symlink():
                try:
                    status = entry.stat()
                    if is_known(name, status.st_size, status.st_mtime_ns // 1000):
                        continue
                except OSError:
                    pass  # it is gone, or the listing raises the error
            if _is_file(entry):
                yield name, entry


def _entries(folder: str, below: str) -> Iterator["os.DirEntry[str]"]:
    """List a folder, or a subfolder of it.

    A subfolder has no entries if it was removed since its parent was listed, or if it is the
    `lost+found` of a volume, which only root can read.
    """
    path = f"{folder}/{below}"
    try:
        # By descriptor, so that each `stat` looks up a name, not a whole path.
        with _open_folder(path) as descriptor, os.scandir(descriptor) as entries:
            yield from entries
    except OSError as error:
        if not below:
            raise
        is_lost_found = isinstance(error, PermissionError) and Path(path).name == "lost+found"
        if not (is_lost_found or isinstance(error, FileNotFoundError | NotADirectoryError)):
            raise OSError(error.errno, f"{path}: {reason_of(error)}", path) from error


def _is_file(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file()
    except OSError:
        if entry.is_symlink():
            return False  # a loop, or an unreachable target: there is no file
        raise


def _write_new(path: Path, data: bytes) -> None:
    """Write a file under a hidden name, then link its final name, which overwrites nothing."""
    aside = path.with_name(hidden_name(f"{path.name}-{uuid4().hex}"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        failpoint("pointer.before_link")
        _link(aside, path)
        aside.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            aside.unlink()
        raise


def _link(aside: Path, path: Path) -> None:
    """Link the final name to a written file, unless the name is taken."""
    try:
        path.hardlink_to(aside)
    except FileExistsError:
        pass  # another writer was faster
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Without hard links there is a short window in which the file of a concurrent writer is
        # replaced; a writer of the same attempt writes the same bytes.
        if not path.exists():
            aside.rename(path)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder, and the removal of others, to disk.

    Some mounts, such as shared folders of VirtualBox, cannot do so and report EINVAL.

    Raises:
        OSError: the disk fails.
    """
    with _open_folder(folder) as descriptor:
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise


@contextmanager
def _open_folder(path: str | Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class OutsideError(PermissionError):
    """A file lies outside of the roots; none of it was read."""


def open_within(location: str, roots: Roots) -> "BufferedReader[Any]":
    """Open a local file for reading.

    Raises:
        InvalidValueError: the location does not name a local file.
        OutsideError: it lies, or links lead, outside of the roots.
        OSError: it does not exist, or cannot be opened.
    """
    path = to_path(location)
    if roots.refuse(location):
        raise OutsideError(path)
    descriptor = os.open(path, _FLAGS)
    try:
        _check_place(descriptor, path, location, roots)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_place(descriptor: int, path: str, location: str, roots: Roots) -> None:
    real = _real_path(descriptor, path)
    # A file below none of the roots was registered by its real path, which had no links.
    if not (_lies_below(real, roots) if roots.hold(location) else real == path):
        is_deleted = os.fstat(descriptor).st_nlink == 0  # deleted since it was opened
        raise FileNotFoundError(path) if is_deleted else OutsideError(path)


def _lies_below(real: str, roots: Roots) -> bool:
    folders = [to_path(one) for one in roots.uris if one.startswith("file:")]
    # A real path contains no links: if it begins with the folder as written, that is real, too.
    return _begins(real, folders) or _begins(real, map(os.path.realpath, folders))


def _begins(path: str, folders: Iterable[str]) -> bool:
    return path.startswith(tuple(f"{folder.rstrip('/')}/" for folder in folders))


def _real_path(descriptor: int, path: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - of each of many files
    except OSError:  # a system without /proc: the name is resolved again, and must be this file
        real = os.path.realpath(path)
        if not os.path.samestat(Path(real).lstat(), os.fstat(descriptor)):
            raise OutsideError(path) from None
        return real


class PrivateFolder:
    """A new folder with mode 0700 that is removed on close; a context manager.

    `purpose` is part of its name. The folder is locked as long as this process lives. Folders of
    killed processes are removed first, regardless of their purpose; a folder without a lock file
    belongs to someone else and stays.
    """

    def __init__(self, purpose: str) -> None:
        _remove_left()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
            with suppress(FileNotFoundError):  # removed as abandoned before it was locked
                lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if (self.path / _LOCK).exists():
                    self._lock = lock
                    return
                os.close(lock)

    def close(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


@contextmanager
def local_file(
    uri: str, etag: str | None = None, folder: Callable[[], Path] | None = None
) -> Iterator[Path]:
    """Provide a path where a file can be read: its own, or that of a temporary copy.

    A copy is created below the private folder that `folder` returns, and is not deleted there.

    Raises:
        InvalidValueError: the URI does not name a file.
        OSError: it is missing, is another version, or cannot be copied.
    """
    if filesystem_of(uri).is_local:
        yield Path(to_path(uri))
        return
    with ExitStack() as stack:
        if folder is None:
            parent = stack.enter_context(PrivateFolder("copy")).path
        else:
            parent = Path(tempfile.mkdtemp(dir=folder()))
        path = parent / _copy_name(uri)
        with filesystem_of(uri).open(uri, etag) as source, path.open("xb") as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)
        yield path


def _copy_name(uri: str) -> str:
    """Return the last part of a URI if it is a valid file name; readers rely on its suffix."""
    name = split_location(uri)[0].rpartition("/")[2]
    is_usable = name not in {"", ".", "..", _LOCK} and len(os.fsencode(name)) <= _MAX_NAME_BYTES
    return name if is_usable and "\0" not in name else "object"


register_filesystem("file", LocalFileSystem())
