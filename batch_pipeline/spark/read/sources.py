"""Opens the file of an item: checks its facts, decompresses it, tells its format by its bytes.

Every way in which a file cannot be read becomes a `BadFileError`; nothing is parsed here.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from batch_pipeline.domain.errors import BadFileError, InvalidValueError
from batch_pipeline.domain.item import FoundFile, modified_at
from batch_pipeline.domain.location import to_path
from batch_pipeline.domain.stream import SourceFormat, Stream
from batch_pipeline.spark.gzip_codec import DAMAGE, GZIP_MAGIC, damage_reason, open_gzip

BLOCK_BYTES = 2 * 2**20
MAX_RECORD_BYTES = 64 * 2**20  # a record is held in memory while it is read

_UTF8_MARK = b"\xef\xbb\xbf"
_REFUSED = {
    b"BZh": "is compressed with bzip2; csv and jsonl may be plain or gzip",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; csv and jsonl may be plain or gzip",
    b"\xfd7zXZ\0": "is compressed with xz; csv and jsonl may be plain or gzip",
    b"PK\x03\x04": "is a zip archive; csv and jsonl may be plain or gzip",
    b"PAR1": "is a parquet file; csv or jsonl is expected",
    b"\xff\xfe": "is UTF-16 text; UTF-8 is expected",
    b"\xfe\xff": "is UTF-16 text; UTF-8 is expected",
}
_BZIP2_BLOCK = b"1AY&SY"  # text may well start with "BZh"; bzip2 data goes on like this


class TextSource:
    """An open file: uncompressed bytes without a byte order mark, and what they contain."""

    def __init__(self, raw: BufferedReader, stream: Stream, location: str) -> None:
        self._stream = stream.name
        self._location = location
        self._bytes_in: BinaryIO = raw
        start = self._call(lambda: raw.peek(len(GZIP_MAGIC)))
        if start.startswith(GZIP_MAGIC):
            self._bytes_in = open_gzip(raw)
        start = self._read(BLOCK_BYTES)
        if reason := _refusal(start):
            raise self.bad_file(reason)
        self._start = start.removeprefix(_UTF8_MARK)
        self.format = _format(self._start, stream.source.format)

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes`, fewer only at the end of the file; at least `BLOCK_BYTES`.

        Raises:
            BadFileError: the file cannot be read to its end, or gzip data is damaged.
        """
        start, self._start = self._start, b""
        return start + self._read(size_bytes - len(start))

    def bad_file(self, reason: str, *, line: int | None = None) -> BadFileError:
        """Make the error that says that this whole file is bad."""
        return BadFileError(self._stream, self._location, line, reason)

    def _read(self, size_bytes: int) -> bytes:
        return self._call(lambda: self._bytes_in.read(size_bytes))

    def _call(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except DAMAGE as error:
            raise self.bad_file(damage_reason(error)) from error
        except OSError as error:
            if error.errno is None:  # gzip.BadGzipFile
                raise self.bad_file(damage_reason(error)) from error
            raise self.bad_file(_unreadable(error)) from error


@contextmanager
def open_source(file: FoundFile, stream: Stream) -> Iterator[TextSource]:
    """Open a file for reading; that it is still the registered one is checked before and after.

    Of what was never noted, at least that it stays as it was while it is read.

    Raises:
        BadFileError: the file is not there, is not the one that was registered, or cannot be read.
    """

    def bad_file(reason: str) -> BadFileError:
        return BadFileError(stream.name, file.location, None, reason)

    def checked() -> os.stat_result:
        try:
            status = path.stat()
        except OSError as error:
            raise bad_file(_unreadable(error)) from error
        reason = _change(file, status)
        if reason is not None:
            raise bad_file(reason)
        return status

    try:
        path = Path(to_path(file.location))
    except InvalidValueError as error:
        raise bad_file(f"is not {error.expected}") from error
    before = checked()  # before it is opened: opening a pipe would wait for ever
    try:
        raw = path.open("rb")
    except OSError as error:
        raise bad_file(_unreadable(error)) from error
    with raw:
        yield TextSource(raw, stream, file.location)
    after = checked()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise bad_file("changed while it was read")


def _change(file: FoundFile, status: os.stat_result) -> str | None:
    changed = "changed since it was registered"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if file.size_bytes not in {None, status.st_size}:
        return f"{changed}: size {file.size_bytes} -> {status.st_size} bytes"
    if file.modified_at is None:
        return None
    before, now = file.modified_at.astimezone(UTC), modified_at(status)
    if before != now:
        return f"{changed}: modified {before.isoformat()} -> {now.isoformat()}"
    return None


def _unreadable(error: OSError) -> str:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "is not there"
    return f"cannot be read ({(error.strerror or str(error)).lower()})"


def _refusal(start: bytes) -> str | None:
    for magic, reason in _REFUSED.items():
        if start.startswith(magic) and (magic != b"BZh" or start[4:10] == _BZIP2_BLOCK):
            return reason
    return None


def _format(start: bytes, wanted: SourceFormat) -> SourceFormat:
    if wanted is not SourceFormat.AUTO:
        return wanted
    return SourceFormat.JSONL if start.lstrip(b" \t\r\n")[:1] == b"{" else SourceFormat.CSV
