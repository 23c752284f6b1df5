"""The formats of source files: how each is recognised, opened and cut.

`SOURCE_READERS` is the registry. A new format needs an entry there and a module named after it,
with a function `read_chunks` and, if its files can be cut, `find_cuts`. The module is imported when
a file of its format is opened: pyarrow and fastavro take longer to import than most commands take
to run.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from batch_pipeline.model.stream import SourceFormat, Stream

if TYPE_CHECKING:
    from batch_pipeline.encode.chunks import Chunk
    from batch_pipeline.encode.readers.decoded_file import DecodedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReader:
    """The description of one source format, and its reader: the module named after the format."""

    format: SourceFormat
    extensions: tuple[str, ...]
    has_text_cells: bool = False  # values have no types before validation
    magic: bytes = b""  # the first bytes of every file of a binary format
    can_be_cut: bool = False  # a range of bytes of a file may be an item
    can_be_split: bool = False  # several tasks can read one large file, uncompressed and in UTF-8

    def chunks(self, source: "DecodedFile", stream: Stream) -> "Iterator[Chunk]":
        """Yield the records of an open file, or of its item's byte range, in order.

        Raises:
            BadFileError: the file cannot be read to its end.
        """
        read: Callable[[DecodedFile, Stream], Iterator[Chunk]] = self._module.read_chunks
        return read(source, stream)

    def find_cuts(self, source: "DecodedFile", stream: Stream, max_bytes: int) -> Sequence[int]:
        """Return the offsets at which all items but the first start, if files can be cut.

        Raises:
            BadFileError: the header of a csv file cannot be read.
        """
        find: Callable[[DecodedFile, Stream, int], Sequence[int]] = self._module.find_cuts
        return find(source, stream, max_bytes)

    @property
    def _module(self) -> ModuleType:
        return import_module(f"batch_pipeline.encode.readers.{self.format}")


_READERS = (
    SourceReader(
        format=SourceFormat.CSV,
        extensions=(".csv", ".tsv", ".tab", ".psv"),
        has_text_cells=True,
        can_be_cut=True,
        can_be_split=True,
    ),
    SourceReader(
        format=SourceFormat.JSONL,
        extensions=(".jsonl", ".ndjson"),
        can_be_cut=True,
        can_be_split=True,
    ),
    SourceReader(
        format=SourceFormat.JSON,
        extensions=(".json",),
    ),
    SourceReader(
        format=SourceFormat.PARQUET,
        extensions=(".parquet", ".pq"),
        magic=b"PAR1",
        can_be_split=True,
    ),
    SourceReader(
        format=SourceFormat.AVRO,
        extensions=(".avro",),
        magic=b"Obj\x01",
    ),
)
SOURCE_READERS = {reader.format: reader for reader in _READERS}


def reader_for_extension(extension: str) -> SourceReader | None:
    """Return the description of the format that a lower-case extension stands for, if any."""
    return next((reader for reader in _READERS if extension in reader.extensions), None)


_UNSUPPORTED = {
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"PK\x05\x06": "an empty zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7-zip archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"\xff\x06\x00\x00sNaPpY": "compressed with snappy",
    b"\x1f\x9d": "compressed with compress (.Z)",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Office document",
    b"PARE": "an encrypted parquet file",
    b"ARROW1\0\0": "an Arrow file",
    b"\xff\xff\xff\xff": "an Arrow stream",
    b"SQLite format 3\0": "an SQLite database",
    b"%PDF-": "a PDF document",
}
_TAR = re.compile(rb"(?s)(?=.{0,256}\0).{257}ustar")
# A csv file may start with a column called PARENT_ID: text follows, where parquet has binary.
_TEXT_LIKE_PARQUET = re.compile(rb"PAR[1E][\t\n\r -\x7e\x80-\xff]{8}")
_validate_json = msgspec.json.Decoder(msgspec.Raw).decode  # parses without building objects
_BLANKS = b" \t\r\n"
# A csv header may start with a bracket, `[id],[name]`, so the start of a value must follow.
_ARRAY = re.compile(rb'\[\s*(?:[\[{\]"\d-]|true\b|false\b|null\b|$)')


def unsupported_format_reason(start: bytes) -> str | None:
    """Return why a file with these first bytes is not supported, None if it may be readable."""
    if _TEXT_LIKE_PARQUET.match(start):
        return None
    for magic, name in _UNSUPPORTED.items():
        if start.startswith(magic):
            return f"is {name}, which cannot be read"
    return "is a tar archive, which cannot be read" if _TAR.match(start) else None


def detect_binary_format(start: bytes) -> SourceReader | None:
    """Return the binary format whose magic bytes a file starts with, None if there is none."""
    if _TEXT_LIKE_PARQUET.match(start):
        return None
    binary = (reader for reader in _READERS if reader.magic)
    return next((reader for reader in binary if start.startswith(reader.magic)), None)


def detect_text_format(start: bytes) -> SourceFormat:
    """Distinguish csv, JSON lines and other JSON by the first bytes: UTF-8, cut at any byte."""
    text = start.lstrip(_BLANKS)
    if text.startswith(b"{"):
        return SourceFormat.JSON if _are_documents(text) else SourceFormat.JSONL
    return SourceFormat.JSON if _ARRAY.match(text) else SourceFormat.CSV


def _are_documents(text: bytes) -> bool:
    """Return whether an object ends on another line, or another one follows on its line.

    An object that breaks off at the end of its line is a malformed line, not a document: one bad
    record must not turn a file of JSON lines into a bad file.
    """
    end = text.find(b"\n")
    if _is_json(text if end < 0 else text[:end]):
        return False
    decoded = text.decode("utf-8", "replace")
    line, has_end, rest = decoded.partition("\n")
    try:
        _, end = json.JSONDecoder(parse_int=str).raw_decode(decoded)
    except json.JSONDecodeError as error:
        rest = rest.lstrip()
        next_line = len(decoded) - len(rest)
        return bool(has_end and rest) and error.pos >= next_line + rest.startswith("{")
    except RecursionError:
        return False
    return end > len(line) or line[end:].lstrip().startswith("{")


def _is_json(line: bytes) -> bool:
    """Return whether a whole line is valid JSON; this fast check is enough for most files."""
    try:
        _validate_json(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
