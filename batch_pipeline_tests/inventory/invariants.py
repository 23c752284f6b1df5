"""What must hold in every inventory at any moment, said in plain Python over all of its rows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from batch_pipeline.model.batch import AttemptStatus, BatchState
from batch_pipeline.model.id_range import MIN_ID

Row = sa.Row[Any]
_FINAL = {BatchState.RUNNING, BatchState.PUBLISHED, BatchState.SUPERSEDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """All rows at one moment, in groups."""

    jobs: dict[int, Row]
    batches: dict[int, Row]
    states: dict[int, Row]
    attempts: dict[int, list[Row]]  # by batch, in the order of their numbers
    bookmarks: dict[int, list[Row]]  # by job, rising
    live: dict[int, list[Row]]  # by job, batches that hold ids, rising
    children: dict[int, list[Row]]  # by batch, what took its place, rising
    file_owners: set[int]


def check_invariants(database: Database, *, max_attempts_changed: bool = False) -> None:
    """Fail with every broken promise; safe beside anybody who works on the inventory.

    `max_attempts_changed` tells that jobs got another number of attempts on the way: batches keep
    the state that the earlier number gave them.
    """
    rows = _read(database)
    broken = [
        *_states(rows, max_attempts_changed=max_attempts_changed),
        *_attempts(rows),
        *_ranges(rows),
        *_lists(rows),
        *_bookmarks(rows),
        *_families(rows),
        *_publish_numbers(rows),
    ]
    assert broken == [], "\n".join(broken)


def derived_state(one: Row, tries: Sequence[Row], *, forgiven: int, most: int) -> BatchState:
    """Tell from its attempts alone where a batch stands that nobody cancelled."""
    if one.superseded_at is not None:
        return BatchState.SUPERSEDED
    if any(each.status == AttemptStatus.RUNNING for each in tries):
        return BatchState.RUNNING
    if any(each.generation is not None for each in tries):
        return BatchState.PUBLISHED
    if not tries:
        return BatchState.PLANNED
    if len(tries) <= forgiven:
        return BatchState.INTERRUPTED  # no try counts, or somebody asked for more of them
    last = AttemptStatus(tries[-1].status)
    is_half = one.parent_id is not None and one.item_count > 1
    is_last_try = len(tries) - forgiven >= most or (is_half and last is AttemptStatus.FAILED)
    return _unpublished_state(last, is_last_try=is_last_try)


def _unpublished_state(last: AttemptStatus, *, is_last_try: bool) -> BatchState:
    if last is AttemptStatus.CANCELLED:
        return BatchState.CANCELLED
    if is_last_try:
        return BatchState.DEAD
    return BatchState.FAILED if last is AttemptStatus.FAILED else BatchState.INTERRUPTED


def _read(database: Database) -> Rows:
    with database.engine.connect() as connection:
        # One snapshot: others may go on meanwhile.
        connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            jobs = connection.execute(sa.select(job)).all()
            batches = connection.execute(sa.select(batch).order_by(batch.c.first_id)).all()
            states = connection.execute(sa.select(batch_state)).all()
            attempts = connection.execute(sa.select(attempt).order_by(attempt.c.number)).all()
            marks = connection.execute(sa.select(bookmark).order_by(bookmark.c.first_id)).all()
            owners = sa.union(sa.select(part_file.c.attempt_id), sa.select(attempt_item.c[0]))
            file_owners = set(connection.execute(owners).scalars())
    return Rows(
        jobs={one.id: one for one in jobs},
        batches={one.id: one for one in batches},
        states={one.batch_id: one for one in states},
        attempts=_grouped(attempts, "batch_id"),
        bookmarks=_grouped(marks, "job_id"),
        live=_grouped([one for one in batches if one.superseded_at is None], "job_id"),
        children=_grouped([one for one in batches if one.parent_id is not None], "parent_id"),
        file_owners=file_owners,
    )


def _states(rows: Rows, *, max_attempts_changed: bool) -> Iterator[str]:
    if rows.states.keys() != rows.batches.keys():
        yield f"batches without a state, or the reverse: {rows.states.keys() ^ rows.batches.keys()}"
    for state in rows.states.values():
        one, tries = rows.batches[state.batch_id], rows.attempts[state.batch_id]
        most = rows.jobs[one.job_id].max_attempts
        derived = derived_state(one, tries, forgiven=state.forgiven, most=most)
        allowed = {derived} if derived in _FINAL else {derived, BatchState.CANCELLED}
        tried = {BatchState.DEAD, BatchState.FAILED, BatchState.INTERRUPTED}
        if max_attempts_changed and derived in tried:
            allowed |= tried
        if state.state not in allowed:
            yield f"batch {one.id} is {state.state}, by its attempts {derived}"
        if state.job_id != one.job_id:
            yield f"batch {one.id} is of job {one.job_id}, its state of job {state.job_id}"
        if state.attempts != len(tries):
            yield f"batch {one.id} has {len(tries)} attempts, its state says {state.attempts}"
        if not 0 <= state.forgiven <= state.attempts:
            yield f"batch {one.id}: {state.forgiven} of {state.attempts} attempts forgiven"
        generation = max((each.generation or 0 for each in tries), default=0)
        if (state.generation or 0) != generation:
            yield f"batch {one.id} is at generation {generation}, not {state.generation}"


def _attempts(rows: Rows) -> Iterator[str]:
    succeeded: set[int] = set()
    for batch_id, tries in rows.attempts.items():
        numbers = [each.number for each in tries]
        if numbers != list(range(1, len(tries) + 1)):
            yield f"attempts of batch {batch_id} are numbered {numbers}"
        generations = [each.generation for each in tries if each.generation is not None]
        if generations != list(range(1, len(generations) + 1)):
            yield f"generations of batch {batch_id} are {generations}"
        running = [each.number for each in tries if each.status == AttemptStatus.RUNNING]
        if len(running) > 1:
            yield f"attempts {running} of batch {batch_id} run at once"
        succeeded |= {each.id for each in tries if each.status == AttemptStatus.SUCCEEDED}
    if not rows.file_owners <= succeeded:
        yield f"attempts {rows.file_owners - succeeded} have files and are not published"


def _ranges(rows: Rows) -> Iterator[str]:
    """Check that live ranges tile the bookmarks of their job; only the first run has no start."""
    for one in rows.jobs.values():
        ranges = [each for each in rows.live[one.id] if each.item_ids is None]
        for left, right in pairwise(ranges):
            if left.last_id >= right.first_id:
                yield f"live batches {left.id} and {right.id} of job {one.id} overlap"
        for run in rows.bookmarks[one.id]:
            inside = [each for each in ranges if run.first_id <= each.first_id <= run.last_id]
            yield from _holes(run, inside)
        planned = {
            each.id
            for each in ranges
            for run in rows.bookmarks[one.id]
            if run.first_id <= each.first_id and each.last_id <= run.last_id
        }
        for each in ranges:
            if each.id not in planned:
                yield f"batch {each.id} ({_text(each)}) is covered by no bookmark of its job"


def _holes(run: Row, inside: Sequence[Row]) -> Iterator[str]:
    if not inside:
        yield f"no batch lies in the bookmark {_text(run)} of job {run.job_id}"
        return
    starts_right = inside[0].first_id == run.first_id or run.first_id == MIN_ID
    joined = all(left.last_id + 1 == right.first_id for left, right in pairwise(inside))
    if not starts_right or not joined or inside[-1].last_id != run.last_id:
        ranges = ", ".join(_text(each) for each in inside)
        yield f"bookmark {_text(run)} of job {run.job_id} is not tiled by {ranges}"


def _lists(rows: Rows) -> Iterator[str]:
    """Check that no item of a list is in two live batches of its job."""
    for one in rows.jobs.values():
        owner: dict[int, int] = {}
        live = rows.live[one.id]
        ranges = [each for each in live if each.item_ids is None]
        for each in (each for each in live if each.item_ids is not None):
            for item_id in each.item_ids:
                if not each.first_id <= item_id <= each.last_id:
                    yield f"batch {each.id} lists {item_id} outside of {_text(each)}"
                rival = owner.setdefault(item_id, each.id)
                if rival != each.id:
                    yield f"item {item_id} is in the live batches {rival} and {each.id}"
                if any(other.first_id <= item_id <= other.last_id for other in ranges):
                    yield f"item {item_id} of batch {each.id} is in a live range of its job too"


def _bookmarks(rows: Rows) -> Iterator[str]:
    for job_id, runs in rows.bookmarks.items():
        for left, right in pairwise(runs):
            if left.last_id + 1 >= right.first_id:
                yield f"bookmarks {_text(left)} and {_text(right)} of job {job_id} are one run"


def _families(rows: Rows) -> Iterator[str]:
    for one in rows.batches.values():
        children = rows.children[one.id]
        if (one.superseded_at is not None) != bool(children):
            yield f"batch {one.id} was superseded: {one.superseded_at}, children: {len(children)}"
        if not children:
            continue
        if any(child.job_id != one.job_id for child in children):
            yield f"children of batch {one.id} belong to other jobs"
        listed = sorted(item_id for child in children for item_id in child.item_ids or ())
        if listed != sorted(one.item_ids or ()):
            yield f"children of batch {one.id} list other items than it does"
        ends = (children[0].first_id, children[-1].last_id)
        joined = one.item_ids is not None or all(
            left.last_id + 1 == right.first_id for left, right in pairwise(children)
        )
        if len(children) < 2 or ends != (one.first_id, one.last_id) or not joined:
            ranges = ", ".join(_text(child) for child in children)
            yield f"batch {one.id} ({_text(one)}) is not tiled by its children {ranges}"
        if any((child.item_ids is None) != (one.item_ids is None) for child in children):
            yield f"children of batch {one.id} are of another kind than it is"


def _publish_numbers(rows: Rows) -> Iterator[str]:
    published: dict[int, list[int]] = defaultdict(list)
    for batch_id, tries in rows.attempts.items():
        numbers = [each.publish_number for each in tries if each.publish_number is not None]
        published[rows.batches[batch_id].job_id] += numbers
    for one in rows.jobs.values():
        if sorted(published[one.id]) != list(range(1, one.publish_count + 1)):
            numbers = sorted(published[one.id])
            yield f"job {one.id} counts {one.publish_count} publishes, numbered {numbers}"


def _grouped(rows: Iterable[Row], name: str) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[getattr(row, name)].append(row)
    return groups


def _text(row: Row) -> str:
    return f"{row.first_id}..{row.last_id}"
