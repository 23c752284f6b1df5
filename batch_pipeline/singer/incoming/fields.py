"""The keys of one message, asked for by name and type. What a message is, is not known here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batch_pipeline.singer.incoming.refusals import MissingKeyError, WrongTypeError, shown

_TEXT = "text that is not empty"


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a message: each look gives a value of the right type, or a refusal.

    `at` is the name of the key that the object stands under.
    """

    line: int
    stream: str | None
    found: Mapping[str, Any]
    at: str = ""

    def text(self, key: str) -> str:
        """Give text that has to be there."""
        value = self._needed(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, value, _TEXT)
        return value

    def text_or_none(self, key: str) -> str | None:
        """Give text, None where it is null or not there."""
        value = self.found.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, value, "text or null")
        return value

    def whole(self, key: str) -> int:
        """Give an integer that has to be there."""
        value = self._needed(key)
        if type(value) is not int:
            raise self.wrong(key, value, "an integer")
        return value

    def whole_or_none(self, key: str) -> int | None:
        """Give an integer, None where it is null or not there."""
        return None if self.found.get(key) is None else self.whole(key)

    def members(self, key: str) -> dict[str, Any]:
        """Give an object that has to be there."""
        value = self._needed(key)
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Give a list of texts that has to be there."""
        value = self._needed(key)
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise self.wrong(key, value, f"a list, each of it {_TEXT}")
        return tuple(value)

    def wrong(self, key: str, value: object, expected: str) -> WrongTypeError:
        """Say what a key is and what it has to be."""
        problem = f"is {shown(value)}; expected {expected}"
        return WrongTypeError(self.line, problem, self.stream, self.at + key)

    def _needed(self, key: str) -> Any:
        if key not in self.found:
            problem = "is missing; the message cannot be understood without it"
            raise MissingKeyError(self.line, problem, self.stream, self.at + key)
        return self.found[key]
