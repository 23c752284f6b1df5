"""Loads of published generations into targets: claim, succeed, fail and void."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

import sqlalchemy as sa

from batch_pipeline.inventory.attempts import storable
from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.heartbeat import Heartbeat
from batch_pipeline.inventory.locks import LOADER_IS_GONE, LockClass, lock_in_transaction
from batch_pipeline.inventory.migrate import ensure_revision_unchanged
from batch_pipeline.inventory.pending_loads import LoadQueries, loaded_attempts
from batch_pipeline.inventory.removals import lock_against_removal, removal_of
from batch_pipeline.inventory.tables import attempt, load
from batch_pipeline.model.errors import (
    LEFT_IN_PART,
    ConflictError,
    FilesRemovedError,
    LoadRunningError,
    TargetFailedError,
    Unloaded,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.load import (
    Claim,
    Load,
    Loaded,
    Loading,
    LoadStatus,
)

_MAX_ERROR_LENGTH = 4_000
_MAX_LOG_LENGTH = 64 * 2**10


@dataclass(frozen=True, slots=True)
class TargetLoads(LoadQueries):
    """The loads of all streams. Lease arithmetic uses the database clock only."""

    heartbeat: Heartbeat

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
        """Start a load of the first generation and renew its lease until the block ends.

        First closes loads of the stream into the target whose process is gone. Generations that
        were loaded in the meantime are left out; yields None if none remain.

        Raises:
            LoadRunningError: another run loads the stream into the target.
        """
        token = uuid4()
        with (
            self.heartbeat.renew_if_committed(token, lease),
            transaction(self.engine) as connection,
        ):
            ensure_revision_unchanged(connection)
            lock_in_transaction(connection, LockClass.LOAD, f"{stream} {target}")
            _close_dead(connection, stream, target)
            _ensure_not_running(connection, stream, target, loadings[0].label)
            remaining = _without_loaded(connection, target, loadings)
            self.heartbeat.take_lock()
            claim = _LoadClaim(stream, target, run_id, lease, token, self.heartbeat.liveness_key)
            claimed = _insert_load(connection, claim, remaining[0]) if remaining else None
            failpoint("load.before_claim_commit")
        try:
            yield None if claimed is None else Claim(load=claimed, loadings=remaining)
        finally:
            self.heartbeat.release(token)

    def succeed(self, done: Load, loaded: Loaded, next_loading: Loading | None) -> Load | None:
        """Close a load as succeeded and start the load of the next generation with its claim.

        Calling this again returns the same.

        Raises:
            ConflictError: another run has taken over the load. Nothing was changed.
        """
        values = {
            "status": LoadStatus.SUCCEEDED.value,
            "finished_at": sa.func.clock_timestamp(),
            "records": loaded.records,
            "state": dict(loaded.state),
            "exit_code": loaded.exit_code,
            "mode": loaded.mode or None,
            "log": storable(loaded.log)[-_MAX_LOG_LENGTH:] or None,
        }
        with transaction(self.engine) as connection:
            row = connection.execute(
                _close_running(done).values(values).returning(*_CLAIM_COLUMNS)
            ).one_or_none()
            if row is None:
                return _earlier_result(connection, done, next_loading)
            next_load = None
            if next_loading is not None:
                claim = _LoadClaim(
                    done.stream, done.target, row.run_id, row.lease, done.token, row.liveness_key
                )
                next_load = _insert_load(connection, claim, next_loading)
            failpoint("load.before_commit")
        failpoint("load.after_commit")
        return next_load

    def fail(self, running_load: Load, error: BaseException) -> None:
        """Close a running load as failed, or as interrupted if `error` is no `Exception`."""
        is_failure = isinstance(error, Exception)
        values = {
            "status": (LoadStatus.FAILED if is_failure else LoadStatus.INTERRUPTED).value,
            "finished_at": sa.func.clock_timestamp(),
            "error": storable(str(error) if is_failure else "interrupted")[:_MAX_ERROR_LENGTH]
            or type(error).__name__,
            "exit_code": error.exit_code if isinstance(error, TargetFailedError) else None,
            "log": (storable(error.said)[-_MAX_LOG_LENGTH:] or None)
            if isinstance(error, TargetFailedError)
            else None,
        }
        with transaction(self.engine) as connection:
            connection.execute(_close_running(running_load).values(values))
        self.heartbeat.stop_renewing(running_load.token)

    def void(
        self,
        stream: str,
        target: str,
        labels: Collection[str],
        *,
        but_of_runs: Collection[str] = (),
    ) -> bool:
        """Void the loads of batches so that they are due again; return whether there were any.

        Loads by the runs `but_of_runs` are kept.

        Raises:
            FilesRemovedError: the files of a batch were deleted. Nothing was changed.
        """
        with transaction(self.engine) as connection:
            all_attempt_ids: list[int] = []
            for label in labels:
                loaded = loaded_attempts(connection, stream, target, label)
                attempt_ids = _exclude_runs(connection, target, loaded, but_of_runs)
                _ensure_files_kept(connection, stream, label, attempt_ids)
                all_attempt_ids += attempt_ids
            update = (
                sa.update(load)
                .where(
                    load.c.attempt_id.in_(all_attempt_ids),
                    load.c.target == target,
                    load.c.status == LoadStatus.SUCCEEDED,
                    load.c.voided_at.is_(None),
                )
                .values(voided_at=sa.func.clock_timestamp())
            )
            return connection.execute(update).rowcount > 0


@dataclass(frozen=True, slots=True)
class _LoadClaim:
    """The owner of a claim, and the stream and target it is on."""

    stream: str
    target: str
    run_id: str
    lease: timedelta
    token: UUID
    liveness_key: int


_CLAIM_COLUMNS = (
    load.c.run_id,
    load.c.liveness_key,
    (load.c.lease_until - load.c.renewed_at).label("lease"),
)


def _insert_load(connection: sa.Connection, claim: _LoadClaim, loading: Loading) -> Load:
    """Insert the next load of a generation. The stream and target must be locked."""
    attempt_query = sa.select(attempt.c.id).where(attempt.c.token == loading.manifest.token)
    attempt_id: int = connection.execute(attempt_query).scalar_one()
    last_number = sa.select(sa.func.coalesce(sa.func.max(load.c.number), 0)).where(
        load.c.attempt_id == attempt_id, load.c.target == claim.target
    )
    number: int = connection.execute(last_number).scalar_one() + 1
    insert = (
        sa.insert(load)
        .values(
            attempt_id=attempt_id,
            stream=claim.stream,
            target=claim.target,
            number=number,
            token=claim.token,
            liveness_key=claim.liveness_key,
            status=LoadStatus.RUNNING.value,
            run_id=claim.run_id,
            lease_until=sa.func.clock_timestamp() + claim.lease,
        )
        .returning(load.c.id)
    )
    load_id: int = connection.execute(insert).scalar_one()
    return _load_of(claim.stream, claim.target, loading, load_id, number, claim.token)


def _load_of(
    stream: str, target: str, loading: Loading, load_id: int, number: int, token: UUID
) -> Load:
    return Load(
        id=load_id,
        stream=stream,
        target=target,
        label=loading.label,
        number=number,
        token=token,
    )


def _close_running(running_load: Load) -> sa.Update:
    """Build the update that closes a load if it is running under its token."""
    return sa.update(load).where(
        load.c.id == running_load.id,
        load.c.token == running_load.token,
        load.c.status == LoadStatus.RUNNING,
    )


def _without_loaded(
    connection: sa.Connection, target: str, loadings: Sequence[Loading]
) -> tuple[Loading, ...]:
    """Return the generations of which neither they nor newer ones were loaded in the meantime.

    A newer generation with a voided load still excludes older ones, because it is due itself.
    """
    newer = attempt.alias("newer")
    is_other = newer.c.id != attempt.c.id
    query = (
        sa.select(attempt.c.token)
        .join(
            newer,
            sa.and_(
                newer.c.batch_id == attempt.c.batch_id, newer.c.generation >= attempt.c.generation
            ),
        )
        .join(load, load.c.attempt_id == newer.c.id)
        .where(
            attempt.c.token.in_([loading.manifest.token for loading in loadings]),
            load.c.target == target,
            load.c.status == LoadStatus.SUCCEEDED,
            sa.or_(load.c.voided_at.is_(None), is_other),
        )
    )
    loaded = set(connection.execute(query).scalars())
    return tuple(loading for loading in loadings if loading.manifest.token not in loaded)


def _earlier_result(
    connection: sa.Connection, done: Load, next_loading: Loading | None
) -> Load | None:
    """Return the result of an earlier call whose reply was lost.

    Raises:
        ConflictError: there was no earlier call.
    """
    rows = connection.execute(
        sa.select(load.c.id, load.c.number, load.c.status).where(load.c.token == done.token)
    ).all()
    statuses = {row.id: row.status for row in rows}
    if statuses.get(done.id) != LoadStatus.SUCCEEDED:
        raise _lost_claim_error(done, done.label)
    if next_loading is None:
        return None
    running = [row for row in rows if row.status == LoadStatus.RUNNING]
    if not running:
        raise _lost_claim_error(done, next_loading.label)
    return _load_of(
        done.stream, done.target, next_loading, running[0].id, running[0].number, done.token
    )


def _close_dead(connection: sa.Connection, stream: str, target: str) -> None:
    """Close loads of a stream and target whose process is gone."""
    closing = (
        sa.update(load)
        .where(
            load.c.stream == stream,
            load.c.target == target,
            load.c.status == LoadStatus.RUNNING,
            LOADER_IS_GONE,
        )
        .values(
            status=LoadStatus.INTERRUPTED.value,
            finished_at=sa.func.clock_timestamp(),
            error="the worker exited without reporting",
        )
    )
    connection.execute(closing)


def _ensure_not_running(connection: sa.Connection, stream: str, target: str, label: str) -> None:
    """Check that no load of the stream into the target is running.

    Raises:
        LoadRunningError: another run loads it.
    """
    query = sa.select(load.c.run_id).where(
        load.c.stream == stream, load.c.target == target, load.c.status == LoadStatus.RUNNING
    )
    run_id = connection.execute(query).scalar_one_or_none()
    if run_id is not None:
        raise LoadRunningError(Unloaded(target=target, stream=stream, batch=label), run_id)


def _ensure_files_kept(
    connection: sa.Connection, stream: str, label: str, attempt_ids: Sequence[int]
) -> None:
    """Check that the files of generations exist, and keep them until the transaction ends.

    Raises:
        FilesRemovedError: the files were deleted.
    """
    lock_against_removal(connection, attempt_ids)
    columns = (attempt.c.generation, attempt.c.facts)
    query = sa.select(*columns).where(attempt.c.id.in_(attempt_ids))
    for row in connection.execute(query):
        removal = removal_of(row.facts)
        if removal is not None:
            raise FilesRemovedError(stream, label, row.generation, removal.at)


def _lost_claim_error(done: Load, label: str) -> ConflictError:
    problem = "its lease expired and another run claimed it"
    step = "Run `batch-pipeline load` again; it skips what the other run has loaded."
    unloaded = Unloaded(target=done.target, stream=done.stream, batch=label)
    return ConflictError(unloaded.text(problem, LEFT_IN_PART, step))


def _exclude_runs(
    connection: sa.Connection, target: str, attempt_ids: Sequence[int], runs: Collection[str]
) -> Sequence[int]:
    if not runs:
        return attempt_ids
    query = sa.select(load.c.attempt_id).where(
        load.c.attempt_id.in_(attempt_ids),
        load.c.target == target,
        load.c.status == LoadStatus.SUCCEEDED,
        load.c.voided_at.is_(None),
        load.c.run_id.in_(runs),
    )
    excluded = set(connection.execute(query).scalars())
    return [attempt_id for attempt_id in attempt_ids if attempt_id not in excluded]
