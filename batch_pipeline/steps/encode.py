"""Stations 5 to 7: claim a batch, encode its items, publish the manifest."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.model.encode import EncodeCallbacks, Encoded, EncodeRequest, EncodeResult
from batch_pipeline.model.errors import (
    BadFileError,
    BatchDataError,
    InvariantError,
    ManifestFileUnavailableError,
    RetryableError,
    StorageUnavailableError,
    TasksLostError,
    repair_step,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.manifest_file import InventoryOlderError
from batch_pipeline.model.record_rules import LineageContext, OnBadFile
from batch_pipeline.model.schema import RecordSchema, SchemaChange, changes_between
from batch_pipeline.model.stream import Stream
from batch_pipeline.ports import Attempts, Encoder, MetaTable, PartStorage, Schemas
from batch_pipeline.steps.evolve import check_evolution, evolution_of, for_look, known_schema

log = logging.getLogger(__name__)

LEASE = timedelta(minutes=5)
_MAX_WIDENINGS = 4


class AttemptStorage(PartStorage, Protocol):
    """Where an attempt writes, which tells whether somebody was there before it."""

    def check_unpointed(self, attempt: Attempt) -> None:
        """Check that the manifest file of an attempt's generation is not there before it.

        Raises:
            InventoryOlderError: it is: the inventory is an older copy.
        """
        ...


class AskedAttempts(Attempts, Protocol):
    """The attempts, of which the inventory can be asked whether they may still publish."""

    def check_running(self, attempt: Attempt) -> None:
        """Ask the inventory whether the attempt still holds the batch.

        Raises:
            FencedError: it does not.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What encoding one stream's batches needs."""

    stream: Stream
    meta_table: MetaTable
    schemas: Schemas
    attempts: AskedAttempts
    encoder: Encoder
    storage: AttemptStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published batch: manifest, URI of its manifest file, seconds from claim to pointer.

    `schema_changes` are what its records changed in the schema.
    """

    manifest: Manifest
    pointer_uri: str
    seconds: float
    schema_changes: tuple[SchemaChange, ...] = ()


def _utc_now() -> datetime:
    return datetime.now(UTC)


def encode(
    workshop: Workshop, batch: Batch, *, run_id: str, now: Callable[[], datetime] = _utc_now
) -> Published:
    """Make one attempt on a batch and publish it.

    Whatever goes wrong, the attempt is closed with the reason and its files are removed, except
    when the process dies, which a later claim or reconcile finds.

    Raises:
        ConflictError: a live attempt works on the batch.
        BatchDataError: the batch's data is bad; its neighbours are not touched.
        FencedError: another attempt replaced this one.
        InventoryOlderError: the storage has the manifest that this one would make.
        ConfigurationError, RetryableError: the surroundings failed.
    """
    started_at = now()
    workshop.storage.prepare()
    workshop.encoder.prepare()
    with workshop.attempts.claim(batch, run_id=run_id, lease=LEASE) as attempt:
        try:
            _check_first(workshop, attempt)
            failpoint("encode.after_claim")
            encoded = _encode_items(workshop, attempt, started_at)
            parts = (*encoded.result.part_files, *encoded.result.quarantine_files)
            workshop.storage.check_written(parts)
            failpoint("encode.before_publish")
            manifest = _publish(workshop, attempt, encoded)
        except BaseException as error:
            _give_up(workshop, attempt, error)
            raise
    failpoint("encode.before_pointer")
    pointer_uri = _pointed(workshop, manifest)
    seconds = (now() - started_at).total_seconds()
    return Published(
        manifest=manifest,
        pointer_uri=pointer_uri,
        seconds=seconds,
        schema_changes=encoded.schema_changes,
    )


def _check_first(workshop: Workshop, attempt: Attempt) -> None:
    """Check that nobody has published what this attempt is to publish."""
    try:
        workshop.storage.check_unpointed(attempt)
    except InventoryOlderError:
        workshop.attempts.check_running(attempt)  # else it is of the one that replaced this one
        raise


def _pointed(workshop: Workshop, manifest: Manifest) -> str:
    """Write the manifest file, or leave it to the next reconcile: the batch is published."""
    try:
        uri = workshop.storage.point_to(manifest)
    except ManifestFileUnavailableError as error:
        log.warning("%s", error)
        return workshop.storage.pointer_uri(manifest)
    workshop.attempts.record_pointer(manifest, uri)
    return uri


def _encode_items(workshop: Workshop, attempt: Attempt, started_at: datetime) -> Encoded:
    context = LineageContext(
        batch_key=attempt.batch.key, attempt=attempt.number, started_at=started_at
    )
    items = workshop.meta_table.items(attempt.batch)
    version, schema = known_schema(workshop.schemas, workshop.stream)
    evolution = evolution_of(workshop.stream, schema)
    changes: tuple[SchemaChange, ...] = ()
    for look in range(_MAX_WIDENINGS):
        result = workshop.encoder.encode(
            EncodeRequest(
                stream=for_look(workshop.stream, evolution, look),
                items=items,
                schema=schema,
                stem=attempt.stem,
                context=context,
                watch=EncodeCallbacks(is_cancelled=lambda: not workshop.attempts.holds(attempt)),
            )
        )
        _check_bad_data(workshop.stream, result)
        if not result.misfits:
            result.check_conservation()
            version = version or _first_version(workshop, result)
            weight = sum(item.weight for item in items)
            return Encoded(
                result=result,
                schema=schema,
                schema_version=version,
                schema_changes=changes,
                weight=weight,
            )
        check_evolution(workshop.stream, evolution, result.misfits, (version, schema))
        before = schema
        version, schema = workshop.schemas.widen(
            workshop.stream.name,
            [misfit.column for misfit in result.misfits],
            text_source=result.text_source,
            because=result.misfits,
        )
        changes += changes_between(before, schema, result.misfits)
    raise _schema_unsettled(workshop.stream.name, schema)


def _first_version(workshop: Workshop, result: EncodeResult) -> int:
    """Give even a stream that has shown no column yet a schema version to name."""
    version, _ = workshop.schemas.widen(workshop.stream.name, (), text_source=result.text_source)
    return version


def _check_bad_data(stream: Stream, result: EncodeResult) -> None:
    is_registered = stream.user_table is None
    for item in result.items:
        kind = item.bad_kind
        if kind is not None and stream.on_bad_file.of(kind) is OnBadFile.FAIL:
            place = (stream.name, item.location, None, item.bad_file or kind)
            raise BadFileError(*place, is_registered=is_registered, kind=kind)
    bad = sum(item.quarantined for item in result.items)
    read = sum(item.read for item in result.items)
    if not stream.on_bad_record.allow(bad=bad, read=read):
        first = result.bad_records[0]
        raise BatchDataError(
            f"{stream.name}: {first.location}, line {first.line}: {first.reason}. Bad records: "
            f"{bad}, {stream.on_bad_record.sentence} allowed; nothing of this batch was published. "
            f"{repair_step(stream.name, is_registered=is_registered)}, or raise the limits of "
            f"`on_bad_record`; then run again."
        )


def _publish(workshop: Workshop, attempt: Attempt, encoded: Encoded) -> Manifest:
    try:
        return workshop.attempts.publish(attempt, encoded, workshop.stream)
    except RetryableError:
        # The commit may have happened and only its reply been lost: asking again tells.
        return workshop.attempts.publish(attempt, encoded, workshop.stream)


def _give_up(workshop: Workshop, attempt: Attempt, error: BaseException) -> None:
    try:
        unpublished = workshop.attempts.fail(
            attempt, _reason(error), _status(error), counts=_counts(error)
        )
    except RetryableError:
        return  # nobody knows whether it was published: its files stay until the sweep
    if unpublished:
        # A storage that fails here too must not hide why the attempt failed.
        with suppress(StorageUnavailableError):
            workshop.storage.remove_attempt(attempt.stem)


def _status(error: BaseException) -> AttemptStatus:
    # What has nothing to do with the data is tried again without a person.
    return AttemptStatus.ABANDONED if _is_of_surroundings(error) else AttemptStatus.FAILED


def _counts(error: BaseException) -> bool:
    """Tell whether an attempt is one of those that its job allows: an outage makes none dead."""
    # Processes of tasks may have died of what they read.
    return isinstance(error, TasksLostError) or not _is_of_surroundings(error)


def _is_of_surroundings(error: BaseException) -> bool:
    is_interrupt = not isinstance(error, Exception)
    return is_interrupt or isinstance(error, RetryableError | StorageUnavailableError)


def _reason(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return "interrupted"
    return str(error) or type(error).__name__


def _schema_unsettled(stream: str, schema: RecordSchema) -> InvariantError:
    return InvariantError(
        f"{stream}: the schema did not settle after {_MAX_WIDENINGS} widenings "
        f"(columns: {len(schema.columns)}). Nothing was published. Please "
        f"report this."
    )
