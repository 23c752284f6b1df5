"""Manifest files in the storage, and the case that the inventory does not know them.

`read_manifest` reads the manifest of a stream's batch, `parse_manifest_file` only the counts of any
manifest file. An inventory that was restored from a
backup or created again is older than its storage: the storage then has manifests of batches that
the inventory does not list (`UnknownManifests`, `InventoryOlderError`). This module reads bytes,
not files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import UUID

from batch_pipeline.model.batch import Batch, parse_partition_key
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


@dataclass(eq=False)
class ManifestUnfitError(ConfigurationError):
    """Manifest file is not in the form that this product writes."""

    name: str
    problem: str

    def sentence(self) -> str:
        return f"The manifest {self.name} cannot be read: {self.problem}."


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
_MAX_NAME_CHARS = 4_096


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
    content, number = _parse(text, name), None
    if "inventory" in content:
        inventory = _object(content["inventory"], name, "inventory")
        place = "inventory.publish_number"
        number = _number(inventory.get("publish_number"), name, place, least=1)
    parts, records = content.get("part_files"), 0
    if not isinstance(parts, list):
        raise ManifestUnfitError(name, "part_files is no list")
    for position, part in enumerate(parts):
        place = f"part_files[{position}]"
        records += _number(_object(part, name, place).get("records"), name, f"{place}.records")
    return ManifestCounts(records=records, number=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredManifest:
    """Manifest read from its file, with the stream and the kind of job that published it."""

    stream: str
    kind: JobKind
    manifest: Manifest


def read_manifest(text: bytes, name: str, root: str) -> StoredManifest:
    """Read the manifest of a stream's batch from its file in the storage root `root`.

    Part files are those of this root, so that a copied or moved root can be read.

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
    return StoredManifest(stream=job.text("stream"), kind=kind, manifest=manifest)


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
        inventory = _object(_parse(text, name).get("inventory"), name, "inventory")
        stream = _object(inventory.get("job"), name, "job").get("stream")
    except ManifestUnfitError:
        return None
    is_name = isinstance(stream, str) and len(stream) <= _MAX_NAME_CHARS and "\0" not in stream
    return stream if is_name else None


def _parse(text: bytes, name: str) -> dict[str, Any]:
    """Parse JSON of bounded size; NaN and infinities are rejected."""
    if len(text) > MAX_BYTES:
        raise ManifestUnfitError(name, f"it has more than {MAX_BYTES} bytes")
    try:
        return _object(json.loads(text, parse_constant=_reject_constant), name, "it")
    except (ValueError, RecursionError) as error:
        raise ManifestUnfitError(name, "it is no JSON") from error


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(text)


def _object(value: Any, name: str, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ManifestUnfitError(name, f"{place} is no JSON object")
    return value


def _number(value: Any, name: str, place: str, *, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= MAX_ID:
        raise ManifestUnfitError(name, f"{place} is no whole number from {least} to {MAX_ID}")
    return value
