"""Selection of properties of records, before any expression reads them.

Only objects have properties: what is in arrays belongs to the array, as with the Singer SDK.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

import msgspec

from batch_pipeline.encode.mapping.json_text import decode_fields, encode_fields
from batch_pipeline.model.errors import InvalidValueError

_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)  # of a pattern: a set or one character


class Choice(NamedTuple):
    """Whether a property is kept, and whether patterns decide otherwise about properties in it."""

    is_selected: bool
    has_exceptions: bool


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
        self.choice = cache(self._choose)
        self._kept: set[str] = set()  # names of properties that stay as they are

    @property
    def selects_all(self) -> bool:
        """Return whether nothing is deselected."""
        return all(selects for selects, _ in self._patterns) and self._patterns[0][1] == "*"

    def select(self, record: dict[str, msgspec.Raw]) -> None:
        """Remove the properties of a record that are not selected."""
        for name in record.keys() - self._kept:
            value = self.pruned((name,), record[name])
            if value is None:
                del record[name]
            else:
                record[name] = value
            if self.choice((name,)) == (True, False):
                self._kept.add(name)

    def pruned(self, path: tuple[str, ...], value: msgspec.Raw) -> msgspec.Raw | None:
        """Return the selected part of a value; None if nothing of it is selected."""
        is_kept, has_exceptions = self.choice(path)
        if not has_exceptions:
            return value if is_kept else None
        text = bytes(value).strip()
        if not text.startswith(b"{"):
            return value if is_kept or text == b"null" else None
        selected = {
            name: pruned
            for name, inner in decode_fields(text).items()
            if (pruned := self.pruned((*path, name), inner)) is not None
        }
        return msgspec.Raw(encode_fields(selected)) if selected or is_kept else None

    def _choose(self, path: tuple[str, ...]) -> Choice:
        if path[0] in self._keys:
            return Choice(is_selected=True, has_exceptions=False)
        prefixes = [".".join(path[:length]) for length in range(1, len(path) + 1)]
        is_selected, decider = not self._patterns[0][0], -1
        for index, (selects, pattern) in enumerate(self._patterns):
            if any(fnmatchcase(prefix, pattern) for prefix in prefixes):
                is_selected, decider = selects, index
        has_exceptions = any(
            selects is not is_selected and _may_fit_inside(prefixes[-1], pattern)
            for selects, pattern in self._patterns[decider + 1 :]
        )
        return Choice(is_selected, has_exceptions)


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
