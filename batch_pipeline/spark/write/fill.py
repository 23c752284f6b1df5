"""Counts what a bounded thing holds and finds where the next records no longer go in."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ends = npt.NDArray[np.int64]  # where each of some records ends, in bytes from the first one's start


@dataclass(slots=True, kw_only=True)
class Fill:
    """So many records and bytes are in, and so many may be; the first record always goes in."""

    max_records: int
    max_bytes: int
    records: int = 0
    size_bytes: int = 0

    def take(self, ends: Ends, first: int) -> int:
        """Count the records from `first` on that still go in, and give where they stop."""
        start = start_of(ends, first)
        room = start + self.max_bytes - self.size_bytes
        last = first + self.max_records - self.records
        stop = min(last, int(np.searchsorted(ends, room, side="right")))
        if stop <= first:
            if self.records:
                return first
            stop = first + 1
        self.records += stop - first
        self.size_bytes += int(ends[stop - 1]) - start
        return stop


def start_of(ends: Ends, record: int) -> int:
    """Give where a record starts."""
    return int(ends[record - 1]) if record else 0
