"""What can go wrong between a published batch and a table; the transaction is rolled back.

Which error of the server is which of these is decided here, too, and nowhere else.
"""

import re
from dataclasses import dataclass

import psycopg

from batch_pipeline.domain.errors import (
    BatchDataError,
    ConfigurationError,
    LoadError,
    RetryableError,
)

_LEFT = "Nothing of this attempt is in the table."
_AGAIN = "then run `batch-pipeline load` again."
_LINE = re.compile(r"^COPY .*?, \S+ (\d+)(?:, \S+ (.*?))?(?:: .*)?$", re.MULTILINE)
_UNREACHABLE = ("08", "57P")
_BUSY = {"55P03", "40P01", "40001"}


@dataclass(eq=False)
class BadValueError(LoadError, BatchDataError):
    """A record has a value that the table cannot hold exactly, or is none at all.

    `record` counts from 1; `column` is empty where the whole record is bad.
    """

    location: str
    record: int
    column: str
    problem: str

    def sentence(self) -> str:
        where = f", column {self.column!r}" if self.column else ""
        problem = f"record {self.record} of {self.location}{where}: {self.problem}"
        step = (
            "Correct the source or the stream's schema and materialize the partition again, or "
            f"give the table a wider type; {_AGAIN}"
        )
        return self.told(problem, _LEFT, step)


@dataclass(eq=False)
class WarehouseUnreachableError(LoadError, RetryableError):
    """The server of a table does not answer, or the connection broke."""

    place: str
    reason: str

    def sentence(self) -> str:
        left = f"{_LEFT[:-1]}, unless the answer to a commit was lost: the next try will notice."
        step = f"Start the server or correct `conn` of the target, {_AGAIN}"
        return self.told(f"{self.place} cannot be reached ({self.reason})", left, step)


@dataclass(eq=False)
class WarehouseBusyError(LoadError, RetryableError):
    """Somebody else holds the table for too long."""

    table: str
    reason: str

    def sentence(self) -> str:
        problem = f"another session holds {self.table} ({self.reason})"
        step = "Run `batch-pipeline load` again; if it stays, look into pg_stat_activity."
        return self.told(problem, _LEFT, step)


@dataclass(eq=False)
class WarehouseRefusedError(LoadError, ConfigurationError):
    """The server refuses a statement: a right, a limit, a constraint, a full disk."""

    table: str
    reason: str

    def sentence(self) -> str:
        step = f"Correct what it complains about, {_AGAIN}"
        return self.told(f"the server refuses it for {self.table} ({self.reason})", _LEFT, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a load is about, as errors name it: `place` is the server without a password."""

    target: str
    stream: str
    batch: str
    table: str
    place: str

    def error(self, error: psycopg.Error) -> LoadError:
        """Give what an error of the server or the connection means."""
        names = self.target, self.stream, self.batch
        code, reason = error.sqlstate or "", first_line(error)
        if code in _BUSY:
            return WarehouseBusyError(*names, self.table, reason)
        lost = not code and isinstance(error, psycopg.OperationalError)
        if lost or code.startswith(_UNREACHABLE):
            return WarehouseUnreachableError(*names, self.place, reason)
        return WarehouseRefusedError(*names, self.table, reason)


def copied_line(error: psycopg.Error) -> tuple[int, str] | None:
    """Give which row of a COPY, from 1, and which column the server complains about."""
    if not (error.sqlstate or "").startswith("22"):
        return None
    found = _LINE.search(error.diag.context or "")
    return None if found is None else (int(found[1]), found[2] or "?")


def first_line(error: psycopg.Error) -> str:
    """Give what the server says, without the statement."""
    text = (error.diag.message_primary or str(error)).strip()
    detail = error.diag.message_detail
    first = text.splitlines()[0] if text else "no reason given"
    return f"{first}: {detail}" if detail else first
