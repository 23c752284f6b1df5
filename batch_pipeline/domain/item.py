"""Files that landed and the rows of the meta table that stand for them."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.file_range import FileRange, split_location

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def modified_at(stat: os.stat_result) -> datetime:
    """Give a local file's modification time in UTC, rounded down to microseconds."""
    return _EPOCH + timedelta(microseconds=stat.st_mtime_ns // 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file as the landing listing sees it, or a range of its bytes.

    `location` is an absolute URI (`file:///…`), with a range behind it (`#bytes=0-99`) if not all
    of the file is meant; size and time are those of the whole file. `modified_at` is UTC with
    microseconds; `etag` is what the store says of the content's version. None stands for what
    nobody has noted: a user's meta table knows where a file is, and the file as it is found is the
    right one.
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
        """The URI of the file as a whole."""
        return self._split()[0]

    @property
    def range(self) -> FileRange | None:
        """The bytes that are meant, None where it is all of them."""
        return self._split()[1]

    @property
    def wanted_bytes(self) -> int | None:
        """How many bytes are meant; None where nobody has noted it."""
        part = self.range
        return self.size_bytes if part is None else part.size_bytes

    def _split(self) -> tuple[str, FileRange | None]:
        try:
            return split_location(self.location)
        except InvalidValueError:
            return self.location, None  # whoever opens it says what is wrong with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One row of a meta table = one file that landed, with the id that orders it in its stream.

    A large file may be cut into several items, each with a range of its bytes. `row_weight` is what
    a user's table says that it weighs.

    Raises:
        InvalidValueError: nothing says what it weighs.
    """

    id: int
    file: FoundFile
    row_weight: int | None = None

    def __post_init__(self) -> None:
        if self.row_weight is None and self.file.wanted_bytes is None:
            raise InvalidValueError("row_weight", None, "a weight where the size is not known")

    @property
    def weight(self) -> int:
        """What batch limits count: the row's weight, else the bytes of the file or of its range."""
        known = self.file.wanted_bytes if self.row_weight is None else self.row_weight
        return known or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What one registration did; `changed` files differ from their row and were left alone.

    `found` counts files, `new_items` what became of them: a file may be cut into several items.
    """

    found: int
    new_items: int
    changed: tuple[str, ...] = ()
    accepted: int = 0
