"""Decoders made for a set of columns: they read a JSON record at the speed of C, or refuse it.

Only how columns become fields; what a refused record holds is for `examined_record` to find out.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.arrow_types import JSON_TYPES
from batch_pipeline.spark.check.number_text import DOUBLE_EXACT

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_DoubleExact = Annotated[int, msgspec.Meta(ge=-DOUBLE_EXACT, le=DOUBLE_EXACT)]
_NESTED: dict[ColumnType, Any] = {
    ColumnType.OBJECT: dict[str, Any] | None,
    ColumnType.ARRAY: list[Any] | None,
    ColumnType.ANY: Any,
}
_PLAIN: dict[ColumnType, Any] = {
    ColumnType.UNKNOWN: None,
    ColumnType.BOOLEAN: bool | None,
    ColumnType.INTEGER: _Int64 | None,
    ColumnType.NUMBER: float | None,
    ColumnType.DECIMAL: Raw,
}


@lru_cache(maxsize=8)
def decoder_of(
    columns: tuple[Column, ...],
    *,
    values: bool,
    exact: bool,
    optional: frozenset[str],
    wide: frozenset[str],
) -> "RecordDecoder":
    """Give a decoder, the same one for the next files of the same columns: to make one is slow."""
    return RecordDecoder(columns, values=values, exact=exact, optional=optional, wide=wide)


class RecordDecoder:
    """Reads records into structs with one field a column, in order; absent keys are UNSET.

    With `values`, numbers are such as a double holds and nested values keep their text (`Raw`);
    `exact` keeps that of numbers too. Decimals always keep theirs. Only the `wide` ones among the
    integer columns have values then that no double holds. `optional` columns need not be
    in a record that `full` reads, all other ones must.
    """

    def __init__(
        self,
        columns: Iterable[Column],
        *,
        values: bool,
        exact: bool = False,
        optional: frozenset[str] = frozenset(),
        wide: frozenset[str] = frozenset(),
    ) -> None:
        self.columns = tuple(columns)
        self.raw = frozenset(
            index
            for index, column in enumerate(self.columns)
            if _is_raw(column.type, values=values, exact=exact)
        )
        self.optional = optional
        self._values = values
        self._wide = wide
        self.lenient = self._decode(frozenset(self.columns))
        absent = frozenset(column for column in self.columns if column.name in optional)
        self.full = self._decode(absent)
        self.required = len(self.columns) - len(absent)

    def getter(self, kinds: Iterable[ColumnType]) -> Callable[[Struct], Any] | None:
        """Give what takes the values of the columns of some types out of a record, None for none.

        One column gives its value, several a tuple of values.
        """
        wanted = frozenset(kinds)
        names = [f"c{at}" for at, column in enumerate(self.columns) if column.type in wanted]
        return attrgetter(*names) if names else None

    def record(self, values: dict[str, Any]) -> Struct:
        """Make a record of values that are what the decoder would have read."""
        found = {
            f"c{at}": values[column.name]
            for at, column in enumerate(self.columns)
            if column.name in values
        }
        return self._lenient_type(**found)

    def _decode(self, unset: frozenset[Column]) -> Callable[[bytes | memoryview], Struct]:
        fields: list[Any] = []
        for at, column in enumerate(self.columns):
            kind = self._field_type(at, column)
            if column in unset:
                fields.append((f"c{at}", kind | UnsetType, UNSET))
            else:
                fields.append((f"c{at}", kind))
        names = {f"c{at}": column.name for at, column in enumerate(self.columns)}
        decode: Callable[[bytes | memoryview], Any]
        try:
            kind = msgspec.defstruct(
                "Record",
                fields,
                rename=names,
                forbid_unknown_fields=True,
                gc=False,
                kw_only=True,
            )
            decode = msgspec.json.Decoder(kind).decode
        except ValueError:  # a name that JSON writes with an escape
            kind = msgspec.defstruct("Record", fields, kw_only=True)
            decode = _refuse
        if len(unset) == len(self.columns):
            self._lenient_type = kind
        return decode

    def _field_type(self, at: int, column: Column) -> Any:
        kind = column.type
        if at in self.raw:
            return Raw
        if kind is ColumnType.INTEGER and self._values and column.name not in self._wide:
            return _DoubleExact | None
        if kind is ColumnType.NUMBER and self._values:
            return _DoubleExact | float | None
        return _NESTED.get(kind, _PLAIN.get(kind, str | None))


def _is_raw(kind: ColumnType, *, values: bool, exact: bool) -> bool:
    if kind is ColumnType.DECIMAL:
        return True
    return values and (kind in JSON_TYPES or (exact and kind is ColumnType.NUMBER))


def _refuse(_raw: bytes | memoryview) -> Any:
    raise msgspec.ValidationError
