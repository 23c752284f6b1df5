"""Loads of published generations into targets: read due ones, claim, succeed, fail and void."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from batch_pipeline.inventory.attempts import Heartbeat, storable
from batch_pipeline.inventory.batch_states import label_from_row, matches_labels
from batch_pipeline.inventory.connection import (
    LOADER_IS_GONE,
    LOADER_IS_THERE,
    LockClass,
    fetch_column,
    fetch_rows,
    fetch_value,
    lock_in_transaction,
    transaction,
)
from batch_pipeline.inventory.manifests import (
    ARE_REMOVED,
    Manifests,
    newest_generations,
    removal_of,
)
from batch_pipeline.inventory.migrate import ensure_revision_unchanged
from batch_pipeline.inventory.tables import (
    HAS_LOAD,
    attempt,
    attempt_item,
    batch,
    is_any_of,
    job,
    load,
)
from batch_pipeline.model.errors import (
    LEFT_IN_PART,
    ConflictError,
    FilesRemovedError,
    LoadRunningError,
    TargetFailedError,
    Unloaded,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.load import (
    ALL_JOBS,
    Claim,
    Load,
    Loaded,
    LoadedGeneration,
    Loading,
    LoadRecord,
    LoadStatus,
    TargetStatus,
)
from batch_pipeline.model.stream import Stream

_PAGE = 200
_publish_position = sa.tuple_(attempt.c.finished_at, attempt.c.id)


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
        """Read the newest generations that a target has not loaded yet, in publish order.

        `only` are labels of batches, None for all. `held_up` names jobs to skip, or `ALL_JOBS`; it
        is read again for each page. Holds one page in memory.
        """
        # Within a job, `finished_at` follows the publish number: one row lock covers both.
        query = _pending(stream.name, target)
        query = query.order_by(attempt.c.finished_at, attempt.c.id).limit(_PAGE)
        if only is not None:
            query = query.where(matches_labels(only))
        page = query
        while ALL_JOBS not in held_up:
            rows = fetch_rows(self.engine, page.where(job.c.name.not_in(list(held_up))))
            for row in rows:
                if only is None or label_from_row(row) in only:
                    yield _loading(self.engine, stream, row)
            if len(rows) < _PAGE:
                return
            page = query.where(_is_published_after(rows[-1]))

    def target_statuses(self, stream: str, targets: Sequence[str]) -> list[TargetStatus]:
        """Count for each target the generations that are loaded, due, removed and failed."""
        with transaction(self.engine) as connection:
            return [_target_status(connection, stream, target) for target in targets]

    def of_batch(self, batch_id: int) -> list[LoadRecord]:
        """Read all loads of the generations of a batch, oldest first."""
        query = _LOADS.where(attempt.c.batch_id == batch_id)
        return [_record(row) for row in fetch_rows(self.engine, query)]

    def cursor(self, stream: str, targets: Sequence[str]) -> int:
        """Return the id up to which all loads of a stream into its targets have ended.

        Loads into former targets are ignored: nothing closes them if their process is gone. Waits
        for claims that are not committed, since their ids may be below those of ended loads.
        """
        is_of_stream = load.c.stream == stream
        is_running = sa.and_(load.c.status == LoadStatus.RUNNING, load.c.target.in_(targets))
        running = sa.func.min(load.c.id).filter(is_running) - 1
        query = sa.select(sa.func.coalesce(running, sa.func.max(load.c.id), 0)).where(is_of_stream)
        with transaction(self.engine) as connection:
            for target in sorted(targets):
                lock_in_transaction(connection, LockClass.LOAD, f"{stream} {target}")
            return int(connection.execute(query).scalar_one())

    def in_all_targets(
        self, stream: str, targets: Sequence[str], after: int
    ) -> Iterator[LoadedGeneration]:
        """Read the batches of a stream that all targets have loaded, oldest load first.

        At least one of their loads has an id above `after`. Leaves out backfills. Reads page by
        page.
        """
        is_loaded = sa.and_(load.c.stream == stream, load.c.target.in_(targets), HAS_LOAD)
        last = sa.func.max(load.c.id)
        complete = (
            sa.select(load.c.attempt_id, last.label("last"))
            .where(is_loaded)
            .group_by(load.c.attempt_id)
            .having(sa.func.count() == len(set(targets)))
        )
        own = newest_generations(stream).where(job.c.kind != JobKind.BACKFILL)
        # One snapshot for all statements of a page, because a load may be voided at any time.
        snapshots = self.engine.execution_options(isolation_level="REPEATABLE READ")
        while True:
            page = complete.having(last > after).order_by(last).limit(_PAGE).subquery()
            query = own.join(page, page.c.attempt_id == attempt.c.id).add_columns(page.c.last)
            with transaction(snapshots) as connection:
                last_ids = connection.execute(sa.select(page.c.last)).scalars().all()
                rows = connection.execute(query.order_by(page.c.last)).all()
                is_on_page = attempt.c.id.in_([row.attempt_id for row in rows])
                loads: dict[int, list[LoadRecord]] = defaultdict(list)
                for load_row in connection.execute(_LOADS.where(is_loaded, is_on_page)):
                    loads[load_row.attempt_id].append(_record(load_row))
            for row in rows:
                records = tuple(loads[row.attempt_id])
                yield LoadedGeneration(
                    label=label_from_row(row), generation=records[0].generation, loads=records
                )
            if len(last_ids) < _PAGE:
                return
            after = last_ids[-1]

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
            _close_dead(connection, stream, target, loadings[0].label)
            remaining = _without_loaded(connection, target, loadings)
            self.heartbeat.take_lock()
            claim = None
            if remaining:
                key = self.heartbeat.liveness_key
                values = {"target": target, "run_id": run_id, "token": token, "liveness_key": key}
                claim = Claim(
                    load=_insert_load(connection, remaining[0], lease, values), loadings=remaining
                )
            failpoint("load.before_claim_commit")
        try:
            yield claim
        finally:
            self.heartbeat.release(token)

    def succeed(
        self,
        done: Load,
        loaded: Loaded,
        next_loading: Loading | None,
        *,
        replaced: Collection[str] = (),
    ) -> Load | None:
        """Close a load as succeeded and start the load of the next generation with its claim.

        Loads of the batches `replaced` are voided. Calling this again returns the same result.

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
            if replaced:
                _void(connection, done.stream, done.target, replaced)
            next_load = None
            if next_loading is not None:
                claim = {
                    "target": done.target,
                    "run_id": row.run_id,
                    "token": done.token,
                    "liveness_key": row.liveness_key,
                }
                next_load = _insert_load(connection, next_loading, row.lease, claim)
            failpoint("load.before_commit")
        failpoint("load.after_commit")
        return next_load

    def fail(self, running_load: Load, error: BaseException) -> None:
        """Close a running load as failed, or as interrupted if `error` is not an `Exception`."""
        is_failure = isinstance(error, Exception)
        text = storable(str(error)) if is_failure else "interrupted"
        values: dict[str, Any] = {
            "status": (LoadStatus.FAILED if is_failure else LoadStatus.INTERRUPTED).value,
            "finished_at": sa.func.clock_timestamp(),
            "error": text[:_MAX_ERROR_LENGTH] or type(error).__name__,
        }
        if isinstance(error, TargetFailedError):
            values["exit_code"] = error.exit_code
            values["log"] = storable(error.stderr)[-_MAX_LOG_LENGTH:] or None
        with transaction(self.engine) as connection:
            connection.execute(_close_running(running_load).values(values))
        self.heartbeat.stop_renewing(running_load.token)

    def with_later(
        self, stream: str, labels: Sequence[str], *, loaded_into: str | None = None
    ) -> list[str]:
        """Return labels of batches to load again, followed by those of batches that must follow.

        These have items in common with the others, and were published later: a target that loads
        only the others would have old records again. With `loaded_into`, only those that this
        target has loaded follow.
        """
        all_labels = list(labels)
        has_load = () if loaded_into is None else (_has_load(loaded_into),)
        if not fetch_value(self.engine, sa.select(_has_backfills(stream))):
            return all_labels
        newest = newest_generations(stream, attempt.c.finished_at)
        with transaction(self.engine) as connection:
            rows = connection.execute(newest.where(matches_labels(labels))).all()
            if loaded_into is not None:  # usually none, which is quick to find out
                is_newer = sa.or_(sa.false(), *map(_is_published_after, rows))
                if not connection.execute(newest.where(is_newer, *has_load).limit(1)).all():
                    return all_labels
            ids = {row.attempt_id for row in rows if label_from_row(row) in all_labels}
            while ids:
                query = newest_generations(stream).where(_replaces_items(ids), *has_load)
                later = connection.execute(query)
                new = {label_from_row(row): row.attempt_id for row in later}
                ids = {new[label] for label in new.keys() - all_labels}
                all_labels += sorted(new.keys() - all_labels)
        return all_labels

    def check_files_kept(self, stream: str, target: str, labels: Collection[str]) -> None:
        """Check that `void` could make the loads of batches due again.

        Raises:
            FilesRemovedError: the files of a batch were deleted.
        """
        with transaction(self.engine) as connection:
            for label in labels:
                attempt_ids = _loaded_attempts(connection, stream, target, label)
                _ensure_files_kept(connection, stream, label, attempt_ids)

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
            return _void(connection, stream, target, labels, but_of_runs)


def _void(
    connection: sa.Connection,
    stream: str,
    target: str,
    labels: Collection[str],
    but_of_runs: Collection[str] = (),
) -> bool:
    all_attempt_ids: list[int] = []
    for label in labels:
        attempt_ids = _loaded_attempts(connection, stream, target, label)
        if but_of_runs:
            is_kept = (load.c.target == target, HAS_LOAD, load.c.run_id.in_(but_of_runs))
            kept = sa.select(load.c.attempt_id).where(*is_kept)
            kept = kept.where(is_any_of(load.c.attempt_id, attempt_ids))
            attempt_ids -= set(connection.execute(kept).scalars())
        _ensure_files_kept(connection, stream, label, attempt_ids)
        all_attempt_ids += attempt_ids
    of_batches = is_any_of(load.c.attempt_id, all_attempt_ids)
    update = sa.update(load).where(of_batches, load.c.target == target, HAS_LOAD)
    update = update.values(voided_at=sa.func.clock_timestamp())
    return connection.execute(update).rowcount > 0


def _loaded_attempts(connection: sa.Connection, stream: str, target: str, label: str) -> set[int]:
    """Return the ids of the newest generations of a batch, by label, that a target has loaded.

    Includes generations whose files are removed, whether loaded or not.
    """
    query = newest_generations(stream).where(matches_labels([label]))
    rows = connection.execute(query.where(sa.or_(_has_load(target), ARE_REMOVED)))
    return {row.attempt_id for row in rows if label_from_row(row) == label}


def _has_backfills(stream: str) -> sa.ColumnElement[bool]:
    return sa.exists().where(
        job.c.stream == stream, job.c.kind == JobKind.BACKFILL, job.c.publish_count > 0
    )


def _replaces_items(attempt_ids: Collection[int]) -> sa.ColumnElement[bool]:
    """Match attempts of other jobs, published after one of these, that have items of it."""
    earlier, earlier_batch = attempt.alias("earlier"), batch.alias("earlier_batch")
    own, theirs = attempt_item.alias("own"), attempt_item.alias("theirs")
    return sa.exists().where(
        is_any_of(earlier.c.id, attempt_ids),
        _publish_position > sa.tuple_(earlier.c.finished_at, earlier.c.id),
        earlier_batch.c.id == earlier.c.batch_id,
        earlier_batch.c.job_id != batch.c.job_id,
        theirs.c.attempt_id == earlier.c.id,
        own.c.attempt_id == attempt.c.id,
        own.c.item_id == theirs.c.item_id,
    )


def _is_published_after(row: sa.Row[Any]) -> sa.ColumnElement[bool]:
    values = (row.finished_at, attempt.c.finished_at.type), (row.attempt_id, sa.BigInteger())
    return _publish_position > sa.tuple_(*(sa.literal(*value) for value in values))


_LOADS = sa.select(load, attempt.c.generation).join(attempt).order_by(load.c.id)


def _record(row: sa.Row[Any]) -> LoadRecord:
    return LoadRecord(
        id=row.id,
        target=row.target,
        number=row.number,
        status=LoadStatus(row.status),
        run_id=row.run_id,
        started_at=row.started_at,
        finished_at=row.finished_at,
        records=row.records,
        error=row.error,
        generation=row.generation,
        mode=row.mode,
        is_void=row.voided_at is not None,
    )


def _has_load(target: str) -> sa.ColumnElement[bool]:
    return sa.exists().where(load.c.attempt_id == attempt.c.id, load.c.target == target, HAS_LOAD)


def _pending(stream: str, target: str) -> sa.Select[Any]:
    of_target = sa.exists().where(load.c.attempt_id == attempt.c.id, load.c.target == target)
    columns = (
        attempt.c.publish_number,
        attempt.c.finished_at,
        of_target.where(load.c.voided_at.is_not(None)).label("again"),
        of_target.where(load.c.status == LoadStatus.FAILED).label("failed_before"),
    )
    return newest_generations(stream, *columns).where(~_has_load(target), ~ARE_REMOVED)


def _loading(engine: sa.Engine, stream: Stream, row: sa.Row[Any]) -> Loading:
    # A target may have loaded a backfill without a record if the process was killed afterwards.
    query = (
        sa.select(attempt_item.c.item_id)
        .where(attempt_item.c.attempt_id == row.attempt_id, _has_backfills(stream.name))
        .order_by(attempt_item.c.item_id)
    )
    return Loading(
        stream=stream.name,
        publish_number=row.publish_number,
        label=label_from_row(row),
        manifest=Manifests(engine).of_attempt(row.attempt_id),
        message_name=stream.message_name,
        item_ids=tuple(fetch_column(engine, query)),
        is_backfill=row.kind == JobKind.BACKFILL,
        again=row.again,
        failed_before=row.failed_before,
    )


def _target_status(connection: sa.Connection, stream: str, target: str) -> TargetStatus:
    last = (
        sa.select(load.c.status, load.c.error)
        .where(load.c.attempt_id == attempt.c.id, load.c.target == target)
        .order_by(load.c.number.desc())
        .limit(1)
        .lateral("last")
    )
    has_load = _has_load(target)
    is_due = sa.and_(~has_load, ~ARE_REMOVED)
    is_failed = sa.and_(is_due, last.c.status.in_([LoadStatus.FAILED, LoadStatus.INTERRUPTED]))
    of_target = (load.c.stream == stream, load.c.target == target)
    succeeded = (*of_target, load.c.status == LoadStatus.SUCCEEDED)
    running = (*of_target, load.c.status == LoadStatus.RUNNING, LOADER_IS_THERE)
    count = sa.func.count()
    columns = [
        count.filter(has_load).label("loaded"),
        count.filter(is_due).label("due"),
        count.filter(sa.and_(~has_load, ARE_REMOVED)).label("gone"),
        count.filter(is_failed).label("failed"),
        sa.func.max(last.c.error).filter(is_failed).label("error"),
        sa.select(sa.func.max(load.c.finished_at)).where(*succeeded).label("loaded_at"),
        sa.select(load.c.run_id).where(*running).label("running"),
    ]
    query = newest_generations(stream).with_only_columns(*columns).outerjoin(last, sa.true())
    return TargetStatus(target=target, **connection.execute(query).mappings().one())


_MAX_ERROR_LENGTH = 4_000
_MAX_LOG_LENGTH = 64 * 2**10
_CLAIM_COLUMNS = (
    load.c.run_id,
    load.c.liveness_key,
    (load.c.lease_until - load.c.renewed_at).label("lease"),
)


def _insert_load(
    connection: sa.Connection, loading: Loading, lease: timedelta, claim: Mapping[str, Any]
) -> Load:
    """Insert the next load of a generation. The stream and target must be locked."""
    attempt_query = sa.select(attempt.c.id).where(attempt.c.token == loading.manifest.token)
    attempt_id: int = connection.execute(attempt_query).scalar_one()
    last_number = sa.select(sa.func.coalesce(sa.func.max(load.c.number), 0)).where(
        load.c.attempt_id == attempt_id, load.c.target == claim["target"]
    )
    values = {
        **claim,
        "stream": loading.stream,
        "attempt_id": attempt_id,
        "number": connection.execute(last_number).scalar_one() + 1,
        "status": LoadStatus.RUNNING.value,
        "lease_until": sa.func.clock_timestamp() + lease,
    }
    new_load = sa.insert(load).values(values)
    new_load = new_load.returning(
        load.c.id, load.c.stream, load.c.target, load.c.number, load.c.token
    )
    return Load(label=loading.label, **connection.execute(new_load).mappings().one())


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
    """Return the generations that were not loaded and have no newer one that was loaded.

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
    return replace(done, id=running[0].id, label=next_loading.label, number=running[0].number)


def _close_dead(connection: sa.Connection, stream: str, target: str, label: str) -> None:
    """Close loads of a stream and target whose process is gone.

    Raises:
        LoadRunningError: another run loads the stream into the target.
    """
    is_running = sa.and_(
        load.c.stream == stream, load.c.target == target, load.c.status == LoadStatus.RUNNING
    )
    values = {
        "status": LoadStatus.INTERRUPTED.value,
        "finished_at": sa.func.clock_timestamp(),
        "error": "the worker exited without reporting",
    }
    connection.execute(sa.update(load).where(is_running, LOADER_IS_GONE).values(values))
    run_id = connection.execute(sa.select(load.c.run_id).where(is_running)).scalar_one_or_none()
    if run_id is not None:
        raise LoadRunningError(Unloaded(target=target, stream=stream, batch=label), run_id)


def _ensure_files_kept(
    connection: sa.Connection, stream: str, label: str, attempt_ids: Collection[int]
) -> None:
    """Check that the files of generations exist, and keep them until the transaction ends.

    Raises:
        FilesRemovedError: the files were deleted.
    """
    is_chosen = is_any_of(attempt.c.id, attempt_ids)
    lock = sa.select(attempt.c.id).where(is_chosen).order_by(attempt.c.id)
    # No other transaction marks them as removed until this one ends.
    connection.execute(lock.with_for_update(read=True, key_share=True))
    query = sa.select(attempt.c.generation, attempt.c.facts).where(is_chosen)
    for row in connection.execute(query):
        removal = removal_of(row.facts)
        if removal is not None:
            raise FilesRemovedError(stream, label, row.generation, removal)


def _lost_claim_error(done: Load, label: str) -> ConflictError:
    problem = "its lease expired and another run claimed it"
    step = "Run `batch-pipeline load` again; it skips what the other run has loaded."
    unloaded = Unloaded(target=done.target, stream=done.stream, batch=label)
    return ConflictError(unloaded.text(problem, LEFT_IN_PART, step))
