"""Brings checked records into the columns of the output's schema, column by column in Arrow."""

import pyarrow as pa

from batch_pipeline.domain.encoding import Format
from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema
from batch_pipeline.spark.arrow_types import JSON_TYPES, arrow_type_of, exact_cast
from batch_pipeline.spark.check.text_forms import decimals_of, read_texts
from batch_pipeline.spark.chunks import Table
from batch_pipeline.spark.write.json_cells import text_of_values
from batch_pipeline.spark.write.json_lines import cells_of

# Arrow reads text of these columns as the check does.
_CAST_ALIKE = frozenset({ColumnType.STRING, ColumnType.INTEGER, ColumnType.NUMBER})
_HOLDS_JSON = {"content_type": "application/json"}
_JSON_EXTENSION = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}


class UncheckedTextError(ValueError):
    """A text that is no value of its column came through the check: our mistake."""

    def __init__(self, text: str, column: Column) -> None:
        super().__init__(f"column {column.name!r} holds {text!r}, which is no {column.type_text}")


def output_schema(schema: RecordSchema, file_format: Format) -> pa.Schema:
    """Give the columns as Arrow fields; objects, arrays and mixtures are JSON text.

    Such fields are plain strings whose metadata say `content_type: application/json`; in Arrow
    files they also carry the name of Arrow's JSON extension, by which readers that know it, the
    Singer SDK among them, give the values themselves.
    """
    return pa.schema([_field(column, file_format) for column in schema.columns])


def batch_of_table(
    table: Table, schema: RecordSchema, arrow_schema: pa.Schema, on_nonfinite: OnNonfinite
) -> pa.RecordBatch:
    """Bring a table, whose values fit the schema, into its columns; one that it lacks is null."""
    present = {name: index for index, name in enumerate(table.batch.schema.names)}
    arrays = []
    for column in schema.columns:
        index = present.get(column.name)
        array = None if index is None else table.batch.column(index)
        if array is None or array.null_count == len(array):
            arrays.append(pa.nulls(table.good, arrow_type_of(column)))
        else:
            arrays.append(_typed(table, array, column, on_nonfinite))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _field(column: Column, file_format: Format) -> pa.Field:
    metadata = None
    if column.type in JSON_TYPES:
        metadata = _HOLDS_JSON | (_JSON_EXTENSION if file_format is Format.ARROW else {})
    return pa.field(column.name, arrow_type_of(column), metadata=metadata)


def _typed(table: Table, array: pa.Array, column: Column, on_nonfinite: OnNonfinite) -> pa.Array:
    wanted = arrow_type_of(column)
    if column.type in JSON_TYPES:
        return cells_of(table, array, column, on_nonfinite).whole()
    if column.name in table.text:
        return _of_text(array, column)
    if array.type == wanted:
        return array
    if column.type is ColumnType.STRING:
        return text_of_values(array, on_nonfinite)
    return exact_cast(array, wanted)


def _of_text(text: pa.StringArray, column: Column) -> pa.Array:
    """Read text of the form that the check demands."""
    if column.type in _CAST_ALIKE:
        return text.cast(arrow_type_of(column))
    if column.type is ColumnType.DECIMAL:
        return decimals_of(text, column)
    array, unfit = read_texts(text, column)
    if unfit:
        raise UncheckedTextError(text[unfit[0]].as_py(), column)
    return array
