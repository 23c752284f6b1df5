"""Read blocks of flat JSON lines as Arrow columns with NumPy, without parsing each line.

Lines that all have the same keys in the same order and no nested values, as exporters write them:
the n-th pair of quotes has the same meaning in every line. That is proven over the bytes of a whole
block. The proof may fail on valid records, but never succeeds on a block that `json_decoder` would
read differently. `json_validator` says what it gains.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from batch_pipeline.encode.arrow_types import JSON_TYPES, arrow_type_of
from batch_pipeline.encode.chunks import TextLines
from batch_pipeline.encode.validation.text_values import (
    MAX_EXACT_INTEGER,
    MAX_TEXT_BYTES,
    TYPED_TEXT_TYPES,
    parse_texts,
    slice_strings,
)
from batch_pipeline.model.schema import Column, ColumnType

ByteArray = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_QUOTE, _COLON, _COMMA, _OPEN, _CLOSE, _BLANK = b'":,{} '
_SLICE_BYTES = 96 * 2**10  # the arrays of one slice stay in the processor's cache
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """The byte ranges of the values of a block, as arrays of shape (lines, keys).

    `keys` are the keys in order, as they are written. Where `is_string`, the value is a JSON string
    without escapes, and `starts` and `stops` exclude its quotes. Every other value is any text
    without quotes, whether it is valid JSON or not.
    """

    keys: Sequence[bytes]
    starts: Offsets
    stops: Offsets
    is_string: Mask


def find_layout(lines: TextLines) -> FlatLayout | None:
    """Find the values of all lines, or return None if the lines might be read in another way.

    The layout is unique only without escapes, strings in nested values, keys that differ, blanks
    other than one after each colon or each comma, and bytes that a JSON string must not contain.
    UTF-8 is not checked.
    """
    size_bytes, count = lines.size_bytes, len(lines)
    if lines.text.find(b"\\", 0, size_bytes) >= 0:
        return None
    data = np.frombuffer(lines.text, np.uint8, size_bytes)
    quotes, controls = _find_quotes(data)
    if controls != count or len(quotes) % 2:
        return None
    # Without escapes, every second quote opens a string and the next one closes it.
    opening, closing = quotes[0::2], quotes[1::2]
    keys_at = np.flatnonzero(data[closing + 1] == _COLON)
    if not len(keys_at) or len(keys_at) % count:
        return None
    # Strings from each key up to the next one: the key itself, and its value if that is a string.
    strings = np.diff(keys_at, append=len(closing))
    first, last = opening[keys_at].reshape(count, -1), closing[keys_at].reshape(count, -1)
    blank_after_colon = _count_uniform_blanks(data, last + 2)
    blank_after_comma = _count_uniform_blanks(data, first[:, 1:] - 1)
    if blank_after_colon is None or blank_after_comma is None:
        return None
    starts = last + 2 + blank_after_colon
    stops = np.column_stack([first[:, 1:] - 1 - blank_after_comma, lines.ends - 2])
    is_string = (strings == 2).reshape(count, -1)
    if not (
        int(strings.max()) <= 2
        and _have_separators(data, lines, first, stops)
        and _have_matching_quotes(data, starts, stops, is_string)
        and _have_equal_keys(lines.text, first, last)
    ):
        return None
    bounds = zip(first[0].tolist(), last[0].tolist(), strict=True)
    keys = [lines.text[start + 1 : stop] for start, stop in bounds]
    return FlatLayout(keys, starts + is_string, stops - is_string, is_string)


def _find_quotes(data: ByteArray) -> tuple[Offsets, int]:
    """Return the offsets of all quotes, and the number of control characters."""
    quotes = []
    controls = 0
    for start in range(0, len(data), _SLICE_BYTES):
        part = data[start : start + _SLICE_BYTES]
        quotes.append(np.flatnonzero(part == _QUOTE) + start)
        controls += int(np.count_nonzero(part < _BLANK))
    return np.concatenate(quotes), controls


def _count_uniform_blanks(data: ByteArray, offsets: Offsets) -> int | None:
    """Return 1 if there is a blank at every offset, 0 if at none, and None otherwise."""
    count = int(np.count_nonzero(data[offsets] == _BLANK))
    return int(count > 0) if count in (0, offsets.size) else None


def _have_separators(data: ByteArray, lines: TextLines, first: Offsets, stops: Offsets) -> bool:
    """Return whether each key follows the opening brace of its line or a comma."""
    begins = np.append(0, lines.ends[:-1])
    return bool(
        (first[:, 0] == begins + 1).all()
        and (data[begins] == _OPEN).all()
        and (data[stops[:, -1]] == _CLOSE).all()
        and (data[stops[:, :-1]] == _COMMA).all()
    )


def _have_matching_quotes(
    data: ByteArray, starts: Offsets, stops: Offsets, is_string: Mask
) -> bool:
    """Return whether no value is empty, and exactly the strings start and end with a quote."""
    return bool(
        (stops > starts + is_string).all()
        and ((data[starts] == _QUOTE) == is_string).all()
        and ((data[stops - 1] == _QUOTE) == is_string).all()
    )


def _have_equal_keys(text: bytes, first: Offsets, last: Offsets) -> bool:
    """Return whether all lines have the keys of the first one, comparing 8 bytes at a time."""
    lengths = last - first
    if not (lengths == lengths[0]).all():
        return False
    if int(last[-1, -1]) + _WORD_BYTES > len(text):
        text += bytes(_WORD_BYTES)
    # words[i] is the 64-bit integer at byte i. A shift drops the bytes after the end of a key.
    words = np.ndarray(len(text) - _WORD_BYTES + 1, "<u8", text, strides=(1,))
    remaining = lengths[0]
    while len(remaining):
        surplus = np.maximum(_WORD_BYTES - remaining, 0).astype(np.uint64)
        parts = words[first] << surplus * np.uint64(8)
        if not (parts == parts[0]).all():
            return False
        longer = remaining > _WORD_BYTES
        first, remaining = first[:, longer] + _WORD_BYTES, remaining[longer] - _WORD_BYTES
    return True


_STRING_TYPES = TYPED_TEXT_TYPES | {ColumnType.STRING}
_MINUS_ZERO_BITS = np.iinfo(np.int64).min  # the bits of the double -0.0


class FlatReader:
    """Reads blocks of layout lines as Arrow arrays, one per column.

    `optional` columns may be absent, but then from every line. Only `wide` integer columns may hold
    values beyond 2^53.
    """

    def __init__(
        self, columns: Sequence[Column], optional: frozenset[str], wide: frozenset[str]
    ) -> None:
        self._columns = columns
        self._optional = optional
        self._columns_by_type: dict[tuple[Column, bool], list[str]] = defaultdict(list)
        for column in columns:
            self._columns_by_type[replace(column, name=""), column.name in wide].append(column.name)
        self._is_supported = JSON_TYPES.isdisjoint(column.type for column in columns)

    def read(self, lines: TextLines) -> list[pa.Array] | None:
        """Return an array per column, or None unless it is proven that every line fits.

        A single line with a missing or an additional key, or with a value that its column may not
        hold, leaves the whole block to the decoder.
        """
        if not self._is_supported or lines.size_bytes > MAX_TEXT_BYTES:
            return None
        layout = find_layout(lines)
        if layout is None or not _is_utf8(lines):
            return None
        positions = {str(key, "utf-8"): at for at, key in enumerate(layout.keys)}
        names = {column.name for column in self._columns}
        if len(positions) != len(layout.keys):  # a duplicate key
            return None
        if not names - self._optional <= positions.keys() <= names:
            return None
        arrays: dict[str, pa.Array] = {}
        # Columns of one type are parsed in one call, because each call has a fixed cost.
        for (column, is_wide), group in self._columns_by_type.items():
            present = sorted(positions.keys() & group, key=positions.__getitem__)
            if not present:
                continue
            values = _parse_columns(lines, layout, [positions[name] for name in present], column)
            if values is None or not (is_wide or _fit_doubles(values)):
                return None
            for i, name in enumerate(present):
                arrays[name] = values.slice(i * len(lines), len(lines))
        for column in self._columns:
            if column.name not in positions:
                arrays[column.name] = pa.nulls(len(lines), arrow_type_of(column))
        return [arrays[column.name] for column in self._columns]


def _is_utf8(lines: TextLines) -> bool:
    if lines.text.isascii():
        return True
    try:
        str(memoryview(lines.text)[: lines.size_bytes], "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _fit_doubles(values: pa.Array) -> bool:
    """Return whether no integer is beyond 2^53."""
    if values.type != pa.int64():
        return True
    bounds = pc.min_max(values)
    least, most = bounds["min"].as_py() or 0, bounds["max"].as_py() or 0
    return bool(least >= -MAX_EXACT_INTEGER and most <= MAX_EXACT_INTEGER)


def _parse_columns(
    lines: TextLines, layout: FlatLayout, positions: list[int], column: Column
) -> pa.Array | None:
    """Return the values of several columns of one type, one column after the other."""
    texts = _slice_texts(lines, layout, positions, want_strings=column.type in _STRING_TYPES)
    if texts is None or column.type is ColumnType.STRING:
        return texts
    values, invalid = parse_texts(texts, column)
    if invalid:
        return None
    if values.type == pa.float64() and _has_minus_zero(values):
        return None  # the decoder reads `-0` as the integer 0, but `-0.0` as a double with a sign
    return values


def _has_minus_zero(values: pa.DoubleArray) -> bool:
    return bool((values.to_numpy(zero_copy_only=False).view(np.int64) == _MINUS_ZERO_BITS).any())


def _slice_texts(
    lines: TextLines, layout: FlatLayout, positions: list[int], *, want_strings: bool
) -> pa.StringArray | None:
    """Return the texts of several columns, or None unless all are strings or none is.

    `positions` are ascending: Arrow requires the end of the last text to be after the first one.
    """
    is_string = layout.is_string[:, positions].T.ravel()
    starts, stops = (at[:, positions].T.ravel() for at in (layout.starts, layout.stops))
    texts = slice_strings(lines.text, starts, stops)
    if want_strings:
        is_null = ~is_string
    elif is_string.any():
        return None
    else:
        is_null = np.frombuffer(lines.text, np.uint8)[starts] == ord("n")
    if not is_null.any():
        return texts
    mask = pa.array(is_null)
    if not pc.all(pc.equal(texts.filter(mask), "null")).as_py():
        return None
    return pc.if_else(mask, None, texts)
