"""Opens the file of an item: checks its facts, decompresses it, tells its format by its bytes.

Every way in which a file cannot be read becomes a `BadFileError`; nothing is parsed here.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import BinaryIO, TypeVar

from batch_pipeline.domain.errors import BadFileError
from batch_pipeline.domain.file_range import FileRange
from batch_pipeline.domain.item import FoundFile
from batch_pipeline.domain.record_rules import BadFileKind
from batch_pipeline.domain.stream import SourceFormat, Stream
from batch_pipeline.spark.read.charsets import UndecodableError, Utf8Text, charset_of
from batch_pipeline.spark.read.compression import Unpacked, UnpackError, packing_of
from batch_pipeline.spark.read.formats import binary_format, refusal, text_format
from batch_pipeline.spark.read.originals import (
    Fetch,
    Original,
    bad_file,
    open_original,
    unreadable,
)
from batch_pipeline.spark.read.slices import IN_RANGES, SLICEABLE, ByteRange
from batch_pipeline.stores.facts import FileFacts

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
        self, original: Original, stream: Stream, file: FoundFile, part: ByteRange | None = None
    ) -> None:
        self.range = file.range
        self.part = part
        if self.range is not None and part is None:
            self.part = ByteRange(self.range.start, self.range.stop)
        self.limits = stream.read_limits
        self.text_start = 0  # the byte behind a byte order mark
        self._stream = stream
        self._location = file.location
        self._original = original
        self._raw = original.raw
        self._temporary: BinaryIO | None = None
        self._bytes_in: BufferedReader | Unpacked | Utf8Text = self._raw
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
    def etag(self) -> str | None:
        """The ETag of the version of an object that is read; None for a file of a disk."""
        return self._original.etag

    @property
    def version(self) -> str | None:
        """The version of an object that is read, where the bucket keeps versions."""
        return self._original.version

    @property
    def facts(self) -> FileFacts:
        """What the file was like when it was opened."""
        return self._original.facts

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
        return self._call(self._original.reopened)

    def bad_file(
        self,
        reason: str,
        *,
        line: int | None = None,
        kind: BadFileKind = BadFileKind.CORRUPT,
    ) -> BadFileError:
        """Make the error that says that this whole file is bad."""
        return bad_file(self._stream, self._location, reason, line=line, kind=kind)

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
                "a range of bytes is wanted, and only plain csv and jsonl files in UTF-8 can "
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
            raise unreadable(self._stream, self._location, error) from error


@contextmanager
def open_source(
    file: FoundFile,
    stream: Stream,
    part: ByteRange | None = None,
    *,
    fetch: Fetch | None = None,
) -> Iterator[OpenSource]:
    """Open a file for reading; that all that is read is the registered one is checked.

    Of what was never noted, at least that it stays as it was while it is read. `fetch` gets the
    bytes of objects.

    Raises:
        BadFileError: the file is not there, is not the one that was registered, or cannot be read.
        SourceUnavailableError: the store that it lies in cannot be reached.
    """
    original = open_original(file, stream, fetch)
    with original.raw:
        try:
            source = OpenSource(original, stream, file, part)
            try:
                yield source
            finally:
                source.close()
        except Exception as error:
            # Half of another file is easily taken for a damaged one.
            if isinstance(error, BadFileError) or original.trouble is not None:
                original.check()
            raise
    original.check()
