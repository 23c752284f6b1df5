"""Manifest files in the storage, and the case that the inventory does not know them.

`read_manifest` reads the manifest of a stream's batch, `parse_manifest_file` only the counts of any
manifest file. An inventory that was restored from a backup or created again is older than its
storage: the storage then has manifests of batches that the inventory does not list
(`UnknownManifests`, `InventoryOlderError`). This module reads bytes, not files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import UUID

from batch_pipeline.model.batch import Batch, key_digits, parse_partition_key
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    StorageUnavailableError,
)
from batch_pipeline.model.id_range import MAX_ID
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.location import join_uri
from batch_pipeline.model.manifest import VERSION, Manifest, PartFile
from batch_pipeline.model.schema import RecordSchema

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
