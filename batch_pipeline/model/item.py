"""Landed files and the items, rows of a meta table, that represent them.

`LandedFile` is a file or a byte range of one, `Item` its row. `ItemIdSet` records which items an
attempt read, so that an audit can compare them with the table later.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from batch_pipeline.model.batch import extend
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.location import FileRange, split_location


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedFile:
    """File as listed in the landing, or a range of its bytes.

    `location` is an absolute URI (`file:///…`), followed by a range (`#bytes=0-99`) if it denotes a
    part of the file; size and time are those of the whole file. `modified_at` is UTC with
    microseconds, `etag` the store's version of the content. None means not recorded: a user's meta
    table only names the location, and any content found there is valid.
    """

    location: str
    size_bytes: int | None = None
    modified_at: datetime | None = None
    etag: str | None = None

    def __post_init__(self) -> None:
        if self.size_bytes is not None and self.size_bytes < 0:
            raise InvalidValueError("size_bytes", self.size_bytes, "zero or more")
        if self.modified_at is not None and self.modified_at.tzinfo is None:
            raise InvalidValueError("modified_at", self.modified_at, "a time with a zone")

    @property
    def uri(self) -> str:
        """Return the URI of the whole file."""
        return self._split()[0]

    @property
    def range(self) -> FileRange | None:
        """Return the byte range, None for the whole file."""
        return self._split()[1]

    @property
    def range_bytes(self) -> int | None:
        """Return the size of the range or the file; None if it is not recorded."""
        part = self.range
        return self.size_bytes if part is None else part.size_bytes

    def _split(self) -> tuple[str, FileRange | None]:
        try:
            return split_location(self.location)
        except InvalidValueError:
            return self.location, None  # opening the file reports the error


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Row of a meta table, which represents a landed file; ids order the items of a stream.

    A large file may be cut into several items, each with a byte range. `row_weight` is the weight
    from a user's table.

    Raises:
        InvalidValueError: neither the row nor the file has a weight.
    """

    id: int
    file: LandedFile
    row_weight: int | None = None

    def __post_init__(self) -> None:
        if self.row_weight is None and self.file.range_bytes is None:
            raise InvalidValueError("row_weight", None, "a weight where the size is not known")

    @property
    def weight(self) -> int:
        """Return the weight for batch limits: the row's, otherwise the bytes of file or range."""
        weight = self.file.range_bytes if self.row_weight is None else self.row_weight
        return weight or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Result of a registration; `changed` files differ from their row and were not updated.

    `found` counts the listed files, `new_items` the rows inserted for them: a large file becomes
    several items. `postponed` are new files that were gone or had changed when they were cut.
    """

    found: int = 0
    new_items: int = 0
    changed: tuple[str, ...] = ()
    accepted: int = 0
    postponed: tuple[str, ...] = ()

    def plus(self, other: "Registered") -> "Registered":
        """Return the sum of both results."""
        return Registered(
            found=self.found + other.found,
            new_items=self.new_items + other.new_items,
            changed=self.changed + other.changed,
            accepted=self.accepted + other.accepted,
            postponed=self.postponed + other.postponed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemIdSet:
    """Set of item ids as ascending runs `(first, last)` of consecutive ids, with their weight."""

    runs: tuple[tuple[int, int], ...]
    count: int
    weight: int
    fingerprint: int

    @classmethod
    def of(cls, ids: Iterable[int], *, weight: int) -> "ItemIdSet":
        """Build the set from ids in ascending order.

        Raises:
            InvalidValueError: the ids are not in ascending order.
        """
        firsts: list[int] = []
        lasts: list[int] = []
        count = fingerprint = 0
        for item_id in ids:
            if lasts and item_id <= lasts[-1]:
                raise InvalidValueError("item id", item_id, f"more than {lasts[-1]}")
            extend(firsts, lasts, item_id)
            count += 1
            fingerprint += _cubed(item_id)
        runs = tuple(zip(firsts, lasts, strict=True))
        return cls(runs=runs, count=count, weight=weight, fingerprint=fingerprint)

    @classmethod
    def from_json(cls, written: dict[str, Any]) -> "ItemIdSet":
        """Read the form that `to_json` returns."""
        return cls(**{**written, "runs": tuple(map(tuple, written["runs"]))})

    def to_json(self) -> dict[str, Any]:
        """Return the set as JSON."""
        return {**asdict(self), "runs": [list(run) for run in self.runs]}

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs:
            yield from range(first, last + 1)


_PRIME = 2**31 - 1


def _cubed(item_id: int) -> int:
    """Return id^3 mod 2^31 - 1 with the sign of the id, as the databases compute it."""
    rest = abs(item_id) % _PRIME
    cubed = rest * rest % _PRIME * rest % _PRIME
    return cubed if item_id >= 0 else -cubed


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# A day from the limits of `datetime`, so that databases can return them in any time zone.
_EARLIEST = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LATEST = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND


def modified_at(stat: os.stat_result) -> datetime:
    """Return a local file's modification time in UTC, rounded down to microseconds.

    Times before year 1 and after year 9999, which some file systems store, become the limits.
    """
    return _EPOCH + min(max(stat.st_mtime_ns // 1000, _EARLIEST), _LATEST) * _MICROSECOND
