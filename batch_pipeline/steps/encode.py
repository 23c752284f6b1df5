"""Stations 5 to 7: claim a batch, encode its items, publish the manifest."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from batch_pipeline.domain.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.domain.errors import (
    BadFileError,
    InvariantError,
    RetryableError,
    StorageUnavailableError,
    TooManyBadRecordsError,
)
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.manifest import Manifest, check_batch_conservation
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import OnBadFile, Stream
from batch_pipeline.ports import (
    Attempts,
    Encoded,
    Encoder,
    EncodeRequest,
    EncodeResult,
    MetaTable,
    PartStorage,
    Schemas,
)

LEASE = timedelta(minutes=5)
_MAX_WIDENINGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What encoding one stream's batches needs."""

    stream: Stream
    meta_table: MetaTable
    schemas: Schemas
    attempts: Attempts
    encoder: Encoder
    storage: PartStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published batch: manifest, URI of its pointer file, seconds from claim to pointer."""

    manifest: Manifest
    pointer_uri: str
    seconds: float


def encode(
    workshop: Workshop, batch: Batch, *, run_id: str, clock: Callable[[], float] = monotonic
) -> Published:
    """Make one attempt on a batch and publish it.

    Whatever goes wrong, the attempt is closed with the reason and its files are removed, except
    when the process dies, which a later claim or reconcile finds.

    Raises:
        AttemptRunningError: a live attempt works on the batch.
        BatchDataError: the batch's data is bad; its neighbours are not touched.
        FencedError: another attempt replaced this one.
        ConfigurationError, RetryableError: the surroundings failed.
    """
    started = clock()
    workshop.storage.prepare()
    with workshop.attempts.claim(batch, run_id=run_id, lease=LEASE) as attempt:
        try:
            failpoint("encode.after_claim")
            encoded = _encode_items(workshop, attempt)
            failpoint("encode.before_publish")
            manifest = _publish(workshop, attempt, encoded)
        except BaseException as error:
            _give_up(workshop, attempt, error)
            raise
    failpoint("encode.before_pointer")
    pointer_uri = workshop.storage.point_to(manifest)
    workshop.attempts.pointed(manifest, pointer_uri)
    return Published(manifest=manifest, pointer_uri=pointer_uri, seconds=clock() - started)


def _encode_items(workshop: Workshop, attempt: Attempt) -> Encoded:
    items = workshop.meta_table.items(attempt.batch)
    version, schema = workshop.schemas.latest(workshop.stream.name)
    for _ in range(_MAX_WIDENINGS):
        result = workshop.encoder.encode(
            EncodeRequest(stream=workshop.stream, items=items, schema=schema, stem=attempt.stem)
        )
        _check_bad_data(workshop.stream, result)
        if not result.misfits:
            check_batch_conservation(result.items, result.part_files)
            version = version or _first_version(workshop, result)
            weight = sum(item.weight for item in items)
            return Encoded(result=result, schema=schema, schema_version=version, weight=weight)
        version, schema = workshop.schemas.widen(
            workshop.stream.name, result.misfits, text_source=result.text_source
        )
    raise SchemaUnsettledError(workshop.stream.name, schema)


def _first_version(workshop: Workshop, result: EncodeResult) -> int:
    """Give even a stream that has shown no column yet a schema version to name."""
    version, _ = workshop.schemas.widen(workshop.stream.name, (), text_source=result.text_source)
    return version


def _check_bad_data(stream: Stream, result: EncodeResult) -> None:
    is_registered = stream.user_table is None
    if stream.on_bad_file is OnBadFile.FAIL:
        for item in result.items:
            if item.bad_file is not None:
                raise BadFileError(
                    stream.name, item.location, None, item.bad_file, is_registered=is_registered
                )
    bad = sum(item.quarantined for item in result.items)
    if bad > stream.max_bad_records:
        first = result.bad_records[0]
        raise TooManyBadRecordsError(
            *(stream.name, first.location, first.line, first.reason),
            *(bad, stream.max_bad_records),
            is_registered=is_registered,
        )


def _publish(workshop: Workshop, attempt: Attempt, encoded: Encoded) -> Manifest:
    try:
        return workshop.attempts.publish(attempt, encoded, workshop.stream)
    except RetryableError:
        # The commit may have happened and only its reply been lost: asking again tells.
        return workshop.attempts.publish(attempt, encoded, workshop.stream)


def _give_up(workshop: Workshop, attempt: Attempt, error: BaseException) -> None:
    try:
        unpublished = workshop.attempts.fail(attempt, _reason(error), _status(error))
    except RetryableError:
        return  # nobody knows whether it was published: its files stay until the sweep
    if unpublished:
        # A storage that fails here too must not hide why the attempt failed.
        with suppress(StorageUnavailableError):
            workshop.storage.remove_attempt(attempt.stem)


def _status(error: BaseException) -> AttemptStatus:
    if not isinstance(error, Exception):
        return AttemptStatus.ABANDONED  # an interrupt: the data is not to blame
    # What passes by itself is tried again without a person, what is wrong with the data is not.
    again = isinstance(error, RetryableError)
    return AttemptStatus.ABANDONED if again else AttemptStatus.FAILED


def _reason(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return "interrupted"
    return str(error) or type(error).__name__


@dataclass(eq=False)
class SchemaUnsettledError(InvariantError):
    """The encoder found columns that fit no schema that holds them."""

    stream: str
    schema: RecordSchema

    def sentence(self) -> str:
        return (
            f"{self.stream}: the schema did not settle after {_MAX_WIDENINGS} widenings "
            f"({len(self.schema.columns)} columns). Nothing was published. Please report this."
        )
