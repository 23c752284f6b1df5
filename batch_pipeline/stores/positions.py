"""Where one is in an object that is read: going to a byte asks nothing of a store.

How bytes are fetched is known elsewhere.
"""

import errno
import io
import os

from batch_pipeline.stores.facts import FileFacts


class PositionedReader(io.RawIOBase):
    """An object that is read from any byte; `facts` are those of what is read, once it is open."""

    facts: FileFacts

    def __init__(self, uri: str) -> None:
        super().__init__()
        self.uri = uri
        self._position = 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that one can go to any byte."""
        return True

    def tell(self) -> int:
        """Give the number of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte; nothing is asked of the store yet."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.facts.size_bytes}
        position = start[whence] + offset
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.uri)
        self._position = position
        return position
