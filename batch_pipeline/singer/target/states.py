"""Which STATE may be printed: one before which nothing received is still on its way.

Places in the input are numbers of lines. Nothing is written here.
"""

from collections import deque
from collections.abc import Collection


class States:
    """The STATEs that were received and not printed yet, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, str]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def receive(self, line: int, text: str, *, pending: Collection[int]) -> None:
        """Take a STATE in; `pending` are the first lines of what is on its way.

        Of STATEs with none of these lines between them only the newest is kept: they could be
        printed at the same moment.
        """
        self._waiting.append((line, text))
        newest = {sum(at < one[0] for at in pending): one for one in self._waiting}
        self._waiting = deque(newest.values())

    def printable(self, oldest_pending: int | None) -> str | None:
        """Give the newest STATE before the first line on its way; None if there is none."""
        newest: str | None = None
        while self._waiting and (oldest_pending is None or self._waiting[0][0] < oldest_pending):
            newest = self._waiting.popleft()[1]
        return newest
