"""The statements that acquire: each takes or makes a batch and starts its attempt at one go.

Built once, with names for every value; nothing is executed here.
"""

from typing import Any

import sqlalchemy as sa

from batch_pipeline.domain.batch import AttemptStatus, BatchState
from batch_pipeline.domain.job import JobKind
from batch_pipeline.inventory.jobs.bookmarks import REACH
from batch_pipeline.inventory.tables import UNFINISHED, attempt, batch, batch_state, job
from batch_pipeline.inventory.work.batch_rows import BATCH_ROW

_ONE = sa.literal_column("1", sa.Integer)
_RUNNING = sa.literal_column(f"'{BatchState.RUNNING}'", sa.Text)
_RUNNING_ATTEMPT = sa.literal_column(f"'{AttemptStatus.RUNNING}'", sa.Text)


def _bind(name: str, column: sa.Column[Any]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=column.type)


def _try(chosen: sa.CTE, number: sa.ColumnElement[int]) -> sa.CTE:
    """Write an attempt on the batch that another part of the statement gives."""
    facts = {
        "batch_id": chosen.c.id,
        "number": number,
        "token": _bind("token", attempt.c.token),
        "liveness_key": _bind("liveness_key", attempt.c.liveness_key),
        "status": _RUNNING_ATTEMPT,
        "run_id": _bind("run_id", attempt.c.run_id),
        "lease_until": sa.func.clock_timestamp() + sa.bindparam("lease", type_=sa.Interval),
    }
    return (
        sa.insert(attempt)
        .from_select(list(facts), sa.select(*facts.values()))
        .returning(attempt.c.id.label("attempt_id"), attempt.c.batch_id, attempt.c.number)
        .cte("tried")
    )


def _take_waiting(*states: BatchState) -> sa.Select[Any]:
    """Start an attempt on the first batch in some states that nobody else is just taking.

    Gives the job's row in any case; a paused job gives no batch.
    """
    # Not called job_id: SQLAlchemy would set the column of that name to it.
    job_id = sa.bindparam("of_job", type_=sa.Integer)
    kin = job.alias("kin")
    late = sa.and_(kin.c.parent_id == job_id, kin.c.kind == JobKind.LATE)
    mine = sa.select(kin.c.id).where(sa.or_(kin.c.id == job_id, late)).subquery("mine")
    paused = sa.exists().where(job.c.id == job_id, job.c.paused_at.is_not(None))
    listed = ", ".join(f"'{one}'" for one in states)
    wanted = sa.func.unnest(sa.literal_column(f"ARRAY[{listed}]")).table_valued(
        sa.column("state", sa.Text)
    )
    wanted = wanted.render_derived("wanted")
    # One probe of the index for each job and state, however many batches wait.
    first = (
        sa.select(*BATCH_ROW)
        .select_from(batch_state)
        .join(batch, batch.c.id == batch_state.c.batch_id)
        .join(job, job.c.id == batch.c.job_id)
        .where(
            batch_state.c.job_id == mine.c.id,
            batch_state.c.state == wanted.c.state,
            sa.text(f"batch_state.{UNFINISHED}"),  # word for word as the partial index has it
            batch.c.first_id >= _bind("window_first_id", batch.c.first_id),
            batch.c.last_id <= _bind("window_last_id", batch.c.last_id),
            ~paused,
        )
        .order_by(batch_state.c.batch_id)
        .limit(_ONE)
        .with_for_update(of=batch_state, skip_locked=True)
        .lateral("first")
    )
    waiting = (
        sa.select(first)
        .select_from(mine.join(wanted, sa.true()).join(first, sa.true()))
        .order_by(first.c.id)
        .limit(_ONE)
        .cte("waiting")
    )
    started = (
        sa.update(batch_state)
        .where(batch_state.c.batch_id == waiting.c.id)
        .values(state=_RUNNING, attempts=batch_state.c.attempts + _ONE)
        .returning(batch_state.c.batch_id.label("id"), batch_state.c.attempts)
        .cte("started")
    )
    tried = _try(started, started.c.attempts)
    one = job.alias("one")
    facts = [one.c[name] for name in _JOB_FACTS]
    return (
        sa.select(
            one.c.name.label("job_name"),
            *facts,
            _WITHOUT_FLUSH,
            waiting,
            tried.c.attempt_id,
            tried.c.number,
        )
        .select_from(
            one.outerjoin(tried, sa.true()).outerjoin(waiting, waiting.c.id == tried.c.batch_id)
        )
        .where(one.c.id == job_id)
    )


# An acquisition that a crash of the server takes back harms nobody: its token is unknown then.
_WITHOUT_FLUSH: sa.Label[str] = sa.literal_column(
    "set_config('synchronous_commit', 'off', true)"
).label("flush")
_JOB_FACTS = (
    "meta_table",
    "kind",
    "stream",
    "max_attempts",
    "bisect",
    "paused_at",
    "paused_reason",
)
TAKE_FIRST = _take_waiting(BatchState.PLANNED, BatchState.INTERRUPTED)
TAKE_ANY = _take_waiting(BatchState.PLANNED, BatchState.INTERRUPTED, BatchState.FAILED)


def _insert_new() -> sa.Select[Any]:
    """Write batch, state, attempt and bookmark in one statement."""
    names = ("job_id", "first_id", "last_id", "weight", "item_count", "oversized", "config")
    bound = {name: _bind(name, batch.c[name]) for name in (*names, "id_runs")}
    new = sa.insert(batch).values(bound).returning(batch.c.id).cte("new")
    columns = ("batch_id", "job_id", "state", "attempts")
    state = sa.select(new.c.id, sa.bindparam("job_id", type_=sa.Integer), _RUNNING, _ONE)
    started = sa.insert(batch_state).from_select(columns, state).cte("started")
    tried = _try(new, _ONE)
    run: dict[str, Any] = {
        "first_id": sa.bindparam("run_first_id", type_=sa.BigInteger),
        "last_id": sa.bindparam("run_last_id", type_=sa.BigInteger),
    }
    reached = REACH.values(run).cte("reached")
    return sa.select(tried.c.attempt_id, tried.c.batch_id).add_cte(started, reached)


INSERT = _insert_new()
