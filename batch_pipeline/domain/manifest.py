"""What one attempt produced: part files, and for every item where its records went."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.encoding import Encoding
from batch_pipeline.domain.errors import ConservationError
from batch_pipeline.domain.origin import Origin
from batch_pipeline.domain.record_rules import BadFileKind
from batch_pipeline.domain.schema import RecordSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """One file as the task that wrote it reported it; `sha256` is the hex digest of its bytes."""

    uri: str
    records: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemReport:
    """Where the records of one item went.

    `rescued` are those among the written ones with values in `_rescued_data`. `bad_file` is the
    reason why the whole file was set aside, None for a file that was read;
    `bad_kind` is then the kind of trouble. `etag` and `version` tell which version of an object was
    read; a version only where the bucket keeps versions, None for files of a disk.
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
        """Check that every record read ended in exactly one place.

        Raises:
            ConservationError: it did not.
        """
        accounted = self.written + self.filtered + self.quarantined
        if self.read != accounted:
            raise ConservationError(self.location, self.read, accounted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The list of files that one attempt produced, in record order, with its counters.

    `generation` counts the published attempts of the batch from 1; the manifest of a batch that
    holds no record lists no part file. `records_transformed` are those that the transform of a
    transformed stream was given; None without one. `origin` is there where a pointer file is to be
    written.
    """

    stream: str
    batch: Batch
    attempt: int
    token: UUID
    generation: int
    encoding: Encoding
    schema: RecordSchema
    schema_version: int
    key_properties: tuple[str, ...]
    part_files: tuple[PartFile, ...]
    quarantine_files: tuple[PartFile, ...]
    items: int
    records_read: int
    records_filtered: int
    records_quarantined: int
    records_transformed: int | None = None
    origin: Origin | None = field(default=None, compare=False, repr=False)

    @property
    def records(self) -> int:
        """Records written."""
        return sum(part.records for part in self.part_files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all part files."""
        return sum(part.size_bytes for part in self.part_files)

    def to_json(self) -> dict[str, Any]:
        """Write the manifest as the pointer file holds it; its origin comes last."""
        given = self.records_transformed
        transformed = {} if given is None else {"transformed": given}
        origin = {} if self.origin is None else {"inventory": self._origin_json(self.origin)}
        return {
            "stream": self.stream,
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
            "part_files": [_part_json(part) for part in self.part_files],
            "quarantine_files": [_part_json(part) for part in self.quarantine_files],
            **origin,
        }

    def _origin_json(self, origin: Origin) -> dict[str, Any]:
        batch: dict[str, Any] = {
            "weight": self.batch.weight,
            "count": self.batch.count,
            "oversized": self.batch.oversized,
        }
        if self.batch.item_ids is not None:
            batch["item_ids"] = [*self.batch.item_ids]
        return {**origin.to_json(), "batch": batch}


def _part_json(part: PartFile) -> dict[str, Any]:
    return {
        "uri": part.uri,
        "records": part.records,
        "size_bytes": part.size_bytes,
        "sha256": part.sha256,
    }


def check_batch_conservation(items: Iterable[ItemReport], part_files: Iterable[PartFile]) -> None:
    """Check each item, and that the part files hold exactly the records the items say were written.

    Raises:
        ConservationError: a record is unaccounted for or there twice.
    """
    written = 0
    for item in items:
        item.check_conservation()
        written += item.written
    in_files = sum(part.records for part in part_files)
    if written != in_files:
        raise ConservationError("part files", written, in_files)
