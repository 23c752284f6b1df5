"""The loads of published generations into targets: claimed with a lease, ended by token only."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import sqlalchemy as sa

from batch_pipeline.domain.errors import (
    LoadError,
    TargetFailedError,
)
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.load import (
    Claim,
    InTargets,
    Load,
    Loaded,
    Loading,
    LoadRecord,
    LoadStanding,
    LoadStatus,
)
from batch_pipeline.domain.stream import Stream
from batch_pipeline.inventory.locks import LockClass, lock_in_transaction
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.tables import load
from batch_pipeline.inventory.upkeep.migrate import check_still
from batch_pipeline.inventory.work.due_loads import (
    due_loads,
    in_targets,
    loaded_attempts,
    loads_mark,
    loads_of_batch,
    standing,
)
from batch_pipeline.inventory.work.heartbeat import Heartbeat
from batch_pipeline.inventory.work.load_rows import (
    CLAIM,
    Claiming,
    asked_again,
    close_dead,
    ending,
    not_loaded,
    refuse_if_removed,
    refuse_if_running,
    start,
)
from batch_pipeline.inventory.work.stored_text import storable

_MAX_TEXT = 4_000
_MAX_LOG = 64 * 2**10


@dataclass(frozen=True, slots=True)
class TargetLoads:
    """The loads of all streams. Lease arithmetic uses the database clock only."""

    engine: sa.Engine
    heartbeat: Heartbeat

    def due(
        self,
        stream: Stream,
        target: str,
        *,
        only: Collection[str] | None = None,
        held_up: Collection[str] = (),
    ) -> Iterator[Loading]:
        """Read the newest generations that a target has not acknowledged, in publishing order.

        `only` are names of batches, None for all. No page is read with batches of the jobs that
        `held_up` names by then. Memory is a page of names.
        """
        return due_loads(self.engine, stream, target, only=only, held_up=held_up)

    @contextmanager
    def claim(
        self,
        stream: str,
        target: str,
        loadings: Sequence[Loading],
        *,
        run_id: str,
        lease: timedelta,
    ) -> Iterator[Claim | None]:
        """Start a load of the first of generations and keep its lease alive until the block ends.

        Loads of the same stream into the same target whose process is gone are closed on the way.
        Generations that somebody has loaded by now are left out; None when there are no others.
        """
        token = uuid4()
        with self.heartbeat.claiming(token, lease), transaction(self.engine) as connection:
            check_still(connection)
            lock_in_transaction(connection, LockClass.LOAD, f"{stream} {target}")
            close_dead(connection, stream, target)
            refuse_if_running(connection, stream, target, loadings[0].label)
            wanted = not_loaded(connection, target, loadings)
            self.heartbeat.hold()
            where = Claiming(stream, target, run_id, lease, token, self.heartbeat.liveness_key)
            claimed = start(connection, where, wanted[0]) if wanted else None
            failpoint("load.before_claim_commit")
        try:
            yield None if claimed is None else Claim(load=claimed, loadings=wanted)
        finally:
            self.heartbeat.leave(token)

    def succeed(self, done: Load, loaded: Loaded, then: Loading | None) -> Load | None:
        """Record that a generation is loaded, and start the load of the next one with its claim.

        Asking again gives the same.

        Raises:
            LoadLostError: the load is somebody else's by now; nothing was changed.
        """
        values = {
            "status": LoadStatus.SUCCEEDED.value,
            "finished_at": sa.func.clock_timestamp(),
            "records": loaded.records,
            "state": dict(loaded.state),
            "exit_code": loaded.exit_code,
            "mode": loaded.mode or None,
            "log": storable(loaded.log)[-_MAX_LOG:] or None,
        }
        with transaction(self.engine) as connection:
            row = connection.execute(ending(done).values(values).returning(*CLAIM)).one_or_none()
            if row is None:
                return asked_again(connection, done, then)
            following = None
            if then is not None:
                where = Claiming(
                    done.stream, done.target, row.run_id, row.lease, done.token, row.liveness_key
                )
                following = start(connection, where, then)
            failpoint("load.before_commit")
        failpoint("load.after_commit")
        return following

    def fail(self, one: Load, error: BaseException) -> None:
        """Close a running load with what it came to; an interrupt is nobody's fault."""
        is_fault = isinstance(error, Exception)
        values = {
            "status": (LoadStatus.FAILED if is_fault else LoadStatus.INTERRUPTED).value,
            "finished_at": sa.func.clock_timestamp(),
            "error": storable(str(error) if is_fault else "interrupted")[:_MAX_TEXT]
            or type(error).__name__,
            "exit_code": error.exit_code if isinstance(error, TargetFailedError) else None,
            "log": (storable(error.log)[-_MAX_LOG:] or None)
            if isinstance(error, LoadError)
            else None,
        }
        with transaction(self.engine) as connection:
            connection.execute(ending(one).values(values))
        self.heartbeat.end(one.token)

    def void(
        self, stream: str, target: str, label: str, *, but_of_runs: Collection[str] = ()
    ) -> bool:
        """Let a batch that a target has acknowledged be due again; tells whether there is one.

        What one of `but_of_runs` has loaded stays loaded.

        Raises:
            FilesRemovedError: its files are gone; nothing was changed.
        """
        with transaction(self.engine) as connection:
            found = loaded_attempts(connection, stream, target, label)
            ids = _not_of_runs(connection, target, found, but_of_runs)
            refuse_if_removed(connection, stream, label, ids)
            voiding = (
                sa.update(load)
                .where(
                    load.c.attempt_id.in_(ids),
                    load.c.target == target,
                    load.c.status == LoadStatus.SUCCEEDED,
                    load.c.voided_at.is_(None),
                )
                .values(voided_at=sa.func.clock_timestamp())
            )
            return connection.execute(voiding).rowcount > 0

    def standing(self, stream: str, targets: Sequence[str]) -> list[LoadStanding]:
        """Count for each target what it has and what waits."""
        return standing(self.engine, stream, targets)

    def of_batch(self, batch_id: int) -> list[LoadRecord]:
        """Read all loads of the generations of a batch, oldest first."""
        return loads_of_batch(self.engine, batch_id)

    def mark(self, stream: str, targets: Sequence[str]) -> int:
        """Give the id up to which all loads of a stream into its targets have ended."""
        return loads_mark(self.engine, stream, targets)

    def in_targets(self, stream: str, targets: Sequence[str], after: int) -> Iterator[InTargets]:
        """Read the stream's own batches that all targets have, one of them by a load above an id.

        Oldest first, in pages as they are asked for.
        """
        return in_targets(self.engine, stream, targets, after)


def _not_of_runs(
    connection: sa.Connection, target: str, attempt_ids: Sequence[int], runs: Collection[str]
) -> Sequence[int]:
    """Leave out what a target has by one of the runs."""
    if not runs:
        return attempt_ids
    query = sa.select(load.c.attempt_id).where(
        load.c.attempt_id.in_(attempt_ids),
        load.c.target == target,
        load.c.status == LoadStatus.SUCCEEDED,
        load.c.voided_at.is_(None),
        load.c.run_id.in_(runs),
    )
    theirs = set(connection.execute(query).scalars())
    return [one for one in attempt_ids if one not in theirs]
