"""Manifests: the files that one attempt produced, with their counters and origin.

`Manifest.to_json` returns the content of the manifest file. Its origin adds facts that only the
inventory has: job, items, times. If an inventory is older than its storage, the stream and the
publish number are read from the origin. Every record read must be accounted for
(`check_conservation`).

`read_manifest` reads the manifest of a stream's batch, `parse_manifest_file` the counts and the
job of any manifest file. This module parses bytes and opens no files.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from batch_pipeline.model.batch import MAX_ID, Batch, key_digits, parse_partition_key
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, InvariantError
from batch_pipeline.model.job import JobKind, JobTerms
from batch_pipeline.model.location import join_uri
from batch_pipeline.model.record_rules import BadFileKind
from batch_pipeline.model.schema import RecordSchema

_T = TypeVar("_T")
VERSION = 1  # of the format of an origin
MAX_BYTES = 64 * 2**20  # of a manifest file that is read
_MAX_TEXT = 4_096  # characters of a text in a manifest file


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Files that one attempt produced, in record order, with its counters.

    `job` is the job of the batch, stored under the key `stream` of the manifest file: the name of a
    stream, with a suffix for late arrivals and backfills. `generation` counts the published
    attempts of the batch from 1. The manifest of a batch without records lists no part file.
    `records_transformed` is the number of records that the transform received, None without one.
    `origin` is the inventory's record of the publication, as JSON; it is set if a manifest file
    will be written.
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
    origin: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

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
        origin = {} if self.origin is None else {"inventory": self._with_batch(self.origin)}
        return {
            "stream": self.job,
            "batch_id": self.batch.key,
            "attempt": self.attempt,
            "token": str(self.token),
            "generation": self.generation,
            "encoding": self.encoding.to_json(),
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

    def _with_batch(self, origin: Mapping[str, Any]) -> dict[str, Any]:
        batch: dict[str, Any] = {
            "weight": self.batch.weight,
            "count": self.batch.count,
            "oversized": self.batch.oversized,
        }
        if self.batch.item_ids is not None:
            batch["item_ids"] = [*self.batch.item_ids]
        return {**origin, "batch": batch}


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


class ManifestUnfitError(ConfigurationError):
    """Manifest file is not in the form that this product writes."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"The manifest {name} cannot be read: {problem}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestCounts:
    """Number of records of a manifest, its publish number, and its job with the parent's name.

    The latter are None in manifests of early releases and of batches with more than 200,000 items.
    """

    records: int
    number: int | None = None
    job: JobTerms | None = None
    parent: str | None = None


def parse_manifest_file(text: bytes, name: str) -> ManifestCounts:
    """Parse the counts and the job of a manifest file; `name` is used in errors.

    Raises:
        ManifestUnfitError: it is not a manifest file.
    """
    with _parsed(text, name) as written:
        number = job = parent = None
        if "inventory" in written:
            number = _number(written["inventory"]["publish_number"], least=1)
            origin = written["inventory"]["job"]
            job = _read_job(_text(written["stream"]), origin)
            parent = None if origin["parent"] is None else _text(origin["parent"])
        records = sum(_number(part["records"]) for part in _typed(list, written["part_files"]))
        return ManifestCounts(records=records, number=number, job=job, parent=parent)


def _read_job(name: str, origin: Mapping[str, Any]) -> JobTerms:
    return JobTerms(
        name=name,
        meta_table=_text(origin["meta_table"]),
        kind=JobKind(origin["kind"]),
        stream=_text(origin["stream"]),
        max_attempts=_number(origin["max_attempts"]),
        bisect=_typed(bool, origin["bisect"]),
        planned_once=_typed(dict, origin["config"]),
    )


def read_manifest(text: bytes, name: str, root: str) -> tuple[str, JobKind, Manifest]:
    """Read the manifest of a batch, with its stream and kind of job, from its file.

    Part files are those of the storage root `root`, so that a copied or moved root can be read.

    Raises:
        ManifestUnfitError: it is not a manifest file, or is from another release.
    """
    with _parsed(text, name) as written:
        if "inventory" not in written:
            problem = "it does not name its stream and columns, as those of early releases"
            raise ManifestUnfitError(name, problem)
        origin, records = written["inventory"], written["records"]
        if (version := _number(origin["version"], least=1)) > VERSION:
            problem = f"its version is {version}, newer than this release reads ({VERSION})"
            raise ManifestUnfitError(name, problem)
        batch = _read_batch(written)
        manifest = Manifest(
            job=batch.job,
            batch=batch,
            attempt=_number(written["attempt"]),
            token=UUID(written["token"]),
            generation=_number(written["generation"], least=1),
            encoding=Encoding.from_json(written["encoding"]),
            schema=RecordSchema.from_json(origin["columns"]),
            schema_version=_number(written["schema_version"]),
            key_properties=tuple(_typed(list, written["key_properties"])),
            part_files=_read_part_files(written["part_files"], root),
            quarantine_files=_read_part_files(
                written["quarantine_files"], join_uri(root, "quarantine")
            ),
            items=_number(written["items"]),
            records_read=_number(records["read"]),
            records_filtered=_number(records["filtered"]),
            records_quarantined=_number(records["quarantined"]),
            records_transformed=(
                _number(records["transformed"]) if "transformed" in records else None
            ),
        )
        job = origin["job"]
        return _text(job["stream"]), JobKind(job["kind"]), manifest


def _read_batch(written: Mapping[str, Any]) -> Batch:
    key, planned = _text(written["batch_id"]), written["inventory"]["batch"]
    return Batch(
        id=0,
        job=_text(written["stream"]),
        id_range=parse_partition_key(key),
        weight=_number(planned["weight"]),
        count=_number(planned["count"]),
        item_ids=tuple(planned["item_ids"]) if "item_ids" in planned else None,
        key_digits=key_digits(key),
    )


def _read_part_files(entries: Any, root: str) -> tuple[PartFile, ...]:
    return tuple(
        PartFile(
            uri=join_uri(root, _text(entry["uri"]).rsplit("/", 1)[-1]),
            records=_number(entry["records"]),
            size_bytes=_number(entry["size_bytes"]),
            sha256=_text(entry["sha256"]),
        )
        for entry in _typed(list, entries)
    )


@contextmanager
def _parsed(text: bytes, name: str) -> Iterator[Any]:
    """Parse a file as JSON, and translate the errors of a block that finds no manifest in it."""
    try:
        yield json.loads(text, parse_constant=_reject_constant)
    except KeyError as error:
        raise ManifestUnfitError(name, f"it has no {str(error)[:100]}") from error
    except (AttributeError, InvalidValueError, RecursionError, TypeError, ValueError) as error:
        problem = f"it is not in the form of a manifest: {str(error)[:200]}"
        raise ManifestUnfitError(name, problem) from error


def _typed(kind: type[_T], value: Any) -> _T:
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:100]!r} is not of type {kind.__name__}")
    return value


def _text(value: Any) -> str:
    text = _typed(str, value)
    text.encode()  # raises ValueError for an unpaired surrogate
    if len(text) > _MAX_TEXT or "\0" in text:
        raise ValueError(f"{text[:100]!r} is longer than {_MAX_TEXT:,} characters, or contains NUL")
    return text


def _number(value: Any, *, least: int = 0) -> int:
    number = _typed(int, value)  # rejects bool
    if not least <= number <= MAX_ID:
        raise ValueError(f"{value} is not a whole number from {least} to {MAX_ID}")
    return number


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"it is not JSON: {text}")
