"""Keeping the parts of `batch-pipeline dev` up: what has ended is started again, within limits.

What a part is and how it is started belongs to the part.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol

from batch_pipeline.defs.instance.bounded_log import bound
from batch_pipeline.domain.errors import PartLostError, PipelineError

_PAUSE_SECONDS = 1.0
_MOST_RESTARTS = 5
_WITHIN_SECONDS = 300.0


class Part(Protocol):
    """Something that has to stay up."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def trouble(self) -> str | None:
        """Say what has become of it, None while it is up."""
        ...

    def restore(self) -> None:
        """Bring it up again.

        Raises:
            PipelineError: it does not come up.
        """
        ...


@dataclass(slots=True)
class _Kept:
    part: Part
    restored_at: deque[float] = field(default_factory=deque)

    def keep(self, tell: Callable[[str], None]) -> None:
        """Bring the part up if it is not.

        Raises:
            PartLostError: it has been brought up too often.
        """
        trouble = self.part.trouble()
        if trouble is None:
            return
        now = time.monotonic()
        while self.restored_at and self.restored_at[0] < now - _WITHIN_SECONDS:
            self.restored_at.popleft()
        if len(self.restored_at) >= _MOST_RESTARTS:
            raise PartLostError(self.part.name, trouble, _MOST_RESTARTS)
        self.restored_at.append(now)
        tell(f"{self.part.name}: {trouble}; starting it again")
        try:
            self.part.restore()
        except PipelineError as error:
            tell(f"{self.part.name}: {error}")
        else:
            tell(f"{self.part.name}: up again")


def keep(
    parts: Sequence[Part],
    stop: Event,
    tell: Callable[[str], None],
    *,
    pause_seconds: float = _PAUSE_SECONDS,
    logs: Sequence[Path] = (),
) -> str | None:
    """Bring up whatever ends until `stop` is set; gives a sentence when a part stays down.

    The parts are looked at in order, so that each finds those before it up. A part may be brought
    up five times within five minutes. `tell` is given what people should know; `logs` are kept
    short.
    """
    kept = [_Kept(part) for part in parts]
    while not stop.wait(pause_seconds):
        for log in logs:
            bound(log)
        try:
            for one in kept:
                one.keep(tell)
        except PartLostError as lost:
            return str(lost)
    return None
