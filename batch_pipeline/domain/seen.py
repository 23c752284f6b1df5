"""Which items an attempt saw, small enough to keep: what late arrivals are found by."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from batch_pipeline.domain.errors import InvalidValueError

_PRIME = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A set of item ids as rising runs `(first, last)` of neighbours, and what they weighed."""

    runs: tuple[tuple[int, int], ...]
    count: int
    weight: int
    fingerprint: int

    @classmethod
    def of(cls, ids: Iterable[int], *, weight: int) -> "Seen":
        """Note ids that come in rising order.

        Raises:
            InvalidValueError: they do not rise.
        """
        runs: list[tuple[int, int]] = []
        count = fingerprint = 0
        for item_id in ids:
            if runs and item_id <= runs[-1][1]:
                raise InvalidValueError("item id", item_id, f"more than {runs[-1][1]}")
            if runs and item_id == runs[-1][1] + 1:
                runs[-1] = (runs[-1][0], item_id)
            else:
                runs.append((item_id, item_id))
            count += 1
            fingerprint += _cubed(item_id)
        return cls(runs=tuple(runs), count=count, weight=weight, fingerprint=fingerprint)

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> "Seen":
        """Read what `to_json` wrote."""
        return cls(
            runs=tuple((first, last) for first, last in written["runs"]),
            count=written["count"],
            weight=written["weight"],
            fingerprint=written["fingerprint"],
        )

    def to_json(self) -> dict[str, Any]:
        """Write everything as JSON."""
        return {
            "runs": [list(run) for run in self.runs],
            "count": self.count,
            "weight": self.weight,
            "fingerprint": self.fingerprint,
        }

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)


def _cubed(item_id: int) -> int:
    """Give id^3 mod 2^31 - 1 with the sign of the id, as databases compute it."""
    rest = abs(item_id) % _PRIME
    cubed = rest * rest % _PRIME * rest % _PRIME
    return cubed if item_id >= 0 else -cubed
