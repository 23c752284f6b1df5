"""Run one attempt: claim a batch, encode its items, publish the manifest.

Records may change the schema of their stream, as the stream file allows: if an encode reports
records that do not fit, it is repeated with a wider schema.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol

from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.model.encode_request import (
    EncodeCallbacks,
    Encoded,
    EncodeRequest,
    EncodeResult,
)
from batch_pipeline.model.errors import (
    BadFileError,
    BatchDataError,
    ConfigurationError,
    InvariantError,
    InventoryOlderError,
    ManifestFileUnavailableError,
    RetryableError,
    StorageUnavailableError,
    TasksLostError,
    repair_step,
    repeat_once,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.record_rules import RESCUED, Evolution, LineageContext, OnBadFile
from batch_pipeline.model.schema import (
    Column,
    ColumnType,
    Misfit,
    RecordSchema,
    SchemaChange,
    changes_between,
)
from batch_pipeline.model.stream import Stream

if TYPE_CHECKING:
    from batch_pipeline.inventory.attempts import FencedAttempts
    from batch_pipeline.inventory.meta_tables.sources import StreamTable
    from batch_pipeline.inventory.schema_versions import SchemaVersions
    from batch_pipeline.storage.part_storage import PartFileStorage

log = logging.getLogger(__name__)

LEASE = timedelta(minutes=5)
_MAX_PASSES = 5
_SAMPLE_RECORDS = 20_000  # of a batch, to infer the first schema of a stream


class Encoder(Protocol):
    """An encoder of the items of a batch into part files."""

    def prepare(self) -> None:
        """Start the resources of `encode`, so that a startup failure is raised before the claim."""

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Encode the items of a request; bad records and files are reported, not raised.

        Raises:
            ConflictError: the request was cancelled; its files are removed.
            StorageUnavailableError: part files cannot be written.
            SparkUnavailableError: Spark cannot be reached.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeContext:
    """The components that encode the batches of a stream."""

    stream: Stream
    meta_table: "StreamTable"
    schemas: "SchemaVersions"
    attempts: "FencedAttempts"
    encoder: Encoder
    storage: "PartFileStorage"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published batch.

    `pointer_uri` is the URI of its manifest file, `seconds` the time from the claim to that file,
    and `schema_changes` are the changes that the batch made to the schema of the stream.
    """

    manifest: Manifest
    pointer_uri: str
    seconds: float
    schema_changes: tuple[SchemaChange, ...] = ()


def encode(
    context: EncodeContext,
    batch: Batch,
    *,
    run_id: str,
    on_progress: Callable[[int, int], None] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Published:
    """Run one attempt on a batch and publish its manifest.

    `on_progress` receives the number of finished tasks and their total every few seconds.

    On any error the attempt is closed with the reason and its files are removed. If the process
    dies, a later claim or `reconcile` closes the attempt.

    Raises:
        ConflictError: another attempt on the batch is running.
        BatchDataError: the data of the batch is bad; other batches are not affected.
        FencedError: another attempt replaced this one.
        InventoryOlderError: the storage already has the manifest that this attempt would publish.
        ConfigurationError, RetryableError: the database, the storage or Spark failed.
    """
    started_at = now()
    context.storage.prepare()
    context.encoder.prepare()
    with context.attempts.claim(batch, run_id=run_id, lease=LEASE) as attempt:
        try:
            try:
                context.storage.check_unpointed(attempt, context.stream.name)
            except InventoryOlderError:
                context.attempts.check_running(attempt)  # raises if another attempt replaced it
                raise
            failpoint("encode.after_claim")
            encoded = _encode_items(context, attempt, started_at, on_progress)
            parts = (*encoded.result.part_files, *encoded.result.quarantine_files)
            context.storage.check_written(parts)
            failpoint("encode.before_publish")
            publish = partial(context.attempts.publish, attempt, encoded, context.stream)
            manifest = repeat_once(publish)
        except BaseException as error:
            _close_attempt(context, attempt, error)
            raise
    failpoint("encode.before_pointer")
    pointer_uri = _write_manifest_file(context, manifest)
    seconds = (now() - started_at).total_seconds()
    return Published(
        manifest=manifest,
        pointer_uri=pointer_uri,
        seconds=seconds,
        schema_changes=encoded.schema_changes,
    )


def _write_manifest_file(context: EncodeContext, manifest: Manifest) -> str:
    """Write the manifest file; on failure the next `reconcile` does, as the batch is published."""
    try:
        uri = context.storage.point_to(manifest)
    except ManifestFileUnavailableError as error:
        log.warning("%s", error)
        return context.storage.pointer_uri(manifest)
    context.attempts.record_pointer(manifest, uri)
    return uri


def _encode_items(
    context: EncodeContext,
    attempt: Attempt,
    started_at: datetime,
    on_progress: Callable[[int, int], None] | None,
) -> Encoded:
    lineage = LineageContext(
        batch_key=attempt.batch.key, attempt=attempt.number, started_at=started_at
    )
    items = context.meta_table.items(attempt.batch)
    watch = EncodeCallbacks(
        on_progress=on_progress, is_cancelled=lambda: not context.attempts.holds(attempt)
    )
    _, before = context.schemas.latest(context.stream.name)
    version, schema = _known_schema(context.schemas, context.stream)
    passes = _passes(context.schemas, context.stream, schema)
    changes = changes_between(before, schema)  # changes made by the declaration
    for stream, sample_records in passes:
        result = context.encoder.encode(
            EncodeRequest(
                stream=stream,
                items=items,
                schema=schema,
                stem=attempt.stem,
                context=lineage,
                sample_records=sample_records,
                watch=watch,
            )
        )
        _check_bad_data(context.stream, result)
        if not result.misfits:
            result.check_conservation()
            if not version:  # the stream has no column yet
                version, _ = context.schemas.widen(
                    context.stream.name, (), text_source=result.text_source
                )
            weight = sum(item.weight for item in items)
            return Encoded(
                result=result,
                schema=schema,
                schema_version=version,
                schema_changes=changes,
                weight=weight,
            )
        _check_evolution(stream, result.misfits, (version, schema))
        before = schema
        version, schema = context.schemas.widen(
            context.stream.name,
            [misfit.column for misfit in result.misfits],
            text_source=result.text_source,
            because=result.misfits,
        )
        changes += changes_between(before, schema, result.misfits)
    raise InvariantError(
        f"{context.stream.name}: the schema did not settle after {len(passes)} passes "
        f"(columns: {len(schema.columns)}). Nothing was published. Please report this."
    )


def _check_bad_data(stream: Stream, result: EncodeResult) -> None:
    is_registered = stream.user_table is None
    for item in result.items:
        kind = item.bad_kind
        if kind is not None and stream.on_bad_file.of(kind) is OnBadFile.FAIL:
            place = (stream.name, item.location, None, item.bad_file or kind)
            raise BadFileError(*place, is_registered=is_registered, kind=kind)
    if result.misfits and stream.on_bad_record.max_bad_ratio is not None:
        return  # only bad records were counted; the ratio applies to all, in the last pass
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


def _close_attempt(context: EncodeContext, attempt: Attempt, error: BaseException) -> None:
    reason = str(error) or type(error).__name__ if isinstance(error, Exception) else "interrupted"
    # Errors that the data did not cause are retried, and do not count towards `max_attempts`.
    is_infrastructure = not isinstance(error, Exception) or isinstance(
        error, RetryableError | StorageUnavailableError
    )
    status = AttemptStatus.ABANDONED if is_infrastructure else AttemptStatus.FAILED
    # The data that a task read may have killed its process.
    counts = isinstance(error, TasksLostError) or not is_infrastructure
    try:
        unpublished = context.attempts.fail(attempt, reason, status, counts=counts)
    except RetryableError:
        return  # it may be published: its files stay until garbage collection
    if unpublished:
        # An error of the storage must not replace the error of the attempt.
        with suppress(StorageUnavailableError):
            context.storage.remove_attempt(attempt.stem)


def _known_schema(schemas: "SchemaVersions", stream: Stream) -> tuple[int, RecordSchema]:
    """Return the newest schema version, with declared columns and those added to all records.

    Raises:
        ConfigurationError: the declaration narrows or contradicts the known schema, or a column
            that is added to all records has another type there.
    """
    declared = stream.schema.declared
    # Declared columns describe the input of a transform.
    if declared is None or stream.transform is not None:
        version, schema = schemas.latest(stream.name)
    else:
        version, schema = schemas.declare(stream.name, declared)
    added = _added(stream)
    if {*added} <= {*schema.columns}:
        return version, schema
    known = schema.by_name()
    for column in () if stream.transform else added:
        held = known.get(column.name, column)
        if held.type not in {column.type, ColumnType.UNKNOWN}:
            raise ConfigurationError(
                f"{stream.name}: `lineage` or `evolution: rescue` adds the column {column.name} "
                f"({column.type_text}), which the schema has from earlier files "
                f"({held.type_text}). Nothing of this batch was published. Remove the setting that "
                f"adds it."
            )
    return schemas.widen(stream.name, added, text_source=False)


def _passes(
    schemas: "SchemaVersions", stream: Stream, schema: RecordSchema
) -> list[tuple[Stream, int | None]]:
    """Return the stream and the sample size of a batch for each pass of the encoder.

    Only the first pass may stop after a sample. Without declared columns, records may add any
    column until a batch is published, and the first pass infers the first columns from a sample.
    """
    rules, sample = stream.schema, None
    if rules.declared is None:
        is_new = {column.name for column in _added(stream)}.issuperset(schema.names)
        if is_new and not rules.sample_records:
            sample = _SAMPLE_RECORDS
        has_rule = rules.evolution is not Evolution.ADD and not is_new
        if not (has_rule and schemas.has_published(stream.name)):
            rules = replace(rules, evolution=Evolution.ADD)
    first = replace(stream, schema=rules)
    later = replace(stream, schema=replace(rules, sample_records=None))
    return [(first, sample), *[(later, None)] * (_MAX_PASSES - 1)]


def _check_evolution(
    stream: Stream,
    misfits: Sequence[Misfit],
    known: tuple[int, RecordSchema],
) -> None:
    """Check that the schema may change; a column that had only nulls may always take a type.

    Raises:
        BatchDataError: the schema may not change.
    """
    if stream.schema.evolution is not Evolution.FAIL:
        return
    version, columns = known[0], known[1].by_name()
    untyped = {name for name, column in columns.items() if column.type is ColumnType.UNKNOWN}
    refused = [misfit for misfit in misfits if misfit.column.name not in untyped]
    if not refused:
        return
    first = refused[0]
    column = columns.get(first.column.name)
    place = first.location if first.line is None else f"{first.location}, line {first.line}"
    held = "has no such column" if column is None else f"has {column.type_text}"
    others = len(refused) - 1
    more = f" (more columns that do not fit: {others})" if others else ""
    raise BatchDataError(
        f"{stream.name}: {place}: column {first.column.name} holds {first.seen}, schema version "
        f"{version} {held}{more}; `schema.evolution` is `fail`, so nothing of this batch was "
        f"published. {repair_step(stream.name, is_registered=stream.user_table is None)}, declare "
        f"the column wide enough, or set `evolution: add` or `rescue`; then run again."
    )


def _added(stream: Stream) -> list[Column]:
    added = [lineage.column for lineage in stream.lineage]
    if stream.schema.evolution is Evolution.RESCUE:
        added.append(Column(name=RESCUED, type=ColumnType.STRING))
    return added
