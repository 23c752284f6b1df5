"""Invariants that hold in every inventory at any moment, checked over all of its rows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.tables import (
    attempt,
    attempt_item,
    batch,
    batch_state,
    bookmark,
    job,
    part_file,
)
from batch_pipeline.model.batch import MIN_ID, AttemptStatus, BatchState

Row = sa.Row[Any]
_FINAL = {BatchState.RUNNING, BatchState.PUBLISHED, BatchState.SUPERSEDED}


class Rows:
    """All rows at one moment, grouped."""

    def __init__(self, connection: sa.Connection) -> None:
        def read(table: sa.Table, *order: sa.ColumnElement[Any]) -> Sequence[Row]:
            return connection.execute(sa.select(table).order_by(*order)).all()

        batches = read(batch, batch.c.first_id)
        self.jobs = {row.id: row for row in read(job)}
        self.batches = {row.id: row for row in batches}
        self.states = {row.batch_id: row for row in read(batch_state)}
        self.attempts = _grouped(read(attempt, attempt.c.number), "batch_id")
        self.bookmarks = _grouped(read(bookmark, bookmark.c.first_id), "job_id")
        self.live = _grouped([row for row in batches if row.superseded_at is None], "job_id")
        self.children = _grouped([row for row in batches if row.parent_id is not None], "parent_id")
        owners = sa.union(sa.select(part_file.c.attempt_id), sa.select(attempt_item.c[0]))
        self.file_owners = set(connection.execute(owners).scalars())


def check_invariants(database: Database, *, max_attempts_changed: bool = False) -> None:
    """Fail with every violated invariant; safe to call during concurrent work.

    That ranges do not overlap and that no two attempts run at once, the database enforces.
    `max_attempts_changed` means that jobs' number of attempts was changed: batches keep the state
    that the earlier number gave them.
    """
    with database.engine.connect() as connection:
        # One snapshot, because other sessions may write concurrently.
        connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            broken = violations(connection, max_attempts_changed=max_attempts_changed)
    assert broken == [], "\n".join(broken)


def violations(connection: sa.Connection, *, max_attempts_changed: bool = False) -> list[str]:
    """Describe every violated invariant."""
    rows = Rows(connection)
    return [
        *_states(rows, max_attempts_changed=max_attempts_changed),
        *_attempts(rows),
        *_ranges(rows),
        *_lists(rows),
        *_bookmarks(rows),
        *_children(rows),
        *_publish_numbers(rows),
    ]


def derived_state(
    batch: Row, attempts: Sequence[Row], *, forgiven: int, max_attempts: int
) -> BatchState:
    """Derive the state of a batch that was not cancelled from its attempts alone."""
    if batch.superseded_at is not None:
        return BatchState.SUPERSEDED
    if any(each.status == AttemptStatus.RUNNING for each in attempts):
        return BatchState.RUNNING
    if any(each.generation is not None for each in attempts):
        return BatchState.PUBLISHED
    if not attempts:
        return BatchState.PLANNED
    if len(attempts) <= forgiven:
        return BatchState.INTERRUPTED  # no attempt counts, or more were requested
    last = AttemptStatus(attempts[-1].status)
    is_half = batch.parent_id is not None and batch.item_count > 1
    is_last_try = len(attempts) - forgiven >= max_attempts or (
        is_half and last is AttemptStatus.FAILED
    )
    return _unpublished_state(last, is_last_try=is_last_try)


def _unpublished_state(last: AttemptStatus, *, is_last_try: bool) -> BatchState:
    if last is AttemptStatus.CANCELLED:
        return BatchState.CANCELLED
    if is_last_try:
        return BatchState.DEAD
    return BatchState.FAILED if last is AttemptStatus.FAILED else BatchState.INTERRUPTED


def _states(rows: Rows, *, max_attempts_changed: bool) -> Iterator[str]:
    if rows.states.keys() != rows.batches.keys():
        yield f"batches without a state, or the reverse: {rows.states.keys() ^ rows.batches.keys()}"
    for state in rows.states.values():
        batch, attempts = rows.batches[state.batch_id], rows.attempts[state.batch_id]
        max_attempts = rows.jobs[batch.job_id].max_attempts
        derived = derived_state(batch, attempts, forgiven=state.forgiven, max_attempts=max_attempts)
        allowed = {derived} if derived in _FINAL else {derived, BatchState.CANCELLED}
        tried = {BatchState.DEAD, BatchState.FAILED, BatchState.INTERRUPTED}
        if max_attempts_changed and derived in tried:
            allowed |= tried
        if state.state not in allowed:
            yield f"batch {batch.id} is {state.state}, by its attempts {derived}"
        if state.job_id != batch.job_id:
            yield f"batch {batch.id} is of job {batch.job_id}, its state of job {state.job_id}"
        if state.attempts != len(attempts):
            yield f"batch {batch.id} has {len(attempts)} attempts, its state says {state.attempts}"
        if not 0 <= state.forgiven <= state.attempts:
            yield f"batch {batch.id}: {state.forgiven} of {state.attempts} attempts forgiven"
        generation = max((each.generation or 0 for each in attempts), default=0)
        if (state.generation or 0) != generation:
            yield f"batch {batch.id} is at generation {generation}, not {state.generation}"


def _attempts(rows: Rows) -> Iterator[str]:
    succeeded: set[int] = set()
    for batch_id, attempts in rows.attempts.items():
        numbers = [each.number for each in attempts]
        if numbers != list(range(1, len(attempts) + 1)):
            yield f"attempts of batch {batch_id} are numbered {numbers}"
        generations = [each.generation for each in attempts if each.generation is not None]
        if generations != list(range(1, len(generations) + 1)):
            yield f"generations of batch {batch_id} are {generations}"
        succeeded |= {each.id for each in attempts if each.status == AttemptStatus.SUCCEEDED}
    if not rows.file_owners <= succeeded:
        yield f"attempts {rows.file_owners - succeeded} have files and are not published"


def _ranges(rows: Rows) -> Iterator[str]:
    """Check that live ranges tile the bookmarks of their job; only the first run has no start."""
    for job_row in rows.jobs.values():
        ranges = [row for row in rows.live[job_row.id] if row.item_ids is None]
        runs = rows.bookmarks[job_row.id]
        for run in runs:
            inside = [row for row in ranges if run.first_id <= row.first_id <= run.last_id]
            yield from _gaps(run, inside)
        for row in ranges:
            if not any(run.first_id <= row.first_id <= row.last_id <= run.last_id for run in runs):
                yield f"batch {row.id} ({_range(row)}) is covered by no bookmark of its job"


def _gaps(run: Row, inside: Sequence[Row]) -> Iterator[str]:
    if not inside:
        yield f"no batch lies in the bookmark {_range(run)} of job {run.job_id}"
        return
    starts_right = inside[0].first_id == run.first_id or run.first_id == MIN_ID
    joined = all(left.last_id + 1 == right.first_id for left, right in pairwise(inside))
    if not starts_right or not joined or inside[-1].last_id != run.last_id:
        ranges = ", ".join(_range(each) for each in inside)
        yield f"bookmark {_range(run)} of job {run.job_id} is not tiled by {ranges}"


def _lists(rows: Rows) -> Iterator[str]:
    """Check that no listed item is in two live batches of its job."""
    for job_row in rows.jobs.values():
        owners: dict[int, int] = {}
        live = rows.live[job_row.id]
        ranges = [each for each in live if each.item_ids is None]
        for each in (each for each in live if each.item_ids is not None):
            for item_id in each.item_ids:
                if not each.first_id <= item_id <= each.last_id:
                    yield f"batch {each.id} lists {item_id} outside of {_range(each)}"
                other_id = owners.setdefault(item_id, each.id)
                if other_id != each.id:
                    yield f"item {item_id} is in the live batches {other_id} and {each.id}"
                if any(other.first_id <= item_id <= other.last_id for other in ranges):
                    yield f"item {item_id} of batch {each.id} is in a live range of its job too"


def _bookmarks(rows: Rows) -> Iterator[str]:
    for job_id, runs in rows.bookmarks.items():
        for left, right in pairwise(runs):
            if left.last_id + 1 >= right.first_id:
                yield f"bookmarks {_range(left)} and {_range(right)} of job {job_id} are one run"


def _children(rows: Rows) -> Iterator[str]:
    for parent in rows.batches.values():
        children = rows.children[parent.id]
        if (parent.superseded_at is not None) != bool(children):
            superseded_at = parent.superseded_at
            yield f"batch {parent.id} was superseded: {superseded_at}, children: {len(children)}"
        if not children:
            continue
        if any(child.job_id != parent.job_id for child in children):
            yield f"children of batch {parent.id} belong to other jobs"
        listed = sorted(item_id for child in children for item_id in child.item_ids or ())
        if listed != sorted(parent.item_ids or ()):
            yield f"children of batch {parent.id} list other items than it does"
        ends = (children[0].first_id, children[-1].last_id)
        joined = parent.item_ids is not None or all(
            left.last_id + 1 == right.first_id for left, right in pairwise(children)
        )
        if len(children) < 2 or ends != (parent.first_id, parent.last_id) or not joined:
            ranges = ", ".join(_range(child) for child in children)
            yield f"batch {parent.id} ({_range(parent)}) is not tiled by its children {ranges}"
        if any((child.item_ids is None) != (parent.item_ids is None) for child in children):
            yield f"children of batch {parent.id} are of another kind than it is"


def _publish_numbers(rows: Rows) -> Iterator[str]:
    published: dict[int, list[int]] = defaultdict(list)
    for batch_id, attempts in rows.attempts.items():
        numbers = [each.publish_number for each in attempts if each.publish_number is not None]
        published[rows.batches[batch_id].job_id] += numbers
    for job_row in rows.jobs.values():
        if sorted(published[job_row.id]) != list(range(1, job_row.publish_count + 1)):
            numbers = sorted(published[job_row.id])
            yield f"job {job_row.id} counts {job_row.publish_count} publishes, numbered {numbers}"


def _grouped(rows: Iterable[Row], name: str) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[getattr(row, name)].append(row)
    return groups


def _range(row: Row) -> str:
    return f"{row.first_id}..{row.last_id}"
