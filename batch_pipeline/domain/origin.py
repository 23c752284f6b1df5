"""What of a published batch the inventory knows beside its manifest: ids, files, numbers, times.

Its pointer file keeps it. Of that, the job's stream and the publish number are read back where an
inventory is older than its storage. The metadata in Dagster lists the items.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.schema import RecordSchema

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginItem:
    """An item of a batch, and where its records went.

    Location, size, time and ETag are those of its row in the product's own meta table; None where a
    table of the user's lists it. The size is that of the range, where it is one.
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
        """Write what is known of it."""
        facts = {name: getattr(self, name) for name in self.__slots__}
        if self.modified_at is not None:
            facts["modified_at"] = self.modified_at.isoformat()
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginJob:
    """The job of a batch; `parent` is the job that a backfill or late arrivals belong to."""

    stream: str
    kind: JobKind
    meta_table: str
    config: Mapping[str, Any]
    max_attempts: int
    bisect: bool
    parent: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Write everything."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a manifest comes from.

    `publish_number` counts what its job has published. `planned_with` is what was kept with the
    batch when it was planned; `facts` are counters of the attempt, `weight_read` is what its items
    weighed when they were read. The schema has types that a JSON Schema does not tell apart.
    """

    job: OriginJob
    publish_number: int
    run_id: str
    started_at: datetime
    published_at: datetime
    planned_with: Mapping[str, Any]
    facts: Mapping[str, Any]
    weight_read: int
    schema: RecordSchema
    items: tuple[OriginItem, ...]

    def to_json(self) -> dict[str, Any]:
        """Write everything, with the number of this form of it."""
        return {
            "version": VERSION,
            "job": self.job.to_json(),
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
