"""Station 6: files, records, schemas and transforms that end the encode of a batch."""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import (
    BatchDataError,
    ConfigurationError,
    ConflictError,
    InvariantError,
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
            f"{self.stream}: {self.location}, line {self.line}: {self.reason}. "
            f"Bad records: {self.bad_records}, {self.allowed} allowed; nothing of this batch was "
            f"published. {_repair(self.stream, is_registered=self.is_registered)}, or raise the "
            f"limits of `on_bad_record`; then run again."
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
        others = self.columns - 1
        more = f" (more columns that do not fit: {others})" if others else ""
        return (
            f"{self.stream}: {place}: column {self.column} holds {self.seen}, schema version "
            f"{self.version} {known}{more}; `schema.evolution` is `fail`, so nothing of this batch "
            f"was published. {_repair(self.stream, is_registered=self.is_registered)}, declare the "
            f"column wide enough, or set `evolution: add` or `rescue`; then run again."
        )


def _repair(stream: str, *, is_registered: bool) -> str:
    """Say how a file is repaired: what a user's own table says of it is not compared with it."""
    if not is_registered:
        return "Repair the file"
    return f"Repair the file and accept it with `batch-pipeline plan {stream} --accept-changed`"


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
class ConservationError(InvariantError):
    """Records read and records accounted for differ."""

    location: str
    read: int
    accounted: int

    def sentence(self) -> str:
        return (
            f"{self.location}: records read: {self.read}, but {self.accounted} written, "
            f"filtered or quarantined. Nothing was published. Please report this file's shape."
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
