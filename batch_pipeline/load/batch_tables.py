"""Part files of published batches as Arrow tables with one schema.

Types of columns are only ever widened from one schema version to the next. Values of older part
files are converted to the newest types: integers to decimals or doubles, values of a column that
became text or mixed to their JSON form. A column that a part file does not have yet is null. Only
integers beyond 2^53 may not fit, if the column became a number by a batch without such integers.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.encode.arrow_types import JSON_TYPES, arrow_schema_of, arrow_type_of, exact_cast
from batch_pipeline.encode.writers.json_lines import encode_values
from batch_pipeline.load.part_blocks import batch_of, read_blocks
from batch_pipeline.load.types import IncompatibleValueError
from batch_pipeline.model.errors import BatchDataError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.storage.verification import UnusablePartError

_IF_UNREADABLE = (
    "If its files are on another machine, use a storage root that all machines reach, such as "
    "s3://. If they are lost, materialize the partition again."
)
_IF_INEXACT = (
    "Materialize the partition again: the column then has a type that holds the values of all "
    "batches."
)


class _InexactError(ValueError):
    """Values of a column cannot be converted to its newest type."""


def common_schema(manifests: Iterable[Manifest]) -> RecordSchema:
    """Return the schema that holds the records of all manifests of a stream.

    The columns are those of the newest schema version, followed by columns that only other
    manifests have.
    """
    schema = RecordSchema()
    for manifest in sorted(manifests, key=attrgetter("schema_version"), reverse=True):
        known = schema.by_name()
        added = tuple(column for column in manifest.schema.columns if column.name not in known)
        schema = RecordSchema(schema.columns + added)
    return schema


def read_batches(manifest: Manifest, schema: RecordSchema) -> Iterator[pa.RecordBatch]:
    """Yield the records of a manifest's part files with the columns and types of `schema`.

    The size and SHA-256 of a file are verified before it is read.

    Raises:
        BatchDataError: a part file is missing or differs from what was published, or a value does
            not fit the type that `schema` has.
        RetryableError: the store of a part file cannot be reached.
    """
    known = manifest.schema.by_name()
    pairs = [(known.get(column.name), column) for column in schema.columns]
    try:
        for block in read_blocks(manifest):
            batch = block.read()
            arrays = [_converted(batch, old, column) for old, column in pairs]
            yield batch_of(arrays, schema.names, batch.num_rows)
    except _InexactError as error:
        raise unreadable_error(manifest, str(error), _IF_INEXACT) from error
    except (UnusablePartError, IncompatibleValueError, pa.ArrowInvalid) as error:
        raise unreadable_error(manifest, str(error)) from error


def read_table(manifests: Sequence[Manifest], schema: RecordSchema) -> pa.Table:
    """Read the records of several manifests, in their order, into one table."""
    batches = (batch for manifest in manifests for batch in read_batches(manifest, schema))
    return pa.Table.from_batches(batches, arrow_schema_of(schema.columns))


def unreadable_error(
    manifest: Manifest, reason: str, next_step: str = _IF_UNREADABLE
) -> BatchDataError:
    """Build the error for a batch whose part files cannot be read."""
    batch = manifest.batch
    return BatchDataError(
        f"{batch.job}: batch {batch.label}, generation {manifest.generation}, cannot be read: "
        f"{reason}. {next_step}"
    )


def _converted(batch: pa.RecordBatch, old: Column | None, new: Column) -> pa.Array:
    kind = arrow_type_of(new)
    if old is None or old.type is ColumnType.UNKNOWN:
        return pa.nulls(batch.num_rows, kind)
    array = batch.column(old.name)
    if old.type_text == new.type_text or (old.type in JSON_TYPES and new.type in JSON_TYPES):
        return array
    if new.type in JSON_TYPES or new.type is ColumnType.STRING:
        text = encode_values(array, OnNonfinite.NULL).joined()
        return text if new.type in JSON_TYPES else pc.utf8_trim(text, characters='"')
    try:
        return exact_cast(array, kind)
    except pa.ArrowInvalid as error:
        problem = f"its column {new.name!r} became {new.type_text} later, which is inexact"
        raise _InexactError(f"{problem} ({error})") from error
