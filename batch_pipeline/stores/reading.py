"""Reading objects in place: bytes as a file gives them, of the one version that was opened.

Each request carries the ETag of that version, so what is put in its place meanwhile is noticed by
the store itself. What follows the place where reading began is fetched as one stream.
"""

import errno
import io
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from typing_extensions import Buffer

from batch_pipeline.domain.location import is_object, split_object, to_path
from batch_pipeline.stores import s3
from batch_pipeline.stores.facts import FileFacts
from batch_pipeline.stores.failures import UnreachableError, told

BUFFER_BYTES = 2**18
_READ_ON_BYTES = 2**20  # a seek that goes less far ahead reads what lies between
_REOPENINGS = 4


def open_uri(uri: str, etag: str | None = None) -> io.BufferedReader:
    """Open a file or an object for reading, with `seek`; of an object the version with this ETag.

    Raises:
        InvalidValueError: the URI names neither.
        OSError: it is not there, cannot be read, or is another version.
    """
    if not is_object(uri):
        return open(to_path(uri), "rb")  # noqa: PTH123 - many small files; the caller closes
    return io.BufferedReader(ObjectReader(uri, etag), BUFFER_BYTES)


class ObjectReader(io.RawIOBase):
    """One version of an object: that which is there when it is opened, or that of an ETag.

    `facts` are those of this version. Opening begins to fetch it. A connection that breaks off is
    taken up again where it ended.
    """

    def __init__(self, uri: str, etag: str | None = None, facts: FileFacts | None = None) -> None:
        """Open an object; of one whose `facts` are known, nothing is asked before it is read."""
        super().__init__()
        self.uri = uri
        self._position = 0
        self._bucket, self._key = split_object(uri)
        self._body_position = 0
        self._body: Any = None
        if facts is None:
            self._condition = _only(etag)
            with told(uri):
                answer = self._get()
            self._body = answer["Body"]
            facts = FileFacts.of_answer(answer, uri)
        self.facts = facts
        self._condition = _only(facts.etag)

    def again(self) -> "ObjectReader":
        """Give another reader of the same version, at its start; nothing is asked yet."""
        return ObjectReader(self.uri, facts=self.facts)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the number of the next byte, without a request to the store."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.facts.size_bytes}
        position = start[whence] + offset
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.uri)
        self._position = position
        return position

    def readinto(self, buffer: Buffer) -> int:
        """Read what the store gives next, at most what the buffer holds.

        Raises:
            FileExistsError: another version is there now.
            OSError: the object is gone or cannot be read.
        """
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self.facts.size_bytes - self._position)
        if wanted <= 0:
            return 0
        for _ in range(_REOPENINGS):
            self._go_to_position()
            octets = self._arrived(wanted)
            if octets:
                break
        else:
            text = f"the connection breaks off, each time, at byte {self._position:,}"
            raise UnreachableError(errno.ECONNRESET, text, self.uri)
        view[: len(octets)] = octets
        self._position += len(octets)
        self._body_position = self._position
        return len(octets)

    def close(self) -> None:
        """Let go of the connection."""
        if not self.closed:
            self._drop_body()
        super().close()

    def _go_to_position(self) -> None:
        ahead = self._position - self._body_position
        if self._body is not None and 0 < ahead <= _READ_ON_BYTES:
            self._body_position += len(self._arrived(ahead))
        if self._body is not None and self._body_position == self._position:
            return
        self._drop_body()
        with told(self.uri):
            self._body = self._get(Range=f"bytes={self._position}-")["Body"]
        self._body_position = self._position

    def _arrived(self, wanted: int) -> bytes:
        """Read on; nothing when the connection broke off."""
        octets = b""
        with suppress(UnreachableError), told(self.uri):
            octets = self._body.read(wanted)
        if not octets:
            self._drop_body()
        return octets

    def _get(self, **given: str) -> Mapping[str, Any]:
        asked = {"Bucket": self._bucket, "Key": self._key, **self._condition, **given}
        answer: Mapping[str, Any] = s3.client().get_object(**asked)
        return answer

    def _drop_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


def _only(etag: str | None) -> dict[str, str]:
    """Ask for one version; a store that knows no ETags cannot be asked for it."""
    return {} if etag is None else {"IfMatch": f'"{etag}"'}
