"""A stopwatch of processor seconds: this process's and those of an embedded server's processes.

Others who work on the same machine make the wall's seconds longer, and these hardly.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import sqlalchemy as sa


@dataclass(slots=True)
class Clock:
    """Seconds by name; of what is done several times, the shortest counts."""

    server: psutil.Process
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: sa.Engine) -> "Clock":
        """Give a clock that counts the work of the embedded server of an engine, too."""
        data = Path(str(engine.url.query["host"]))
        return cls(psutil.Process(int((data / "postmaster.pid").read_text().split()[0])))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure the block."""
        began = self._busy()
        yield
        taken = self._busy() - began
        self.seconds[name] = min(taken, self.seconds.get(name, taken))

    def _busy(self) -> float:
        total = time.process_time()
        for process in self.server.children():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total
