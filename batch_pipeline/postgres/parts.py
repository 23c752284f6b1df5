"""Part files of one manifest as blocks of records, a few MiB each; the bytes must be as published.

What becomes of the blocks is known elsewhere.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, assert_never

import pyarrow as pa
from pyarrow import parquet

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.errors import PartFileUnreachableError
from batch_pipeline.domain.location import is_object
from batch_pipeline.domain.manifest import Manifest, PartFile
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.postgres.cells import UnfitCellError, arrow_type_of
from batch_pipeline.postgres.json_lines import LineReader
from batch_pipeline.stores.copies import local_file
from batch_pipeline.stores.failures import reason_of, tells_of_file

_BLOCK_BYTES = 4 * 2**20
_BLOCK_RECORDS = 4096
_GUESSED_EXPANSION = 4  # of compressed columns


class UnusablePartError(Exception):
    """A part file is gone or is not what was published; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive records of a part file, `first` of which counts from 1; `read` decodes them."""

    location: str
    first: int
    read: Callable[[], pa.RecordBatch]


def blocks(manifest: Manifest) -> Generator[Block, None, None]:
    """Give the records of all part files in order.

    Raises:
        UnusablePartError: a file is gone or its bytes are others.
        PartFileUnreachableError: the store of a file does not give it now.
    """
    for part in manifest.part_files:
        with _told(part), local_file(part.uri) as path:
            _check(path, part)
            if manifest.encoding.format is Format.JSONL:
                yield from _line_blocks(path, part, manifest)
            else:
                yield from _table_blocks(path, part, manifest)


@contextmanager
def _told(part: PartFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = reason_of(error)
        if is_object(part.uri) and not tells_of_file(error):
            raise PartFileUnreachableError(part.uri, reason) from error
        raise UnusablePartError(f"{part.uri} cannot be read ({reason})") from error
    except (EOFError, pa.ArrowException) as error:
        raise UnusablePartError(f"{part.uri} cannot be read ({error})") from error


def _check(path: Path, part: PartFile) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != part.sha256:
        reason = "it is not the file that was published (its SHA-256 differs)"
        raise UnusablePartError(f"{part.uri}: {reason}")


def _line_blocks(path: Path, part: PartFile, manifest: Manifest) -> Iterator[Block]:
    reader = LineReader(manifest.schema)
    first = 1
    with _opened(path, manifest.encoding.compression) as file:
        for lines in _whole_lines(file):
            yield Block(location=part.uri, first=first, read=partial(reader.read, lines))
            first += lines.count(b"\n")


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    rest: list[bytes] = []
    while octets := file.read(_BLOCK_BYTES):
        end = octets.rfind(b"\n") + 1
        if not end:
            rest.append(octets)
            continue
        yield b"".join([*rest, memoryview(octets)[:end]])
        rest = [octets[end:]] if end < len(octets) else []
    if rest:
        yield b"".join([*rest, b"\n"])


def _opened(path: Path, compression: Compression) -> BinaryIO:
    match compression:
        case Compression.NONE:
            return path.open("rb")
        case Compression.ZSTD:
            file: BinaryIO = pa.input_stream(str(path), compression="zstd")
            return file
        case Compression.GZIP | Compression.SNAPPY:
            return _gzip(path)
        case _:
            assert_never(compression)


def _gzip(path: Path) -> BinaryIO:
    # There is no wheel of the faster one for some platforms.
    name = "isal.igzip" if find_spec("isal") else "gzip"
    opened: BinaryIO = import_module(name).open(path)
    return opened


def _table_blocks(path: Path, part: PartFile, manifest: Manifest) -> Iterator[Block]:
    first = 1
    for batch in _batches(path, part, manifest.encoding):
        yield Block(
            location=part.uri,
            first=first,
            read=partial(_of_schema, batch, manifest.schema),
        )
        first += batch.num_rows


def _batches(path: Path, part: PartFile, encoding: Encoding) -> Iterator[pa.RecordBatch]:
    record_bytes = max(part.size_bytes * _GUESSED_EXPANSION // max(part.records, 1), 1)
    wanted = min(max(_BLOCK_BYTES // record_bytes, 1), _BLOCK_RECORDS)
    if encoding.format is Format.PARQUET:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(wanted, use_threads=False)
        return
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            for start in range(0, batch.num_rows, wanted):
                yield batch.slice(start, wanted)


def _of_schema(batch: pa.RecordBatch, schema: RecordSchema) -> pa.RecordBatch:
    """Give the columns of the schema with its types."""
    arrays, present = [], set(batch.schema.names)
    for column in schema.columns:
        kind = arrow_type_of(column)
        if column.name not in present:
            arrays.append(pa.nulls(batch.num_rows, kind))
            continue
        array = batch.column(column.name)
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if array.type != kind and array.null_count == len(array):
            array = pa.nulls(len(array), kind)
        if array.type != kind:
            problem = f"the file has {array.type}, its schema {column.type_text}"
            raise UnfitCellError(0, column.name, problem)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, list(schema.names))
