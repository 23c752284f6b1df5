"""What makes batches in the stateful test, each call compared with what the model says."""

from collections import Counter
from collections.abc import Sequence

from batch_pipeline.model.backfill import Backfill
from batch_pipeline.model.batch import Attempt, Batch, BatchState
from batch_pipeline.model.errors import ConfigurationError, JobPausedError
from batch_pipeline.model.id_range import MIN_ID, IdRange
from batch_pipeline.model.planning import Limits, cut
from batch_pipeline_tests.factories import found_file
from batch_pipeline_tests.inventory.machine_actions import Deeds
from batch_pipeline_tests.inventory.machine_model import ALL_IDS, WAITING, Held, Job, Row, Try
from batch_pipeline_tests.inventory.machine_system import STREAM, stored
from batch_pipeline_tests.seeds import query


class Plans(Deeds):
    """Acquiring, planning, backfills, splitting and audits."""

    def register(self, number: int, size: int) -> None:
        """Register files of the stream, which get the next ids."""
        known = len(self.model.registered)
        files = [found_file(known + one) for one in range(1, size + 1)]
        self.workers[number].database.meta_table(STREAM).register(files, accept_changed=False)
        rows = [Row(id=known + one, weight=10, kind=1) for one in range(1, size + 1)]
        self.model.registered |= {row.id: row for row in rows}

    def plan(self, number: int, limits: Limits) -> None:
        """Plan all that is registered of the stream."""
        worker, job = self.workers[number], self.job(STREAM)
        try:
            worker.database.batches.plan(worker.database.meta_table(STREAM), limits, drain=True)
        except JobPausedError:
            assert job.paused
            return
        assert not job.paused
        [gap] = job.gaps(ALL_IDS)
        new = self._take_over(job)
        assert bool(new) == bool(self.model.matching(job, gap))
        if new:
            self._check_cuts(job, gap, new, limits, is_all=True)

    def acquire(
        self,
        number: int,
        asked: Job,
        limits: Limits,
        window: IdRange,
        *,
        short: bool,
        sweeps: bool,
    ) -> Try | None:
        """Acquire, and compare with what the model says must come."""
        worker, job = self.workers[number], self.job(asked.name)
        is_known = worker.knows(asked) is not None
        sweeps = worker.sweep_next(asked, wanted=sweeps)
        within = None if window == ALL_IDS else window
        try:
            attempt = worker.acquire(asked, limits, within, short=short)
        except JobPausedError:
            assert job.paused
            return None
        assert not job.paused
        self.model.jobs[job.name] = job
        if not is_known:  # else dead attempts are looked for on the terms of before
            job.max_attempts, job.bisect = asked.max_attempts, asked.bisect
        if sweeps:
            self.model.sweep(job)
        held = self.model.first(job, window, *WAITING)
        job.max_attempts, job.bisect = asked.max_attempts, asked.bisect
        held = held or self._new(job, limits, window, attempt) or self._again(job, window)
        assert (held is None) == (attempt is None)
        if held is None or attempt is None:
            return None
        assert attempt.batch == held.batch
        return held.begin(attempt, number)

    def _new(
        self, job: Job, limits: Limits, window: IdRange, attempt: Attempt | None
    ) -> Held | None:
        """Check that a new batch is the first cut of what is left, or that nothing is left."""
        gaps = list(job.gaps(window)) if job.grows else []
        one = None if attempt is None else attempt.batch
        if one is None or one.id in self.model.batches or self._parent_of(one) is not None:
            # Open transactions hold the ceiling back; without any, every row is to be taken.
            assert self.writers or not any(self.model.matching(job, gap) for gap in gaps)
            return None
        gap = next(gap for gap in gaps if one.id_range.last_id in gap)
        assert not any(self.model.matching(job, other) for other in gaps if other < gap)
        lowest = min(self.model.rows) if gap.first_id == MIN_ID else gap.first_id
        assert one.id_range.first_id == lowest
        self._check_cuts(job, gap, [one], limits, is_all=False)
        self.model.batches[one.id] = self._held(job, one)
        return self.model.batches[one.id]

    def _check_cuts(
        self, job: Job, gap: IdRange, found: Sequence[Batch], limits: Limits, *, is_all: bool
    ) -> None:
        """Check that batches are the first cuts of a gap, up to some ceiling that is safe."""
        first_id, last_id = found[0].id_range.first_id, found[-1].id_range.last_id
        rows = self.model.matching(job, gap)
        beyond = [row.id for row in rows if row.id > last_id]
        inside = [(row.id, row.weight) for row in rows if row.id <= last_id]
        cuts = list(cut(inside, after_id=first_id - 1, high_watermark=last_id, limits=limits))
        assert [(one.id_range, one.weight, one.count) for one in cuts] == [
            (one.id_range, one.weight, one.count) for one in found
        ]
        assert [one.oversized for one in found] == [one.weight > limits.max_weight for one in cuts]
        assert all(one.weight <= limits.max_weight or one.count == 1 for one in cuts)
        more = [*inside, *((row.id, row.weight) for row in rows if row.id in beyond[:1])]
        following = list(
            cut(more, after_id=first_id - 1, high_watermark=gap.last_id, limits=limits)
        )
        ends_there = len(following) > len(cuts)
        assert not beyond or self.writers or (ends_there and not is_all)
        open_ids = {row.id for writer in self.writers for row in writer.rows}
        assert job.is_stream or not any(one in gap and one <= last_id for one in open_ids)
        job.cover(gap.first_id, last_id)

    def _again(self, job: Job, window: IdRange) -> Held | None:
        """Give what was tried before and is to be tried now."""
        self.model.sweep(job)
        held = self.model.first(job, window, *WAITING, BatchState.FAILED)
        if held is not None or not job.bisect:
            return held
        for dead in self.model.live(job):
            can_be = dead.state is BatchState.DEAD and dead.batch.count > 1
            if can_be and dead.lies_in(window) and self.model.halves(dead) is not None:
                return self.split_into(dead)
        return None

    def split_into(self, held: Held) -> Held:
        """Take over the halves of a batch that was just split, and give the first."""
        halves = self.model.halves(held)
        assert halves is not None
        children = stored(self.watch, "b.parent_id = :id", id=held.batch.id)
        for (_, one), (ids, rows) in zip(children, halves, strict=True):
            assert one.weight == sum(row.weight for row in rows)
            if held.batch.item_ids is None:
                assert (one.id_range, one.count) == (ids, len(rows))
            else:
                assert one.item_ids == tuple(uid for uid in held.batch.item_ids if uid in ids)
            ids_of_half = frozenset(uid for uid in held.planned if uid in ids)
            half = Held(batch=one, job=held.job, planned=ids_of_half, parent_id=held.batch.id)
            self.model.batches[one.id] = half
        held.state = BatchState.SUPERSEDED
        return self.model.batches[children[0][1].id]

    def audit_job(self, number: int, job: Job, limits: Limits) -> int:
        """Audit a job, compare what was found, and give how many rows were planned."""
        worker, expected = self.workers[number], self.model.lateness(job)
        own = worker.database.meta_table(STREAM).reflected()
        audit = worker.database.late_arrivals.audit(
            job.name, own if job.is_stream else worker.tables[job.kind], limits=limits, since=None
        )
        found = (audit.late.count, audit.known, audit.missing.count, audit.left_out)
        rest = (expected.missing, expected.left_out)
        assert found == (len(expected.fresh), len(expected.known), *rest)
        if not expected.fresh:
            return 0
        late = self.job(f"{job.name}.late")
        late.kind, late.parent, late.grows = job.kind, job, False
        late.max_attempts, late.bisect = job.max_attempts, job.bisect
        new = self._take_over(late)
        assert Counter(uid for one in new for uid in one.item_ids or ()) == Counter(expected.fresh)
        assert all(one.weight <= limits.max_weight or one.count == 1 for one in new)
        return len(expected.fresh)

    def plan_backfill(self, number: int, request: Backfill) -> None:
        """Plan a backfill, and compare with the rows that it has to take."""
        worker, job = self.workers[number], self.job(request.name)
        job.grows, ids = False, request.selection.ids
        wanted = self._wanted(job, request)
        try:
            worker.database.backfills.plan(request, worker.sources[None, True])
        except ConfigurationError as error:
            assert "has no items" in str(error)  # noqa: PT017 - an error is one of two ends
            assert self.writers or not wanted <= self.model.rows.keys()
            return
        is_new = job.name not in self.model.jobs
        job.max_attempts, job.bisect = request.max_attempts, request.bisect
        new = self._take_over(job)
        if is_new and not new:
            del self.model.jobs[job.name]
        if not request.selection.is_window:
            found = {uid for one in new for uid in one.item_ids or ()}
            assert found == wanted or (self.writers and found < wanted)
            return
        planned: set[int] = set()
        for gap in list(job.gaps(ids)):
            inside = [one for one in new if one.id_range.last_id in gap]
            if inside:
                self._check_cuts(job, gap, inside, request.limits, is_all=True)
                planned |= {row.id for row in self.model.matching(job, gap)}
        assert self.writers or wanted <= planned

    def _wanted(self, job: Job, request: Backfill) -> set[int]:
        """Give the ids that a backfill takes and does not have yet."""
        selection = request.selection
        listed = {
            uid
            for held in self.model.live(job)
            for uid in held.batch.item_ids or ()
            if held.job is job
        }
        if selection.item_ids is not None:
            return set(selection.item_ids) - listed
        if selection.is_window:
            gaps = job.gaps(selection.ids)
            return {row.id for gap in gaps for row in self.model.matching(job, gap)}
        assert request.parent is not None
        states = {BatchState.FAILED, BatchState.DEAD}
        failed = [
            held
            for held in self.model.live(self.model.jobs[request.parent])
            if held.state in states
        ]
        items = {row.id for held in failed for row in self.model.items(held)}
        return {uid for uid in items if uid in selection.ids} - listed

    def _take_over(self, job: Job) -> list[Batch]:
        """Note the batches of a job that are not known yet."""
        new = [
            one
            for _, one in stored(self.watch, "j.name = :name", name=job.name)
            if one.id not in self.model.batches
        ]
        self.model.jobs[job.name] = job
        self.model.batches |= {one.id: self._held(job, one) for one in new}
        return new

    def _held(self, job: Job, one: Batch) -> Held:
        return Held(batch=one, job=job, planned=self.model.planned(job, one))

    def _parent_of(self, one: Batch) -> int | None:
        statement = "SELECT parent_id FROM batch_pipeline.batch WHERE id = :id"
        parent_id: int | None = query(self.watch, statement, id=one.id)[0][0]
        return parent_id
