"""Manifests: the files that one attempt produced, with their counters and origin.

`Manifest.to_json` is the content of the manifest file. Its `Origin` adds what only the inventory
knows: job, items, times. If an inventory is older than its storage, the stream and the publish
number are read from there. Every record read must be accounted for (`check_conservation`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from batch_pipeline.model.batch import Batch
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.errors import InvariantError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.record_rules import BadFileKind
from batch_pipeline.model.schema import RecordSchema

VERSION = 1  # of the form of an origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Files that one attempt produced, in record order, with its counters.

    `job` is the job of the batch, stored under the key `stream` of the manifest file: the name of a
    stream, with a suffix for late arrivals and backfills. `generation` counts the published
    attempts of the batch from 1. The manifest of a batch without records lists no part file.
    `records_transformed` is the number of records that the transform received, None without one.
    `origin` is set if a manifest file will be written.
    """

    job: str
    batch: Batch
    attempt: int
    token: UUID
    generation: int
    encoding: Encoding
    schema: RecordSchema
    schema_version: int
    key_properties: tuple[str, ...]
    part_files: "tuple[PartFile, ...]"
    quarantine_files: "tuple[PartFile, ...]"
    items: int
    records_read: int
    records_filtered: int
    records_quarantined: int
    records_transformed: int | None = None
    origin: "Origin | None" = field(default=None, compare=False, repr=False)

    @property
    def records(self) -> int:
        """Return the number of records written."""
        return sum(part.records for part in self.part_files)

    @property
    def size_bytes(self) -> int:
        """Return the size of all part files."""
        return sum(part.size_bytes for part in self.part_files)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the manifest file; the origin comes last."""
        count = self.records_transformed
        transformed = {} if count is None else {"transformed": count}
        origin = {} if self.origin is None else {"inventory": self._origin_json(self.origin)}
        return {
            "stream": self.job,
            "batch_id": self.batch.key,
            "attempt": self.attempt,
            "token": str(self.token),
            "generation": self.generation,
            "encoding": {
                "format": self.encoding.format.value,
                "compression": self.encoding.compression.value,
            },
            "schema_version": self.schema_version,
            "schema": self.schema.json_schema(),
            "key_properties": list(self.key_properties),
            "items": self.items,
            "records": {
                "read": self.records_read,
                "written": self.records,
                "filtered": self.records_filtered,
                "quarantined": self.records_quarantined,
                **transformed,
            },
            "part_files": [asdict(part) for part in self.part_files],
            "quarantine_files": [asdict(part) for part in self.quarantine_files],
            **origin,
        }

    def _origin_json(self, origin: "Origin") -> dict[str, Any]:
        batch: dict[str, Any] = {
            "weight": self.batch.weight,
            "count": self.batch.count,
            "oversized": self.batch.oversized,
        }
        if self.batch.item_ids is not None:
            batch["item_ids"] = [*self.batch.item_ids]
        return {**origin.to_json(), "batch": batch}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """Written file as reported by its task; `sha256` is the hex digest of its bytes."""

    uri: str
    records: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemReport:
    """Counters of the records of one item.

    `rescued` counts written records with values in `_rescued_data`. `bad_file` is the reason why
    the whole file was rejected, with its `bad_kind`; None for a file that was read. `etag` and
    `version` identify the object that was read; `version` is None unless the bucket is versioned,
    both are None for local files.
    """

    item_id: int
    location: str
    read: int
    written: int
    quarantined: int
    filtered: int = 0
    rescued: int = 0
    bad_file: str | None = None
    bad_kind: BadFileKind | None = None
    etag: str | None = None
    version: str | None = None

    def check_conservation(self) -> None:
        """Check that every record read was written, filtered or quarantined.

        Raises:
            InvariantError: the counters do not add up.
        """
        accounted = self.written + self.filtered + self.quarantined
        if self.read != accounted:
            raise _conservation(self.location, self.read, accounted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Data of the inventory about a published batch.

    `publish_number` counts the publications of the job. `planned_with` are the limits at planning,
    `facts` the counters of the attempt, `weight_read` the weight of the items when they were read.
    The schema is included because a JSON Schema cannot express all column types.
    """

    job: "OriginJob"
    publish_number: int
    run_id: str
    started_at: datetime
    published_at: datetime
    planned_with: Mapping[str, Any]
    facts: Mapping[str, Any]
    weight_read: int
    schema: RecordSchema
    items: "tuple[OriginItem, ...]"

    def to_json(self) -> dict[str, Any]:
        """Return all fields, with the version of this format."""
        return {
            "version": VERSION,
            "job": asdict(self.job),
            "publish_number": self.publish_number,
            "run_id": self.run_id,
            "started_at": self.started_at.isoformat(),
            "published_at": self.published_at.isoformat(),
            "planned_with": dict(self.planned_with),
            "facts": dict(self.facts),
            "weight_read": self.weight_read,
            "columns": self.schema.to_json(),
            "items": [item.to_json() for item in self.items],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginJob:
    """Job of a batch; `parent` is the job that a backfill or late arrivals belong to."""

    stream: str
    kind: JobKind
    meta_table: str
    config: Mapping[str, Any]
    max_attempts: int
    bisect: bool
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginItem:
    """Item of a batch, with the counters of its records.

    Location, size, time and ETag are from the row in the product's own meta table, None for a
    user's table. The size of a byte range is that of the range.
    """

    id: int
    read: int
    written: int
    filtered: int
    quarantined: int
    location: str | None = None
    size_bytes: int | None = None
    modified_at: datetime | None = None
    etag: str | None = None
    bad_file: str | None = None
    read_etag: str | None = None
    read_version: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        facts = asdict(self)
        if self.modified_at is not None:
            facts["modified_at"] = self.modified_at.isoformat()
        return {name: value for name, value in facts.items() if value is not None}


def check_batch_conservation(items: Iterable[ItemReport], part_files: Iterable[PartFile]) -> None:
    """Check each item, and that the part files have as many records as the items report.

    Raises:
        InvariantError: a record is missing or counted twice.
    """
    written = 0
    for item in items:
        item.check_conservation()
        written += item.written
    in_files = sum(part.records for part in part_files)
    if written != in_files:
        raise _conservation("part files", written, in_files)


def _conservation(location: str, read: int, accounted: int) -> InvariantError:
    return InvariantError(
        f"{location}: records read: {read}, but {accounted} written, "
        f"filtered or quarantined. Nothing was published. Please report this file's shape."
    )
