"""What lines that a target prints acknowledge of what it was sent. Pure values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class BrokenStateError(Exception):
    """A printed line is no STATE of ours, for a reason."""

    def __init__(self, line: bytes, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Sent:
    """The values of STATE messages in the order in which they are sent."""

    states: Sequence[Mapping[str, Any]]

    def read(self, line: bytes) -> tuple[int, Mapping[str, Any]]:
        """Give the number, from 0, of the last sent STATE that a printed line holds, and its value.

        A target may know of other streams, or print the whole message.

        Raises:
            BrokenStateError: it is no JSON object, or holds nothing that was sent.
        """
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise BrokenStateError(line, "is no JSON") from None
        if isinstance(value, dict) and value.get("type") == "STATE":
            value = value.get("value")
        if not isinstance(value, dict):
            raise BrokenStateError(line, "is no JSON object")
        for number in range(len(self.states) - 1, -1, -1):
            if _holds(value, self.states[number]):
                return number, value
        raise BrokenStateError(line, "holds no STATE that was sent")


def _holds(value: Any, sent: Mapping[str, Any]) -> bool:
    bookmarks = value.get("bookmarks")
    return isinstance(bookmarks, dict) and all(
        name in bookmarks and bookmarks[name] == bookmark
        for name, bookmark in sent["bookmarks"].items()
    )
