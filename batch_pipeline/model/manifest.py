"""Manifests: the files that one attempt produced, with their counters and origin.

`Manifest.to_json` is the content of the manifest file. Its `Origin` adds what only the inventory
knows: job, items, times. If an inventory is older than its storage, the stream and the publish
number are read from there. Every record read must be accounted for (`check_conservation`).

`read_manifest` reads the manifest of a stream's batch, `parse_manifest_file` only the counts of any
manifest file. An inventory that was restored from a backup or created again is older than its
storage: the storage then has manifests of batches that the inventory does not list
(`UnknownManifests`, `InventoryOlderError`). This module reads bytes, not files.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NoReturn
from uuid import UUID

from batch_pipeline.model.batch import Batch, key_digits, parse_partition_key
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    InvariantError,
    StorageUnavailableError,
)
from batch_pipeline.model.id_range import MAX_ID
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.location import join_uri
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


HELD = "the inventory is older than the storage"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownManifests:
    """Manifest files of a stream that its inventory does not list; `jobs` by file name."""

    stream: str
    jobs: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the file names, sorted."""
        return tuple(sorted(self.jobs))


@dataclass(eq=False)
class InventoryOlderError(StorageUnavailableError):
    """Storage holds manifests that the inventory does not list; `reason` names them."""

    stream: str = ""

    @classmethod
    def of(cls, unknown: UnknownManifests, root: str) -> "InventoryOlderError":
        """Build the error; it names their number and the first one."""
        reason = f"manifests unknown to it: {len(unknown.jobs)}, {unknown.names[0]} first"
        return cls(root, reason, stream=unknown.stream)

    def sentence(self) -> str:
        return (
            f"{self.stream}: {HELD} {self.uri}: {self.reason}. It was restored from a backup, or "
            f"is another one. Nothing was registered, planned or claimed, and the stream is "
            f"paused. `batch-pipeline reconcile {self.stream} --discard` sets the manifests aside "
            f"(preview: --dry-run). To keep them, restore the inventory to a later point in time."
        )

    @property
    def pause_reason(self) -> str:
        """Return the reason that is stored with the paused job."""
        return (
            f"{HELD}: {self.reason}; run `batch-pipeline reconcile {self.stream} --discard`, or "
            f"restore the inventory to a later point in time"
        )


class ManifestUnfitError(ConfigurationError):
    """Manifest file is not in the form that this product writes."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"The manifest {name} cannot be read: {problem}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Manifests that were moved to `folder`, or would be on a dry run.

    `records` counts those of the readable manifests; consumers and targets may have them already.
    """

    stream: str
    manifests: int = 0
    records: int = 0
    unread: int = 0
    folder: str | None = None


MAX_BYTES = 64 * 2**20
_MOST_TEXT = 4_096


class Fields:
    """Typed access to one JSON object at the path `place` in the file `name`.

    Raises:
        ManifestUnfitError: every method raises it if a value has another type or is out of bounds.
    """

    def __init__(self, values: Any, name: str, place: str = "") -> None:
        self.name, self.place = name, place
        if not isinstance(values, dict):
            self.refuse(f"{place.rstrip('.') or 'it'} is not a JSON object")
        self.values: Mapping[str, Any] = values

    @classmethod
    def of(cls, text: bytes, name: str) -> "Fields":
        """Parse JSON of bounded size; NaN and infinities are rejected."""
        if len(text) > MAX_BYTES:
            raise ManifestUnfitError(name, f"it has more than {MAX_BYTES} bytes")
        try:
            return cls(json.loads(text, parse_constant=_reject_constant), name)
        except (ValueError, RecursionError) as error:
            raise ManifestUnfitError(name, "it is not JSON") from error

    def refuse(self, problem: str) -> NoReturn:
        """Raise the error for a problem of the file."""
        raise ManifestUnfitError(self.name, problem)

    def text(self, key: str, most: int = _MOST_TEXT) -> str:
        """Return a text."""
        value = self.values.get(key)
        if not isinstance(value, str) or len(value) > most or "\0" in value:
            self.refuse(f"{self.place}{key} is not text of at most {most} characters")
        return value

    def number(self, key: str, *, least: int = 0, most: int = MAX_ID) -> int:
        """Return a whole number."""
        value = self.values.get(key)
        if type(value) is not int or not least <= value <= most:
            self.refuse(f"{self.place}{key} is not a whole number from {least} to {most}")
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list of any values."""
        value = self.values.get(key)
        if not isinstance(value, list):
            self.refuse(f"{self.place}{key} is not a list")
        return value

    def of_field(self, key: str) -> "Fields":
        """Return the fields of a nested object."""
        return Fields(self.values.get(key), self.name, f"{self.place}{key}.")

    def each(self, key: str) -> "list[Fields]":
        """Return the fields of each object of a list."""
        values = enumerate(self.items(key))
        return [Fields(value, self.name, f"{self.place}{key}[{n}].") for n, value in values]


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestCounts:
    """Number of records of a manifest, and its publish number.

    `number` is None in manifests of early releases and of batches with more than 200,000 items.
    """

    records: int
    number: int | None


def parse_manifest_file(text: bytes, name: str) -> ManifestCounts:
    """Parse a manifest file; `name` is used in errors.

    Raises:
        ManifestUnfitError: it is not a manifest file.
    """
    fields = Fields.of(text, name)
    number = None
    if "inventory" in fields.values:
        number = fields.of_field("inventory").number("publish_number", least=1)
    records = sum(part.number("records") for part in fields.each("part_files"))
    return ManifestCounts(records=records, number=number)


def read_manifest(text: bytes, name: str, root: str) -> tuple[str, JobKind, Manifest]:
    """Read the manifest of a batch, with its stream and kind of job, from its file.

    Part files are those of the storage root `root`, so that a copied or moved root can be read.

    Raises:
        ManifestUnfitError: it is not a manifest file, or one of another release.
    """
    fields = Fields.of(text, name)
    if "inventory" not in fields.values:
        fields.refuse("it does not name its stream and columns, as those of early releases")
    origin = fields.of_field("inventory")
    if (written := origin.number("version", least=1)) > VERSION:
        fields.refuse(f"its version is {written}, newer than this release reads ({VERSION})")
    job, records, planned = (
        origin.of_field("job"),
        fields.of_field("records"),
        origin.of_field("batch"),
    )
    stored_encoding = fields.of_field("encoding")
    try:
        batch = Batch(
            id=0,
            job=fields.text("stream"),
            id_range=parse_partition_key(fields.text("batch_id")),
            weight=planned.number("weight"),
            count=planned.number("count"),
            item_ids=tuple(planned.items("item_ids")) if "item_ids" in planned.values else None,
            key_digits=key_digits(fields.text("batch_id")),
        )
        manifest = Manifest(
            job=batch.job,
            batch=batch,
            attempt=fields.number("attempt"),
            token=UUID(fields.text("token")),
            generation=fields.number("generation", least=1),
            encoding=Encoding(
                format=Format(stored_encoding.text("format")),
                compression=Compression(stored_encoding.text("compression")),
            ),
            schema=RecordSchema.from_json(origin.items("columns")),
            schema_version=fields.number("schema_version"),
            key_properties=tuple(fields.items("key_properties")),
            part_files=_part_files(fields.each("part_files"), root),
            quarantine_files=_part_files(fields.each("quarantine_files"), root),
            items=fields.number("items"),
            records_read=records.number("read"),
            records_filtered=records.number("filtered"),
            records_quarantined=records.number("quarantined"),
        )
        kind = JobKind(job.text("kind"))
    except (InvalidValueError, TypeError, ValueError) as error:
        raise ManifestUnfitError(name, str(error)) from error
    return job.text("stream"), kind, manifest


def _part_files(entries: "list[Fields]", root: str) -> tuple[PartFile, ...]:
    return tuple(
        PartFile(
            uri=join_uri(root, entry.text("uri").rsplit("/", 1)[-1]),
            records=entry.number("records"),
            size_bytes=entry.number("size_bytes"),
            sha256=entry.text("sha256"),
        )
        for entry in entries
    )


def stream_of(text: bytes, name: str) -> str | None:
    """Return the stream that a manifest file names, None if it names none."""
    try:
        return Fields.of(text, name).of_field("inventory").of_field("job").text("stream")
    except ManifestUnfitError:
        return None
