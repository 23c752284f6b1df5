"""The inventory of pybatchintory, read by reflection in any database; nothing is written there."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.errors import (
    InvalidValueError,
    MetaBusyError,
    MetaPermissionError,
    MetaTableChangedError,
    MetaUnreachableError,
    UnknownJobError,
)
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.imported import (
    ForeignAttempt,
    ForeignInventoryError,
    NotImportedError,
    Running,
)
from batch_pipeline.inventory.meta.catalogue import find_table
from batch_pipeline.inventory.meta.meta_engine import place, reading

_COLUMNS = (
    "id",
    "meta_table",
    "job",
    "job_identifier",
    "job_result_item",
    "processing_start",
    "processing_end",
    "batch_id_start",
    "batch_id_end",
    "batch_weight",
    "batch_count",
    "status",
    "logging",
    "config",
)
_TIMES = ("processing_start", "processing_end")
_STATUSES = ("running", "succeeded", "failed")
_ROLES = ("uid", "item", "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRow:
    """A row with the names of its job, its meta table, and the table's columns by role."""

    job: str
    table: str
    columns: Mapping[str, Any]
    attempt: ForeignAttempt


@dataclass(frozen=True, slots=True)
class ForeignInventory:
    """One table, by its name as `table` or `schema.table`."""

    engine: sa.Engine
    name: str

    @property
    def location(self) -> str:
        """Host and database, without credentials."""
        return place(self.engine)

    def rows(self, jobs: Sequence[str], running: Running | None) -> list[ForeignRow]:
        """Read the rows of jobs, all without any, in their order.

        A try that was never released counts as `running` says.

        Raises:
            ForeignInventoryError: it cannot be read.
            UnknownMetaTableError: there is no such table.
            UnknownJobError: it has no job of a name.
            NotImportedError: it is no inventory of pybatchintory, or rows contradict themselves.
        """
        with _named_errors(self.location):
            table = self._table()
            query = sa.select(*(self._read(table.c[name]) for name in _COLUMNS))
            query = query.where(table.c.job.in_(jobs)) if jobs else query
            with reading(self.engine) as connection:
                known = set(connection.execute(sa.select(table.c.job).distinct()).scalars())
                found = connection.execute(query.order_by(table.c.id)).all()
        for name in jobs:
            if name not in known:
                raise UnknownJobError(name, tuple(sorted(known)))
        rows, problems = [], []
        for one in found:
            try:
                rows.append(_row(one, running))
            except InvalidValueError as error:
                problems.append(f"row {one.id}: {error}")
        if problems:
            raise NotImportedError(self.location, tuple(problems))
        return rows

    def _table(self) -> sa.Table:
        found = find_table(self.engine, self.name)
        missing = set(_COLUMNS) - {column.name for column in found.columns}
        if missing:
            problem = (
                f"{found.canonical_name} is no inventory of pybatchintory: it has no column "
                f"{', '.join(sorted(missing))}; name the right table by --inventory-table."
            )
            raise NotImportedError(self.location, (problem,))
        return sa.Table(found.name, sa.MetaData(), *found.columns, schema=found.schema)

    def _read(self, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        if column.name not in _TIMES or self.engine.dialect.name != "postgresql":
            return column
        # A time without a zone is one of the zone that sessions of the database have.
        return sa.cast(column, sa.TIMESTAMP(timezone=True)).label(column.name)


def _row(one: sa.Row[Any], running: Running | None) -> ForeignRow:
    config = one.config if isinstance(one.config, dict) else {}
    if one.status not in _STATUSES:
        raise InvalidValueError("status", one.status, f"one of {', '.join(_STATUSES)}")
    columns = (config.get("meta_table") or {}).get("cols") or {}
    started_at = _utc(one.processing_start)
    limits = {name: config.get(name) or None for name in ("batch_weight", "batch_count")}
    attempt = ForeignAttempt(
        id=one.id,
        ids=IdRange(first_id=one.batch_id_start, last_id=one.batch_id_end),
        recorded=one.status,
        succeeded=one.status == "succeeded"
        or (one.status == "running" and running is Running.SUCCEED),
        count=one.batch_count,
        weight=one.batch_weight or 0,
        started_at=started_at,
        finished_at=started_at if one.processing_end is None else _utc(one.processing_end),
        job_identifier=one.job_identifier,
        result=one.job_result_item,
        logging=one.logging,
        limits=limits,
    )
    roles = {role: columns[role] for role in _ROLES if role in columns}
    return ForeignRow(job=one.job, table=one.meta_table, columns=roles, attempt=attempt)


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


@contextmanager
def _named_errors(location: str) -> Iterator[None]:
    """Say of which database it is that a read has failed."""
    try:
        yield
    except (MetaBusyError, MetaPermissionError, MetaTableChangedError, MetaUnreachableError) as one:
        raise ForeignInventoryError(location, one.reason) from one
