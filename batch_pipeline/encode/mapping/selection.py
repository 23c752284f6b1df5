"""Selection of properties of records, before any expression reads them.

Only objects have properties: what is in arrays belongs to the array, as with the Singer SDK.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from fnmatch import fnmatchcase

import msgspec

from batch_pipeline.encode.mapping.json_text import decode_fields, encode_fields
from batch_pipeline.model.errors import InvalidValueError

_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)  # of a pattern: a set or one character


class SelectionResult(Enum):
    """Whether a property is kept; with `INSIDE` patterns decide about the properties in it."""

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
        self._choices: dict[tuple[str, ...], SelectionResult] = {}
        self._known_names: set[str] = set()  # names of properties of records; subsets of them
        self._dropped: set[str] = set()
        self._inside: set[str] = set()

    @property
    def selects_all(self) -> bool:
        """Return whether nothing is deselected."""
        return all(selects for selects, _ in self._patterns) and self._patterns[0][1] == "*"

    def select(self, record: dict[str, msgspec.Raw]) -> None:
        """Remove the properties of a record that are not selected."""
        if not record.keys() <= self._known_names:
            self._classify(record)
        for name in self._dropped.intersection(record):
            del record[name]
        for name in self._inside.intersection(record):
            pruned = self.pruned((name,), record[name])
            if pruned is None:
                del record[name]
            else:
                record[name] = pruned

    def pruned(self, path: tuple[str, ...], value: msgspec.Raw) -> msgspec.Raw | None:
        """Return the selected part of a value; None if nothing of it is selected."""
        choice = self.choice(path)
        if choice is SelectionResult.DROPPED:
            return None
        if choice is SelectionResult.KEPT:
            return value
        is_kept = choice is SelectionResult.KEPT_INSIDE
        text = bytes(value).strip()
        if not text.startswith(b"{"):
            return value if is_kept or text == b"null" else None
        selected = {
            name: pruned
            for name, inner in decode_fields(text).items()
            if (pruned := self.pruned((*path, name), inner)) is not None
        }
        return msgspec.Raw(encode_fields(selected)) if selected or is_kept else None

    def choice(self, path: tuple[str, ...]) -> SelectionResult:
        """Return whether the property at a path is kept."""
        if path not in self._choices:
            self._choices[path] = self._compute_choice(path)
        return self._choices[path]

    def _classify(self, names: Iterable[str]) -> None:
        for name in names:
            choice = self.choice((name,))
            if choice is SelectionResult.DROPPED:
                self._dropped.add(name)
            elif choice is not SelectionResult.KEPT:
                self._inside.add(name)
            self._known_names.add(name)

    def _compute_choice(self, path: tuple[str, ...]) -> SelectionResult:
        if path[0] in self._keys:
            return SelectionResult.KEPT
        prefixes = [".".join(path[:length]) for length in range(1, len(path) + 1)]
        is_selected, decider = not self._patterns[0][0], -1
        for index, (selects, pattern) in enumerate(self._patterns):
            if any(fnmatchcase(prefix, pattern) for prefix in prefixes):
                is_selected, decider = selects, index
        goes_inside = any(
            selects is not is_selected and _may_fit_inside(prefixes[-1], pattern)
            for selects, pattern in self._patterns[decider + 1 :]
        )
        if goes_inside:
            return SelectionResult.KEPT_INSIDE if is_selected else SelectionResult.DROPPED_INSIDE
        return SelectionResult.KEPT if is_selected else SelectionResult.DROPPED


def _may_fit_inside(path: str, pattern: str) -> bool:
    """Return whether a pattern can match a property inside of the one at a path.

    It can if a beginning of it matches the path with a dot, and something of it is left.
    """
    tokens = _TOKEN.findall(pattern)
    return any(
        fnmatchcase(f"{path}.", "".join(tokens[:cut]))
        for cut in range(1, len(tokens) + 1)
        if cut < len(tokens) or tokens[-1] == "*"
    )
