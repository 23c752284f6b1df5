"""The bytes of objects, fetched once: small ones as a whole, several ahead of their turn.

What happens to the store on the way is only noted; what it means for an item is said by others.
"""

import io
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, BinaryIO

from typing_extensions import Buffer

from batch_pipeline.domain.item import FoundFile
from batch_pipeline.domain.location import is_object
from batch_pipeline.stores.facts import FileFacts
from batch_pipeline.stores.reading import BUFFER_BYTES, open_uri

WHOLE_BYTES = 4 * 2**20  # objects up to this are one request, and in memory while they are read
_AHEAD = 8
_AHEAD_BYTES = 16 * 2**20


class FetchedObject:
    """One version of an object, open for reading: that with the ETag of the file, if it has one.

    `trouble` is the first failure of the store that a read met, None where there was none.

    Raises:
        InvalidValueError: the location names no object.
        OSError: it cannot be opened, or is another version.
    """

    def __init__(self, file: FoundFile) -> None:
        self.trouble: OSError | None = None
        self._reader = _opened(file)
        self.facts: FileFacts = self._reader.facts
        self._whole: bytes | None = None
        if self.facts.size_bytes <= WHOLE_BYTES:
            with self._reader:
                self._whole = _all_of(self._reader, self.facts.size_bytes)
        self.raw: io.BufferedReader[Any]
        if self._whole is None:
            self.raw = _buffered(_Noting(self, self._reader))
        else:
            self.raw = io.BufferedReader(io.BytesIO(self._whole))

    def reopened(self) -> BinaryIO:
        """Give another reader of the same version, at its start."""
        if self._whole is not None:
            return io.BytesIO(self._whole)
        return _buffered(_Noting(self, self._reader.again()))


class _Noting(io.RawIOBase):
    """Reads an object and notes what goes wrong, for who reads it may take that for damage."""

    def __init__(self, fetched: FetchedObject, reader: Any) -> None:
        super().__init__()
        self._fetched = fetched
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._reader.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._reader.seek(offset, whence))

    def readinto(self, buffer: Buffer) -> int:
        try:
            return int(self._reader.readinto(buffer))
        except OSError as error:
            self._fetched.trouble = self._fetched.trouble or error
            raise

    def close(self) -> None:
        self._reader.close()
        super().close()


def _opened(file: FoundFile) -> Any:
    return open_uri(file.uri, file.etag).detach()


def _buffered(raw: io.RawIOBase) -> "io.BufferedReader[Any]":
    return io.BufferedReader(raw, BUFFER_BYTES)


def _all_of(reader: Any, size_bytes: int) -> bytes:
    octets = bytearray(size_bytes)
    view, filled = memoryview(octets), 0
    while filled < size_bytes:
        filled += reader.readinto(view[filled:])
    return bytes(octets)


class Ahead:
    """Fetches the small objects among some files in their order, a few before their turn.

    A request takes its time however small the object is: the next ones travel while one is read.
    """

    def __init__(self, files: Iterable[FoundFile]) -> None:
        self._waiting = deque(file for file in files if _is_small(file))
        self._coming: dict[str, tuple[int, Future[FetchedObject]]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def fetch(self, file: FoundFile) -> FetchedObject:
        """Give the object of a file, which may be here already.

        Raises:
            InvalidValueError: the location names no object.
            OSError: it cannot be opened, or is another version.
        """
        self._start_more()
        _, coming = self._coming.pop(file.location, (0, None))
        self._start_more()
        return FetchedObject(file) if coming is None else coming.result()

    def close(self) -> None:
        """Let go of what nobody asked for."""
        self._waiting.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        for _, coming in self._coming.values():
            if not coming.cancelled():
                with suppress(Exception):  # nobody has asked how it went
                    coming.result().raw.close()
        self._coming.clear()

    def _start_more(self) -> None:
        while self._waiting and len(self._coming) < _AHEAD:
            size_bytes = self._waiting[0].size_bytes or 0
            if sum(size for size, _ in self._coming.values()) + size_bytes > _AHEAD_BYTES:
                return
            file = self._waiting.popleft()
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_AHEAD, thread_name_prefix="fetch")
            self._coming[file.location] = (size_bytes, self._threads.submit(FetchedObject, file))


def _is_small(file: FoundFile) -> bool:
    size_bytes = file.size_bytes
    if size_bytes is None or size_bytes > WHOLE_BYTES:
        return False
    return is_object(file.location) and file.range is None
