"""How the records of a stream are judged, mapped and marked: the choices of a stream file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema

RESCUED = "_rescued_data"


class BadFileKind(StrEnum):
    """Why a file as a whole cannot be used."""

    MISSING = "missing"
    CHANGED = "changed"
    CORRUPT = "corrupt"


class OnBadFile(StrEnum):
    """What becomes of a batch with a file that cannot be used.

    Either way the item's report tells the reason; `quarantine` also writes it to the quarantine
    file.
    """

    FAIL = "fail"
    SKIP = "skip"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFileRules:
    """What to do with each kind of bad file."""

    missing: OnBadFile = OnBadFile.FAIL
    changed: OnBadFile = OnBadFile.FAIL
    corrupt: OnBadFile = OnBadFile.FAIL

    @classmethod
    def all(cls, rule: OnBadFile) -> "BadFileRules":
        """Treat all kinds alike."""
        return cls(missing=rule, changed=rule, corrupt=rule)

    def of(self, kind: BadFileKind) -> OnBadFile:
        """Give the rule for a kind."""
        return OnBadFile(getattr(self, kind.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecordRules:
    """How many bad records a batch may have: each limit that is given must hold; else none.

    `max_bad_ratio` is the share of bad records among all that were read, 0 to 1.
    """

    max_bad_records: int | None = None
    max_bad_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.max_bad_records is not None and self.max_bad_records < 0:
            expected = "zero or more"
            raise InvalidValueError("on_bad_record.max_bad_records", self.max_bad_records, expected)
        if self.max_bad_ratio is not None and not 0 <= self.max_bad_ratio <= 1:
            raise InvalidValueError("on_bad_record.max_bad_ratio", self.max_bad_ratio, "0 to 1")

    @property
    def most(self) -> int | None:
        """Bad records that can be allowed whatever is read; None where only the share decides."""
        if self.max_bad_records is None and self.max_bad_ratio is None:
            return 0
        return self.max_bad_records

    @property
    def sentence(self) -> str:
        """The limits in words."""
        limits = [] if self.most is None else [str(self.most)]
        if self.max_bad_ratio is not None:
            limits.append(f"{self.max_bad_ratio:g} of all records")
        return " and ".join(limits)

    def allow(self, *, bad: int, read: int) -> bool:
        """Tell whether a batch with so many bad records may be published."""
        if self.most is not None and bad > self.most:
            return False
        return self.max_bad_ratio is None or bad <= self.max_bad_ratio * read


class OnNonfinite(StrEnum):
    """What becomes of NaN and infinities where JSON is written, which has no way to say them."""

    QUARANTINE = "quarantine"
    NULL = "null"
    STRING = "string"


class Evolution(StrEnum):
    """What happens when records do not fit the schema.

    `add` adds columns and widens types, `fail` fails the batch, `rescue` moves what does not fit
    into the column `_rescued_data`, as JSON.
    """

    ADD = "add"
    FAIL = "fail"
    RESCUE = "rescue"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRules:
    """The declared columns, if any, and how the schema may change.

    `sample_records` bounds what one task reads to infer columns; None: all of its records.
    """

    declared: RecordSchema | None = None
    evolution: Evolution = Evolution.ADD
    sample_records: int | None = None


class LineageColumn(StrEnum):
    """Columns that say where a record came from, and those that Singer targets expect."""

    ITEM_ID = "_item_id"
    SOURCE_FILE = "_source_file"
    RECORD_NUMBER = "_record_number"
    BATCH_ID = "_batch_id"
    ATTEMPT = "_attempt"
    EXTRACTED_AT = "_sdc_extracted_at"
    RECEIVED_AT = "_sdc_received_at"
    BATCHED_AT = "_sdc_batched_at"
    DELETED_AT = "_sdc_deleted_at"
    SEQUENCE = "_sdc_sequence"
    TABLE_VERSION = "_sdc_table_version"
    SYNC_STARTED_AT = "_sdc_sync_started_at"

    @property
    def column(self) -> Column:
        """The column of the schema."""
        return Column(name=self.value, type=_LINEAGE_TYPES[self])


_LINEAGE_TYPES = {
    LineageColumn.ITEM_ID: ColumnType.INTEGER,
    LineageColumn.SOURCE_FILE: ColumnType.STRING,
    LineageColumn.RECORD_NUMBER: ColumnType.INTEGER,
    LineageColumn.BATCH_ID: ColumnType.STRING,
    LineageColumn.ATTEMPT: ColumnType.INTEGER,
    LineageColumn.EXTRACTED_AT: ColumnType.TIMESTAMP,
    LineageColumn.RECEIVED_AT: ColumnType.TIMESTAMP,
    LineageColumn.BATCHED_AT: ColumnType.TIMESTAMP,
    LineageColumn.DELETED_AT: ColumnType.TIMESTAMP,
    LineageColumn.SEQUENCE: ColumnType.INTEGER,
    LineageColumn.TABLE_VERSION: ColumnType.INTEGER,
    LineageColumn.SYNC_STARTED_AT: ColumnType.INTEGER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageContext:
    """What lineage columns say of the attempt; `started_at` is when it began, with a zone."""

    batch_key: str
    attempt: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """What one task is willing to read.

    A record is at most `max_record_bytes` long; a compressed file grows at most `max_expansion`
    times, looked at from 64 MiB on; a record has at most `max_columns` columns.
    """

    max_record_bytes: int = 64 * 2**20
    max_expansion: int = 250
    max_columns: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMapping:
    """The Singer SDK's stream maps, flattening and selection, with the SDK's names and meanings.

    `select` are patterns of properties, `!` in front deselects; the last one that matches decides.
    `flat_objects` are the columns that objects of the declared schema would be without flattening:
    a record in which one is null has no such column.
    """

    stream_maps: Mapping[str, Any] = field(default_factory=dict)
    stream_map_config: Mapping[str, Any] = field(default_factory=dict)
    flattening_enabled: bool = False
    flattening_max_depth: int | None = None
    flattening_separator: str = "__"
    select: tuple[str, ...] = ("*",)
    flat_objects: frozenset[str] = frozenset()

    @property
    def is_identity(self) -> bool:
        """Tell that records stay as they are."""
        return not self.stream_maps and not self.flattening_enabled and self.select == ("*",)
