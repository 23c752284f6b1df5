"""Weight limits for batches that take about as long as one wants, learned from those before.

Values and rules only: where the past comes from is the inventory's business. Why these rules:
decision 28.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Any

from batch_pipeline.domain.id_range import MAX_ID
from batch_pipeline.domain.planning import LONGEST, Limits

NEWEST = 20  # published attempts that are looked at
_ENOUGH = 3  # of them must tell, so that a single slow one changes nothing
_COUNTED = 5  # the newest that tell
_STEP = 2
_SHORTEST = 0.001  # seconds; what is not measured tells nothing
_PARTS = 64  # of the configured limit: the least that is cut by


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A published attempt: weight of its batch, seconds, and the limit the batch was cut by."""

    weight: int
    seconds: float
    max_weight: int

    def tells(self, target_seconds: float) -> bool:
        """Tell whether another limit would have made another batch: it is full, or took too long.

        Small ones that end a backlog, or that come one by one, are mostly fixed cost.
        """
        if min(self.weight, self.max_weight) < 1 or self.seconds < _SHORTEST:
            return False
        return 2 * self.weight >= self.max_weight or self.seconds >= target_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The limit that batches are cut by, and why.

    `most_weight` is the limit that is configured. `weight_per_second` is the median of the newest
    `attempts` that tell; None while there are too few.
    """

    target_seconds: float
    max_weight: int
    most_weight: int
    weight_per_second: float | None = None
    attempts: int = 0

    @property
    def wanted_weight(self) -> int | None:
        """The weight that takes the target by what is known, without bounds and steps."""
        if self.weight_per_second is None:
            return None
        return int(self.weight_per_second * self.target_seconds)

    @property
    def is_least(self) -> bool:
        """Whether the limit rests at a 64th of the configured one although less is wanted."""
        wanted = self.wanted_weight
        return wanted is not None and wanted < self.max_weight <= max(1, self.most_weight // _PARTS)

    def config(self) -> dict[str, str]:
        """Write what is kept with each batch beside its limits."""
        known = {"most_weight": str(self.most_weight), "learned_from": str(self.attempts)}
        if self.weight_per_second is not None:
            known["weight_per_second"] = str(self.weight_per_second)
        return {"target_seconds": str(self.target_seconds), **known}

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Learned | None":
        """Read what is kept with a batch; None where nothing was learned, or it makes no sense."""
        speed = config.get("weight_per_second")
        try:
            found = cls(
                target_seconds=float(config["target_seconds"]),
                max_weight=int(config["max_weight"]),
                most_weight=int(config["most_weight"]),
                weight_per_second=None if speed is None else float(speed),
                attempts=int(config["learned_from"]),
            )
        except (KeyError, TypeError, ValueError):
            return None
        weights = (found.max_weight, found.most_weight)
        is_sound = (
            1 <= found.target_seconds <= LONGEST and 0 < min(weights) <= max(weights) <= MAX_ID
        )
        return found if is_sound and isfinite(found.weight_per_second or 0) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Limits to cut by; `learned` tells why, None where they are as configured.

    At most `ahead` batches may wait or run, for what those take may change the limit; None: any
    number.
    """

    limits: Limits
    learned: Learned | None = None
    ahead: int | None = None

    @property
    def most_weight(self) -> int:
        """The configured limit: a heavier batch is a single item, and flagged."""
        return self.limits.max_weight if self.learned is None else self.learned.most_weight

    def config(self) -> dict[str, str]:
        """Write what is kept with each batch."""
        return self.limits.config() | ({} if self.learned is None else self.learned.config())


def fitted(limits: Limits, past: Sequence[Timed]) -> Fitted:
    """Choose the weight limit of the next batches by the past, newest first.

    The limit is at most `max_weight`, at least `min_weight` and a 64th of `max_weight`, and at most
    a factor of two away from the one that the newest batch that tells was cut by. As long as less
    than three tell, the limit of the newest batch stays, or the configured one before the first.
    Until three are published, and while a step is too short, no more than three may be ahead.
    The same past gives the same limit, however often it is asked.
    """
    target = limits.target_seconds
    if target is None:
        return Fitted(limits=limits)
    telling = [one for one in past if one.tells(target)][:_COUNTED]
    most, least = limits.max_weight, max(1, limits.min_weight, limits.max_weight // _PARTS)
    speed, before = None, past[0].max_weight if past else most
    wanted = chosen = min(most, max(before, least))
    if len(telling) >= _ENOUGH:
        speed, before = median(one.weight / one.seconds for one in telling), telling[0].max_weight
        wanted = min(most, max(int(speed * target), least))
        chosen = min(most, max(min(wanted, before * _STEP), before // _STEP, least))
    learned = Learned(
        target_seconds=target,
        max_weight=chosen,
        most_weight=most,
        weight_per_second=speed,
        attempts=0 if speed is None else len(telling),
    )
    is_settled = len(past) >= _ENOUGH and chosen == wanted
    return Fitted(
        limits=replace(limits, max_weight=chosen),
        learned=learned,
        ahead=None if is_settled else _ENOUGH,
    )
