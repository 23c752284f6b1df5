"""Which properties of records are selected; what is not is gone before any expression sees it.

Only objects have properties: what is in arrays belongs to the array, as with the Singer SDK.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from fnmatch import fnmatchcase

import msgspec

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.spark.map.json_text import columns_of, json_of

_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)  # of a pattern: a set or one character


class Choice(Enum):
    """What becomes of a property: with `INSIDE` it depends on the properties in it."""

    KEPT = "kept"
    DROPPED = "dropped"
    KEPT_INSIDE = "kept inside"
    DROPPED_INSIDE = "dropped inside"


class Selection:
    """Patterns of property paths (`email`, `address.*`), `!` in front deselects.

    The last pattern that fits a property, or one that it is in, decides. Where the first pattern
    deselects, all others are selected to begin with. `keys` are always selected.

    Raises:
        InvalidValueError: there is no pattern, an empty one, or one that deselects a key by name.
    """

    def __init__(self, patterns: Sequence[str], keys: Iterable[str]) -> None:
        self._keys = frozenset(keys)
        if not patterns:
            raise InvalidValueError("select", list(patterns), "at least one pattern")
        self._patterns: list[tuple[bool, str]] = []
        for text in patterns:
            pattern = text.removeprefix("!")
            if not pattern:
                raise InvalidValueError("select", text, "a pattern of properties, as `address.*`")
            if text != pattern and pattern in self._keys:
                expected = "no key of the stream: without it records cannot be told apart"
                raise InvalidValueError("select", text, expected)
            self._patterns.append((text == pattern, pattern))
        self._choices: dict[tuple[str, ...], Choice] = {}
        self._seen: set[str] = set()  # names of properties of records, and which of them
        self._dropped: set[str] = set()
        self._inside: set[str] = set()

    @property
    def selects_all(self) -> bool:
        """Tell that nothing is deselected."""
        return all(selects for selects, _ in self._patterns) and self._patterns[0][1] == "*"

    def select(self, record: dict[str, msgspec.Raw]) -> None:
        """Remove from a record what is not selected."""
        if not record.keys() <= self._seen:
            self._learn(record)
        for name in self._dropped.intersection(record):
            del record[name]
        for name in self._inside.intersection(record):
            pruned = self.pruned((name,), record[name])
            if pruned is None:
                del record[name]
            else:
                record[name] = pruned

    def pruned(self, path: tuple[str, ...], value: msgspec.Raw) -> msgspec.Raw | None:
        """Remove from a value what is not selected; None when nothing is left of it."""
        choice = self.choice(path)
        if choice is Choice.DROPPED:
            return None
        if choice is Choice.KEPT:
            return value
        is_kept = choice is Choice.KEPT_INSIDE
        text = bytes(value).strip()
        if not text.startswith(b"{"):
            return value if is_kept or text == b"null" else None
        selected = {
            name: pruned
            for name, one in columns_of(text).items()
            if (pruned := self.pruned((*path, name), one)) is not None
        }
        return msgspec.Raw(json_of(selected)) if selected or is_kept else None

    def choice(self, path: tuple[str, ...]) -> Choice:
        """Tell what becomes of the property at a path."""
        if path not in self._choices:
            self._choices[path] = self._chosen(path)
        return self._choices[path]

    def _learn(self, names: Iterable[str]) -> None:
        for name in names:
            choice = self.choice((name,))
            if choice is Choice.DROPPED:
                self._dropped.add(name)
            elif choice is not Choice.KEPT:
                self._inside.add(name)
            self._seen.add(name)

    def _chosen(self, path: tuple[str, ...]) -> Choice:
        if path[0] in self._keys:
            return Choice.KEPT
        ways = [".".join(path[:length]) for length in range(1, len(path) + 1)]
        is_selected, decider = not self._patterns[0][0], -1
        for index, (selects, pattern) in enumerate(self._patterns):
            if any(fnmatchcase(way, pattern) for way in ways):
                is_selected, decider = selects, index
        goes_inside = any(
            selects is not is_selected and _may_fit_inside(ways[-1], pattern)
            for selects, pattern in self._patterns[decider + 1 :]
        )
        if goes_inside:
            return Choice.KEPT_INSIDE if is_selected else Choice.DROPPED_INSIDE
        return Choice.KEPT if is_selected else Choice.DROPPED


def _may_fit_inside(path: str, pattern: str) -> bool:
    """Tell whether a pattern fits any property inside of the one at a path.

    So it is when its beginning fits the path and the dot behind it, and something is left of it.
    """
    tokens = _TOKEN.findall(pattern)
    return any(
        fnmatchcase(f"{path}.", "".join(tokens[:cut]))
        for cut in range(1, len(tokens) + 1)
        if cut < len(tokens) or tokens[-1] == "*"
    )
