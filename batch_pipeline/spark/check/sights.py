"""Which column a single JSON value needs, told by its text."""

from dataclasses import dataclass

import msgspec

from batch_pipeline.domain.schema import Column, ColumnType
from batch_pipeline.spark.check.json_faults import kind_of
from batch_pipeline.spark.check.number_text import DOUBLE_EXACT, decimal_of, is_exact
from batch_pipeline.spark.check.text_forms import TEXT_FORMS, fits_text

_LONGEST_INTEGER = 20  # characters of an integer of 64 bits, its sign counted


@dataclass(frozen=True, slots=True)
class Sight:
    """The narrowest column that holds a value; a `wide` integer is one that no double holds."""

    column: Column
    wide: bool = False


def sight_of(name: str, text: bytes, known: Column | None, *, exact: bool) -> Sight:
    """See what a JSON value needs, given what its column is known to be.

    A text is a time, a date or binary only where the column says so, and a number is counted by its
    digits where it says decimal. With `exact` a number is one only if its double is just that.
    """
    kind = kind_of(text)
    form = known if known is not None and known.type in TEXT_FORMS else None
    if kind is ColumnType.STRING and form and fits_text(msgspec.json.decode(text, type=str), form):
        return Sight(form)
    if kind is not None:
        return Sight(Column(name=name, type=kind))
    return _number(name, str(text, "ascii"), known, exact=exact)


def _number(name: str, text: str, known: Column | None, *, exact: bool) -> Sight:
    if known is not None and known.type is ColumnType.DECIMAL:
        return Sight(decimal_of(name, text))
    if text.lstrip("-").isdigit():
        if len(text) <= _LONGEST_INTEGER and -(2**63) <= int(text) < 2**63:
            is_wide = exact and abs(int(text)) > DOUBLE_EXACT
            return Sight(Column(name=name, type=ColumnType.INTEGER), wide=is_wide)
        return Sight(decimal_of(name, text))
    holds = is_exact(text) if exact else float(text) not in (float("inf"), float("-inf"))
    if holds:
        return Sight(Column(name=name, type=ColumnType.NUMBER))
    return Sight(decimal_of(name, text))
