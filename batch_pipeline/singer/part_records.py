"""Records of a manifest's part files: verification, decoding and RECORD messages.

`record_blocks` produces RECORD messages, `records` produces Python objects. Records of a file are
read only after the size and SHA-256 of every file of the manifest were verified.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.encode.arrow_types import JSON_TYPES
from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.readers.arrow_values import unwrap_array
from batch_pipeline.encode.writers.json_lines import json_lines
from batch_pipeline.model.errors import BatchDataError
from batch_pipeline.model.location import shown
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.storage.local import PrivateFolder
from batch_pipeline.storage.part_formats import table_codec
from batch_pipeline.storage.part_formats.jsonl import DECOMPRESSION_ERRORS, read_lines
from batch_pipeline.storage.verification import (
    UnusablePartError,
    size_problem,
    store_problem,
    verified_file,
)

_ROWS = 2_000
_DECODING_ERRORS = (*DECOMPRESSION_ERRORS, pa.ArrowException, UnicodeDecodeError)
_record = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
T = TypeVar("T")
_encode_lines = msgspec.json.Encoder(decimal_format="number").encode_lines


def record_blocks(
    manifest: Manifest,
    name: str,
    *,
    columns: Collection[str] | None = None,
    on_nonfinite: OnNonfinite = OnNonfinite.QUARANTINE,
) -> Iterator[bytes]:
    """Yield the RECORD messages of a manifest as blocks of complete lines of about 1 MiB.

    The text of a record is copied from its file, so numbers keep all digits. `columns` limits the
    keys of the records. `on_nonfinite` applies to doubles of columnar files.

    Raises:
        BatchDataError: a file is missing, differs from what was published, or cannot be decoded, or
            a number is not finite.
        RetryableError: the store of a file is currently unreachable.
    """
    head = b'{"type":"RECORD","stream":' + json.dumps(name).encode() + b',"record":'
    joint = b"}\n" + head
    with _verified_files(manifest) as paths:
        for part, path in zip(manifest.part_files, paths, strict=True):
            for block in _json_lines(manifest, part, path, columns, on_nonfinite):
                yield b"".join((head, block[:-1].replace(b"\n", joint), b"}\n"))


def records(
    manifest: Manifest,
    *,
    columns: Collection[str] | None = None,
    on_nonfinite: OnNonfinite = OnNonfinite.QUARANTINE,
) -> Iterator[dict[str, Any]]:
    """Yield the records of a manifest as Python objects; non-integer numbers are decimals.

    Raises:
        BatchDataError: as for `record_blocks`.
        RetryableError: the store of a file is currently unreachable.
    """
    with _verified_files(manifest) as paths:
        for part, path in zip(manifest.part_files, paths, strict=True):
            blocks = _json_lines(manifest, part, path, columns, on_nonfinite)
            for decoded in _decoded(manifest, part, blocks, _record):
                yield from decoded


def check_sizes(manifest: Manifest) -> None:
    """Check that every part file exists with its published size.

    Raises:
        BatchDataError: a file is missing or has another size.
        RetryableError: the store of a file is currently unreachable.
    """
    for part in manifest.part_files:
        problem = size_problem(part)
        if problem is not None:
            raise _error(manifest, problem)


@contextmanager
def _verified_files(manifest: Manifest) -> Iterator[Sequence[Path]]:
    """Yield local paths of the part files after verifying size and SHA-256 of all files.

    Objects are downloaded once; the copies are deleted when the context ends.
    """
    check_sizes(manifest)
    with ExitStack() as copies:
        # One folder for all copies, because each folder keeps its lock file open.
        folder = cache(lambda: copies.enter_context(PrivateFolder("copy")).path)
        try:
            files = (verified_file(part, folder) for part in manifest.part_files)
            paths = [copies.enter_context(file) for file in files]
        except UnusablePartError as error:
            raise _error(manifest, str(error)) from error
        yield paths


def _error(manifest: Manifest, problem: str) -> BatchDataError:
    """Build the error for a part file that is missing or differs from what was published."""
    batch = manifest.batch
    return BatchDataError(
        f"{batch.job}: a part file of batch {batch.label}, generation {manifest.generation}, "
        f"cannot be sent: {problem}. No STATE was written for this batch, so it is "
        f"sent again. Restore the file, or materialize the partition again: its next generation "
        f"replaces this one. `batch-pipeline verify` checks all files."
    )


def _json_lines(
    manifest: Manifest,
    part: PartFile,
    path: Path,
    columns: Collection[str] | None,
    on_nonfinite: OnNonfinite,
) -> Iterator[bytes]:
    """Yield the records of a part file as blocks of lines, one JSON object per line.

    `path` is the local path of the file. Numbers keep all their digits. `columns` limits the keys
    of the records; values stay as written.

    Raises:
        BatchDataError: the file is not encoded as its manifest states, or its record count differs.
    """
    if manifest.encoding.part_format.is_columnar:
        blocks = _table_blocks(manifest, part, path, columns, on_nonfinite)
    else:
        blocks = _text_blocks(manifest, part, path, columns)
    count, place = 0, shown(part.uri)
    try:
        for block in blocks:
            count += block.count(b"\n")
            yield block
    except _DECODING_ERRORS as error:
        what = f"{manifest.encoding.format} with compression {manifest.encoding.compression}"
        problem = f"{place}, record {count + 1} or later: is not {what} ({str(error).strip()})"
        raise _error(manifest, problem) from error
    except OSError as error:
        raise _error(manifest, store_problem(part.uri, error, "read")) from error
    if count != part.records:
        problem = f"{place} has a record count of {count}, published: {part.records}"
        raise _error(manifest, problem)


def _text_blocks(
    manifest: Manifest, part: PartFile, path: Path, columns: Collection[str] | None
) -> Iterator[bytes]:
    with path.open("rb") as file:
        blocks = read_lines(file, manifest.encoding.compression)
        if columns is None:
            yield from blocks
            return
        for decoded in _decoded(manifest, part, blocks, _fields):
            kept = ({name: one[name] for name in one if name in columns} for one in decoded)
            yield _encode_lines(kept)


def _decoded(
    manifest: Manifest, part: PartFile, blocks: Iterable[bytes], decoder: msgspec.json.Decoder[T]
) -> Iterator[list[T]]:
    """Decode the lines of each block, or raise an error that names the line."""
    number = 0
    for block in blocks:
        decoded = []
        for line in block[:-1].split(b"\n"):
            number += 1
            try:
                decoded.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                problem = f"{shown(part.uri)}, line {number}: is not a JSON object ({error})"
                raise _error(manifest, problem) from error
        yield decoded


def _table_blocks(
    manifest: Manifest,
    part: PartFile,
    path: Path,
    columns: Collection[str] | None,
    on_nonfinite: OnNonfinite,
) -> Iterator[bytes]:
    """Yield rows as JSON objects with the schema's columns in order."""
    selected = manifest.schema.columns
    if columns is not None:
        selected = tuple(column for column in selected if column.name in columns)
    schema = RecordSchema(selected)
    names = frozenset(schema.names)
    json_names = frozenset(column.name for column in selected if column.type in JSON_TYPES)
    first = 1
    for batch in table_codec(manifest.encoding.format).read_batches(path, names, _ROWS):
        arrays = [unwrap_array(array) for array in batch.columns]
        plain = pa.RecordBatch.from_arrays(arrays, batch.schema.names) if arrays else batch
        table = Table(batch=plain, line_numbers=(), record_numbers=(), json=json_names)
        if on_nonfinite is OnNonfinite.QUARANTINE and (problem := _nonfinite(plain, first)):
            raise _error(manifest, f"{shown(part.uri)}, {problem}")
        for lines in json_lines(table, schema, on_nonfinite):
            yield bytes(lines.text)
        first += batch.num_rows


def _nonfinite(batch: pa.RecordBatch, first: int) -> str | None:
    """Describe a number that JSON does not have; `first` is the number of the first record."""
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        row = pc.is_finite(array).index(False).as_py() if at.is_floating(array.type) else -1
        if row >= 0:
            return (
                f"record {first + row}: {name!r} is {array[row]}, which is no JSON number "
                f"(`on_nonfinite` of the stream file may be `null` or `string`)"
            )
    return None
