"""Turns nested Arrow arrays into JSON text, level by level; leaves are converted as arrays.

Which columns are nested, and what becomes of their misfits, is for the readers to know.
"""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.types as at

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.schema import ColumnType
from batch_pipeline.spark.arrow_types import ArrowTypeUnknownError, column_of, plain_type
from batch_pipeline.spark.json_values import NonfiniteError, json_text
from batch_pipeline.spark.read.arrow_values import Fitted, MisfitError, fitted, flattened


def json_texts(array: pa.Array, on_nonfinite: OnNonfinite) -> Fitted:
    """Write each value as compact JSON text; a null stays null.

    A map is an object when its keys are text, else an array of `[key, value]`.
    """
    texts: list[bytes | None] = []
    misfits: dict[int, MisfitError] = {}
    for index, value in enumerate(python_values(array)):
        try:
            texts.append(None if value is None else json_text(value, on_nonfinite))
        except MisfitError as misfit:
            texts.append(None)
            misfits[index] = misfit
        except NonfiniteError as error:
            texts.append(None)
            misfits[index] = MisfitError(str(error), str(value))
        except RecursionError:
            texts.append(None)
            misfits[index] = MisfitError("is nested too deeply", "")
    return Fitted(pa.array(texts, pa.binary()).cast(pa.string()), misfits)


def python_values(array: pa.Array) -> list[Any]:
    """Give the values as Python has them; a misfit stands in its own place."""
    array = flattened(array)
    if at.is_struct(array.type):
        return _objects(array)
    if at.is_map(array.type):
        return _maps(array)
    if at.is_list_view(array.type) or at.is_large_list_view(array.type):
        starts, sizes = array.offsets.to_pylist(), array.sizes.to_pylist()
        spans = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        return _lists(array, python_values(array.values), spans)
    if at.is_list(array.type) or at.is_large_list(array.type):
        return _lists(array, python_values(array.values), list(pairwise(array.offsets.to_pylist())))
    if at.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts = [(array.offset + index) * size for index in range(len(array))]
        return _lists(array, python_values(array.values), [(at, at + size) for at in starts])
    return _leaves(array)


def check_nested(name: str, arrow_type: pa.DataType) -> None:
    """Refuse types whose values cannot all be told.

    Raises:
        ArrowTypeUnknownError: a type inside has no column type, or an object has a name twice.
    """
    plain = plain_type(arrow_type)
    column_of(name, plain)
    if at.is_map(plain):
        children = [plain.key_field, plain.item_field]
    else:
        children = [plain.field(index) for index in range(plain.num_fields)]
    names = [child.name for child in children]
    if at.is_struct(plain) and len(set(names)) < len(names):
        raise ArrowTypeUnknownError(f"column {name!r} holds objects with a name twice: {plain}")
    for child in children:
        check_nested(f"{name}.{child.name}", child.type)


def _objects(array: pa.StructArray) -> list[Any]:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    columns = [python_values(child) for child in array.flatten()]
    rows = zip(*columns, strict=True) if columns else ((),) * len(array)
    objects: list[Any] = [dict(zip(names, row, strict=True)) for row in rows]
    return _with_nulls(array, objects)


def _lists(array: pa.Array, values: list[Any], spans: list[tuple[int, int]]) -> list[Any]:
    return _with_nulls(array, [values[start:stop] for start, stop in spans])


def _maps(array: pa.MapArray) -> list[Any]:
    keys, items = python_values(array.keys), python_values(array.items)
    spans = pairwise(array.offsets.to_pylist())
    pairs = [list(zip(keys[start:stop], items[start:stop], strict=True)) for start, stop in spans]
    if column_of("", array.type).type is ColumnType.ARRAY:
        return _with_nulls(array, pairs)
    return _with_nulls(array, [_object(pair) for pair in pairs])


def _object(pairs: list[tuple[Any, Any]]) -> Any:
    for key, _ in pairs:
        if isinstance(key, MisfitError):
            return key
    found = dict(pairs)
    if len(found) < len(pairs):
        return MisfitError("holds a map with a key that is there twice", str(pairs))
    return found


def _leaves(array: pa.Array) -> list[Any]:
    column = column_of("", array.type)
    if column.type is ColumnType.ANY:  # decimals that Arrow has no shorter type for
        return list(array.to_pylist())
    done = fitted(array, column)
    values: list[Any] = done.array.to_pylist()
    for index, misfit in done.misfits.items():
        values[index] = misfit
    return values


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    valid = array.is_valid().to_pylist()
    return [value if is_there else None for value, is_there in zip(values, valid, strict=True)]
