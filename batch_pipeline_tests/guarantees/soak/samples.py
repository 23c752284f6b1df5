"""Samples of a soak, and what they say: first and last quarter, growth, the largest of all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from batch_pipeline_tests.guarantees.soak.backlog import Backlog
from batch_pipeline_tests.guarantees.soak.meter import Held, Who, by_part

_HOUR = 3_600.0
_WARM = 0.1  # of its life, a process loads what it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was found at one moment, so many seconds after the start of the load."""

    seconds: float
    processes: dict[Who, Held]
    landed: int
    backlog: Backlog | None
    temporary_files: int
    home_files: int = 0
    machine_load: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The medians of a number in the first and the last quarter of a while of so many hours."""

    first: float
    last: float
    hours: float

    @property
    def percent(self) -> float:
        """By how much the last is more, in percent."""
        return 100.0 * (self.last - self.first) / self.first if self.first else 0.0

    @property
    def an_hour(self) -> float:
        """By how much it grows an hour: the middles of these quarters are ¾ of the while apart."""
        return (self.last - self.first) / (0.75 * self.hours)


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples under load in the order of time."""

    samples: Sequence[Sample]

    def parts(self) -> list[str]:
        """Name the parts that were seen."""
        return sorted({part for one in self.samples for part, _, _ in one.processes})

    def of_part(self, part: str, what: Callable[[Held], float]) -> Growth:
        """Compare quarters of what all processes of a part hold, whichever they are."""
        held = [
            (one.seconds, what(by_part(one.processes).get(part, Held()))) for one in self.samples
        ]
        return growth(held)

    def of_oldest(self, part: str, what: Callable[[Held], float]) -> Growth | None:
        """Compare quarters of the life of the process of a part that was seen most often.

        None if none was seen for long enough. The first tenth of its life is left out.
        """
        seen: dict[Who, list[tuple[float, float]]] = {}
        for one in self.samples:
            for who, held in one.processes.items():
                if who[0] == part:
                    seen.setdefault(who, []).append((one.seconds, what(held)))
        longest = max(seen.values(), key=len, default=[])
        lived = longest[round(_WARM * len(longest)) :]
        return growth(lived) if len(lived) >= 8 else None

    def of_database(self, what: Callable[[Backlog], float]) -> Growth:
        """Compare quarters of what the database was asked for."""
        return growth(list(self.told(what)))

    def told(self, what: Callable[[Backlog], float]) -> Iterator[tuple[float, float]]:
        """Return what the database told, with the moments; not while it was down."""
        for one in self.samples:
            if one.backlog is not None:
                yield one.seconds, what(one.backlog)

    def largest_backlog(self) -> int:
        """Return the most files that were landed and not published at one moment."""
        waiting = (
            one.landed - one.backlog.published for one in self.samples if one.backlog is not None
        )
        return max(waiting, default=0)

    def largest_age(self) -> float:
        """Return the longest time in seconds until all files landed at a moment were published."""
        longest, seen = 0.0, list(self.samples)
        for number, one in enumerate(seen):
            for later in seen[number:]:
                if later.backlog is not None and later.backlog.published >= one.landed:
                    longest = max(longest, later.seconds - one.seconds)
                    break
        return longest


def growth(held: Sequence[tuple[float, float]]) -> Growth:
    """Compare the first and the last quarter of numbers at moments."""
    quarter = max(len(held) // 4, 1)
    first, last = held[:quarter], held[-quarter:]
    seconds = max(held[-1][0] - held[0][0], 1.0) if held else 1.0
    return Growth(
        first=median([number for _, number in first] or [0.0]),
        last=median([number for _, number in last] or [0.0]),
        hours=seconds / _HOUR,
    )
