"""Whether a value that came out is the one that went in, for each kind of source and column.

Expectations follow from the written text or the Python value alone.
"""

import math
from datetime import timedelta
from typing import Any
from uuid import UUID

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline_tests.guarantees.fuzz import oracles
from batch_pipeline_tests.unit import test_value_round_trips as values
from batch_pipeline_tests.unit.typed_values import is_json_text

_JSON_TYPES = values.JSON_TYPES


def is_same_json(found: Any, was: Any, column: Column) -> bool:
    """Compare a cell of columns with a value as `oracles.shown` reads it."""
    if was is None:
        return found is None
    if column.type in _JSON_TYPES:
        return isinstance(found, str) and bool(oracles.shown(found) == was)
    if isinstance(was, tuple) and was[0] == "number":
        return column.type in values.NUMERIC and values.is_same_number(found, was[1], column)
    return type(found) is type(was) and bool(found == was)


def is_same_cell(found: Any, cell: str, column: Column, *, is_text: bool) -> bool:
    """Compare a value, a JSON one if `is_text`, with a cell of csv."""
    if not cell:
        return found is None or found == ""
    return values.is_same_cell(found, cell, column, is_text=is_text)


def is_same_typed(found: Any, was: Any, column: Column) -> bool:
    """Compare a cell of columns with the value that another library reads."""
    if was is None or isinstance(was, timedelta):  # durations are text of their own form
        return was is not None or found is None
    if column.type in _JSON_TYPES:
        return is_json_text(found, was)
    if isinstance(was, UUID):
        return bool(found == str(was))
    if isinstance(was, float):
        return isinstance(found, float) and _are_same_doubles(found, was)
    if column.type is ColumnType.DECIMAL:
        return bool(found == was)
    return bool(found == was) and isinstance(found, bool) is isinstance(was, bool)


def _are_same_doubles(found: float, was: float) -> bool:
    if math.isnan(was):
        return math.isnan(found)
    return found == was and math.copysign(1, found) == math.copysign(1, was)
