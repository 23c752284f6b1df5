"""Translate structured filters into SQLAlchemy expressions.

Columns are reflected and values are bound; no SQL text is built.
"""

import datetime as dt
import json
import operator
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias, assert_never

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.dialects import postgresql as pg

from batch_pipeline.model.batch import MAX_ID, MIN_ID
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.filter import AllOf, AnyOf, Condition, Filter, Operator, Scalar

_COMPARISONS: dict[Operator, Callable[[Any, Any], Any]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
}
_MAX_PARAMETERS = 1_000
_BIGINT, _NUMERIC = sa.BigInteger(), sa.Numeric()
_Typed: TypeAlias = tuple[object, sa.types.TypeEngine[Any]]
_ORDER_WITHOUT_FRACTION = (Operator.GREATER_OR_EQUAL, Operator.LESS)


def filter_expression(
    table: sa.Table, where: Filter, dialect: sa.Dialect
) -> sa.ColumnElement[bool]:
    """Return the expression of a filter. The table must have its columns.

    Raises:
        InvalidValueError: a value cannot be compared with its column.
    """
    if isinstance(where, AllOf):
        return sa.and_(*(filter_expression(table, part, dialect) for part in where.parts))
    if isinstance(where, AnyOf):
        return sa.or_(*(filter_expression(table, part, dialect) for part in where.parts))
    return _condition(table.c[where.column], where, dialect)


def _condition(
    column: sa.Column[Any], condition: Condition, dialect: sa.Dialect
) -> sa.ColumnElement[bool]:
    match condition.operator:
        case Operator.IS_NULL:
            return column.is_(None)
        case Operator.IS_NOT_NULL:
            return column.is_not(None)
        case Operator.IN | Operator.NOT_IN:
            operands = [_coerce(column, operand) for operand in _operands(condition)]
            is_member = _in_list(column, operands, dialect)
            return sa.not_(is_member) if condition.operator is Operator.NOT_IN else is_member
        case Operator.LIKE:
            is_text = isinstance(column.type, sa.String | sa.types.NullType)
            if not is_text or isinstance(column.type, pg.ENUM):
                raise _mismatch(column, condition.value, "a column of text to use 'like' on")
            escape = "\\" if dialect.name == "sqlite" else None  # the default of the others
            return column.like(sa.literal(_operands(condition)[0], sa.String), escape=escape)
        case (
            Operator.EQUAL
            | Operator.NOT_EQUAL
            | Operator.LESS
            | Operator.LESS_OR_EQUAL
            | Operator.GREATER
            | Operator.GREATER_OR_EQUAL
        ):
            compare = _COMPARISONS[condition.operator]
            bound = sa.literal(*_coerce(column, _operands(condition)[0]))
            if condition.operator in _ORDER_WITHOUT_FRACTION:
                bound = _drop_fraction(bound)
            expression: sa.ColumnElement[bool] = compare(column, bound)
            return expression
        case _:
            assert_never(condition.operator)


def _in_list(
    column: sa.Column[Any], operands: Sequence[_Typed], dialect: sa.Dialect
) -> sa.ColumnElement[bool]:
    """Return `column IN operands`, with a long list as one parameter if parameters are limited.

    Postgres accepts 65,535 parameters and SQLite 32,766. The drivers of MySQL write the values into
    the statement.
    """
    kind, values = operands[0][1], [value for value, _ in operands]
    if len(operands) <= _MAX_PARAMETERS or len({type(operand) for _, operand in operands}) > 1:
        return column.in_([sa.literal(*operand) for operand in operands])
    if dialect.name == "postgresql" and not isinstance(kind, sa.Enum):
        return column == sa.any_(sa.literal(values, sa.ARRAY(kind)))
    if dialect.name == "sqlite":
        impl: Any = kind.dialect_impl(dialect)
        encode = impl.bind_processor(dialect)
        encoded = values if encode is None else [encode(operand) for operand in values]
        json_list = sa.literal(json.dumps(encoded), sa.String)
        return column.in_(sa.select(sa.func.json_each(json_list).table_valued("value").c.value))
    return column.in_(sa.bindparam(None, values, type_=kind, expanding=True))


def _operands(condition: Condition) -> tuple[Scalar, ...]:
    value = condition.value
    if isinstance(value, tuple):
        return value
    return () if value is None else (value,)


def _coerce(column: sa.Column[Any], value: Scalar) -> _Typed:
    """Return a value and its SQL type: the column's, or bigint for any width of integer."""
    kind = column.type
    if isinstance(kind, sa.Boolean):
        if not isinstance(value, bool):
            raise _mismatch(column, value, "true or false")
        return value, kind
    if isinstance(kind, sa.Integer):
        if not isinstance(value, int) or not MIN_ID <= value <= MAX_ID:
            raise _mismatch(column, value, "a 64-bit integer")
        return int(value), _BIGINT
    if isinstance(kind, sa.Numeric | sa.Float):
        return _parse_decimal(column, value), _NUMERIC
    if isinstance(kind, sa.types.NullType):
        return value, sa.literal(value).type
    parsed = _parse_text(column, value)
    return parsed, _MysqlUtc(fsp=kind.fsp) if isinstance(kind, mysql.TIMESTAMP) else kind


class _MysqlUtc(mysql.TIMESTAMP):
    """A time in UTC to compare with a TIMESTAMP, which MySQL shows in the session's time zone."""

    def bind_expression(self, bindvalue: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        zone = sa.literal_column("@@session.time_zone", sa.String)
        return sa.func.convert_tz(bindvalue, sa.literal_column("'+00:00'"), zone)


def _drop_fraction(bound: sa.BindParameter[Any]) -> sa.BindParameter[Any]:
    """Drop the zero fraction of a whole second, so that it sorts first where times are text.

    SQLite stores times with and without a fraction, and `12:00:00` < `12:00:00.000000`.
    """
    if not isinstance(bound.value, dt.datetime) or bound.value.microsecond:
        return bound
    shorter = sqlite.DATETIME(truncate_microseconds=True)  # type: ignore[no-untyped-call] # SQLAlchemy does not annotate its constructor
    return sa.literal(bound.value, bound.type.with_variant(shorter, "sqlite"))


def _parse_decimal(column: sa.Column[Any], value: Scalar) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise _mismatch(column, value, "a number") from None
    if not number.is_finite():
        raise _mismatch(column, value, "a finite number")
    return number


def _parse_text(column: sa.Column[Any], value: Scalar) -> object:
    kind = column.type
    if isinstance(kind, sa.DateTime):
        return _parse(column, value, _time_parser(kind), "a time as in 2026-03-01T12:00:00+00:00")
    if isinstance(kind, sa.Date):
        return _parse(column, value, dt.date.fromisoformat, "a date as in 2026-03-01")
    if isinstance(kind, sa.Uuid):
        return _parse(column, value, uuid.UUID, "a UUID")
    if isinstance(kind, sa.Enum):
        if value not in kind.enums:
            raise _mismatch(column, value, f"one of {', '.join(kind.enums)}")
        return value
    if isinstance(kind, sa.String):
        return _parse(column, value, str, "a text")
    raise _mismatch(column, value, f"no filter, since {kind!r} cannot be compared here")


def _parse(
    column: sa.Column[Any], value: Scalar, parser: Callable[[str], object], expected: str
) -> object:
    if not isinstance(value, str):
        raise _mismatch(column, value, expected)
    try:
        return parser(value)
    except ValueError:
        raise _mismatch(column, value, expected) from None


def _time_parser(kind: sa.DateTime) -> Callable[[str], dt.datetime]:
    """Return a parser of times. Times and columns without a zone are UTC."""

    def parse(text: str) -> dt.datetime:
        time = dt.datetime.fromisoformat(text)
        aware = time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time
        return aware if kind.timezone else aware.astimezone(dt.UTC).replace(tzinfo=None)

    return parse


def _mismatch(column: sa.Column[Any], value: object, expected: str) -> InvalidValueError:
    return InvalidValueError(f"where: the value compared with {column.name!r}", value, expected)
