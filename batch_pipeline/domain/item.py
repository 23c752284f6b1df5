"""Files that landed and the rows of the meta table that stand for them."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from batch_pipeline.domain.errors import InvalidValueError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def modified_at(stat: os.stat_result) -> datetime:
    """Give a local file's modification time in UTC, rounded down to microseconds."""
    return _EPOCH + timedelta(microseconds=stat.st_mtime_ns // 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file as the landing listing sees it.

    `location` is an absolute URI (`file:///…`); `modified_at` is UTC with microseconds; `etag` is
    what the store says of the content's version, None where it says nothing.
    """

    location: str
    size_bytes: int
    modified_at: datetime
    etag: str | None = None

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise InvalidValueError("size_bytes", self.size_bytes, "zero or more")
        if self.modified_at.tzinfo is None:
            raise InvalidValueError("modified_at", self.modified_at, "a time with a zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One row of a meta table = one file that landed, with the id that orders it in its stream."""

    id: int
    file: FoundFile

    @property
    def weight(self) -> int:
        """What batch limits count: the file's size in bytes."""
        return self.file.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What one registration did; `changed` files differ from their row and were left alone."""

    found: int
    new_items: int
    changed: tuple[str, ...] = ()
    accepted: int = 0
