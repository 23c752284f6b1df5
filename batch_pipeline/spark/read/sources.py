"""Opens the file of an item: checks its facts, decompresses it, tells its format by its bytes.

Every way in which a file cannot be read becomes a `BadFileError`; nothing is parsed here.
"""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, TypeVar

from batch_pipeline.domain.errors import BadFileError, InvalidValueError
from batch_pipeline.domain.file_range import FileRange
from batch_pipeline.domain.item import FoundFile, modified_at
from batch_pipeline.domain.location import to_path
from batch_pipeline.domain.record_rules import BadFileKind
from batch_pipeline.domain.stream import SourceFormat, Stream
from batch_pipeline.spark.read.charsets import UndecodableError, Utf8Text, charset_of
from batch_pipeline.spark.read.compression import Unpacked, UnpackError, packing_of
from batch_pipeline.spark.read.formats import binary_format, refusal, text_format
from batch_pipeline.spark.read.slices import IN_RANGES, SLICEABLE, ByteRange

BLOCK_BYTES = 2 * 2**20

_START_BYTES = 256 * 2**10  # enough to tell one format from another
_BINARY = frozenset({SourceFormat.PARQUET, SourceFormat.AVRO})
_Found = TypeVar("_Found")


class OpenSource:
    """An open file: uncompressed bytes and what they contain; UTF-8 without a mark if it is text.

    `part` is what of the file is wanted, None for all of it; it is up to the reader to keep to it.
    It lies within `range`, the bytes that the item is, None where it is the whole file.
    Read either by `read` or through `file`: they share one position.
    """

    def __init__(
        self, raw: BufferedReader, stream: Stream, file: FoundFile, part: ByteRange | None = None
    ) -> None:
        self.range = file.range
        self.part = part
        if self.range is not None and part is None:
            self.part = ByteRange(self.range.start, self.range.stop)
        self.limits = stream.read_limits
        self.text_start = 0  # the byte behind a byte order mark
        self._stream = stream
        self._location = file.location
        self._raw = raw
        self._temporary: BinaryIO | None = None
        self._bytes_in: BufferedReader | Unpacked | Utf8Text = raw
        self._start = b""
        self._is_packed = self._unpack()
        self._is_utf8 = True
        self.format = self._binary_format() or self._text_format()
        if self.range is not None:
            self._check_range(self.range)

    @property
    def can_split(self) -> bool:
        """Tell whether parts of it can be read: it is plain and its records can be found."""
        return not self._is_packed and self._is_utf8 and self.format in SLICEABLE

    @property
    def has_ranges(self) -> bool:
        """Tell whether ranges of it can be items: it is plain text of records, in UTF-8."""
        return not self._is_packed and self._is_utf8 and self.format in IN_RANGES

    @property
    def file(self) -> BinaryIO:
        """Give a file to seek in, at its start: the landed file if it is not compressed.

        Of a compressed one a temporary file with what `read` gives.

        Raises:
            BadFileError: the file cannot be read, or compressed data is damaged.
        """
        if not self._is_packed:
            self._raw.seek(0)
            return self._raw
        if self._temporary is None:
            self._temporary = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the source
            while block := self.read(BLOCK_BYTES):
                self._temporary.write(block)
        self._temporary.seek(0)
        return self._temporary

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes`, fewer only at the end of the file.

        Raises:
            BadFileError: the file cannot be read to its end, or compressed data is damaged.
        """
        start, self._start = self._start[:size_bytes], self._start[size_bytes:]
        return start + self._read(size_bytes - len(start))

    def seek(self, position: int) -> None:
        """Let `read` go on at a byte of the file as it stands; only for files that can be split."""
        self._start = b""
        self._raw.seek(position)

    def reopened(self) -> BinaryIO:
        """Open the file once more, as it stands, to look something up.

        Raises:
            BadFileError: it cannot be opened any more.
        """
        return self._call(lambda: Path(to_path(self._location)).open("rb"))

    def bad_file(
        self,
        reason: str,
        *,
        line: int | None = None,
        kind: BadFileKind = BadFileKind.CORRUPT,
    ) -> BadFileError:
        """Make the error that says that this whole file is bad."""
        return _bad_file(self._stream, self._location, reason, line=line, kind=kind)

    def too_long(self, what: str, *, line: int) -> BadFileError:
        """Make the error that says that a record is longer than allowed."""
        limit = self.limits.max_record_bytes
        shown = f"{limit >> 20} MiB" if limit % 2**20 == 0 else f"{limit} bytes"
        reason = f"{what} is longer than {shown}, more than `read_limits.max_record_bytes` allows"
        return self.bad_file(reason, line=line)

    def close(self) -> None:
        """Remove what is temporary."""
        if self._temporary is not None:
            self._temporary.close()

    def _check_range(self, wanted: FileRange) -> None:
        """Check that ends of lines, or of the file, are where the range starts and ends."""
        if not self.has_ranges:
            raise self.bad_file(
                "a range of bytes is wanted, and only plain csv, jsonl and text files in UTF-8 can "
                "be read in ranges"
            )
        with self.reopened() as file:
            for position in (wanted.start, wanted.stop):
                file.seek(max(position - 1, 0))
                around = self._call(lambda: file.read(2))
                if position and not around:
                    raise self.bad_file(f"has no byte {position - 1}, up to which it is wanted")
                if position and len(around) > 1 and around[:1] not in {b"\n", b"\r"}:
                    raise self.bad_file(f"byte {position} is inside of a line")

    def _unpack(self) -> bool:
        """Take off the compression, read the start, tell whether there was one."""
        start = self._call(lambda: self._raw.peek(1))
        packing = packing_of(start)
        if packing is not None:
            limit = self.limits.max_expansion
            self._bytes_in = Unpacked(self._raw, packing, max_expansion=limit)
        self._start = self._read(_START_BYTES)
        if packing is not None and (inner := packing_of(self._start)):
            raise self.bad_file(f"is compressed twice, with {packing} and {inner}")
        if reason := refusal(self._start):
            raise self.bad_file(reason)
        return packing is not None

    def _binary_format(self) -> SourceFormat | None:
        declared, found = self._stream.source.format, binary_format(self._start)
        if found is not None and declared not in {SourceFormat.AUTO, found}:
            raise self.bad_file(f"is a file of format {found}, but `source.format` is {declared}")
        if found is None and declared in _BINARY:
            raise self.bad_file(f"is no file of format {declared}, which `source.format` says")
        return found

    def _text_format(self) -> SourceFormat:
        source = self._stream.source
        start = self._start
        charset, mark = self._call(lambda: charset_of(start, source.charset))
        self._start, self.text_start = start[mark:], mark
        if charset != "utf-8":
            self._is_utf8 = False
            below, rest = self._bytes_in, [self._start]

            def read(size_bytes: int) -> bytes:
                first = rest.pop() if rest else b""
                return first + below.read(size_bytes - len(first))

            self._start = b""
            self._bytes_in = Utf8Text(read, charset, offset=mark)
            self._start = self._read(_START_BYTES)
        return text_format(self._start) if source.format is SourceFormat.AUTO else source.format

    def _read(self, size_bytes: int) -> bytes:
        return self._call(lambda: self._bytes_in.read(size_bytes)) if size_bytes > 0 else b""

    def _call(self, read: Callable[[], _Found]) -> _Found:
        try:
            return read()
        except (UnpackError, UndecodableError) as error:
            raise self.bad_file(str(error)) from error
        except OSError as error:
            raise _unreadable(self._stream, self._location, error) from error


@contextmanager
def open_source(
    file: FoundFile, stream: Stream, part: ByteRange | None = None
) -> Iterator[OpenSource]:
    """Open a file for reading; that it is still the registered one is checked before and after.

    Of what was never noted, at least that it stays as it was while it is read.

    Raises:
        BadFileError: the file is not there, is not the one that was registered, or cannot be read.
    """
    try:
        path = to_path(file.location)
    except InvalidValueError as error:
        raise _bad_file(stream, file.location, f"is not {error.expected}") from error
    before = _checked(path, file, stream)  # before opening: opening a pipe would wait for ever
    try:
        raw = open(path, "rb")  # noqa: PTH123, SIM115 - many small files; closed below
    except OSError as error:
        raise _unreadable(stream, file.location, error) from error
    with raw:
        try:
            source = OpenSource(raw, stream, file, part)
            try:
                yield source
            finally:
                source.close()
        except BadFileError:
            # Half of another file is easily taken for a damaged one.
            _check_unchanged(path, file, stream, before)
            raise
    _check_unchanged(path, file, stream, before)


def _check_unchanged(path: str, file: FoundFile, stream: Stream, before: os.stat_result) -> None:
    after = _checked(path, file, stream)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        reason = "changed while it was read"
        raise _bad_file(stream, file.location, reason, kind=BadFileKind.CHANGED)


def _checked(path: str, file: FoundFile, stream: Stream) -> os.stat_result:
    try:
        status = os.stat(path)  # noqa: PTH116 - twice for each of many small files
    except OSError as error:
        raise _unreadable(stream, file.location, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise _bad_file(stream, file.location, "is not a regular file")
    if change := _change(file, status):
        reason = f"changed since it was registered: {change}"
        raise _bad_file(stream, file.location, reason, kind=BadFileKind.CHANGED)
    return status


def _change(file: FoundFile, status: os.stat_result) -> str | None:
    known, part = file.size_bytes, file.range
    if known is None and part is not None:
        known = part.file_bytes
    if known not in {None, status.st_size}:
        return f"size {known} -> {status.st_size} bytes"
    if file.modified_at is None:
        return None
    before, now = file.modified_at.astimezone(UTC), modified_at(status)
    return f"modified {before.isoformat()} -> {now.isoformat()}" if before != now else None


def _unreadable(stream: Stream, location: str, error: OSError) -> BadFileError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return _bad_file(stream, location, "is not there", kind=BadFileKind.MISSING)
    reason = f"cannot be read ({(error.strerror or str(error)).lower()})"
    return _bad_file(stream, location, reason)


def _bad_file(
    stream: Stream,
    location: str,
    reason: str,
    *,
    line: int | None = None,
    kind: BadFileKind = BadFileKind.CORRUPT,
) -> BadFileError:
    return BadFileError(stream.name, location, line, reason, kind=kind)
