"""Structured filters on a meta table: conditions on columns, combined with all and any.

`parse_filter` reads the form of stream files; `upstream_of` finds the job that a filter selects.
Filters never contain SQL text: the inventory translates them to expressions with bound values. As
in SQL, NULL matches no operator except `is null`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, require

Scalar: TypeAlias = str | int | float | bool
_MAX_DEPTH = 16
_SHAPE = "a list of {column, operator, value}, {all: […]} or {any: […]}"


class Operator(StrEnum):
    """Comparison operators."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    IN = "in"
    NOT_IN = "not in"
    LIKE = "like"
    IS_NULL = "is null"
    IS_NOT_NULL = "is not null"


_WITHOUT_VALUE = (Operator.IS_NULL, Operator.IS_NOT_NULL)
_WITH_LIST = (Operator.IN, Operator.NOT_IN)


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparison of a column; `value` is a tuple for `in` and `not in`, None for null tests.

    Raises:
        InvalidValueError: the value does not fit the operator.
    """

    column: str
    operator: Operator
    value: Scalar | tuple[Scalar, ...] | None = None

    def __post_init__(self) -> None:
        fits = isinstance(self.column, str) and self.column and "\0" not in self.column
        require(fits, "column", self.column, "the name of a column")
        fits, expected = _fits(self.operator, self.value)
        require(fits, "value", self.value, f"{expected} with {self.operator.value!r}")

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns used."""
        return (self.column,)

    def to_json(self) -> dict[str, Any]:
        """Return the condition in the form that `parse_filter` reads."""
        written = {"column": self.column, "operator": self.operator.value}
        if self.operator in _WITHOUT_VALUE:
            return written
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return written | {"value": value}


@dataclass(frozen=True, slots=True)
class _Group:
    """Combination of at least one filter; `key` is its key in stream files."""

    key: ClassVar[str]
    parts: "tuple[Filter, ...]"

    def __post_init__(self) -> None:
        require(self.parts, self.key, self.parts, "at least one condition")

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns used, in order, each once."""
        return tuple(dict.fromkeys(column for part in self.parts for column in part.columns))

    def to_json(self) -> dict[str, Any]:
        """Return the filter in the form that `parse_filter` reads."""
        return {self.key: [part.to_json() for part in self.parts]}


class AllOf(_Group):
    """Filter for rows that match every part."""

    __slots__ = ()
    key = "all"


class AnyOf(_Group):
    """Filter for rows that match at least one part."""

    __slots__ = ()
    key = "any"


Filter: TypeAlias = Condition | AllOf | AnyOf


def is_storable(text: str) -> bool:
    """Return whether databases can store a text: no NUL and no unpaired surrogates."""
    try:
        return b"\0" not in text.encode("utf-8")
    except UnicodeEncodeError:
        return False


def parse_filter(value: object, place: str = "where") -> Filter:
    """Parse a filter from plain lists and dicts; in a list, all conditions must match.

    `place` is the name of the outermost value in messages. Dates and times from YAML become ISO
    text.

    Raises:
        InvalidValueError: a part is malformed; the message names its place.
    """
    return _parse(value, place, depth=0)


def _parse(value: object, place: str, *, depth: int) -> Filter:
    fits = depth <= _MAX_DEPTH
    require(fits, place, "(not shown)", f"at most {_MAX_DEPTH} levels of nesting")
    if isinstance(value, list):
        return AllOf(_parse_parts(value, place, depth=depth))
    if not isinstance(value, dict):
        raise InvalidValueError(place, value, _SHAPE)
    for kind in (AllOf, AnyOf):
        if set(value) == {kind.key}:
            return kind(_parse_parts(value[kind.key], f"{place}.{kind.key}", depth=depth))
    return _parse_condition(value, place)


def _parse_parts(value: object, place: str, *, depth: int) -> tuple[Filter, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidValueError(place, value, "a list of at least one condition")
    return tuple(
        _parse(part, f"{place}[{position}]", depth=depth + 1) for position, part in enumerate(value)
    )


def _parse_condition(value: dict[Any, Any], place: str) -> Condition:
    unknown = [key for key in value if key not in {"column", "operator", "value"}]
    if unknown:
        raise InvalidValueError(f"{place}.{unknown[0]}", value[unknown[0]], _SHAPE)
    operator, operand = value.get("operator"), _plain(value.get("value"))
    if not isinstance(operator, str) or operator not in set(Operator):
        known = ", ".join(f"'{known.value}'" for known in Operator)
        raise InvalidValueError(f"{place}.operator", operator, f"one of {known}")
    fits = "value" not in value or Operator(operator) not in _WITHOUT_VALUE
    require(fits, f"{place}.value", operand, f"no value with {operator!r}")
    try:
        return Condition(value.get("column", ""), Operator(operator), operand)
    except InvalidValueError as error:
        raise InvalidValueError(f"{place}.{error.name}", error.value, error.expected) from error


def _plain(value: object) -> Any:
    if isinstance(value, list):  # nested lists are rejected without converting them
        return tuple(part if isinstance(part, list) else _plain(part) for part in value)
    return value.isoformat() if isinstance(value, date) else value


def _fits(operator: Operator, value: object) -> tuple[bool, str]:
    """Return whether a value fits an operator, and a description of valid values."""
    if operator in _WITHOUT_VALUE:
        return value is None, "no value"
    if operator in _WITH_LIST:
        fits = isinstance(value, tuple) and bool(value) and all(map(_is_scalar, value))
        return fits, "a list of at least one string, number or boolean"
    if operator is Operator.LIKE:
        expected = "a pattern with % and _ that does not end in a single backslash"
        return isinstance(value, str) and _is_scalar(value) and _is_ended(value), expected
    return _is_scalar(value), "a string, number or boolean ('is null' tests for NULL)"


def _is_ended(pattern: str) -> bool:
    """Return whether a pattern does not end in an escape character."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 0


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return is_storable(value)
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Job whose published batches are the items; `meta_table` is set if the name is ambiguous."""

    job: str
    meta_table: str | None = None

    def __str__(self) -> str:
        return self.job if self.meta_table is None else f"{self.job} on {self.meta_table}"


def upstream_of(reader: str, where: Filter | None) -> Upstream:
    """Return the job that a filter restricts the rows to; other conditions are ignored.

    Raises:
        ConfigurationError: the filter names no job or several.
    """
    stated = list(_stated(where))
    jobs = {text for column, text in stated if column == "job"}
    tables = {text for column, text in stated if column == "meta_table"}
    if not jobs:
        raise _upstream_unclear(reader, "its filter does not say of which job")
    if len(jobs) > 1 or len(tables) > 1:
        raise _upstream_unclear(reader, "its filter requires two jobs at once, which no row has")
    return Upstream(job=jobs.pop(), meta_table=tables.pop() if tables else None)


def _stated(where: Filter | None) -> Iterator[tuple[str, str]]:
    """Yield the equality conditions, as column and text, that every row must meet."""
    if isinstance(where, AllOf):
        for part in where.parts:
            yield from _stated(part)
    if isinstance(where, Condition) and where.operator is Operator.EQUAL:
        yield where.column, str(where.value)


def _upstream_unclear(job: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"Job {job!r} reads what other jobs have published, and {problem}. Nothing "
        f"was acquired. Name exactly one, as in "
        f'where=[{{"column": "job", "operator": "=", "value": "…"}}].'
    )
