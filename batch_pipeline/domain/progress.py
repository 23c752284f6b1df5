"""Tells how far long work is, to whoever listens to the logger `batch_pipeline.progress`.

A command at a terminal does; elsewhere nobody does, and telling costs nothing. How it is shown is
the listener's business.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

log = logging.getLogger("batch_pipeline.progress")
_PAUSE_SECONDS = 0.1


def is_heard() -> bool:
    """Tell whether somebody listens, so that it is worth while to find out a total."""
    return log.isEnabledFor(logging.INFO)


def turn_to(stream: str, doing: str, *, total: int | None = None) -> None:
    """Tell what is done for a stream from now on.

    With a `total`, each of so many steps is told in a line of its own, and nothing else is counted.
    """
    log.info("%s", doing, extra={"stream": stream, "total": total})


def counted(
    things: Iterable[_T],
    doing: str,
    *,
    total: int | None = None,
    size: Callable[[_T], int] = lambda _: 1,
    now: Callable[[], float] = time.monotonic,
) -> Iterable[_T]:
    """Give things as they come, and tell at most ten times a second how many are done.

    `size` says how many a thing counts for.
    """
    if not is_heard():
        return things
    return _told(things, lambda done: _tell(doing, done, total), size, now)


def _tell(doing: str, done: int, total: int | None) -> None:
    log.info("%s", doing, extra={"done": done, "total": total})


def _told(
    things: Iterable[_T],
    tell: Callable[[int], None],
    size: Callable[[_T], int],
    now: Callable[[], float],
) -> Iterator[_T]:
    done, told_at = 0, now()
    tell(done)
    for one in things:
        yield one
        done += size(one)
        if now() - told_at >= _PAUSE_SECONDS:
            tell(done)
            told_at = now()
    tell(done)
