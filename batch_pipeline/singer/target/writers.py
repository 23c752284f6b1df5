"""What is inside of landed files: JSON lines, byte for byte, or a parquet table of the SCHEMA.

A writer writes to an open file and never closes it. Where the file lies is not known here.
"""

import zlib
from importlib import import_module
from importlib.util import find_spec
from typing import IO, Any, Protocol, assert_never

import zstandard

from batch_pipeline.domain.encoding import Compression

_GZIP_CONTAINER = 31  # zlib's window bits: 15, plus 16 for a gzip header without time or name
_CHUNK = 512 * 1024
_ZLIB: Any = import_module("isal.isal_zlib") if find_spec("isal") is not None else zlib


class RecordWriter(Protocol):
    """Writes records to a file."""

    records: int
    size_bytes: int  # before compression

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Add a record: what was written of it, and what it says."""
        ...

    def finish(self) -> None:
        """Write what is still held, so that the file is complete."""
        ...

    def abandon(self) -> None:
        """Let go of the file, which is about to be removed."""
        ...


class JsonLines:
    """Records as they were written, one a line; compressed by ISA-L where it is installed."""

    def __init__(self, file: IO[bytes], compression: Compression) -> None:
        self.records = self.size_bytes = 0
        self._file, self._held, self._held_bytes = file, list[bytes](), 0
        self._compressor = _compressor(compression)

    def write(self, text: bytes, record: dict[str, Any]) -> None:
        """Add a record; a carriage return between its parts, which JSON allows, ends no line."""
        self._held.append(text)
        self.records += 1
        self.size_bytes += len(text) + 1
        self._held_bytes += len(text) + 1
        if self._held_bytes >= _CHUNK:
            self._pass_on()

    def finish(self) -> None:
        """Write what is still held, and the end of what is compressed."""
        self._pass_on()
        if self._compressor is not None:
            self._file.write(self._compressor.flush())

    def abandon(self) -> None:
        """Let go of the file, which is about to be removed."""
        self._held = []

    def _pass_on(self) -> None:
        if not self._held:
            return
        self._held.append(b"")
        data = b"\n".join(self._held)
        self._held, self._held_bytes = [], 0
        self._file.write(data if self._compressor is None else self._compressor.compress(data))


def _compressor(compression: Compression) -> Any:
    match compression:
        case Compression.NONE:
            return None
        case Compression.GZIP:
            return _ZLIB.compressobj(1, wbits=_GZIP_CONTAINER)
        case Compression.ZSTD:
            return zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj()
        case Compression.SNAPPY:
            raise ValueError("no file of JSON lines is compressed by snappy")
        case _:
            assert_never(compression)
