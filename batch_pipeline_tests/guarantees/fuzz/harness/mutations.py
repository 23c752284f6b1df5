"""Spoils bytes: flips, cuts, splices, repeats, and what readers are known to stumble over."""

import re
from collections.abc import Callable, Sequence
from random import Random

_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")
_HUGE = (
    *(
        b"9223372036854775807",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"18446744073709551616",
    ),
    *(b"1" * 39, b"9" * 400, b"1" * 5000, b"1e400", b"-1e-400", b"1e99999999999999999999", b"-0"),
    *(b"0.1" + b"0" * 40 + b"1", b"4.9e-324", b"12345678901234567890.123456789", b"00", b"1_0"),
    *("\u0661\u0662".encode(), b"NaN", b"Infinity", b"0x1f", b"+1", b"1.", b".5", b""),
)
_ODD = (
    *(
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\xfe\xff",
        b"\x00",
        b"\r",
        b"\n",
        b"\r\n",
        b"\t",
        b"\x0b",
        b"\x0c",
    ),
    *(
        "\u2028".encode(),
        "\u2029".encode(),
        "\x85".encode(),
        "\u00a0".encode(),
        "\U0001f600".encode(),
    ),
    *("\u202e".encode(), "e\u0301".encode(), "\ufeff".encode(), "\U0010ffff".encode()),
    *(b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xff", b"\x80"),
    *(
        rb"\ud800",
        rb"\udc00\ud800",
        rb"\u0000",
        rb"\u002",
        rb"\/",
        rb"\"",
        b"\\",
        b'"',
        b'""',
        b"'",
    ),
    *(
        b",",
        b":",
        b"{",
        b"}",
        b"[",
        b"]",
        b"[]",
        b"{}",
        b"null",
        b"true",
        b'{"a":1}',
        b'"a":1,',
        b"#",
    ),
    *(
        b"..",
        b"/",
        b"%2f",
        b"%00",
        b"%",
        b"://",
        b"@",
        b"*a",
        b"&a ",
        b"!!",
        b"<<: ",
        b"? ",
        b"- ",
        b"|",
    ),
)
_LONGEST = 2**16


def mutated(random: Random, corpus: Sequence[bytes]) -> bytes:
    """Give one of the corpus as it is, or spoiled a few times."""
    data = random.choice(corpus)
    if random.random() < 0.1:
        return data
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5, 9))):
        data = random.choice(_WAYS)(random, data, corpus)
    return data[:_LONGEST]


def spoiled(random: Random, data: bytes) -> bytes:
    """Give bytes with one or two small faults."""
    for _ in range(random.choice((1, 1, 2))):
        data = random.choice(_SMALL)(random, data, (data,))
    return data[:_LONGEST]


def _flip(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 4))):
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _replace(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 10, 32, 34, 44))
    return bytes(changed)


def _cut_off(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _cut_out(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, stop = _span(random, data)
    return data[:start] + data[stop:]


def _repeat(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, stop = _span(random, data)
    times = random.choice((1, 2, 2, 9, 100))
    return data[:stop] + data[start:stop] * times + data[stop:]


def _swap(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    first, second, third = sorted(random.randrange(len(data) + 1) for _ in range(3))
    return data[:first] + data[second:third] + data[first:second] + data[third:]


def _splice(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    at = random.randrange(len(data) + 1)
    if random.random() < 0.5:
        return data[:at] + other[random.randrange(len(other) + 1) :]
    start, stop = _span(random, other)
    return data[:at] + other[start:stop] + data[at:]


def _insert(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    at = random.choice((0, len(data), random.randrange(len(data) + 1)))
    return data[:at] + random.choice(_ODD) + data[at:]


def _other_number(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    numbers = list(_NUMBER.finditer(data[:_LONGEST]))
    if not numbers:
        return data
    start, stop = random.choice(numbers).span()
    return data[:start] + random.choice(_HUGE) + data[stop:]


def _deepen(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"[", b""), (b"- ", b"")))
    depth = random.choice((3, 30, 500, 1500, 5000))
    return data[:at] + opening * depth + closing * depth + data[at:]


def _other_ends(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    ends = (b"\r\n", b"\r", b"\n\n", b" \n", b"\n\r")
    return data.replace(b"\n", random.choice(ends), random.choice((1, -1)))


def _span(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(start + random.choice((1, 2, 4, 16, 64, 1024)), len(data))


_Way = Callable[[Random, bytes, Sequence[bytes]], bytes]
_SMALL: tuple[_Way, ...] = (_flip, _flip, _replace, _cut_off, _cut_out)
_WAYS: tuple[_Way, ...] = (
    *(_flip, _flip, _replace, _cut_off, _cut_out, _repeat, _swap, _splice, _insert, _insert),
    *(_other_number, _other_number, _deepen, _other_ends),
)
