"""Numbers of lines and records that are counted only when somebody asks for one of them."""

from collections.abc import Callable, Sequence
from typing import overload


class LazyNumbers(Sequence[int]):
    """As many numbers as `count` says; `find` gives them, and is called at most once."""

    def __init__(self, count: int, find: Callable[[], Sequence[int]]) -> None:
        self._count = count
        self._find = find
        self._numbers: Sequence[int] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if self._numbers is None:
            self._numbers = self._find()
        return self._numbers[index]
