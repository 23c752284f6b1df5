"""Conversion of validated records to the columns of the output schema."""

import pyarrow as pa

from batch_pipeline.encode.arrow_types import JSON_TYPES, arrow_type_of, exact_cast
from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.validation.text_values import parse_decimals, parse_texts
from batch_pipeline.encode.writers.json_cells import values_as_text
from batch_pipeline.encode.writers.json_lines import encode_column
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.errors import InvariantError
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import Column, ColumnType, RecordSchema
from batch_pipeline.storage.part_formats import table_codec

# Arrow parses text of these columns as validation does.
_PARSED_BY_ARROW = frozenset({ColumnType.STRING, ColumnType.INTEGER, ColumnType.NUMBER})
_JSON_METADATA = {"content_type": "application/json"}


def output_schema(schema: RecordSchema, file_format: Format) -> pa.Schema:
    """Return the columns as Arrow fields; objects, arrays and mixtures are JSON text.

    Such fields are strings with the metadata `content_type: application/json`, and what the format
    adds to them.
    """
    return pa.schema([_field(column, file_format) for column in schema.columns])


def batch_of_table(
    table: Table, schema: RecordSchema, arrow_schema: pa.Schema, on_nonfinite: OnNonfinite
) -> pa.RecordBatch:
    """Convert a table, whose values fit the schema; columns that it lacks are null."""
    present = {name: index for index, name in enumerate(table.batch.schema.names)}
    arrays = []
    for column in schema.columns:
        index = present.get(column.name)
        array = None if index is None else table.batch.column(index)
        if array is None or array.null_count == len(array):
            arrays.append(pa.nulls(table.good, arrow_type_of(column)))
        else:
            arrays.append(_convert_column(table, array, column, on_nonfinite))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _field(column: Column, file_format: Format) -> pa.Field:
    metadata = None
    if column.type in JSON_TYPES:
        metadata = _JSON_METADATA | table_codec(file_format).json_metadata
    return pa.field(column.name, arrow_type_of(column), metadata=metadata)


def _convert_column(
    table: Table, array: pa.Array, column: Column, on_nonfinite: OnNonfinite
) -> pa.Array:
    arrow_type = arrow_type_of(column)
    if column.type in JSON_TYPES:
        return encode_column(table, array, column, on_nonfinite).joined()
    if column.name in table.text:
        return _parse_column(array, column)
    if array.type == arrow_type:
        return array
    if column.type is ColumnType.STRING:
        return values_as_text(array, on_nonfinite)
    return exact_cast(array, arrow_type)


def _parse_column(text: pa.StringArray, column: Column) -> pa.Array:
    """Parse validated text."""
    if column.type in _PARSED_BY_ARROW:
        return text.cast(arrow_type_of(column))
    if column.type is ColumnType.DECIMAL:
        return parse_decimals(text, column)
    array, invalid = parse_texts(text, column)
    if invalid:
        value = text[invalid[0]].as_py()
        problem = f"column {column.name!r} holds {value!r}, which is not of type {column.type_text}"
        raise InvariantError(f"{problem}, and the check let it pass.")
    return array
