"""Records of a manifest's part files: verification, decoding and RECORD messages.

`record_blocks` produces RECORD messages, `records` produces Python objects;
`check_sizes` and `verified_files` only verify the files. Records of a file are read only after the
size and SHA-256 of every file of the manifest were verified.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.encode.arrow_types import JSON_TYPES
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.errors import BatchDataError, PipelineError
from batch_pipeline.model.location import shown
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline.storage.errors import part_file_unreachable, reason_of
from batch_pipeline.storage.filesystem import filesystem_of, is_about_file, local_file
from batch_pipeline.storage.part_formats import table_codec
from batch_pipeline.storage.part_formats.jsonl import DECOMPRESSION_ERRORS, read_lines

_ROWS = 2_000
_INSTANTS = frozenset({ColumnType.TIMESTAMP, ColumnType.LOCAL_TIMESTAMP})
_CLOCKS = frozenset({ColumnType.DATE, ColumnType.TIME})
_DECODING_ERRORS: tuple[type[Exception], ...] = (*DECOMPRESSION_ERRORS, UnicodeDecodeError)
_decode = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode
_by_column = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines


def record_blocks(
    manifest: Manifest, name: str, *, columns: Collection[str] | None = None
) -> Iterator[bytes]:
    """Yield the RECORD messages of a manifest as blocks of complete lines of about 1 MiB.

    The text of a record is copied from its file, so numbers keep all digits. `columns` limits the
    keys of the records.

    Raises:
        BatchDataError: a file is missing, differs from what was published, or cannot be decoded.
        RetryableError: the store of a file is currently unreachable.
    """
    head = b'{"type":"RECORD","stream":' + json.dumps(name).encode() + b',"record":'
    joint = b"}\n" + head
    with verified_files(manifest) as paths:
        for part, path in zip(manifest.part_files, paths, strict=True):
            for block in json_lines(manifest, part, path, columns):
                yield b"".join((head, block[:-1].replace(b"\n", joint), b"}\n"))


def records(
    manifest: Manifest, *, columns: Collection[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the records of a manifest as Python objects; non-integer numbers are decimals.

    Raises:
        BatchDataError: a file is missing, differs from what was published, or cannot be decoded.
        RetryableError: the store of a file is currently unreachable.
    """
    with verified_files(manifest) as paths:
        for part, path in zip(manifest.part_files, paths, strict=True):
            blocks = json_lines(manifest, part, path, columns)
            lines = (line for block in blocks for line in block[:-1].split(b"\n"))
            for number, line in enumerate(lines, 1):
                try:
                    yield _decode(line)
                except msgspec.MsgspecError as error:
                    problem = f"is not a JSON object ({error})"
                    raise part_file_error(manifest, part, problem, number) from error


def check_sizes(manifest: Manifest) -> None:
    """Check that every part file exists with its published size.

    Raises:
        BatchDataError: a file is missing or has another size.
        RetryableError: the store of a file is currently unreachable.
    """
    for part in manifest.part_files:
        try:
            size_bytes = filesystem_of(part.uri).head(part.uri).size_bytes
        except OSError as error:
            raise part_read_error(manifest, part, error) from error
        if size_bytes != part.size_bytes:
            problem = f"has {size_bytes} B, published: {part.size_bytes} B"
            raise part_file_error(manifest, part, problem)


@contextmanager
def verified_files(manifest: Manifest) -> Iterator[Sequence[Path]]:
    """Yield local paths of the part files after verifying size and SHA-256 of all files.

    Objects are downloaded once; the copies are deleted when the context ends.

    Raises:
        BatchDataError: a file differs from what was published.
        RetryableError: a file cannot be downloaded now.
    """
    check_sizes(manifest)
    paths: list[Path] = []
    with ExitStack() as copies:
        for part in manifest.part_files:
            try:
                path = copies.enter_context(local_file(part.uri))
                with path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise part_read_error(manifest, part, error) from error
            if sha256 != part.sha256:
                problem = f"its SHA-256 is {sha256}, and {part.sha256} was published"
                raise part_file_error(manifest, part, problem)
            paths.append(path)
        yield paths


def part_read_error(manifest: Manifest, part: PartFile, error: OSError) -> PipelineError:
    """Build the error for a part file that cannot be read."""
    reason = reason_of(error)
    if not is_about_file(part.uri, error):
        return part_file_unreachable(part.uri, reason)
    gone = isinstance(error, FileNotFoundError)
    return part_file_error(manifest, part, "is gone" if gone else f"cannot be read ({reason})")


def part_file_error(
    manifest: Manifest, part: PartFile, problem: str, line: int | None = None
) -> BatchDataError:
    """Build the error for a part file that is missing or differs from what was published."""
    path, batch = shown(part.uri), manifest.batch
    place = path if line is None else f"{path}, line {line}"
    return BatchDataError(
        f"{batch.job}: a part file of batch {batch.label}, generation {manifest.generation}, "
        f"cannot be sent: {place}: {problem}. No STATE was written for this batch, so it comes "
        f"again. Put the file back, or materialize the partition again: its next generation takes "
        f"the place of this one. `batch-pipeline verify` looks at all files."
    )


def json_lines(
    manifest: Manifest, part: PartFile, path: Path, columns: Collection[str] | None = None
) -> Iterator[bytes]:
    """Yield the records of a part file as blocks of lines, one JSON object per line.

    `path` is the local path of the file. Numbers keep all their digits. `columns` limits the keys
    of the records; values stay as written.

    Raises:
        BatchDataError: the file is not encoded as its manifest states, or its record count differs.
    """
    blocks = _lines_of_tables if manifest.encoding.part_format.is_columnar else _text_blocks
    count = 0
    try:
        for block in blocks(manifest, part, path, columns):
            count += block.count(b"\n")
            yield block
    except _DECODING_ERRORS as error:
        what = f"{manifest.encoding.format} with compression {manifest.encoding.compression}"
        problem = f"is not {what} ({error})"
        raise part_file_error(manifest, part, problem, count + 1) from error
    except OSError as error:
        raise part_read_error(manifest, part, error) from error
    if count != part.records:
        problem = f"has other records: {count}, published: {part.records}"
        raise part_file_error(manifest, part, problem, count)


def _text_blocks(
    manifest: Manifest, part: PartFile, path: Path, columns: Collection[str] | None
) -> Iterator[bytes]:
    with path.open("rb") as file:
        blocks = read_lines(file, manifest.encoding.compression)
        if columns is None:
            yield from blocks
        else:
            yield from _projected(manifest, part, blocks, columns)


def _projected(
    manifest: Manifest, part: PartFile, blocks: Iterable[bytes], columns: Collection[str]
) -> Iterator[bytes]:
    number = 0
    for block in blocks:
        kept: list[bytes] = []
        for line in block[:-1].split(b"\n"):
            number += 1
            try:
                record = _by_column.decode(line)
            except msgspec.MsgspecError as error:
                problem = f"is not a JSON object ({error})"
                raise part_file_error(manifest, part, problem, number) from error
            kept.append(_encode({name: record[name] for name in record if name in columns}))
        yield b"\n".join(kept) + b"\n"


def _lines_of_tables(
    manifest: Manifest, part: PartFile, path: Path, columns: Collection[str] | None
) -> Iterator[bytes]:
    selected = manifest.schema.columns
    if columns is not None:
        selected = tuple(column for column in selected if column.name in columns)
    try:
        yield from table_lines(path, manifest.encoding.format, selected)
    except pa.ArrowException as error:
        problem = f"is not {manifest.encoding.format} ({str(error).strip()})"
        raise part_file_error(manifest, part, problem) from error


def table_lines(path: Path, file_format: Format, columns: Sequence[Column]) -> Iterator[bytes]:
    """Yield blocks of rows as JSON objects with these columns in order; absent columns are null.

    Raises:
        pa.ArrowException: the file is damaged or has another format.
        OSError: the file cannot be read.
    """
    names = frozenset(column.name for column in columns)
    for batch in table_codec(file_format).read_batches(path, names, _ROWS):
        yield _lines(batch, columns)


def _lines(batch: pa.RecordBatch, columns: Sequence[Column]) -> bytes:
    names = [column.name for column in columns]
    if not names:
        return b"{}\n" * int(batch.num_rows)
    present = set(batch.schema.names)
    values = [
        json_values(batch.column(column.name), column)
        if column.name in present
        else [None] * batch.num_rows
        for column in columns
    ]
    rows = zip(*values, strict=True)
    written: bytes = _encode_lines([dict(zip(names, row, strict=True)) for row in rows])
    return written


def json_values(array: pa.Array, column: Column) -> list[Any]:
    """Return the values of a column as objects that msgspec encodes as JSON."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if column.type in JSON_TYPES:
        return [None if text is None else _raw(text) for text in array.to_pylist()]
    if column.type in _INSTANTS:
        suffix = "Z" if column.type is ColumnType.TIMESTAMP else ""
        return _times(array, suffix)
    if column.type in _CLOCKS:
        array = array.cast(pa.string())
    values: list[Any] = array.to_pylist()
    return values


def _raw(text: str) -> msgspec.Raw:
    """Return JSON text unchanged on one line; line breaks can only be between its tokens."""
    return msgspec.Raw(text.replace("\n", " ").replace("\r", " ").encode())


def _times(array: pa.Array, suffix: str) -> list[Any]:
    text = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.timestamp("us")).cast(pa.string())
    text = pc.replace_substring(text, " ", "T", max_replacements=1)
    values: list[Any] = pc.binary_join_element_wise(text, suffix, "").to_pylist()
    return values
