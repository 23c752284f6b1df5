"""How numbers are written, and whether a double or a decimal holds them exactly.

Text only: where numbers come from and which columns they belong to is known elsewhere.
"""

import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec
import pyarrow as pa

from batch_pipeline.domain.schema import MAX_PRECISION, Column, ColumnType

DOUBLE_EXACT = 2**53  # a double holds every integer up to here
_SURE_LENGTH = 15  # a double holds every number written with so many characters and no exponent
_LONGEST_HELD = 18  # characters of an integer up to 2^53, and one more
_IN_NUMBERS = frozenset(b"-0123456789")
_numbers = msgspec.json.Decoder(list[int | float | None])


def decimal_of(name: str, text: str) -> Column:
    """Give the narrowest decimal column for a number, one of any type if it has too many digits."""
    try:
        _, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:  # an exponent of many digits
        return Column(name=name, type=ColumnType.ANY)
    assert isinstance(exponent, int)  # noqa: S101 - a JSON number is finite
    if digits == (0,):
        return Column(name=name, type=ColumnType.DECIMAL, precision=1)
    while exponent < 0 and digits and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    if precision > MAX_PRECISION:
        return Column(name=name, type=ColumnType.ANY)
    return Column(name=name, type=ColumnType.DECIMAL, precision=precision, scale=scale)


def is_exact(text: str) -> bool:
    """Tell whether the double that a number is read as is the number that was written."""
    number = float(text)
    if not math.isfinite(number):
        return False
    try:
        return Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:  # an exponent of many digits
        return False


def doubles_of(texts: Sequence[bytes]) -> tuple[pa.DoubleArray, list[int]]:
    """Read JSON numbers and nulls as doubles; the positions of other values are given as well.

    One decode and one encode of all of them: what is written again as it was, is exact.
    """
    joined = b"[" + b",".join(texts) + b"]"
    try:
        values = _numbers.decode(joined)
    except msgspec.ValidationError:  # one is no number, or is out of range
        return _doubles_one_by_one(texts)
    written = msgspec.json.encode(values)
    unfit = [] if written == joined else _inexact(texts, written[1:-1].split(b","))
    if int in set(map(type, values)):
        unfit += [
            position
            for position, value in enumerate(values)
            if type(value) is int and abs(value) > DOUBLE_EXACT
        ]
    if unfit:
        for position in unfit:
            values[position] = None
    return pa.array(values, pa.float64()), sorted(set(unfit))


def _doubles_one_by_one(texts: Sequence[bytes]) -> tuple[pa.DoubleArray, list[int]]:
    values: list[float | None] = []
    unfit: list[int] = []
    for position, text in enumerate(texts):
        is_number = text[0] in _IN_NUMBERS and _is_held(str(text, "ascii"))
        values.append(float(text) if is_number else None)
        if not is_number and text != b"null":
            unfit.append(position)
    return pa.array(values, pa.float64()), unfit


def _is_held(text: str) -> bool:
    if text.lstrip("-").isdigit() and len(text) > _SURE_LENGTH:
        return len(text) < _LONGEST_HELD and abs(int(text)) <= DOUBLE_EXACT
    return is_exact(text)


def _inexact(texts: Sequence[bytes], written: Sequence[bytes]) -> list[int]:
    return [
        position
        for position, (text, again) in enumerate(zip(texts, written, strict=True))
        if text != again
        and (len(text) > _SURE_LENGTH or b"e" in text or b"E" in text)
        and not is_exact(str(text, "ascii"))
    ]
