"""Reads a published file to its end: the SHA-256 of its bytes, and how many records it holds.

The bytes are read once, of parquet and Arrow files the end twice; memory is a block. How a file is
read is told by the end of its name. What was to be there is not known here.
"""

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, BinaryIO

import zstandard
from typing_extensions import Buffer

from batch_pipeline.stores.reading import open_uri

_BLOCK = 2**20
_HAS_ISAL = find_spec("isal") is not None  # there is no wheel for some platforms
_GZIP: Any = import_module("isal.igzip") if _HAS_ISAL else gzip
_ISAL_ERROR: type[Exception] = import_module("isal.isal_zlib").error if _HAS_ISAL else zlib.error
_DAMAGE = (gzip.BadGzipFile, EOFError, zlib.error, _ISAL_ERROR, zstandard.ZstdError)
_TABLES = (".parquet", ".arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is in a file; `damage` says why its records cannot all be read.

    `records` is None with a damage, and where the name does not tell how to read them.
    """

    sha256: str
    records: int | None = None
    damage: str | None = None


def read_contents(uri: str) -> Contents:
    """Read all bytes of a file or an object and count its records.

    Raises:
        InvalidValueError: the URI names neither.
        OSError: it is not there or cannot be read.
    """
    with open_uri(uri) as file:
        summed = _Summed(file)
        records, damage = _counted_lines(io.BufferedReader(summed, _BLOCK), uri)
        while summed.read(_BLOCK):
            pass  # what the reader of lines has left
        if uri.endswith(_TABLES):
            file.seek(0)
            records, damage = _counted_rows(file, uri)
        return Contents(sha256=summed.sha256, records=records, damage=damage)


class _Summed(io.RawIOBase):
    """A file that adds up what is read of it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._sum = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        octets = self._file.read(len(view))
        view[: len(octets)] = octets
        self._sum.update(octets)
        return len(octets)


def _counted_lines(file: io.BufferedReader, uri: str) -> tuple[int | None, str | None]:
    unpacked = _unpacked(file, uri)
    if unpacked is None:
        return None, None
    lines, last = 0, b"\n"
    try:
        while block := unpacked.read(_BLOCK):
            lines += block.count(b"\n")
            last = block[-1:]
    except _DAMAGE as error:
        return None, str(error)
    return lines + (last != b"\n"), None


def _unpacked(file: io.BufferedReader, uri: str) -> Any:
    if uri.endswith(".jsonl.gz"):
        return _GZIP.open(file, "rb")
    if uri.endswith(".jsonl.zst"):
        frames = zstandard.ZstdDecompressor()
        return frames.stream_reader(file, read_across_frames=True, closefd=False)
    return file if uri.endswith(".jsonl") else None


def _counted_rows(file: BinaryIO, uri: str) -> tuple[int | None, str | None]:
    import pyarrow as pa  # 0.2 s
    import pyarrow.parquet as pq

    try:
        if uri.endswith(".parquet"):
            return pq.ParquetFile(file, pre_buffer=False).metadata.num_rows, None
        opened = pa.ipc.open_file(file)
        batches = range(opened.num_record_batches)
        return sum(opened.get_batch(index).num_rows for index in batches), None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # the system's or the store's; Arrow's own have no number
        return None, str(error).strip()
