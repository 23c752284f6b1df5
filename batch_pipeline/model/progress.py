"""Progress of long operations, emitted as records of the logger `batch_pipeline.progress`.

A command at a terminal installs a handler that displays them. Without a handler at level INFO
nothing is counted, so reporting is free. `start_step` names the current operation, `track` counts
the elements of an iterable.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

log = logging.getLogger("batch_pipeline.progress")
_PAUSE_SECONDS = 0.1


def is_enabled() -> bool:
    """Return whether progress is displayed, so that computing a total is worth its cost."""
    return log.isEnabledFor(logging.INFO)


def start_step(stream: str, doing: str, *, total: int | None = None) -> None:
    """Emit the start of an operation for a stream.

    With a `total`, each step is displayed on its own line, without a counter.
    """
    log.info("%s", doing, extra={"stream": stream, "total": total})


def track(
    elements: Iterable[_T],
    doing: str,
    *,
    total: int | None = None,
    size: Callable[[_T], int] = lambda _: 1,
    now: Callable[[], float] = time.monotonic,
) -> Iterable[_T]:
    """Yield the elements, and emit the number done at most ten times a second.

    `size` returns the amount that an element adds to the number.
    """
    if not is_enabled():
        return elements

    def tracked() -> Iterator[_T]:
        done, emitted_at = 0, now()
        log.info("%s", doing, extra={"done": done, "total": total})
        for element in elements:
            yield element
            done += size(element)
            if now() - emitted_at >= _PAUSE_SECONDS:
                log.info("%s", doing, extra={"done": done, "total": total})
                emitted_at = now()
        log.info("%s", doing, extra={"done": done, "total": total})

    return tracked()
