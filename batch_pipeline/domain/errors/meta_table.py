"""Stations 2 and 3: meta tables that cannot be read, or list what no batch can be made of."""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import (
    BatchDataError,
    ConfigurationError,
    PipelineError,
    RetryableError,
)
from batch_pipeline.domain.errors.configuration import InvalidValueError, SettingError
from batch_pipeline.domain.errors.job import JobChangedError


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
class BadWeightError(ConfigurationError):
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
