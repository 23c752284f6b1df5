"""Committed snapshots: a JSON object per file, with one entry per line, sorted by name."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("data")
UPDATE = "UPDATE_SNAPSHOTS"
_NEXT_STEP = (
    "If the change is intended, run `python -m batch_pipeline_tests.regression --update` and "
    "explain each changed line of the diff."
)


def compare(file: str, entries: Mapping[str, Any]) -> None:
    """Fail if entries differ from a committed file, or rewrite it with `UPDATE_SNAPSHOTS`.

    The message names the entries that differ, with their old and new values.
    """
    path = DATA / file
    if os.environ.get(UPDATE):
        path.write_text(_text(entries), encoding="utf-8")
    current = json.loads(_text(entries))
    changes = list(_changes(committed(file), current))
    if changes:
        text = "\n".join(changes)
        raise AssertionError(f"{file}: entries that differ: {len(changes)}.\n{text}\n{_NEXT_STEP}")


def committed(file: str) -> dict[str, Any]:
    """Return the entries of a committed file; none if it does not exist."""
    path = DATA / file
    entries: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return entries


def key_paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the path of each key within a JSON value; `[]` stands for the elements of a list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{prefix}{key}"
            yield from key_paths(inner, f"{prefix}{key}.")
    if isinstance(value, list):
        for inner in value:
            yield from key_paths(inner, f"{prefix.removesuffix('.')}[].")


def as_entries(names: Iterable[str]) -> dict[str, str]:
    """Return names as entries without a value."""
    return dict.fromkeys(sorted(names), "")


def _text(entries: Mapping[str, Any]) -> str:
    lines = [
        f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(entries[name], ensure_ascii=False)}"
        for name in sorted(entries)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _changes(before: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *current}):
        if name not in current:
            yield f"- {name}: is missing"
        elif name not in before:
            yield f"+ {name}: is new: {_as_json(current[name])}"
        elif before[name] != current[name]:
            old, new = _without_equals(before[name], current[name])
            yield f"! {name}: was {_as_json(old)}, is {_as_json(new)}"


def _without_equals(before: Any, current: Any) -> tuple[Any, Any]:
    """Remove the keys of two objects that have the same value in both."""
    if not (isinstance(before, dict) and isinstance(current, dict)):
        return before, current
    equal = {key for key in before if key in current and before[key] == current[key]}
    old = {key: value for key, value in before.items() if key not in equal}
    return old, {key: value for key, value in current.items() if key not in equal}


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
