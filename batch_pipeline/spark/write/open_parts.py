"""One part file while it is written, on a disk or in a store; what goes in is hashed and counted.

Which parts there are, and when they count, is the business of others.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from batch_pipeline.domain.errors import StorageUnavailableError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.location import to_uri
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.stores.upload import ObjectUpload


class Place(Protocol):
    """Where the bytes of one part file go; all calls but `remove` raise an `OSError` on failure."""

    @property
    def uri(self) -> str:
        """What the part file is called when it is whole."""
        ...

    def append(self, data: memoryview) -> None:
        """Take bytes."""
        ...

    def finish(self) -> None:
        """Take no more: make sure of all bytes."""
        ...

    def complete(self) -> None:
        """Make sure that the finished file can be seen."""
        ...

    def remove(self) -> None:
        """Take everything back, finished or not; raises nothing."""
        ...


class OpenPart:
    """A part file while it is written; also serves as the file object of an Arrow writer."""

    def __init__(self, place: Place, root: str) -> None:
        self._place = place
        self._root = root
        self._sha256 = hashlib.sha256()
        self._size_bytes = 0
        self._records = 0
        self._dropped = False
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes.

        Raises:
            StorageUnavailableError: they cannot be written.
        """
        left = memoryview(data)
        size_bytes = left.nbytes
        if self._dropped:
            return size_bytes
        self._sha256.update(left)
        self._size_bytes += size_bytes
        with storage_errors(self._root):
            self._place.append(left)
        return size_bytes

    def tell(self) -> int:
        """Give the number of bytes written."""
        return self._size_bytes

    def flush(self) -> None:
        """Do nothing: who reads the file waits until it is finished."""

    def close(self) -> None:
        """Do nothing: `finish` and `abort` close the file, an Arrow writer does not."""

    def finish(self, records: int) -> None:
        """Write the file to its end.

        Raises:
            StorageUnavailableError: that fails.
        """
        self._records = records
        with storage_errors(self._root):
            self._place.finish()
        self.closed = True

    def complete(self) -> PartFile:
        """Make sure that the finished file can be seen, and give it as a manifest lists it.

        Raises:
            StorageUnavailableError: that fails.
        """
        with storage_errors(self._root):
            self._place.complete()
        return PartFile(
            uri=self._place.uri,
            records=self._records,
            size_bytes=self._size_bytes,
            sha256=self._sha256.hexdigest(),
        )

    def abort(self) -> None:
        """Remove the file, finished or not; later writes are dropped. Raises nothing."""
        self._dropped = True
        self._place.remove()
        self.closed = True


class FilePlace:
    """A file of a disk: a hidden name while it is written, the final one when it is whole.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hidden = path.with_name(f".{path.name}.tmp")
        self._is_whole = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._hidden, flags, 0o666)
        self._is_open = True

    @property
    def uri(self) -> str:
        return to_uri(self._path)

    def append(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._file, data) :]

    def finish(self) -> None:
        os.fsync(self._file)
        self._is_open = False
        os.close(self._file)
        failpoint("encode.before_rename")
        self._hidden.rename(self._path)
        self._is_whole = True

    def complete(self) -> None:
        pass  # it has its name

    def remove(self) -> None:
        with suppress(OSError):
            if self._is_open:
                self._is_open = False
                os.close(self._file)
        with suppress(OSError):
            (self._path if self._is_whole else self._hidden).unlink()


class ObjectPlace:
    """An object of a store: nothing of it can be seen before it is whole."""

    def __init__(self, uri: str) -> None:
        self._upload = ObjectUpload(uri)

    @property
    def uri(self) -> str:
        return self._upload.uri

    def append(self, data: memoryview) -> None:
        self._upload.write(data)

    def finish(self) -> None:
        self._upload.seal()

    def complete(self) -> None:
        self._upload.complete()

    def remove(self) -> None:
        self._upload.abort()


@contextmanager
def storage_errors(root: str) -> Iterator[None]:
    """Say of every operating system error in the block that the storage cannot be written.

    Raises:
        StorageUnavailableError: there was one.
    """
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(root, error.strerror or str(error)) from error
