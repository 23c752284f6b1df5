"""The types that columns of a loaded table have, which hold what, and how one becomes a wider one.

Names and SQL expressions only; values are written elsewhere.
"""

import re
from enum import StrEnum

from batch_pipeline.domain.schema import Column, ColumnType

_INTEGER_DIGITS = 19
_LIMITED = re.compile(r"numeric\((\d+),(\d+)\)")


class PgType(StrEnum):
    """Types as Postgres names them."""

    BOOLEAN = "boolean"
    BIGINT = "bigint"
    NUMERIC = "numeric"
    DOUBLE = "double precision"
    TEXT = "text"
    BYTEA = "bytea"
    DATE = "date"
    TIME = "time without time zone"
    TIMESTAMPTZ = "timestamp with time zone"
    TIMESTAMP = "timestamp without time zone"
    JSONB = "jsonb"


_OWN = {
    ColumnType.BOOLEAN: PgType.BOOLEAN,
    ColumnType.INTEGER: PgType.BIGINT,
    ColumnType.DECIMAL: PgType.NUMERIC,
    ColumnType.NUMBER: PgType.DOUBLE,
    ColumnType.STRING: PgType.TEXT,
    ColumnType.BINARY: PgType.BYTEA,
    ColumnType.DATE: PgType.DATE,
    ColumnType.TIME: PgType.TIME,
    ColumnType.TIMESTAMP: PgType.TIMESTAMPTZ,
    ColumnType.LOCAL_TIMESTAMP: PgType.TIMESTAMP,
    ColumnType.OBJECT: PgType.JSONB,
    ColumnType.ARRAY: PgType.JSONB,
    ColumnType.ANY: PgType.JSONB,
}
_HOLD_INTEGERS = frozenset({PgType.BIGINT, PgType.NUMERIC, PgType.DOUBLE})
_NUMBERS = _HOLD_INTEGERS | {PgType.BOOLEAN}
_AS_TEXT = {
    PgType.BYTEA: r"replace(encode({0}, 'base64'), E'\n', '')",
    PgType.DATE: "to_char({0}, 'YYYY-MM-DD')",
    PgType.TIME: "to_char(date '2000-01-01' + {0}, 'HH24:MI:SS.US')",
    PgType.TIMESTAMPTZ: "to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
    PgType.TIMESTAMP: "to_char({0}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')",
}


def type_for(column: Column) -> PgType:
    """Give the type that a new column gets; one of nulls alone is not made yet."""
    return _OWN[column.type]


def known_type(name: str) -> PgType | None:
    """Give the type of an existing column by the name that the server has for it."""
    if name == "character varying":
        return PgType.TEXT
    if _LIMITED.fullmatch(name):
        return PgType.NUMERIC
    return PgType(name) if name in set(PgType) else None


def holds(name: str, column: Column) -> bool:
    """Tell whether a column of the named type holds the values of a column.

    Double precision holds integers, too, as far as each of them is one.
    """
    kind = known_type(name)
    limited = _LIMITED.fullmatch(name)
    if limited is not None:
        return _fits(int(limited[1]), int(limited[2]), column)
    if kind is None or kind is _OWN[column.type] or kind is PgType.JSONB:
        return kind is not None
    match column.type:
        case ColumnType.OBJECT | ColumnType.ARRAY | ColumnType.ANY:
            return False
        case ColumnType.INTEGER:
            return kind in _HOLD_INTEGERS or kind is PgType.TEXT
        case ColumnType.NUMBER:
            return kind in {PgType.NUMERIC, PgType.TEXT}
        case _:
            return kind is PgType.TEXT


def widened(kind: PgType, column: Column) -> PgType:
    """Give the narrowest type that holds what a type holds, and the values of a column."""
    wanted = _OWN[column.type]
    if kind in _HOLD_INTEGERS and wanted in _HOLD_INTEGERS:
        return PgType.NUMERIC
    return PgType.JSONB if wanted is PgType.JSONB else PgType.TEXT


def conversion(kind: PgType, wider: PgType) -> str:
    """Give the SQL expression, with `{0}` for the column, that turns values into a wider type."""
    text = _AS_TEXT.get(kind, "{0}::text")
    if wider is PgType.JSONB:
        return "to_jsonb({0})" if kind in _NUMBERS else f"to_jsonb({text})"
    return f"{text}::numeric" if wider is PgType.NUMERIC else text


def _fits(precision: int, scale: int, column: Column) -> bool:
    if column.type is ColumnType.INTEGER:
        return precision - scale >= _INTEGER_DIGITS
    whole = column.precision - column.scale
    return (
        column.type is ColumnType.DECIMAL and scale >= column.scale and precision - scale >= whole
    )
