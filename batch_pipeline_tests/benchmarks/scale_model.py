"""The arithmetic of the scale model: straight lines through two measured points, and scenarios.

Nothing is measured or printed here.
"""

import math
from dataclasses import dataclass

LISTED_KEYS = 1_000  # S3 gives so many in one answer
DOLLARS_PER_LISTING = 0.005 / 1_000  # LIST requests, S3 Standard, us-east-1
DOLLARS_PER_READ = 0.0004 / 1_000  # GET and HEAD
DOLLARS_PER_WRITE = 0.005 / 1_000  # PUT and each part of an upload
SECONDS_PER_LISTING = 0.1  # assumed: one answer of 1,000 keys
UPLOADED_PART = 8 * 2**20


def tasks(items: int, bytes_of_json: float) -> int:
    """Give the Spark tasks of a batch of items that are so many bytes of JSON lines each."""
    item_work = 64 * 2**10 + bytes_of_json
    most = max(32 * 2**20, min(128 * 2**20, item_work * items / 16))
    return max(1, math.ceil(items / min(200, max(1, most // item_work))))


@dataclass(frozen=True, slots=True)
class Line:
    """What something costs at any count, from two measured points."""

    base: float
    slope: float

    @classmethod
    def through(cls, first: tuple[float, float], second: tuple[float, float]) -> "Line":
        """Give the line through two points `(count, cost)`."""
        slope = (second[1] - first[1]) / (second[0] - first[0])
        return cls(base=first[1] - slope * first[0], slope=slope)

    def at(self, count: float) -> float:
        """Give the cost at a count."""
        return self.base + self.slope * count


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A cost measured at three counts: a line through two of them, and the third to check it."""

    name: str
    line: Line
    count: int
    measured: float

    @classmethod
    def of(cls, name: str, points: dict[int, float]) -> "Checked":
        """Fit the lowest and the highest of three counts, and keep the middle one for the check."""
        low, middle, high = sorted(points)
        line = Line.through((low, points[low]), (high, points[high]))
        return cls(name=name, line=line, count=middle, measured=points[middle])

    @property
    def predicted(self) -> float:
        """What the line says where it was not fitted."""
        return self.line.at(self.count)

    @property
    def ratio(self) -> float:
        """Prediction over measurement."""
        return self.predicted / self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """So many items of so many bytes in all, in batches of at most this weight and count."""

    name: str
    items: int
    weight: int
    max_weight: int
    max_count: int
    target_bytes: int = 128 * 2**20  # of a part file, before compression
    growth: int = 6  # bytes of JSON lines out of one byte of gzip
    written: float = 1.0  # compressed bytes written for one that was read

    @property
    def items_per_batch(self) -> int:
        """How many items of mean weight a batch takes."""
        return max(1, min(self.max_count, self.max_weight * self.items // self.weight))

    @property
    def batches(self) -> int:
        """How many batches, and so partitions."""
        return math.ceil(self.items / self.items_per_batch)

    @property
    def batch_weight(self) -> float:
        """Bytes read for one batch."""
        return self.weight / self.batches

    @property
    def tasks_per_batch(self) -> int:
        """How many Spark tasks a batch is cut into."""
        return tasks(self.items_per_batch, self.weight / self.items * self.growth)

    @property
    def part_files(self) -> int:
        """How many part files: each task writes its own, at most `target_bytes` in one."""
        of_task = self.batch_weight * self.growth / self.tasks_per_batch / self.target_bytes
        return self.batches * self.tasks_per_batch * max(1, math.ceil(of_task))

    @property
    def listings(self) -> int:
        """How many requests list every key once."""
        return math.ceil(self.items / LISTED_KEYS)

    @property
    def request_dollars(self) -> float:
        """What all requests cost that read every item and write every part file once."""
        parts = self.weight * self.written / UPLOADED_PART
        writes = self.part_files + parts + self.batches  # and a pointer file of each batch
        return self.items * DOLLARS_PER_READ + writes * DOLLARS_PER_WRITE
