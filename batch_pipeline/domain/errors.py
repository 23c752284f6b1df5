"""Every error the product raises on purpose, branched by what the catcher does with it.

Facts are attributes, the class builds the sentence: what was asked, what contradicts it, what state
is left, what to do next. Credentials never belong into a fact. Only the command line and the
Dagster definitions translate these into exit codes and failures.
"""

from dataclasses import dataclass
from datetime import datetime


class PipelineError(Exception):
    """Base of all errors raised on purpose; `str()` of it is meant for the operator."""

    def sentence(self) -> str:
        """Say what, where, what is left and what to do, in one or two lines."""
        raise NotImplementedError  # pragma: no cover - every leaf has its sentence

    def __str__(self) -> str:
        return self.sentence()


class ConfigurationError(PipelineError):
    """The operator fixes something; repeating alone never helps."""


class RetryableError(PipelineError):
    """Wait and repeat; nothing has to be changed."""


class ConflictError(PipelineError):
    """Somebody else won; read again and decide."""


class BatchDataError(PipelineError):
    """This batch is bad; its attempt fails and its neighbours go on."""


class InvariantError(PipelineError):
    """A promise of this code is broken; stop."""


@dataclass(eq=False)
class InvalidValueError(ConfigurationError):
    """A value that an operator gave is outside what it may be."""

    name: str
    value: object
    expected: str

    def sentence(self) -> str:
        return f"{self.name} is {self.value!r}; expected {self.expected}."


@dataclass(eq=False)
class StreamFileError(ConfigurationError):
    """A stream file cannot be used as written."""

    path: str
    line: int | None
    problem: str
    next_step: str

    def sentence(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.problem}. {self.next_step}"


@dataclass(eq=False)
class StreamAttributesError(ConfigurationError):
    """A stream cannot be described as a program described it."""

    stream: str
    problem: str

    def sentence(self) -> str:
        place = f"The stream {self.stream!r}"
        return f"{place}: {self.problem}. It was not made. Correct the arguments."


@dataclass(eq=False)
class StreamFilesError(ConfigurationError):
    """Some stream files of a folder cannot be used, while the others are."""

    problems: tuple[StreamFileError, ...]

    def sentence(self) -> str:
        count = len(self.problems)
        files = "One stream file is" if count == 1 else f"{count} stream files are"
        told = "\n".join(str(problem) for problem in self.problems)
        return f"{files} left out, the other streams go on.\n{told}"


@dataclass(eq=False)
class UnknownStreamError(ConfigurationError):
    """A stream was asked for that no stream file describes."""

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
class NoStreamsError(ConfigurationError):
    """The streams folder holds no stream file."""

    folder: str

    def sentence(self) -> str:
        return (
            f"No stream file found below {self.folder}. Nothing was done. Write "
            f"<name>/defs.yaml there, set BATCH_PIPELINE_STREAMS to another folder, or try "
            f"`batch-pipeline demo`."
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
class SourceUnavailableError(RetryableError):
    """An object that landed cannot be read now, through no fault of its own."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"{self.uri} cannot be read now ({self.reason}). Nothing was published, and the object "
            f"was not set aside. Run again when the store can be reached."
        )


@dataclass(eq=False)
class SourceRefusedError(SourceUnavailableError):
    """A store refuses an object that landed, or has no such bucket: no file is to blame."""

    def sentence(self) -> str:
        return (
            f"{self.uri} cannot be read ({self.reason}). Nothing of its batch was published, and "
            f"the object was not set aside. Let those who run tasks read it; the batch is tried "
            f"again by itself. If the object is gone for good, put it there again, or cancel the "
            f"batch."
        )


@dataclass(eq=False)
class LinkLeadsOutError(ConfigurationError):
    """A link in a landing leads to a file elsewhere, which the stream does not read."""

    stream: str
    path: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: {self.path!r} was not registered, for it is a link that leads out of "
            f"the landing; what else has landed is. Put the file itself there, add the folder that "
            f"it lies in to `source.roots`, or leave the link out by `source.exclude`."
        )


@dataclass(eq=False)
class UnfitKeyError(ConfigurationError):
    """An object landed whose key cannot be the location of an item."""

    stream: str
    uri: str
    why: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: {self.uri!r} was not registered, for its key {self.why}; what else "
            f"has landed is. Copy the object to another key and delete this one, or leave it out "
            f"by `source.exclude`."
        )


@dataclass(eq=False)
class LandingTroubleError(ConfigurationError):
    """What a look at a landing had to leave out, told after it went on with the rest."""

    told: str

    def sentence(self) -> str:
        return self.told


@dataclass(eq=False)
class StorageUnavailableError(ConfigurationError):
    """Part files cannot be written to or removed from the storage root."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Storage {self.uri} cannot be written ({self.reason}). Nothing was published and "
            f"half-written files were removed. Free space or correct `storage.root`, then run "
            f"again."
        )


@dataclass(eq=False)
@dataclass(eq=False)
class PartFilesElsewhereError(ConfigurationError):
    """Tasks told of a part file that is not on the disk which this process sees.

    `found_bytes` is the size of what is there; None where nothing is.
    """

    root: str
    uri: str
    size_bytes: int
    found_bytes: int | None

    def sentence(self) -> str:
        found = "is not there" if self.found_bytes is None else f"has {self.found_bytes} bytes"
        return (
            f"Storage {self.root}: an executor wrote {self.uri} with {self.size_bytes} bytes, and "
            f"seen from here it {found}. Executors write to another disk. Nothing was published; "
            f"what they wrote is left on their disks. Share the folder with all machines of the "
            f"cluster at the same path, or let `storage.root` be in S3, then run again."
        )


class PointerUnavailableError(StorageUnavailableError):
    """The pointer file of a batch that is published cannot be written."""

    def sentence(self) -> str:
        return (
            f"The pointer file {self.uri} cannot be written ({self.reason}). Its batch is "
            f"published, and consumers that ask the inventory have it. Mend that, and the next "
            f"reconcile, hourly or by its job in Dagster, writes the file."
        )


@dataclass(eq=False)
class PointerTakenError(PointerUnavailableError):
    """Another file has the name of a pointer file; it stays."""


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


@dataclass(eq=False)
class NotArchivedError(GarbageLeftError):
    """A file of a storage root cannot be moved to the archive of its stream."""

    path: str
    archive: str

    def sentence(self) -> str:
        return (
            f"{self.path} of the storage {self.uri} cannot be moved to the archive {self.archive} "
            f"({self.reason}). It stays where it is, like all that was not moved or deleted yet, "
            f"and nothing in the archive was overwritten. Let this user write there, make room, or "
            f"move away what has the name, then run `batch-pipeline gc` again."
        )


@dataclass(eq=False)
class PartFileUnreachableError(RetryableError):
    """The store of a part file cannot be asked now, or refuses, so nothing is known of the file."""

    uri: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The part file {self.uri} cannot be read now ({self.reason}). Nothing says that it is "
            f"not as it was published, and no batch counts as sent or loaded by this. Let the "
            f"store answer, then run again."
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
class DatabaseTooOldError(ConfigurationError):
    """The inventory database server is older than the SQL used here."""

    location: str
    version: str
    minimum: str

    def sentence(self) -> str:
        return (
            f"The inventory database at {self.location} is PostgreSQL {self.version}; at least "
            f"{self.minimum} is needed. Nothing was changed. Upgrade the server or name another "
            f"one in BATCH_PIPELINE_INVENTORY_CONN."
        )


@dataclass(eq=False)
class SchemaRevisionError(ConfigurationError):
    """The inventory schema is not the one that this release works with."""

    location: str
    found: str
    expected: str

    def sentence(self) -> str:
        if self.found == "none":
            found = "no inventory schema"
        else:
            found = f"the inventory schema at revision {self.found}"
        return (
            f"The database at {self.location} has {found}; this release works with revision "
            f"{self.expected}. Nothing was changed. Run `batch-pipeline migrate` (or install the "
            f"release that the schema belongs to)."
        )


@dataclass(eq=False)
class EmbeddedDatabaseError(ConfigurationError):
    """The embedded PostgreSQL server cannot be started."""

    folder: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The embedded PostgreSQL in {self.folder} did not start ({self.reason}). Its data was "
            f"not touched. See {self.folder}/log, set BATCH_PIPELINE_HOME to another folder, or "
            f"name your own server in BATCH_PIPELINE_INVENTORY_CONN."
        )


@dataclass(eq=False)
class JavaMissingError(ConfigurationError):
    """No Java runtime of version 17 or later can be used."""

    tried: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"No Java 17 or later found (tried {', '.join(self.tried)}). No batch was started. "
            f"Reinstall the package so that its bundled runtime is complete, or set JAVA_HOME."
        )


@dataclass(eq=False)
class SparkUnavailableError(RetryableError):
    """No Spark session could be had."""

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
    """Processes that ran tasks ended under them, maybe of what they read."""

    def sentence(self) -> str:
        return (
            f"Processes that ran tasks at {self.target} ended under them ({self.reason}). Nothing "
            f"was published. It is tried again until the batch has had all its attempts. If they "
            f"ended for want of memory, give them more (`spark.executor.memory`, "
            f"`spark.executor.memoryOverhead`) or let them have less to read (`batch.max_weight`)."
        )


@dataclass(eq=False)
class ExecutorUnfitError(ConfigurationError):
    """An executor of the cluster cannot run tasks; `step` is what mends it.

    `executor` is Spark's id of it, where that is known.
    """

    target: str
    executor: str | None
    host: str
    problem: str
    step: str

    def sentence(self) -> str:
        executor = "An executor" if self.executor is None else f"Executor {self.executor}"
        return (
            f"{executor} on {self.host}, of Spark at {self.target}, cannot run tasks: "
            f"{self.problem}. Nothing was published. {self.step}, then run again."
        )


@dataclass(eq=False)
class PackedUnusableError(ConfigurationError):
    """An archive of what executors need cannot be made or used."""

    archive: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The packed archive {self.archive} cannot be made or used: {self.reason}. Nothing was "
            f"started. Run `batch-pipeline pack {self.archive}` with the Python that runs "
            f"batch-pipeline, and name the file by BATCH_PIPELINE_SPARK_PACKED."
        )


@dataclass(eq=False)
class HomeInUseError(RetryableError):
    """Another process already works on this home."""

    home: str
    holder: str

    def sentence(self) -> str:
        return (
            f"{self.home} is in use by {self.holder}. Nothing was changed. Wait for it to end or "
            f"stop it, or set BATCH_PIPELINE_HOME to another folder."
        )


@dataclass(eq=False)
class PortInUseError(ConfigurationError):
    """A port that was asked for is taken."""

    port: int

    def sentence(self) -> str:
        return (
            f"Port {self.port} on 127.0.0.1 is taken. Nothing was started. Stop what listens there "
            f"or pass another one: `batch-pipeline dev --port {self.port + 1}`."
        )


@dataclass(eq=False)
class UnknownBatchError(ConfigurationError):
    """A partition key names no planned batch."""

    stream: str
    key: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: {self.key!r} is no planned batch. Nothing was claimed. Pick a "
            f"partition that the planner made (`batch-pipeline status {self.stream}` lists them)."
        )


@dataclass(eq=False)
class AttemptRunningError(ConflictError):
    """A live attempt already works on the batch."""

    stream: str
    key: str
    number: int
    run_id: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: attempt {self.number} of batch {self.key} is running (run "
            f"{self.run_id}). Nothing was claimed. Wait for it to end, or cancel that run and try "
            f"again."
        )


@dataclass(eq=False)
class FencedError(ConflictError):
    """The attempt lost its claim; what it wrote does not count."""

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
class OverlapError(InvariantError):
    """The database refused a batch whose ids another batch of the job holds."""

    stream: str
    detail: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: the database refused a batch that overlaps another one "
            f"({self.detail}). Nothing was written. Please report this with the output of "
            f"`batch-pipeline status`."
        )


@dataclass(eq=False)
class ConservationError(InvariantError):
    """Records read and records accounted for differ."""

    location: str
    read: int
    accounted: int

    def sentence(self) -> str:
        return (
            f"{self.location}: {self.read} records read but {self.accounted} written, filtered or "
            f"quarantined. Nothing was published. Please report this file's shape."
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
            f"{_repair(self.stream, is_registered=self.is_registered)}, or set "
            f"`on_bad_file: quarantine` to publish the rest without it; then run again."
        )


@dataclass(eq=False)
class TooManyBadRecordsError(BatchDataError):
    """More records of the batch are malformed than the stream file allows."""

    stream: str
    location: str
    line: int
    reason: str
    bad_records: int
    allowed: str
    is_registered: bool = True

    def sentence(self) -> str:
        return (
            f"{self.stream}: {self.location}, line {self.line}: {self.reason}. {self.bad_records} "
            f"bad record(s), {self.allowed} allowed; nothing of this batch was published. "
            f"{_repair(self.stream, is_registered=self.is_registered)}, or raise the limits of "
            f"`on_bad_record`; then run again."
        )


@dataclass(eq=False)
class SchemaMisfitError(BatchDataError):
    """Records do not fit the schema, which the stream file does not let change."""

    stream: str
    version: int
    column: str
    seen: str
    known: str | None
    location: str
    line: int | None
    columns: int = 1
    is_registered: bool = True

    def sentence(self) -> str:
        place = self.location if self.line is None else f"{self.location}, line {self.line}"
        known = "has no such column" if self.known is None else f"has {self.known}"
        more = "" if self.columns == 1 else f" ({self.columns - 1} more column(s) do not fit)"
        return (
            f"{self.stream}: {place}: column {self.column} holds {self.seen}, schema version "
            f"{self.version} {known}{more}; `schema.evolution` is `fail`, so nothing of this batch "
            f"was published. {_repair(self.stream, is_registered=self.is_registered)}, declare the "
            f"column wide enough, or set `evolution: add` or `rescue`; then run again."
        )


@dataclass(eq=False)
class SchemaDeclarationError(ConfigurationError):
    """A declared column does not go with what the schema has become."""

    stream: str
    column: str
    declared: str
    known: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: column {self.column} is declared {self.declared}, but {self.known}, "
            f"and types are only ever widened. Nothing was changed. Declare a type that holds "
            f"both, or start a new stream."
        )


def _repair(stream: str, *, is_registered: bool) -> str:
    """Say how a file is repaired: what a user's own table says of it is not compared with it."""
    if not is_registered:
        return "Repair the file"
    command = f"`batch-pipeline register {stream} --accept-changed`"
    return f"Repair the file and register it with {command}"


@dataclass(eq=False)
class SettingError(ConfigurationError):
    """A setting cannot be used; `source` tells where it was given, the value is never repeated."""

    name: str
    source: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        return f"{self.name} ({self.source}): {self.problem}. Nothing was started. {self.next_step}"


@dataclass(eq=False)
class HomeUnusableError(ConfigurationError):
    """The home folder cannot be created, written or locked."""

    home: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The home folder {self.home} cannot be used ({self.reason}). Nothing was started. "
            f"Make it writable for this user, or set BATCH_PIPELINE_HOME to another folder on a "
            f"local disk."
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


@dataclass(eq=False)
class LockTimeoutError(RetryableError):
    """Somebody else holds a lock of the inventory for longer than a transaction of ours lasts."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"Another session holds a lock at {self.location} ({self.reason}). Nothing was "
            f"changed. Run again; if it stays, look for an open transaction in pg_stat_activity."
        )


@dataclass(eq=False)
class SparkSessionOpenError(ConflictError):
    """A process that has a Spark session was asked for a different one."""

    open_target: str
    asked_target: str

    def sentence(self) -> str:
        return (
            f"A Spark session with other settings is open in this process ({self.open_target}), so "
            f"none was opened on {self.asked_target}. The open one was left alone. Close it first "
            f"(`close_session()`), or use a process of its own."
        )


@dataclass(eq=False)
class TaskFailedError(InvariantError):
    """A task of an encode ended in a way that nobody foresaw; `detail` is its traceback."""

    stream: str
    task: int
    detail: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: task {self.task} of the encode failed unexpectedly. Its files were "
            f"removed and nothing was published. Please report this: {self.detail.strip()}"
        )


@dataclass(eq=False)
class EncodeStoppedError(ConflictError):
    """An encode was called off while its tasks ran; `stem` starts the names of its files."""

    stem: str

    def sentence(self) -> str:
        return (
            f"{self.stem}: the encode was called off while it ran: another attempt took its batch "
            f"over, or somebody cancelled it. Its tasks ended and their files were removed; "
            f"nothing was published, and no action is needed."
        )


@dataclass(eq=False)
class TransformUnusableError(ConfigurationError):
    """What a stream file names as its transform is no function that can be used."""

    stream: str
    transform: str
    reason: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: the transform {self.transform} cannot be used ({self.reason}). "
            f"Nothing was published. `transform` takes `package.module:function`, the function "
            f"takes a DataFrame and gives one; its package must be installed wherever the pipeline "
            f"and Spark's Python workers run. Correct it, then run again."
        )


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
class DagsterStartError(RetryableError):
    """Dagster's webserver or daemon ended or does not answer."""

    log: str
    last_line: str

    def sentence(self) -> str:
        return (
            f"Dagster's servers ended or do not answer ({self.last_line}). Published batches are "
            f"not affected. Everything else was stopped too; see {self.log}, then start again."
        )


@dataclass(eq=False)
class PartLostError(RetryableError):
    """A part of `batch-pipeline dev` ended again and again."""

    part: str
    trouble: str
    restarts: int

    def sentence(self) -> str:
        return (
            f"The {self.part} was started again {self.restarts} times within minutes, and is down "
            f"once more ({self.trouble}). Published batches are not affected. Everything else was "
            f"stopped too; mend what ends it, then start again."
        )


@dataclass(eq=False)
class UnknownMetaTableError(ConfigurationError):
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
class UnknownMetaColumnError(ConfigurationError):
    """A column was named that the meta table does not have."""

    table: str
    column: str
    role: str
    columns: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"{self.table} has no column {self.column!r}, named as its {self.role} (its columns: "
            f"{', '.join(self.columns)}). Nothing was read. Name one of these."
        )


@dataclass(eq=False)
class MetaColumnUnfitError(ConfigurationError):
    """A column of the meta table cannot play the role it was given."""

    table: str
    column: str
    role: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        return (
            f"{self.table}: column {self.column!r} cannot be the {self.role}: {self.problem}. "
            f"Nothing was planned. {self.next_step}"
        )


@dataclass(eq=False)
class BadWeightError(ConfigurationError):
    """A row of the meta table has a weight that cannot be counted."""

    table: str
    item_id: int
    weight: object

    def sentence(self) -> str:
        weight = "NULL" if self.weight is None else repr(self.weight)
        return (
            f"{self.table}: the weight of id {self.item_id} is {weight}; expected a whole number "
            f"from 0 to 2^63 - 1. Nothing was planned from this row on. Correct the row, or state "
            f"with `on_bad_weight` what such rows count."
        )


@dataclass(eq=False)
class MetaPermissionError(ConfigurationError):
    """The role may not read the meta table."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The meta table at {self.location} may not be read ({self.reason}). Nothing was "
            f"changed. Grant SELECT on it (and USAGE on its schema) to the role of "
            f"BATCH_PIPELINE_META_CONN."
        )


@dataclass(eq=False)
class MetaUnreachableError(RetryableError):
    """The database of the meta table does not answer."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The meta table's database at {self.location} cannot be reached ({self.reason}). "
            f"Nothing was changed. Start it or correct BATCH_PIPELINE_META_CONN, then run again."
        )


@dataclass(eq=False)
class MetaBusyError(RetryableError):
    """The database of the meta table gave up waiting for a lock, or ended the statement."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The meta table's database at {self.location} ended a read ({self.reason}). Nothing "
            f"was changed. Run again; if it stays, look for who locks the table."
        )


@dataclass(eq=False)
class CeilingUnavailableError(ConfigurationError):
    """A way to find the ceiling was asked for, or needed, that the meta table does not allow."""

    table: str
    strategy: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        return (
            f"{self.table}: the ceiling cannot be found by {self.strategy!r}: {self.problem}. "
            f"Nothing was planned. {self.next_step}"
        )


@dataclass(eq=False)
class MetaTableChangedError(ConfigurationError):
    """The meta table or one of its columns went away after it had been opened."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The meta table at {self.location} is no longer what it was when it was opened "
            f"({self.reason}). Nothing was planned. Restore it, or start again with its new shape."
        )


@dataclass(eq=False)
class JobChangedError(ConfigurationError):
    """A job exists and is not what was asked for."""

    job: str
    meta_table: str
    problem: str

    def sentence(self) -> str:
        return (
            f"Job {self.job!r} on {self.meta_table} exists, and {self.problem}. Nothing was done. "
            f"Ids that it has passed would never be looked at again: take another name for the "
            f"job, or ask for what it was made with."
        )


@dataclass(eq=False)
class JobPausedError(RetryableError):
    """A job hands out nothing until it is resumed."""

    job: str
    reason: str

    def sentence(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"Job {self.job!r} is paused{why}. Nothing was planned or handed out. "
            f"`batch-pipeline resume {self.job}` lets it go on."
        )


@dataclass(eq=False)
class UnknownJobError(ConfigurationError):
    """A job was asked for that the inventory does not know."""

    job: str
    known: tuple[str, ...]

    def sentence(self) -> str:
        known = ", ".join(self.known) or "none"
        return f"There is no job {self.job!r} (jobs: {known}). Nothing was done. Check the name."


@dataclass(eq=False)
class MetaTableRestartedError(ConfigurationError):
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
class RoleRightsError(ConfigurationError):
    """The login may not make the roles of the inventory, or not give them their rights."""

    location: str
    statement: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The login used at {self.location} may not run `{self.statement}` ({self.reason}). "
            f"Nothing was changed. Let an administrator of the server run it, or all that "
            f"`batch-pipeline migrate --roles PREFIX --print` prints, then run this again."
        )


@dataclass(eq=False)
class UnknownItemsError(ConfigurationError):
    """Items were named one by one that the meta table does not have, or not for certain yet."""

    meta_table: str
    item_ids: tuple[int, ...]
    ceiling: int | None

    def sentence(self) -> str:
        named = ", ".join(map(str, self.item_ids[:10]))
        more = len(self.item_ids) - 10
        others = f" and {more} more" if more > 0 else ""
        below = "" if self.ceiling is None else f" up to its ceiling {self.ceiling}"
        return (
            f"{self.meta_table} has no items {named}{others}{below}. Nothing was planned. Leave "
            f"these ids out; those that a filter hides, or above the ceiling, cannot be taken."
        )


@dataclass(eq=False)
class AmbiguousJobError(ConfigurationError):
    """Jobs of several meta tables have the name that was asked for."""

    job: str
    meta_tables: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"There are jobs {self.job!r} on {', '.join(self.meta_tables)}. Nothing was done. Name "
            f"the meta table too (`--meta-table {self.meta_tables[0]}`)."
        )


@dataclass(eq=False)
class UnknownJobBatchError(ConfigurationError):
    """A job has no live batch of the name or number that was asked for."""

    job: str
    batch: str

    def sentence(self) -> str:
        return (
            f"Job {self.job!r} has no batch {self.batch!r}. Nothing was done. `batch-pipeline jobs "
            f"{self.job}` lists those that are not finished, by name and number."
        )


@dataclass(eq=False)
class BatchSupersededError(ConflictError):
    """A batch was to be tried that has been split into smaller ones."""

    job: str
    label: str
    parts: tuple[str, ...] = ()  # partition keys of what took its place, where somebody looked

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
class BatchIndivisibleError(ConfigurationError):
    """A batch was to be split that cannot be."""

    job: str
    label: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        return (
            f"{self.job}: batch {self.label} cannot be split: {self.problem}. Nothing was changed. "
            f"{self.next_step}"
        )


@dataclass(eq=False)
class BatchReleasedError(ConflictError):
    """A batch was to be released that has been."""

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
class BatchElsewhereError(ConfigurationError):
    """A batch was to be used outside of the process that acquired it."""

    job: str
    label: str
    process_id: int

    def sentence(self) -> str:
        return (
            f"{self.job}: batch {self.label} belongs to process {self.process_id} and can be "
            f"neither copied, pickled nor released elsewhere. It is left as it was. Hand its items "
            f"over, and release it where it was acquired; or acquire in the process that works."
        )


@dataclass(eq=False)
class BadItemError(BatchDataError):
    """A row of a user's meta table is none that a batch could be made of."""

    table: str
    item_id: int
    problem: str

    def sentence(self) -> str:
        return (
            f"{self.table}: {self.problem} (id {self.item_id}). Nothing of this batch was "
            f"published. Correct the row and run again."
        )


@dataclass(eq=False)
class StreamMovedError(ConfigurationError):
    """A stream's job was made for another meta table than the one that the stream file names."""

    stream: str
    meta_table: str
    asked: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: its items were listed by {self.meta_table} so far, and the stream "
            f"file now names {self.asked}, whose ids are others. Nothing was planned. Correct "
            f"`source`, or give the stream another name."
        )


@dataclass(eq=False)
class UpstreamUnclearError(ConfigurationError):
    """A job is to read what another job has published, and it is not clear which."""

    job: str
    problem: str

    def sentence(self) -> str:
        return (
            f"Job {self.job!r} reads what other jobs have published, and {self.problem}. Nothing "
            f"was acquired. Name exactly one, as in "
            f'where=[{{"column": "job", "operator": "=", "value": "…"}}].'
        )


@dataclass(eq=False)
class UpstreamAmbiguousError(ConfigurationError):
    """A job is to read what another job has published, and several jobs have its name."""

    job: str
    upstream: str
    meta_tables: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"Job {self.job!r} is to read what {self.upstream!r} has published, and there are jobs "
            f"of this name on {', '.join(self.meta_tables)}. Nothing was acquired. Say which: add "
            f'{{"column": "meta_table", "operator": "=", "value": "{self.meta_tables[0]}"}} to '
            f"`where`."
        )


@dataclass(eq=False)
class ChainCycleError(ConfigurationError):
    """Jobs would read, over however many others, what they have published themselves."""

    jobs: tuple[str, ...]

    def sentence(self) -> str:
        chain = " reads ".join(repr(one) for one in self.jobs)
        return (
            f"Jobs would feed themselves for ever: {chain}. Nothing was acquired. Let one of them "
            f"read another job or a meta table of its own."
        )


# What is wrong with one stream's meta table, or with how it is described: other streams go on.
OF_ONE_META_TABLE: tuple[type[PipelineError], ...] = (
    BadWeightError,
    CeilingUnavailableError,
    InvalidValueError,
    JobChangedError,
    MetaBusyError,
    MetaColumnUnfitError,
    MetaPermissionError,
    MetaTableChangedError,
    MetaTableRestartedError,
    MetaUnreachableError,
    SettingError,
    StreamMovedError,
    UnknownMetaColumnError,
    UnknownMetaTableError,
)


@dataclass(eq=False)
class LoadError(PipelineError):
    """A published batch is not in a target, or nobody knows that it is.

    `log` is the end of what the target said on its standard error.
    """

    target: str
    stream: str
    batch: str

    @property
    def log(self) -> str:
        """The end of what the target said; empty where it said nothing or was not asked."""
        return str(getattr(self, "said", ""))

    def told(self, problem: str, left: str, next_step: str) -> str:
        """Build the sentence that all errors of this family have in common."""
        what = f"batch {self.batch} was not loaded into {self.target}"
        text = f"{self.stream}: {what}: {problem}. {left} {next_step}"
        last = self.log.strip().splitlines()[-1:]
        return f"{text} The last that it said: {last[0].strip()[:500]}" if last else text


_LEFT_IN_PART = "Some of its records may be there; it is not recorded as loaded."
_NOTHING_SENT = "Nothing was sent."


@dataclass(eq=False)
class TargetFailedError(LoadError, BatchDataError):
    """A target ended with an exit code other than 0; a negative one is the signal that ended it."""

    exit_code: int
    said: str = ""

    def sentence(self) -> str:
        how = f"exit code {self.exit_code}" if self.exit_code >= 0 else f"signal {-self.exit_code}"
        step = "Correct what the target complains about, then run `batch-pipeline load` again."
        return self.told(f"the target ended with {how}", _LEFT_IN_PART, step)


@dataclass(eq=False)
class TargetSilentError(LoadError, BatchDataError):
    """A target ended well and did not print the STATE that was sent after the batch."""

    said: str = ""

    def sentence(self) -> str:
        problem = "the target ended with exit code 0 but did not print the STATE of this batch"
        step = (
            "Compare its rows with the batch. A target that cannot read BATCH messages gets "
            "`messages: record` in the stream file; then run `batch-pipeline load` again."
        )
        return self.told(problem, _LEFT_IN_PART, step)


@dataclass(eq=False)
class TargetStateError(LoadError, BatchDataError):
    """A target printed something that is no STATE of ours; it was stopped."""

    printed: str
    problem: str
    said: str = ""

    def sentence(self) -> str:
        problem = f"the target printed {self.printed!r:.200}, which {self.problem}; it was stopped"
        step = (
            "Only STATE values belong on a target's standard output. Correct the target or its "
            "configuration, then run `batch-pipeline load` again."
        )
        return self.told(problem, _LEFT_IN_PART, step)


@dataclass(eq=False)
class TargetHangsError(LoadError, BatchDataError):
    """A target neither read nor said nor computed anything for too long; it was stopped."""

    waited: str
    said: str = ""

    def sentence(self) -> str:
        problem = f"the target did nothing for {self.waited} and was stopped"
        step = (
            "See what it waits for (a lock, a network), or raise `timeout` of the target in the "
            "stream file; then run `batch-pipeline load` again."
        )
        return self.told(problem, _LEFT_IN_PART, step)


@dataclass(eq=False)
class TargetStartError(LoadError, ConfigurationError):
    """A target cannot be started as the stream file says."""

    command: str
    reason: str

    def sentence(self) -> str:
        problem = f"{self.command!r} cannot be started ({self.reason})"
        step = (
            "Install the target where `command` names it, or correct the target in the stream "
            "file; then run `batch-pipeline load` again."
        )
        return self.told(problem, _NOTHING_SENT, step)


@dataclass(eq=False)
class TargetRefusedError(LoadError, ConfigurationError):
    """A target cannot take a batch as the stream file says; nothing was tried."""

    problem: str
    next_step: str

    def sentence(self) -> str:
        return self.told(self.problem, _NOTHING_SENT, self.next_step)


@dataclass(eq=False)
class PartFileChangedError(LoadError, BatchDataError):
    """A file of a published batch is gone, or is not what was published."""

    problem: str

    def sentence(self) -> str:
        step = (
            "Materialize its partition again: the next generation takes its place. Then run "
            "`batch-pipeline load` again."
        )
        return self.told(self.problem, _NOTHING_SENT, step)


@dataclass(eq=False)
class UnknownTargetError(ConfigurationError):
    """A target was asked for that the stream file does not describe."""

    stream: str
    target: str | None
    known: tuple[str, ...]

    def sentence(self) -> str:
        known = ", ".join(self.known) or "none"
        asked = "has no target" if self.target is None else f"has no target {self.target!r}"
        return (
            f"The stream {self.stream} {asked} (targets of its stream file: {known}). Nothing was "
            f"loaded. Describe the target below `targets` in the stream file."
        )


@dataclass(eq=False)
class NotLoadedError(ConfigurationError):
    """A batch was to be loaded again that no target has."""

    stream: str
    batch: str
    targets: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"{self.stream}: no batch {self.batch!r} is loaded into {', '.join(self.targets)}. "
            f"Nothing was loaded. Give a batch as `batch-pipeline explain` names its partition; "
            f"one that was never loaded needs no --reload."
        )


@dataclass(eq=False)
class FilesRemovedError(ConfigurationError):
    """A batch was to be loaded whose files went after they were loaded, or are archived."""

    stream: str
    batch: str
    generation: int
    removed_at: datetime
    archive: str | None

    def sentence(self) -> str:
        day = f"{self.removed_at:%Y-%m-%d}"
        went = "deleted" if self.archive is None else f"moved to the archive {self.archive}"
        return (
            f"{self.stream}: the files of batch {self.batch}, generation {self.generation}, were "
            f"{went} on {day}, as `storage` of the stream file says. Nothing was loaded or "
            f"changed. Materialize its partition again: the next generation is loaded into every "
            f"target and takes the place of this one."
        )


@dataclass(eq=False)
class LoadRunningError(LoadError, ConflictError):
    """Somebody else is loading batches of the stream into the target."""

    run_id: str

    def sentence(self) -> str:
        problem = f"run {self.run_id} is loading this stream into the target"
        step = "Wait until it has ended; what it leaves is loaded by the next run."
        return self.told(problem, "Nothing was changed.", step)


@dataclass(eq=False)
class LoadLostError(LoadError, ConflictError):
    """A load was taken over by somebody else while it was under way."""

    def sentence(self) -> str:
        problem = "its claim was taken over, since this run gave no sign of life for too long"
        step = "Run `batch-pipeline load` again: what the other run has loaded is left alone."
        return self.told(problem, _LEFT_IN_PART, step)
