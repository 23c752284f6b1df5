"""Old runs of Dagster's, whose tables lie in the same database: what of their events may go.

What a page of partitions is drawn from stays: materializations, observations, checks, what was
planned and did not come, how runs ended and why steps failed. Names what may go, never what stays,
so that an event that a later Dagster adds is kept.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa

from batch_pipeline.inventory.server.engine import transaction

RUNS_AT_ONCE = 100

_SCHEMA = "public"
_OF_STEPS = (
    "ENGINE_EVENT",
    "HANDLED_OUTPUT",
    "LOADED_INPUT",
    "LOGS_CAPTURED",
    "RESOURCE_INIT_STARTED",
    "RESOURCE_INIT_SUCCESS",
    "STEP_INPUT",
    "STEP_OUTPUT",
    "STEP_START",
    "STEP_SUCCESS",
    "STEP_WORKER_STARTED",
    "STEP_WORKER_STARTING",
)
_OF_ASSETS = (
    "ASSET_CHECK_EVALUATION",
    "ASSET_CHECK_EVALUATION_PLANNED",
    "ASSET_MATERIALIZATION",
    "ASSET_MATERIALIZATION_PLANNED",
    "ASSET_OBSERVATION",
)
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")

_events = sa.table(
    "event_logs",
    *(sa.column(name) for name in ("id", "run_id", "dagster_event_type", "asset_key", "partition")),
    sa.column("event", sa.Text),
    schema=_SCHEMA,
)
_runs = sa.table(
    "runs",
    *(sa.column(name) for name in ("id", "run_id", "status", "pipeline_name", "end_time")),
    schema=_SCHEMA,
)
_later = _events.alias("later")
# That a partition was to be made is told by its materialization as soon as there is a later one.
_came = sa.and_(
    _events.c.dagster_event_type == "ASSET_MATERIALIZATION_PLANNED",
    sa.exists().where(
        _later.c.dagster_event_type == "ASSET_MATERIALIZATION",
        _later.c.asset_key == _events.c.asset_key,
        _later.c.partition == _events.c.partition,
        _later.c.id > _events.c.id,
    ),
)
_MAY_GO = sa.or_(
    _events.c.dagster_event_type.is_(None),  # lines of logs
    _events.c.dagster_event_type.in_(_OF_STEPS),
    _came,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """What went, or would: runs that were trimmed and those that were deleted, and their events."""

    runs: int = 0
    deleted_runs: int = 0
    events: int = 0
    size_bytes: int = 0

    def __add__(self, other: "Trimmed") -> "Trimmed":
        return Trimmed(
            runs=self.runs + other.runs,
            deleted_runs=self.deleted_runs + other.deleted_runs,
            events=self.events + other.events,
            size_bytes=self.size_bytes + other.size_bytes,
        )


@dataclass(frozen=True, slots=True)
class OldRun:
    """An ended run; one of `upkeep` made no asset and is deleted as a whole."""

    id: int
    run_id: str
    upkeep: bool


@dataclass(frozen=True, slots=True)
class DagsterHistory:
    """Runs that ended longer ago than `keep`, by the database's clock.

    `upkeep` are names of Dagster jobs that look after things and make no asset.
    """

    engine: sa.Engine
    keep: timedelta
    upkeep: Collection[str]

    def is_there(self) -> bool:
        """Tell whether Dagster was ever started on this database."""
        query = sa.select(
            sa.func.to_regclass(f"{_SCHEMA}.runs").is_not(None)
            & sa.func.to_regclass(f"{_SCHEMA}.event_logs").is_not(None)
        )
        with transaction(self.engine) as connection:
            return bool(connection.execute(query).scalar_one())

    def page(self, after: int) -> Sequence[OldRun]:
        """Read the next old runs that have something to go, oldest first, behind a run's `id`."""
        is_upkeep = sa.and_(
            _runs.c.pipeline_name.in_(list(self.upkeep)), ~_has_event(_is_of_assets())
        )
        age = sa.extract("epoch", sa.func.clock_timestamp()) - self.keep.total_seconds()
        query = (
            sa.select(_runs.c.id, _runs.c.run_id, is_upkeep.label("upkeep"))
            .where(
                _runs.c.status.in_(_ENDED),
                _runs.c.end_time < age,
                _runs.c.id > after,
                sa.or_(is_upkeep, _has_event(_MAY_GO)),
            )
            .order_by(_runs.c.id)
            .limit(RUNS_AT_ONCE)
        )
        with transaction(self.engine) as connection:
            return [OldRun(*row) for row in connection.execute(query)]

    def price(self, runs: Sequence[OldRun]) -> Trimmed:
        """Tell what of runs would go."""
        size = sa.func.coalesce(sa.func.sum(sa.func.octet_length(_events.c.event)), 0)
        query = sa.select(sa.func.count(), sa.cast(size, sa.BigInteger)).where(_going(runs))
        with transaction(self.engine) as connection:
            events, size_bytes = connection.execute(query).one()
        return _trimmed(runs, events, size_bytes)

    def forget(self, runs: Sequence[OldRun]) -> Trimmed:
        """Delete events of runs, and runs of upkeep, in one transaction."""
        gone = (
            sa.delete(_events).where(_going(runs)).returning(sa.func.octet_length(_events.c.event))
        )
        with transaction(self.engine) as connection:
            sizes = connection.execute(gone).scalars().all()
            # Their tags go with them, by the foreign key.
            upkeep = [run.run_id for run in runs if run.upkeep]
            connection.execute(sa.delete(_runs).where(_runs.c.run_id.in_(upkeep)))
        return _trimmed(runs, len(sizes), sum(sizes))


def _is_of_assets() -> sa.ColumnElement[bool]:
    return _events.c.dagster_event_type.in_(_OF_ASSETS)


def _has_event(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return sa.exists(
        sa.select(1).select_from(_events).where(_events.c.run_id == _runs.c.run_id, condition)
    ).correlate(_runs)


def _going(runs: Sequence[OldRun]) -> sa.ColumnElement[bool]:
    trimmed = [run.run_id for run in runs if not run.upkeep]
    deleted = [run.run_id for run in runs if run.upkeep]
    return sa.or_(sa.and_(_events.c.run_id.in_(trimmed), _MAY_GO), _events.c.run_id.in_(deleted))


def _trimmed(runs: Sequence[OldRun], events: int, size_bytes: int) -> Trimmed:
    deleted = sum(run.upkeep for run in runs)
    return Trimmed(
        runs=len(runs) - deleted, deleted_runs=deleted, events=events, size_bytes=size_bytes
    )
