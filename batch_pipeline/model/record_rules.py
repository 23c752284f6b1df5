"""Rules of a stream file for bad files and records, schema evolution, mapping and lineage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from batch_pipeline.model.schema import Column, ColumnType, RecordSchema

RESCUED = "_rescued_data"


class BadFileKind(StrEnum):
    """Reasons why a whole file cannot be used."""

    MISSING = "missing"
    CHANGED = "changed"
    CORRUPT = "corrupt"


class OnBadFile(StrEnum):
    """Action for a file that cannot be used.

    The reason is always in the item's report; `quarantine` also writes it to the quarantine file.
    """

    FAIL = "fail"
    SKIP = "skip"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFileRules:
    """Action for each kind of bad file."""

    missing: OnBadFile = OnBadFile.FAIL
    changed: OnBadFile = OnBadFile.FAIL
    corrupt: OnBadFile = OnBadFile.FAIL

    @classmethod
    def all(cls, rule: OnBadFile) -> "BadFileRules":
        """Return rules with the same action for all kinds."""
        return cls(missing=rule, changed=rule, corrupt=rule)

    def of(self, kind: BadFileKind) -> OnBadFile:
        """Return the action for a kind."""
        return OnBadFile(getattr(self, kind.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecordRules:
    """Limits on bad records in a batch; all limits that are set apply, without any none is allowed.

    `max_bad_ratio` is the share of bad records among all that were read, 0 to 1.
    """

    max_bad_records: int | None = None
    max_bad_ratio: float | None = None

    @property
    def most(self) -> int | None:
        """Return the absolute limit of bad records, None if only the share is limited."""
        if self.max_bad_records is None and self.max_bad_ratio is None:
            return 0
        return self.max_bad_records

    @property
    def sentence(self) -> str:
        """Return the limits in words."""
        limits = [] if self.most is None else [str(self.most)]
        if self.max_bad_ratio is not None:
            limits.append(f"{self.max_bad_ratio:g} of all records")
        return " and ".join(limits)

    def allow(self, *, bad: int, read: int) -> bool:
        """Return whether a batch with this number of bad records may be published."""
        if self.most is not None and bad > self.most:
            return False
        # A product is inexact: 0.29 * 100 is less than 29.
        return self.max_bad_ratio is None or not bad or bad / read <= self.max_bad_ratio


class OnNonfinite(StrEnum):
    """Action for NaN and infinities in JSON output, which cannot represent them."""

    QUARANTINE = "quarantine"
    NULL = "null"
    STRING = "string"


class Evolution(StrEnum):
    """Action for records that do not fit the schema.

    `add` adds columns and widens types, `fail` fails the batch, `rescue` moves the values that do
    not fit into the column `_rescued_data`, as JSON.
    """

    ADD = "add"
    FAIL = "fail"
    RESCUE = "rescue"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRules:
    """Declared columns, if any, and how the schema may change.

    `sample_records` limits the records that a task reads to infer columns; None: no limit.
    """

    declared: RecordSchema | None = None
    evolution: Evolution = Evolution.ADD
    sample_records: int | None = None


class LineageColumn(StrEnum):
    """Columns for the origin of a record, including those that Singer targets expect."""

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
        """Return the column of the schema."""
        if self in _TIME_COLUMNS:
            return Column(name=self.value, type=ColumnType.TIMESTAMP)
        is_text = self in _TEXT_COLUMNS
        return Column(name=self.value, type=ColumnType.STRING if is_text else ColumnType.INTEGER)


_TEXT_COLUMNS = {LineageColumn.SOURCE_FILE, LineageColumn.BATCH_ID}
_TIME_COLUMNS = {
    LineageColumn.EXTRACTED_AT,
    LineageColumn.RECEIVED_AT,
    LineageColumn.BATCHED_AT,
    LineageColumn.DELETED_AT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageContext:
    """Values of the attempt for lineage columns; `started_at` has a time zone."""

    batch_key: str
    attempt: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Limits on the input of a task.

    A record has at most `max_record_bytes` bytes and `max_columns` columns. A compressed file
    expands at most `max_expansion` times, which is checked from 64 MiB on.
    """

    max_record_bytes: int = 64 * 2**20
    max_expansion: int = 250
    max_columns: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMapping:
    """Stream maps, flattening and selection, with the names and semantics of the Singer SDK.

    `select` are patterns of properties, negated by a leading `!`; the last match decides.
    `flat_objects` are the columns that would hold objects of the declared schema without
    flattening: if such an object is null in a record, its column is omitted.
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
        """Return whether records are unchanged."""
        return not self.stream_maps and not self.flattening_enabled and self.select == ("*",)
