"""Spoils JSON as values: other kinds, other keys, parts of others in wrong places; then as text."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from batch_pipeline_tests.guarantees.fuzz.harness.mutations import spoiled

_SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**64), 10**40),
    *(0.5, -0.0, 1e308, 5e-324, "", " ", "a", "null", "0", "\0", "\n", "\u202e", "\U0001f600"),
    *("x" * 300, "a.b", "../x", "%2e%2e", "$HOME", "{{ x }}", "-", "=", "#", "1e400", "٣"),
    *([], {}, [[]], [{}], {"": None}, [None], {"a": {"b": [1]}}),
)
_KEYS = (
    "",
    "a",
    "type",
    "value",
    "properties",
    "$ref",
    "__class__",
    "\0",
    "anyOf",
    "items",
    "x" * 99,
)
Path = tuple[Any, ...]


def json_mutated(random: Random, corpus: Sequence[Any]) -> bytes:
    """Give one value of the corpus, changed in some places, as text; some texts are no JSON."""
    value = json.loads(json.dumps(random.choice(corpus)))
    if random.random() < 0.1:
        return _text(random, value)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        value = _changed(random, value, corpus)
    text = _text(random, value)
    return spoiled(random, text) if random.random() < 0.15 else text


def _changed(random: Random, value: Any, corpus: Sequence[Any]) -> Any:
    path = random.choice(list(_paths(value)))
    new = _new(random, corpus)
    if not path:
        return value if isinstance(value, dict) and random.random() < 0.7 else new
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    last = path[-1]
    match random.randrange(6):
        case 0:
            del holder[last]
        case 1 if isinstance(holder, dict):
            holder[random.choice(_KEYS)] = holder.pop(last)
        case 2 if isinstance(holder, dict):
            holder[random.choice(_KEYS)] = new
        case 3 if isinstance(holder, list):
            holder[last:last] = [new] * random.choice((1, 2, 50))
        case 4:
            holder[last] = _wrapped(random, holder[last])
        case _:
            holder[last] = new
    return value


def _new(random: Random, corpus: Sequence[Any]) -> Any:
    if random.random() < 0.6:
        return json.loads(json.dumps(random.choice(_SCALARS)))
    other = json.loads(json.dumps(random.choice(corpus)))
    for step in random.choice(list(_paths(other))):
        other = other[step]
    return other


def _wrapped(random: Random, value: Any) -> Any:
    for _ in range(random.choice((1, 2, 20, 200))):
        value = [value] if random.random() < 0.5 else {random.choice(("all", "any", "a")): value}
    return value


def _paths(value: Any) -> list[Path]:
    found: list[Path] = []
    waiting: list[tuple[Path, Any]] = [((), value)]
    while waiting and len(found) < 200:
        path, inner = waiting.pop()
        found.append(path)
        if isinstance(inner, dict):
            waiting += [((*path, key), one) for key, one in inner.items()]
        elif isinstance(inner, list):
            waiting += [((*path, at), one) for at, one in enumerate(inner)]
    return found


def _text(random: Random, value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=random.random() < 0.5).encode()
