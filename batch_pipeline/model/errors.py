"""All errors that the product raises deliberately, in one tree.

The branch determines the catcher's reaction: `ConfigurationError` (the operator fixes something),
`RetryableError` (wait and repeat), `ConflictError` (read again and decide), `BatchDataError` (fail
the attempt, continue with the others), `InvariantError` (a defect of this code).

An error has its own class only if a catcher treats it differently or a user may want to catch it;
all others are messages of their branch, built where they are raised. A message states what failed,
why, the state left behind and the next step. It never contains credentials. Only the command line
and the Dagster definitions translate errors into exit codes and failures.
"""

import difflib
import errno
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from typing import Self, TypeVar

_Result = TypeVar("_Result")


def closest(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that an unknown name probably misspells."""
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a sentence that suggests a known name, preceded by a space, or an empty string."""
    close = closest(name, known)
    return "" if close is None else f" Did you mean {close!r}?"


def ended(problem: str) -> str:
    """Return the text of a problem with a full stop, unless it ends with a question."""
    return problem if problem.endswith("?") else f"{problem}."


class PipelineError(Exception):
    """Base class of all deliberate errors; `str()` is a message for the operator."""

    def sentence(self) -> str:
        """Return what failed, why, the state left behind and the next step."""
        return super().__str__()

    def __str__(self) -> str:
        return self.sentence()


class ConfigurationError(PipelineError):
    """Error that the operator must fix; repeating does not help."""


class RetryableError(PipelineError):
    """Temporary error; waiting and repeating is enough."""


class ConflictError(PipelineError):
    """Concurrent change by another process; read again and decide."""


class BatchDataError(PipelineError):
    """Bad data in one batch; its attempt fails, other batches continue."""


class InvariantError(PipelineError):
    """Bug in this product: an invariant does not hold."""


def repeat_once(call: Callable[[], _Result]) -> _Result:
    """Call an idempotent function, and again after a `RetryableError`.

    If only the reply to the commit was lost, the second call finds the change committed.
    """
    try:
        return call()
    except RetryableError:
        return call()


_LONGEST_SHOWN = 1_000  # characters of a value


@dataclass(eq=False)
class InvalidValueError(ConfigurationError):
    """Value from the operator is not allowed."""

    name: str
    value: object
    expected: str

    def sentence(self) -> str:
        shown = repr(self.value)
        if len(shown) > _LONGEST_SHOWN:
            shown = f"{shown[:_LONGEST_SHOWN]} …"
        return f"{self.name} is {shown}; expected {self.expected}."


def require(fits: object, name: str, value: object, expected: str) -> None:
    """Raise an `InvalidValueError` unless a value fits."""
    if not fits:
        raise InvalidValueError(name, value, expected)


@dataclass(eq=False)
class SettingError(ConfigurationError):
    """Setting cannot be used; `source` is where it was set. The value is never shown."""

    name: str
    source: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        problem = ended(self.problem)
        return f"{self.name} ({self.source}): {problem} Nothing was started. {self.next_step}"


@dataclass(eq=False)
class StreamFileError(ConfigurationError):
    """A stream file cannot be used as written; `stream` is the name in it, if it can be read."""

    path: str
    line: int | None
    problem: str
    next_step: str
    stream: str | None = None

    def sentence(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {ended(self.problem)} {self.next_step}"


@dataclass(eq=False)
class UnknownStreamError(ConfigurationError):
    """Requested stream has no stream file."""

    stream: str
    known: tuple[str, ...]
    folder: str

    def sentence(self) -> str:
        known = ", ".join(self.known) or "none"
        return (
            f"No stream {self.stream!r} in {self.folder} (streams there: {known})."
            f"{did_you_mean(self.stream, self.known)} Nothing was done. Correct the name or "
            f"BATCH_PIPELINE_STREAMS."
        )


@dataclass(eq=False)
class UnknownJobError(ConfigurationError):
    """Requested job is not in the inventory; `streams` may not have a job yet."""

    job: str
    known: tuple[str, ...]
    streams: tuple[str, ...] = ()

    def sentence(self) -> str:
        if self.job in self.streams:
            return (
                f"The stream {self.job!r} has no job yet. Nothing was done. "
                f"`batch-pipeline plan {self.job}` creates it."
            )
        known = f"jobs: {', '.join(self.known) or 'none'}"
        if self.streams:
            known = f"{known}; streams: {', '.join(self.streams)}"
        meant = did_you_mean(self.job, (*self.known, *self.streams))
        return f"There is no job {self.job!r} ({known}).{meant} Nothing was done. Correct the name."


@dataclass(eq=False)
class AmbiguousJobError(ConfigurationError):
    """Requested job name exists for several meta tables."""

    job: str
    meta_tables: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"There are jobs {self.job!r} on {', '.join(self.meta_tables)}. Nothing was done. Name "
            f"the meta table too (`--meta-table {shlex.quote(self.meta_tables[0])}`)."
        )


@dataclass(eq=False)
class JobChangedError(ConfigurationError):
    """Job exists with another configuration."""

    job: str
    meta_table: str
    problem: str
    next_step: str = ""

    def sentence(self) -> str:
        return (
            f"Job {self.job!r} on {self.meta_table} exists, and {self.problem}. Nothing was "
            f"changed, because rows below its bookmark would never be read. Use another name for "
            f"the job, or the settings that it was created with. {self.next_step}"
        ).rstrip()


def resume_step(job: str, reason: str) -> str:
    """Return how to resume a paused job; empty if it would be paused again for its reason."""
    resume = f"batch-pipeline jobs resume {shlex.quote(job)}"
    return "" if reason.startswith(OLDER) else f"`{resume}` resumes it."


@dataclass(eq=False)
class JobPausedError(RetryableError):
    """Job is paused."""

    job: str
    reason: str

    def sentence(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"Job {self.job!r} is paused{why}. Nothing was planned or handed out. "
            f"{resume_step(self.job, self.reason)}"
        ).rstrip()


class StreamStoppedError(InvariantError):
    """Unexpected exception ended the work on a stream; `log` has its traceback."""

    def __init__(self, stream: str, problem: str, log: str | None) -> None:
        log = "" if log is None else f" with the traceback in {log}"
        super().__init__(
            f"{stream}: an unexpected error stopped this stream: {problem}. Published "
            f"batches stay. Run the command again; if it fails again, please report this{log}."
        )


class UnknownBatchError(ConfigurationError):
    """Partition key, name or number matches no batch."""

    @classmethod
    def of_partition(cls, stream: str, key: str) -> Self:
        """Build the error for a partition key that names no planned batch."""
        return cls(
            f"{stream}: {key!r} is not a planned batch. Nothing was claimed. "
            f"`batch-pipeline jobs list {stream}` lists unfinished batches, and `batch-pipeline "
            f"explain FILE` names that of a file. A wide partition of an earlier release stands "
            f"for several: pick those."
        )

    @classmethod
    def of_job(cls, job: str, batch: str) -> Self:
        """Build the error for a name or number that matches no live batch of the job."""
        return cls(
            f"Job {job!r} has no batch {batch!r}. Nothing was done. "
            f"`batch-pipeline jobs list {shlex.quote(job)}` lists unfinished batches by name and "
            f"number."
        )


@dataclass(eq=False)
class BatchNotPublishedError(ConfigurationError):
    """Batch to be read is planned, but has no published generation."""

    stream: str
    key: str
    state: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: batch {self.key} is not published (its state is {self.state}), so "
            f"there is nothing to read. Materialize its partition of `{self.stream}/batches` first."
        )


@dataclass(eq=False)
class FencedError(ConflictError):
    """Attempt lost its claim; its output is discarded."""

    stream: str
    key: str
    number: int

    def sentence(self) -> str:
        return (
            f"{self.stream}: attempt {self.number} of batch {self.key} lost its claim and "
            f"published nothing. Another attempt has replaced it, or it was cancelled; no action "
            f"is needed."
        )


@dataclass(eq=False)
class BatchSupersededError(ConflictError):
    """Batch to encode was split into smaller batches."""

    job: str
    label: str
    parts: tuple[str, ...] = ()  # partition keys of its replacements, if they were read

    def sentence(self) -> str:
        sentence = (
            f"{self.job}: batch {self.label} was split into smaller batches, which are encoded in "
            f"its place. Nothing was claimed."
        )
        if not self.parts:
            return f"{sentence} No action is needed."
        more = f" and {len(self.parts) - 8} more" if len(self.parts) > 8 else ""
        shown = ", ".join(self.parts[:8])
        return f"{sentence} To encode them now, materialize the partitions {shown}{more}."


@dataclass(eq=False)
class BatchReleasedError(ConflictError):
    """Batch has already been released."""

    job: str
    label: str
    number: int
    outcome: str

    def sentence(self) -> str:
        return (
            f"{self.job}: attempt {self.number} of batch {self.label} has been released already, "
            f"as {self.outcome}. Nothing was changed. Acquire the next batch."
        )


@dataclass(eq=False)
class DatabaseUnreachableError(RetryableError):
    """The inventory database does not answer."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The inventory database at {self.location} cannot be reached ({self.reason}). Nothing "
            f"was changed. Start it or correct BATCH_PIPELINE_INVENTORY_CONN, then run again."
        )


class PermissionDeniedError(ConfigurationError):
    """The database role lacks a privilege."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"The database role used at {location} lacks a privilege ({reason}). Nothing was "
            f"changed. Grant it, or name a role that has it in BATCH_PIPELINE_INVENTORY_CONN."
        )


def unusable_port(port: int, problem: str) -> ConfigurationError:
    """Build the error for a port on which `dev` cannot listen."""
    other = port + 1 if 1024 <= port < 65_535 else 3001
    return ConfigurationError(
        f"Port {port} on 127.0.0.1 {problem}. Nothing was started. Choose another one, such as "
        f"`batch-pipeline dev --port {other}`, or stop the program that uses it."
    )


@dataclass(eq=False)
class LandingUnavailableError(ConfigurationError):
    """The landing of a stream cannot be listed, or its events cannot be read."""

    stream: str
    uri: str
    reason: str

    def sentence(self) -> str:
        what, step = f"{self.uri} cannot be listed or read", "Correct the access"
        if self.uri.startswith("file:"):
            what = f"landing folder {self.uri} cannot be listed"
            if self.reason == os.strerror(errno.ENOENT).lower():
                step = "Create it"
        return (
            f"{self.stream}: {what} ({self.reason}). Not all new files were registered; a later "
            f"poll finds the others. {step}, or correct `source` in the stream file."
        )


class LandingTroubleError(ConfigurationError):
    """Problems of a poll of a landing, reported after the rest was processed."""


@dataclass(eq=False)
class SourceUnavailableError(RetryableError):
    """Landed file is temporarily unreadable; its content is not the cause."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"{self.uri} cannot be read now ({self.reason}). Nothing was published, and the file "
            f"was not excluded. Run again when it can be read."
        )


@dataclass(eq=False)
class SourceRefusedError(SourceUnavailableError):
    """Store denies access to a landed file or has no such bucket, or its disk has an I/O error."""

    def sentence(self) -> str:
        return (
            f"{self.uri} cannot be read ({self.reason}). Nothing of its batch was published, and "
            f"the file was not excluded. Grant read access to the tasks, or restore the file: the "
            f"batch is retried automatically. Otherwise cancel the batch."
        )


class MetaTableError(ConfigurationError):
    """A meta table cannot be read because a name, a column or a privilege is wrong."""


def missing_column(table: str, column: str, role: str, columns: tuple[str, ...]) -> MetaTableError:
    """Build the error for a column that a meta table does not have."""
    return MetaTableError(
        f"{table} has no column {column!r}, named as its {role} (its columns: "
        f"{', '.join(columns)}). Nothing was read. Name one of these."
    )


def unfit_column(
    table: str, column: str, role: str, problem: str, next_step: str
) -> MetaTableError:
    """Build the error for a column of a meta table that is not suitable for its role."""
    problem = f"column {column!r} cannot be the {role}: {problem}"
    return MetaTableError(f"{table}: {problem}. Nothing was planned. {next_step}")


def watermark_unavailable(
    table: str, strategy: str, problem: str, next_step: str
) -> MetaTableError:
    """Build the error for a high watermark strategy that a meta table does not support."""
    problem = f"the high watermark cannot be read with strategy {strategy!r}: {problem}"
    return MetaTableError(f"{table}: {problem}. Nothing was planned. {next_step}")


class MetaUnreachableError(RetryableError):
    """The database of the meta table does not answer, or terminated a read."""


@dataclass(eq=False)
class UnknownMetaTableError(MetaTableError):
    """A meta table was named that the database does not have; `close` lists similar names."""

    location: str
    table: str
    close: tuple[str, ...]

    def sentence(self) -> str:
        meant = f" Did you mean {' or '.join(self.close)}?" if self.close else ""
        return (
            f"No table or view {self.table!r} at {self.location} is visible to this role. Nothing "
            f"was read.{meant} Check the name; outside the default schema it is schema.table."
        )


class MetaTableChangedError(MetaTableError):
    """The meta table or one of its columns was removed after the table had been opened."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"The meta table at {location} has changed since it was opened ({reason}). "
            f"Nothing was planned. Restore it, or restart to use its new columns."
        )


@dataclass(eq=False)
class MetaTableRestartedError(MetaTableError):
    """Ids of a meta table start again below the ids that a job has already planned."""

    job: str
    meta_table: str
    planned_up_to: int
    next_id: int

    def sentence(self) -> str:
        return (
            f"{self.meta_table} was truncated or replaced: job {self.job!r} has planned its ids up "
            f"to {self.planned_up_to}, but the next id will be {self.next_id}. Nothing was "
            f"acquired. Use a new name for the job, or continue the ids above {self.planned_up_to}."
        )


@dataclass(eq=False)
class BadWeightError(MetaTableError):
    """A row of the meta table has a weight that cannot be counted."""

    table: str
    item_id: int
    weight: object

    def sentence(self) -> str:
        weight = "NULL" if self.weight is None else repr(self.weight)
        return (
            f"{self.table}: the weight of id {self.item_id} is {weight}; expected a number "
            f"from 0 to 2^63 - 1. Nothing was planned from this row on. Correct the row, or set "
            f"`on_bad_weight` to the weight of such rows."
        )


# Errors of one stream's meta table or its description: other streams continue.
OF_ONE_META_TABLE: tuple[type[PipelineError], ...] = (
    InvalidValueError,
    JobChangedError,
    MetaTableError,
    MetaUnreachableError,
    SettingError,
)


@dataclass(eq=False)
class BadFileError(BatchDataError):
    """A source file of the batch cannot be used."""

    stream: str
    location: str
    line: int | None
    reason: str
    is_registered: bool = True
    kind: str = "corrupt"  # a BadFileKind

    def sentence(self) -> str:
        place = self.location if self.line is None else f"{self.location}, line {self.line}"
        return (
            f"{self.stream}: {place}: {self.reason}. Nothing of this batch was published. "
            f"{repair_step(self.stream, is_registered=self.is_registered)}, or set "
            f"`on_bad_file: quarantine` to publish the rest without it; then run again."
        )


def repair_step(stream: str, *, is_registered: bool) -> str:
    """Return how to repair a file; only registered files must be accepted afterwards."""
    if not is_registered:
        return "Repair the file"
    return f"Repair the file and accept it with `batch-pipeline plan {stream} --accept-changed`"


@dataclass(eq=False)
class TransformError(BatchDataError):
    """A user's transform failed on the records of a batch; `place` is its line, if known."""

    stream: str
    transform: str
    batch_key: str
    reason: str
    place: str | None = None

    def sentence(self) -> str:
        place = "" if self.place is None else f" at {self.place}"
        return (
            f"{self.stream}: the transform {self.transform} failed on batch {self.batch_key}"
            f"{place} ({self.reason}). Nothing of the batch was published. Correct the function "
            f"or the files, then encode the batch again."
        )


@dataclass(eq=False)
class SparkUnavailableError(RetryableError):
    """Spark cannot be used."""

    target: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Spark at {self.target} cannot be used ({self.reason}). No file was written. Check "
            f"BATCH_PIPELINE_SPARK_REMOTE or _MASTER and the server's log, then run again."
        )


@dataclass(eq=False)
class TasksLostError(SparkUnavailableError):
    """Executors exited during tasks, possibly because of the data."""

    def sentence(self) -> str:
        return (
            f"Executors at {self.target} exited during their tasks ({self.reason}). Nothing was "
            f"published. The batch is retried until it has no attempts left. If memory ran out, "
            f"raise `spark.executor.memory` or `memoryOverhead`, or lower `batch.max_weight`."
        )


@dataclass(eq=False)
class StorageUnavailableError(ConfigurationError):
    """Files cannot be written to, listed in or removed from the storage root.

    `text` replaces the message about a failed write.
    """

    uri: str
    reason: str
    text: str = ""

    def sentence(self) -> str:
        return self.text or (
            f"Storage {self.uri} cannot be written ({self.reason}). Nothing was published; partial "
            f"files were removed. Free space or correct `storage.root`, then run again."
        )


OLDER = "the inventory is older than the storage"  # prefix of the pause reason of a job


@dataclass(eq=False)
class InventoryOlderError(StorageUnavailableError):
    """Storage holds manifests that the inventory does not list; `reason` names them.

    The inventory was restored from a backup, or recreated.
    """

    stream: str = ""

    @classmethod
    def of(cls, stream: str, root: str, names: Collection[str]) -> Self:
        """Build the error from the file names of the manifests."""
        reason = f"manifests unknown to it: {len(names)}, {min(names)} first"
        return cls(root, reason, stream=stream)

    def sentence(self) -> str:
        return (
            f"{self.stream}: {OLDER} {self.uri}: {self.reason}. It was restored from a backup, or "
            f"is another one. Nothing was registered, planned or claimed, and the stream is "
            f"paused. `batch-pipeline reconcile {self.stream} --discard` moves the manifests away "
            f"(preview: --dry-run). To keep them, restore the inventory to a later point in time."
        )

    @property
    def pause_reason(self) -> str:
        """Return the reason that is stored with the paused job."""
        return (
            f"{OLDER}: {self.reason}; run `batch-pipeline reconcile {self.stream} --discard`, or "
            f"restore the inventory to a later point in time"
        )


class ManifestFileUnavailableError(StorageUnavailableError):
    """The manifest file of a published batch cannot be written."""

    def sentence(self) -> str:
        return (
            f"The manifest file {self.uri} cannot be written ({self.reason}). Its batch is "
            f"published in the inventory. Correct the cause; the next reconcile writes the file."
        )


@dataclass(eq=False)
class ManifestFileTakenError(ManifestFileUnavailableError):
    """Another file has the name of a manifest file; it is not overwritten."""


@dataclass(eq=False)
class GarbageLeftError(ConfigurationError):
    """Files of a storage root cannot be listed or deleted."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Garbage in the storage {self.uri} cannot be collected ({self.reason}). The rest of "
            f"it stays; no live file was touched. Grant list and delete access, or correct "
            f"`storage.root`, then run `batch-pipeline gc` again."
        )


LEFT_IN_PART = "Some of its records may be there; it is not recorded as loaded."
NOTHING_SENT = "Nothing was sent."


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """A batch that was not loaded into a target; builds the error messages of a load."""

    target: str
    stream: str
    batch: str

    def text(self, problem: str, left: str, next_step: str, *, stderr: str = "") -> str:
        """Return the text of an error; `stderr` is the standard error of the target."""
        what = f"batch {self.batch} was not loaded into {self.target}"
        text = f"{self.stream}: {what}: {problem}. {left} {next_step}"
        last = stderr.strip().splitlines()[-1:]
        return f"{text} Its last output: {last[0].strip()[:500]}" if last else text


@dataclass(eq=False)
class TargetFailedError(BatchDataError):
    """A Singer target failed, was stopped, or did not acknowledge a batch.

    `exit_code` is set if it is not 0; `stderr` is the end of its standard error.
    """

    text: str
    exit_code: int | None = None
    stderr: str = ""

    def sentence(self) -> str:
        return self.text


class PartFileChangedError(BatchDataError):
    """A file of a published batch is missing, or differs from what was published."""

    def __init__(self, unloaded: Unloaded, problem: str) -> None:
        step = "Materialize its partition again, then run `batch-pipeline load` again."
        super().__init__(unloaded.text(problem, NOTHING_SENT, step))


class ItemIdsMissingError(BatchDataError):
    """It is unknown which rows of a table a batch replaces; other batches need not wait for it."""


class LoadRunningError(ConflictError):
    """Another process is loading batches of the stream into the target."""

    def __init__(self, unloaded: Unloaded, run_id: str) -> None:
        problem = f"run {run_id} is loading this stream into the target"
        step = "Wait until it has ended; the next run loads the rest."
        super().__init__(unloaded.text(problem, "Nothing was changed.", step))


class FilesRemovedError(ConfigurationError):
    """Files of the batch to load were deleted after an earlier load."""

    def __init__(self, stream: str, batch: str, generation: int, removed_at: datetime) -> None:
        super().__init__(
            f"{stream}: the files of batch {batch}, generation {generation}, were "
            f"deleted on {removed_at:%Y-%m-%d} as configured in `storage`. Nothing was loaded "
            f"or changed. Materialize its partition again: every target loads the next generation."
        )


@contextmanager
def requires_extra(extra: str, feature: str) -> Iterator[None]:
    """Convert a failed import within the block.

    Raises:
        ConfigurationError: a package of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise _missing(extra, feature, str(error.name)) from error


def check_extra(extra: str, feature: str, package: str) -> None:
    """Check that a package of an extra is installed, without importing it.

    Raises:
        ConfigurationError: it is not installed.
    """
    if find_spec(package) is None:
        raise _missing(extra, feature, package)


def _missing(extra: str, feature: str, package: str) -> ConfigurationError:
    distribution = f"batch-pipeline[{extra}]"
    return ConfigurationError(
        f"{feature} needs the package {package}, which is not installed. Install it with "
        f"`uv add '{distribution}'` or `pip install '{distribution}'`."
    )
