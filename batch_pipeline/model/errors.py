"""Every error that the product raises on purpose, in one tree.

The branch says what the catcher does: `ConfigurationError` (the operator fixes something),
`RetryableError` (wait and repeat), `ConflictError` (read again and decide), `BatchDataError` (fail
the attempt, go on with the others), `InvariantError` (a defect of this code).

A class of its own exists where a catcher treats it differently, or where a user may want to catch
it; all else is a message of its branch, built where it is raised. A message says what failed, why,
what state is left and what to do next. Credentials never belong into it. Only the command line and
the Dagster definitions translate errors into exit codes and failures.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Self


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


@dataclass(eq=False)
class SettingError(ConfigurationError):
    """Setting cannot be used; `source` is where it was set. The value is never repeated."""

    name: str
    source: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        return f"{self.name} ({self.source}): {self.problem}. Nothing was started. {self.next_step}"


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
        return f"{place}: {self.problem}. {self.next_step}"


@dataclass(eq=False)
class UnknownStreamError(ConfigurationError):
    """Requested stream has no stream file."""

    stream: str
    known: tuple[str, ...]
    folder: str

    def sentence(self) -> str:
        known = ", ".join(self.known) or "none"
        return (
            f"No stream {self.stream!r} in {self.folder} (streams there: {known}). Nothing was "
            f"done. Check the name, or point BATCH_PIPELINE_STREAMS at the folder that holds "
            f"{self.stream}/defs.yaml."
        )


@dataclass(eq=False)
class UnknownJobError(ConfigurationError):
    """Requested job is not in the inventory; `streams` may not have one yet."""

    job: str
    known: tuple[str, ...]
    streams: tuple[str, ...] = ()

    def sentence(self) -> str:
        known = ", ".join(self.known) or "none"
        if self.job in self.streams:
            return (
                f"The stream {self.job!r} has no job yet, because nothing of it has been planned. "
                f"Nothing was done. `batch-pipeline plan {self.job}` makes its job."
            )
        if self.streams:
            return (
                f"There is no job {self.job!r}, and no stream of this name (jobs: {known}; "
                f"streams: {', '.join(self.streams)}). Nothing was done. Check the name."
            )
        return f"There is no job {self.job!r} (jobs: {known}). Nothing was done. Check the name."


@dataclass(eq=False)
class AmbiguousJobError(ConfigurationError):
    """Requested job name exists for several meta tables."""

    job: str
    meta_tables: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"There are jobs {self.job!r} on {', '.join(self.meta_tables)}. Nothing was done. Name "
            f"the meta table too (`--meta-table {self.meta_tables[0]}`)."
        )


@dataclass(eq=False)
class JobChangedError(ConfigurationError):
    """Job exists with another configuration."""

    job: str
    meta_table: str
    problem: str
    next_step: str = ""

    def sentence(self) -> str:
        sentence = (
            f"Job {self.job!r} on {self.meta_table} exists, and {self.problem}. Nothing was "
            f"changed, because rows that it has passed would never be read. Use another name for "
            f"the job, or repeat the settings that it was created with."
        )
        return f"{sentence} {self.next_step}".rstrip()


@dataclass(eq=False)
class JobPausedError(RetryableError):
    """Job is paused."""

    job: str
    reason: str

    def sentence(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"Job {self.job!r} is paused{why}. Nothing was planned or handed out. "
            f"`batch-pipeline jobs resume {self.job}` lets it go on."
        )


@dataclass(eq=False)
class StreamStoppedError(InvariantError):
    """Unexpected exception ended the work on a stream; `log` has its traceback."""

    stream: str
    problem: str
    log: str | None

    def sentence(self) -> str:
        log = "" if self.log is None else f" with the traceback in {self.log}"
        return (
            f"{self.stream}: an unexpected error stopped this stream: {self.problem}. What was "
            f"published before stays published. Run the command again to go on with the rest of "
            f"the stream; if it fails again, please report this{log}."
        )


class UnknownBatchError(ConfigurationError):
    """Partition key, name or number matches no batch."""

    @classmethod
    def of_partition(cls, stream: str, key: str) -> Self:
        """Build the error of a partition key that names no planned batch."""
        return cls(
            f"{stream}: {key!r} is no planned batch. Nothing was claimed. Pick a partition that "
            f"the planner made (`batch-pipeline status {stream}` lists them). One that `roll-up` "
            f"of an earlier release made stands for several: pick those."
        )

    @classmethod
    def of_job(cls, job: str, batch: str) -> Self:
        """Build the error of a name or number that no live batch of the job has."""
        return cls(
            f"Job {job!r} has no batch {batch!r}. Nothing was done. `batch-pipeline jobs list "
            f"{job}` lists those that are not finished, by name and number."
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
            f"published nothing; its files were removed. Another attempt goes on in its place, or "
            f"somebody cancelled it; no action is needed."
        )


@dataclass(eq=False)
class BatchSupersededError(ConflictError):
    """Batch to be tried was split into smaller ones."""

    job: str
    label: str
    parts: tuple[str, ...] = ()  # partition keys of its replacements, if they were read

    def sentence(self) -> str:
        if not self.parts:
            return (
                f"{self.job}: batch {self.label} was split into smaller batches. Nothing was "
                f"claimed. Its halves are tried in its place; no action is needed."
            )
        more = f" and {len(self.parts) - 8} more" if len(self.parts) > 8 else ""
        return (
            f"{self.job}: batch {self.label} was split into smaller batches. Nothing was claimed. "
            f"They are tried in its place by themselves; to encode its items by hand, materialize "
            f"the partitions {', '.join(self.parts[:8])}{more} instead."
        )


@dataclass(eq=False)
class BatchReleasedError(ConflictError):
    """Batch to be released was released already."""

    job: str
    label: str
    number: int
    outcome: str

    def sentence(self) -> str:
        return (
            f"{self.job}: attempt {self.number} of batch {self.label} has been released already, "
            f"as {self.outcome}. That stays. Acquire again for the next batch."
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


@dataclass(eq=False)
class PermissionDeniedError(ConfigurationError):
    """The database role lacks a right."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The database role used at {self.location} lacks a right ({self.reason}). Nothing was "
            f"changed. Grant it, or name a role that has it in BATCH_PIPELINE_INVENTORY_CONN."
        )


def port_in_use(port: int) -> ConfigurationError:
    """Build the error of a port that another program listens on."""
    return ConfigurationError(
        f"Port {port} on 127.0.0.1 is taken. Nothing was started. Stop what listens there "
        f"or pass another one: `batch-pipeline dev --port {port + 1}`."
    )


@dataclass(eq=False)
class LandingUnavailableError(ConfigurationError):
    """The landing of a stream cannot be listed, or its events not be read."""

    stream: str
    uri: str
    reason: str

    def sentence(self) -> str:
        if not self.uri.startswith("file:"):
            return (
                f"{self.stream}: {self.uri} cannot be listed or read ({self.reason}). What has "
                f"arrived there and is not registered yet is found by the next look that can. "
                f"Mend the access, or correct `source` in the stream file."
            )
        return (
            f"{self.stream}: landing folder {self.uri} cannot be listed ({self.reason}). Nothing "
            f"was registered. Create it or correct `source.uri` in the stream file."
        )


@dataclass(eq=False)
class LandingTroubleError(ConfigurationError):
    """Problems of a poll of a landing, reported after the rest was processed."""

    told: str

    def sentence(self) -> str:
        return self.told


@dataclass(eq=False)
class SourceUnavailableError(RetryableError):
    """Landed object is temporarily unreadable; its content is not the cause."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"{self.uri} cannot be read now ({self.reason}). Nothing was published, and the object "
            f"was not set aside. Run again when the store can be reached."
        )


@dataclass(eq=False)
class SourceRefusedError(SourceUnavailableError):
    """Store denies access to a landed object, or has no such bucket."""

    def sentence(self) -> str:
        return (
            f"{self.uri} cannot be read ({self.reason}). Nothing of its batch was published, and "
            f"the object was not set aside. Let those who run tasks read it; the batch is tried "
            f"again by itself. If the object is gone for good, put it there again, or cancel the "
            f"batch."
        )


class MetaTableError(ConfigurationError):
    """A meta table cannot be read as it was asked for: a name, a column or a right is wrong."""


def missing_column(table: str, column: str, role: str, columns: tuple[str, ...]) -> MetaTableError:
    """Build the error of a column that a meta table does not have."""
    return MetaTableError(
        f"{table} has no column {column!r}, named as its {role} (its columns: "
        f"{', '.join(columns)}). Nothing was read. Name one of these."
    )


def unfit_column(
    table: str, column: str, role: str, problem: str, next_step: str
) -> MetaTableError:
    """Build the error of a column of a meta table that cannot play its role."""
    return MetaTableError(
        f"{table}: column {column!r} cannot be the {role}: {problem}. "
        f"Nothing was planned. {next_step}"
    )


def watermark_unavailable(
    table: str, strategy: str, problem: str, next_step: str
) -> MetaTableError:
    """Build the error of a high watermark strategy that a meta table does not allow."""
    return MetaTableError(
        f"{table}: the high watermark cannot be read with strategy {strategy!r}: {problem}. "
        f"Nothing was planned. {next_step}"
    )


class MetaUnreachableError(RetryableError):
    """The database of the meta table does not answer, or ended a read."""


@dataclass(eq=False)
class UnknownMetaTableError(MetaTableError):
    """A meta table was named that the database does not have; `close` lists similar names."""

    location: str
    table: str
    close: tuple[str, ...]

    def sentence(self) -> str:
        meant = f" Did you mean {' or '.join(self.close)}?" if self.close else ""
        return (
            f"No table or view {self.table!r} at {self.location} that this role can see. Nothing "
            f"was read.{meant} Check the name, and write another schema's table as schema.table."
        )


@dataclass(eq=False)
class MetaTableChangedError(MetaTableError):
    """The meta table or one of its columns went away after it had been opened."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The meta table at {self.location} is no longer what it was when it was opened "
            f"({self.reason}). Nothing was planned. Restore it, or start again with its new shape."
        )


@dataclass(eq=False)
class MetaTableRestartedError(MetaTableError):
    """Ids of a meta table start again below what a job has already planned."""

    job: str
    meta_table: str
    planned_up_to: int
    next_id: int

    def sentence(self) -> str:
        return (
            f"{self.meta_table} was truncated or replaced: job {self.job!r} has planned its ids up "
            f"to {self.planned_up_to}, and the next id to be given is {self.next_id}. Nothing was "
            f"acquired, and the new rows would not be. Take a new name for the job, or let the ids "
            f"go on above {self.planned_up_to}."
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
            f"from 0 to 2^63 - 1. Nothing was planned from this row on. Correct the row, or state "
            f"with `on_bad_weight` what such rows count."
        )


# What is wrong with one stream's meta table, or with how it is described: other streams go on.
OF_ONE_META_TABLE: tuple[type[PipelineError], ...] = (
    InvalidValueError,
    JobChangedError,
    MetaTableError,
    MetaUnreachableError,
    SettingError,
)


@dataclass(eq=False)
class BadFileError(BatchDataError):
    """A source file of the batch cannot be read as what it should be."""

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
    """Return how a file is repaired; one of a user's own table need not be accepted."""
    if not is_registered:
        return "Repair the file"
    return f"Repair the file and accept it with `batch-pipeline plan {stream} --accept-changed`"


@dataclass(eq=False)
class TransformError(BatchDataError):
    """A user's transform failed on the records of a batch; `place` is its line, where known."""

    stream: str
    transform: str
    batch_key: str
    reason: str
    place: str | None = None

    def sentence(self) -> str:
        place = "" if self.place is None else f" at {self.place}"
        return (
            f"{self.stream}: the transform {self.transform} failed on batch {self.batch_key}"
            f"{place} ({self.reason}). Nothing of the batch was published, other batches are not "
            f"affected. Correct the function or the files, then encode the batch again."
        )


@dataclass(eq=False)
class SparkUnavailableError(RetryableError):
    """Spark session cannot be created."""

    target: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Spark at {self.target} cannot be used ({self.reason}). No file was written. Check "
            f"BATCH_PIPELINE_SPARK_REMOTE or BATCH_PIPELINE_SPARK_MASTER and the server's log, "
            f"then run again."
        )


@dataclass(eq=False)
class TasksLostError(SparkUnavailableError):
    """Executors exited during tasks, possibly because of the data."""

    def sentence(self) -> str:
        return (
            f"Processes that ran tasks at {self.target} ended under them ({self.reason}). Nothing "
            f"was published. It is tried again until the batch has had all its attempts. If they "
            f"ended for want of memory, give them more (`spark.executor.memory`, "
            f"`spark.executor.memoryOverhead`) or let them have less to read (`batch.max_weight`)."
        )


@dataclass(eq=False)
class StorageUnavailableError(ConfigurationError):
    """Files cannot be written to, listed in or removed from the storage root.

    `text` is there where another one than that of a write is needed.
    """

    uri: str
    reason: str
    text: str = ""

    def sentence(self) -> str:
        return self.text or (
            f"Storage {self.uri} cannot be written ({self.reason}). Nothing was published and "
            f"half-written files were removed. Free space or correct `storage.root`, then run "
            f"again."
        )


class ManifestFileUnavailableError(StorageUnavailableError):
    """The manifest file of a batch that is published cannot be written."""

    def sentence(self) -> str:
        return (
            f"The manifest file {self.uri} cannot be written ({self.reason}). Its batch is "
            f"published, and consumers that ask the inventory have it. Mend that, and the next "
            f"reconcile, hourly or by its job in Dagster, writes the file."
        )


@dataclass(eq=False)
class ManifestFileTakenError(ManifestFileUnavailableError):
    """Another file has the name of a manifest file; it stays."""


@dataclass(eq=False)
class GarbageLeftError(ConfigurationError):
    """Files of a storage root cannot be listed or deleted."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Garbage in the storage {self.uri} cannot be collected ({self.reason}). What was not "
            f"deleted yet stays, and no file that is live was touched. Let this user list and "
            f"delete there, or correct `storage.root`, then run `batch-pipeline gc` again."
        )


LEFT_IN_PART = "Some of its records may be there; it is not recorded as loaded."
NOTHING_SENT = "Nothing was sent."


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """Which batch is not in which target; builds the text that errors of a load have in common."""

    target: str
    stream: str
    batch: str

    def text(self, problem: str, left: str, next_step: str, *, said: str = "") -> str:
        """Return the text of an error; `said` is what the target wrote on its standard error."""
        what = f"batch {self.batch} was not loaded into {self.target}"
        text = f"{self.stream}: {what}: {problem}. {left} {next_step}"
        last = said.strip().splitlines()[-1:]
        return f"{text} The last that it said: {last[0].strip()[:500]}" if last else text


@dataclass(eq=False)
class TargetFailedError(BatchDataError):
    """A Singer target failed, was stopped, or did not acknowledge a batch.

    `exit_code` is set if it is not 0; `said` is the end of what it wrote
    on its standard error.
    """

    text: str
    exit_code: int | None = None
    said: str = ""

    def sentence(self) -> str:
        return self.text


@dataclass(eq=False)
class PartFileChangedError(BatchDataError):
    """A file of a published batch is gone, or is not what was published."""

    unloaded: Unloaded
    problem: str

    def sentence(self) -> str:
        step = (
            "Materialize its partition again: the next generation takes its place. Then run "
            "`batch-pipeline load` again."
        )
        return self.unloaded.text(self.problem, NOTHING_SENT, step)


@dataclass(eq=False)
class LoadRunningError(ConflictError):
    """Another process is loading batches of the stream into the target."""

    unloaded: Unloaded
    run_id: str

    def sentence(self) -> str:
        problem = f"run {self.run_id} is loading this stream into the target"
        step = "Wait until it has ended; what it leaves is loaded by the next run."
        return self.unloaded.text(problem, "Nothing was changed.", step)


@dataclass(eq=False)
class FilesRemovedError(ConfigurationError):
    """Files of the batch to load were deleted after an earlier load."""

    stream: str
    batch: str
    generation: int
    removed_at: datetime

    def sentence(self) -> str:
        day = f"{self.removed_at:%Y-%m-%d}"
        return (
            f"{self.stream}: the files of batch {self.batch}, generation {self.generation}, were "
            f"deleted on {day}, as `storage` of the stream file says. Nothing was loaded or "
            f"changed. Materialize its partition again: the next generation is loaded into every "
            f"target and takes the place of this one."
        )
