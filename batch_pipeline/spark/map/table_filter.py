"""Filters whole columns at once where that certainly gives what Python would say of each record.

Comparisons of text or integer columns with constants, tests for null, and what joins them by `and`,
`or` and `not`. Everything else is for the expression's own evaluation, record by record.
"""

import ast
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from batch_pipeline.spark.map.table_cells import CellKind, Cells

_ORDER: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_EQUAL = (ast.Eq, ast.NotEq)
_SAME = (ast.Is, ast.IsNot, *_EQUAL)
_MEMBER = (ast.In, ast.NotIn)
_NEGATED = (ast.NotEq, ast.IsNot, ast.NotIn)
_OVERLAID = frozenset({"_", "record", "config", "fake", "__stream_name__"}) | {
    "__original_stream_name__"
}


class NotVectorisedError(Exception):
    """A filter has parts that must be evaluated record by record."""


def mask_of(node: ast.expr, columns: Mapping[str, Cells]) -> pa.BooleanArray:
    """Give for each record whether the filter holds.

    Raises:
        NotVectorisedError: it must be evaluated record by record.
    """
    if isinstance(node, ast.BoolOp):
        masks = [mask_of(value, columns) for value in node.values]
        joined = masks[0]
        for mask in masks[1:]:
            joined = pc.and_(joined, mask) if isinstance(node.op, ast.And) else pc.or_(joined, mask)
        return joined
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return pc.invert(mask_of(node.operand, columns))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(_column(node.left, columns), node.ops[0], node.comparators[0])
    raise NotVectorisedError


def _column(node: ast.expr, columns: Mapping[str, Cells]) -> Cells:
    if not isinstance(node, ast.Name) or node.id in _OVERLAID or node.id not in columns:
        raise NotVectorisedError
    cells = columns[node.id]
    if cells.kind is CellKind.JSON:
        raise NotVectorisedError
    return cells


def _compared(cells: Cells, comparison: ast.cmpop, right: ast.expr) -> pa.BooleanArray:
    if _is_null(right) and isinstance(comparison, _SAME):
        if at.is_floating(cells.array.type):
            raise NotVectorisedError  # NaN may count as null
        mask = pc.is_null(cells.array)
    elif isinstance(comparison, _MEMBER) and isinstance(right, ast.List | ast.Tuple):
        allowed = pa.array([_constant(one, cells) for one in right.elts], cells.array.type)
        mask = pc.is_in(cells.array, value_set=allowed)
    elif isinstance(comparison, _EQUAL):
        constant = pa.scalar(_constant(right, cells), cells.array.type)
        mask = pc.fill_null(pc.equal(cells.array, constant), fill_value=False)
    elif type(comparison) in _ORDER and not cells.array.null_count:
        constant = pa.scalar(_constant(right, cells), cells.array.type)
        return _ORDER[type(comparison)](cells.array, constant)
    else:
        raise NotVectorisedError
    return pc.invert(mask) if isinstance(comparison, _NEGATED) else mask


def _is_null(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _constant(node: ast.expr, cells: Cells) -> str | int:
    """Give a constant of the column's own type."""
    value = node.value if isinstance(node, ast.Constant) else None
    is_text = at.is_string(cells.array.type) or at.is_large_string(cells.array.type)
    if isinstance(value, str) and is_text and len(value) <= 100_000:
        return value
    if type(value) is int and at.is_int64(cells.array.type) and -(2**63) <= value < 2**63:
        return value
    raise NotVectorisedError
