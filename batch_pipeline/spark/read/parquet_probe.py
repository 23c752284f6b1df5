"""Finds out whether a parquet file can be asked about its columns, before anybody asks.

To ask for the place or the size of a column whose description is damaged or encrypted ends the
process; a reader that is made for it raises an error. No page is read here.
"""

import io

import pyarrow.parquet as pq


class _NoPages(io.RawIOBase):
    """A file of which nothing can be read; `is_asked` tells that somebody has tried."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.is_asked = False
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}
        self._position = start[whence] + offset
        return self._position

    def read(self, _size: int = -1) -> bytes:
        self.is_asked = True
        raise OSError("no page is to be read")


def check_columns(file: pq.ParquetFile, size_bytes: int) -> None:
    """Check the descriptions of all columns of all row groups of a file of so many bytes.

    Raises:
        ArrowException: one is damaged or encrypted.
        OSError: the same.
    """
    pages = _NoPages(size_bytes)
    probe = pq.ParquetFile(pages, metadata=file.metadata, buffer_size=2**16, pre_buffer=False)
    for group in range(file.num_row_groups):
        pages.is_asked = False
        try:
            next(probe.iter_batches(1, row_groups=[group], use_threads=False), None)
        except Exception:  # which stands for the page that it did not get, or for what it found
            if not pages.is_asked:
                raise
