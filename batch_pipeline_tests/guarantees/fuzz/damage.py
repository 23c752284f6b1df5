"""Strategies that damage valid inputs: bytes and JSON values.

Hypothesis takes about 40 microseconds per choice, as long as some checks take per input. Therefore
one example is a batch: a few valid inputs, each of them unchanged, with each of 20 damages and with
each run of up to five of these. Damages fit every input, because positions are drawn as fractions
of the length. A batch is computed while it is consumed, outside of Hypothesis, which raises the
recursion limit of the code that it runs.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st

Input = TypeVar("Input")
Damage = Callable[[Input, Sequence[Input]], Input]  # the sequence provides parts to insert
Batch = Iterator[bytes]

# Valid inputs, and cells for such inputs.
CORPUS: dict[str, Any] = json.loads(Path(__file__).with_name("corpus.json").read_bytes())
_DAMAGES = 20  # in a batch
_LENGTHS = ((1, 2), (1, 2, 5))  # of runs of damages
_MAX_BYTES = 2**16
_LAST = 2**16 - 1
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
# fmt: off
_NUMBERS = (
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"18446744073709551616", b"1" * 39, b"9" * 400, b"1" * 5000, b"1e400", b"-1e-400",
    b"1e99999999999999999999", b"-0", b"0.1" + b"0" * 40 + b"1", b"4.9e-324",
    b"12345678901234567890.123456789", b"00", b"1_0", "\u0661\u0662".encode(), b"NaN",
    b"Infinity", b"0x1f", b"+1", b"1.", b".5", b"",
)
_CHARACTERS = (
    b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x00", b"\r", b"\n", b"\r\n", b"\t", b"\x0b",
    b"\x0c", "\u2028".encode(), "\u2029".encode(), "\x85".encode(), "\u00a0".encode(),
    "\U0001f600".encode(), "\u202e".encode(), "e\u0301".encode(), "\ufeff".encode(),
    "\U0010ffff".encode(), b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xff",
    b"\x80",
)
_SYNTAX = (
    rb"\ud800", rb"\udc00\ud800", rb"\u0000", rb"\u002", rb"\/", rb"\"", b"\\", b'"', b'""', b"'",
    b",", b":", b"{", b"}", b"[", b"]", b"[]", b"{}", b"null", b"true", b'{"a":1}', b'"a":1,', b"#",
    b"..", b"/", b"%2f", b"%00", b"%", b"://", b"@", b"*a", b"&a ", b"!!", b"<<: ", b"? ", b"- ",
    b"|",
)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**64), 10**40,
    0.5, -0.0, 1e308, 5e-324, "", " ", "a", "null", "0", "\0", "\n", "\u202e", "\U0001f600",
    "x" * 300, "a.b", "../x", "%2e%2e", "$HOME", "{{ x }}", "-", "=", "#", "1e400", "٣",
    [], {}, [[]], [{}], {"": None}, [None], {"a": {"b": [1]}},
)
_KEYS = (
    "", "a", "type", "value", "properties", "$ref", "__class__", "\0", "anyOf", "items", "x" * 99,
)
# fmt: on


@st.composite
def variants(
    draw: st.DrawFn,
    valid: st.SearchStrategy[Sequence[Input]],
    damages: st.SearchStrategy[Damage[Input]],
    writers: st.SearchStrategy[Callable[[Input], bytes]],
    copy: Callable[[Input], Input] | None = None,
) -> Batch:
    """Draw a batch: valid inputs, unchanged and with each run of some damages.

    `copy` is required if damages change an input in place.
    """
    inputs = draw(valid)
    drawn = draw(st.lists(damages, min_size=_DAMAGES, max_size=_DAMAGES))
    written = draw(st.lists(writers, min_size=_DAMAGES, max_size=_DAMAGES))
    lengths = draw(st.sampled_from(_LENGTHS))
    cases = [(valid_input, length) for length in lengths for valid_input in inputs]
    return _variants(cases, drawn, written, copy or (lambda valid_input: valid_input))


def _variants(
    cases: Sequence[tuple[Input, int]],
    damages: Sequence[Damage[Input]],
    writers: Sequence[Callable[[Input], bytes]],
    copy: Callable[[Input], Input],
) -> Batch:
    """Yield valid inputs unchanged, then each with each run of damages."""
    inputs = [valid_input for valid_input, length in cases if length == 1]
    for valid_input in inputs:
        yield writers[0](valid_input)
    for turn in range(len(cases)):
        for at, write in enumerate(writers):
            valid_input, length = cases[(turn + at) % len(cases)]
            run = damages[at : at + length]
            yield write(reduce(lambda value, damage: damage(value, inputs), run, copy(valid_input)))


def few(valid: st.SearchStrategy[Any]) -> st.SearchStrategy[Sequence[Any]]:
    """Draw few valid inputs for a batch, because drawing them takes longer than damaging them."""
    return st.lists(valid, min_size=3, max_size=3)


def choices(function: Callable[..., Any], **arguments: Any) -> st.SearchStrategy[Any]:
    """Draw the keyword arguments of a function that is called later."""
    return st.builds(partial, st.just(function), **arguments)


def rarely(one_in: int, strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw a value once in `one_in` times, otherwise None."""
    return st.integers(1, one_in).flatmap(lambda at: strategy if at == one_in else st.none())


# Bytes


def _position(data: Sequence[Any], place: int) -> int:
    return len(data) * place // _LAST


def _index(values: Sequence[Any], place: int) -> int:
    return min(_position(values, place), len(values) - 1)


def _edit(
    data: bytes, _others: Sequence[bytes], *, at: int, size: int, new: Callable[[bytes], bytes]
) -> bytes:
    """Replace some bytes at a position by others, which are computed from them."""
    start = _position(data, at)
    stop = start + size
    return (data[:start] + new(data[start:stop]) + data[stop:])[:_MAX_BYTES]


def _flipped(bit: int) -> Callable[[bytes], bytes]:
    return lambda piece: bytes(octet ^ 1 << bit for octet in piece)


def _repeated(times: int) -> Callable[[bytes], bytes]:
    return lambda piece: piece * times


def _always(piece: bytes) -> Callable[[bytes], bytes]:
    return lambda _piece: piece


def _nested(pair: tuple[bytes, bytes], depth: int) -> Callable[[bytes], bytes]:
    return _always(pair[0] * depth + pair[1] * depth)


def _swap(data: bytes, _others: Sequence[bytes], *, at: tuple[int, int, int]) -> bytes:
    first, second, third = sorted(_position(data, place) for place in at)
    return data[:first] + data[second:third] + data[first:second] + data[third:]


def _splice(
    data: bytes, others: Sequence[bytes], *, at: int, start: tuple[int, int], size: int | None
) -> bytes:
    other = others[_index(others, start[0])]
    first, position = _position(other, start[1]), _position(data, at)
    if size is None:
        return (data[:position] + other[first:])[:_MAX_BYTES]
    return (data[:position] + other[first : first + size] + data[position:])[:_MAX_BYTES]


def _change_number(data: bytes, _others: Sequence[bytes], *, at: int, number: bytes) -> bytes:
    matches = list(_NUMBER.finditer(data))
    if not matches:
        return data
    start, stop = matches[_index(matches, at)].span()
    return (data[:start] + number + data[stop:])[:_MAX_BYTES]


def _end_lines(data: bytes, _others: Sequence[bytes], *, end: bytes, count: int) -> bytes:
    return data.replace(b"\n", end, count)[:_MAX_BYTES]


_PLACES = st.integers(0, _LAST)
_ENDS = st.sampled_from((0, _LAST)) | _PLACES
_SIZES = st.sampled_from((1, 2, 4, 16, 64, 1024))
_PAIRS = ((b"[", b"]"), (b'{"a":', b"}"), (b"[", b""), (b"- ", b""))
_ONE, _NONE, _ALL = st.just(1), st.just(0), st.just(_MAX_BYTES)
_OCTETS = st.sampled_from((b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\n", b" ", b'"', b","))
_FAULTS: tuple[st.SearchStrategy[Damage[bytes]], ...] = (
    choices(_edit, at=_PLACES, size=_ONE, new=st.integers(0, 7).map(_flipped)),
    choices(_edit, at=_PLACES, size=_ONE, new=_OCTETS.map(_always)),
    choices(_edit, at=_PLACES, size=_ONE, new=st.binary(min_size=1, max_size=1).map(_always)),
    choices(_edit, at=_PLACES, size=_ALL, new=st.just(_always(b""))),
    choices(_edit, at=_PLACES, size=_SIZES, new=st.just(_always(b""))),
)
FAULTS: st.SearchStrategy[Damage[bytes]] = st.one_of(_FAULTS)  # small ones, for compressed data
BYTES: st.SearchStrategy[Damage[bytes]] = st.one_of(
    *_FAULTS,
    choices(_edit, at=_PLACES, size=_SIZES, new=st.sampled_from((2, 3, 10, 101)).map(_repeated)),
    choices(_swap, at=st.tuples(_PLACES, _PLACES, _PLACES)),
    choices(_splice, at=_PLACES, start=st.tuples(_PLACES, _PLACES), size=_SIZES | st.none()),
    choices(_edit, at=_ENDS, size=_NONE, new=st.sampled_from(_CHARACTERS).map(_always)),
    choices(_edit, at=_ENDS, size=_NONE, new=st.sampled_from(_SYNTAX).map(_always)),
    choices(_change_number, at=_PLACES, number=st.sampled_from(_NUMBERS)),
    choices(_change_number, at=_PLACES, number=st.integers().map(lambda number: b"%d" % number)),
    choices(
        _edit,
        at=_PLACES,
        size=_NONE,
        new=st.builds(_nested, st.sampled_from(_PAIRS), st.sampled_from((3, 30, 500, 1500, 5000))),
    ),
    choices(
        _end_lines,
        end=st.sampled_from((b"\r\n", b"\r", b"\n\n", b" \n", b"\n\r")),
        count=st.sampled_from((1, -1)),
    ),
)
UNCHANGED = st.just(bytes)


def damaged_text(*corpus: str) -> st.SearchStrategy[Batch]:
    """Draw batches of damaged constants."""
    return variants(st.just([text.encode() for text in corpus]), BYTES, UNCHANGED)


# JSON values, which damages change in place


def _remove(value: Any, _others: Sequence[Any], *, place: int) -> Any:
    holder, key = place_in(value, place)
    if holder:
        del holder[key]
    return value


def _set_key(
    value: Any, others: Sequence[Any], *, place: int, name: str, new: Callable[..., Any] | None
) -> Any:
    """Add a key to an object, or rename one."""
    holder, key = place_in(value, place)
    if isinstance(holder, dict):
        holder[name] = new(others) if new else holder.pop(key)
    return value


def _change(value: Any, others: Sequence[Any], *, place: int, new: Callable[..., Any]) -> Any:
    """Replace a value in a tree, or the whole tree."""
    holder, key = place_in(value, place)
    if not holder or place == _LAST:
        return new(others)
    holder[key] = new(others)
    return value


def _extend(
    value: Any, others: Sequence[Any], *, place: int, new: Callable[..., Any], times: int
) -> Any:
    holder, key = place_in(value, place)
    if isinstance(holder, list):
        holder[key:key] = [new(others) for _ in range(times)]
    return value


def _wrap(value: Any, _others: Sequence[Any], *, place: int, key: str | None, depth: int) -> Any:
    holder, at = place_in(value, place)
    if holder:
        for _ in range(depth):
            holder[at] = [holder[at]] if key is None else {key: holder[at]}
    return value


def _constant(_others: Sequence[Any], *, value: Any) -> Any:
    return _copy(value) if isinstance(value, dict | list) else value


def _part(others: Sequence[Any], *, start: tuple[int, int]) -> Any:
    value = others[_index(others, start[0])]
    holder, key = place_in(value, start[1])
    return _copy(holder[key] if holder else value)


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def place_in(value: Any, place: int) -> tuple[Any, Any]:
    """Return the container and the key of a value in a tree; both are None if it has no values."""
    paths: list[tuple[Any, Any]] = []
    waiting = [value] if isinstance(value, dict | list) else []
    while waiting and len(paths) < 200:
        holder = waiting.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder))
        paths += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys if isinstance(holder[key], dict | list)]
    return paths[_index(paths, place)] if paths else (None, None)


def _json_text(value: Any, *, ensure_ascii: bool, fault: Damage[bytes] | None) -> bytes:
    text = json.dumps(value, ensure_ascii=ensure_ascii).encode()
    return fault(text, ()) if fault else text


_NEW = choices(_constant, value=st.sampled_from(_VALUES)) | choices(
    _part, start=st.tuples(_PLACES, _PLACES)
)
_NAMES = st.sampled_from(_KEYS)
JSON_VALUES: st.SearchStrategy[Damage[Any]] = st.one_of(
    choices(_remove, place=_PLACES),
    choices(_set_key, place=_PLACES, name=_NAMES, new=_NEW | st.none()),
    choices(_change, place=_PLACES, new=_NEW),
    choices(_extend, place=_PLACES, new=_NEW, times=st.sampled_from((1, 2, 50))),
    # At most five times 150 levels, because the JSON writer recurses, too.
    choices(
        _wrap,
        place=_PLACES,
        key=st.sampled_from((None, "all", "any", "a")),
        depth=st.sampled_from((1, 2, 20, 150)),
    ),
)
JSON_TEXT = choices(_json_text, ensure_ascii=st.booleans(), fault=rarely(7, FAULTS))


def damaged_json(*corpus: Any) -> st.SearchStrategy[Batch]:
    """Draw batches of damaged constants as JSON text."""
    return variants(st.just(corpus), JSON_VALUES, JSON_TEXT, _copy)
