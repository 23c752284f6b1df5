"""The fields of JSON that anybody may have written, each checked for its type and its bounds.

What they mean, and whether they agree with each other, is not known here.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.restored import ManifestUnfitError

MAX_BYTES = 64 * 2**20
_MOST_TEXT = 4_096


class Fields:
    """The fields of one JSON object; `place` is where it is in the file `name`.

    Raises:
        ManifestUnfitError: by each of its methods, where a value is not what was asked for.
    """

    def __init__(self, values: Any, name: str, place: str = "") -> None:
        self.name, self.place = name, place
        if not isinstance(values, dict):
            self.refuse(f"{place.rstrip('.') or 'it'} is no JSON object")
        self.values: Mapping[str, Any] = values

    @classmethod
    def of(cls, text: bytes, name: str) -> "Fields":
        """Read JSON of bounded size, without the numbers that JSON does not have."""
        if len(text) > MAX_BYTES:
            raise ManifestUnfitError(name, f"it has more than {MAX_BYTES} bytes")
        try:
            return cls(json.loads(text, parse_constant=_no_number), name)
        except (ValueError, RecursionError) as error:
            raise ManifestUnfitError(name, "it is no JSON") from error

    def refuse(self, problem: str) -> NoReturn:
        """Say what is wrong with the file."""
        raise ManifestUnfitError(self.name, problem)

    def text(self, key: str, most: int = _MOST_TEXT) -> str:
        """Give a text."""
        found = self.values.get(key)
        if not isinstance(found, str) or len(found) > most or "\0" in found:
            self.refuse(f"{self.place}{key} is no text of at most {most} characters")
        return found

    def number(self, key: str, *, least: int = 0, most: int = MAX_ID) -> int:
        """Give a whole number."""
        found = self.values.get(key)
        if type(found) is not int or not least <= found <= most:
            self.refuse(f"{self.place}{key} is no whole number from {least} to {most}")
        return found

    def some(self, key: str) -> list[Any]:
        """Give a list of anything."""
        found = self.values.get(key)
        if not isinstance(found, list):
            self.refuse(f"{self.place}{key} is no list")
        return found

    def of_field(self, key: str) -> "Fields":
        """Give the fields of an object within."""
        return Fields(self.values.get(key), self.name, f"{self.place}{key}.")

    def each(self, key: str) -> "list[Fields]":
        """Give the fields of each object of a list."""
        found = enumerate(self.some(key))
        return [Fields(one, self.name, f"{self.place}{key}[{n}].") for n, one in found]


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)
