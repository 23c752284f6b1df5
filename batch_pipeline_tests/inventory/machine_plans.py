"""Planning actions of the stateful test, each compared with the model."""

from collections import Counter
from collections.abc import Sequence

from batch_pipeline.model.backfill import Backfill
from batch_pipeline.model.batch import MIN_ID, Attempt, Batch, BatchState, IdRange
from batch_pipeline.model.errors import ConfigurationError, JobPausedError
from batch_pipeline.model.planning import Limits, cut
from batch_pipeline_tests.factories import found_file
from batch_pipeline_tests.inventory.machine_actions import MachineActions
from batch_pipeline_tests.inventory.machine_model import (
    ALL_IDS,
    WAITING,
    Job,
    ModelAttempt,
    ModelBatch,
    Row,
)
from batch_pipeline_tests.inventory.machine_system import STREAM, stored
from batch_pipeline_tests.seeds import query


class MachinePlans(MachineActions):
    """Registering, planning, acquiring, backfills, splitting and audits."""

    def register(self, number: int, size: int) -> None:
        """Register files of the stream, which get the next ids."""
        known = len(self.model.registered)
        files = [found_file(known + n) for n in range(1, size + 1)]
        self.workers[number].database.meta_table(STREAM).register(files, accept_changed=False)
        rows = [Row(id=known + n, weight=10, kind=1) for n in range(1, size + 1)]
        self.model.registered |= {row.id: row for row in rows}

    def plan(self, number: int, limits: Limits) -> None:
        """Plan all registered items of the stream."""
        worker, job = self.workers[number], self.job(STREAM)
        try:
            worker.database.batches.plan(worker.database.meta_table(STREAM), limits, drain=True)
        except JobPausedError:
            assert job.paused
            return
        assert not job.paused
        [gap] = job.gaps(ALL_IDS)
        new = self._add_new_batches(job)
        assert bool(new) == bool(self.model.matching(job, gap))
        if new:
            self._check_cuts(job, gap, new, limits, is_all=True)

    def acquire(
        self,
        number: int,
        requested: Job,
        limits: Limits,
        window: IdRange,
        *,
        server_side: bool,
        sweeps: bool,
    ) -> ModelAttempt | None:
        """Acquire a batch and compare it with the model."""
        worker, job = self.workers[number], self.job(requested.name)
        is_known = worker.known_job_id(requested) is not None
        sweeps = worker.sweep_next(requested, wanted=sweeps)
        within = None if window == ALL_IDS else window
        try:
            attempt = worker.acquire(requested, limits, within, server_side=server_side)
        except JobPausedError:
            assert job.paused
            return None
        assert not job.paused
        self.model.jobs[job.name] = job
        if not is_known:  # otherwise the sweep uses the previous terms
            job.max_attempts, job.bisect = requested.max_attempts, requested.bisect
        if sweeps:
            self.model.sweep(job)
        model_batch = self.model.first(job, window, *WAITING)
        job.max_attempts, job.bisect = requested.max_attempts, requested.bisect
        model_batch = (
            model_batch
            or self._new_batch(job, limits, window, attempt)
            or self._retried_batch(job, window)
        )
        assert (model_batch is None) == (attempt is None)
        if model_batch is None or attempt is None:
            return None
        assert attempt.batch == model_batch.batch
        return model_batch.start_attempt(attempt, number)

    def _new_batch(
        self, job: Job, limits: Limits, window: IdRange, attempt: Attempt | None
    ) -> ModelBatch | None:
        """Check that a new batch is the first cut of a gap, or that no rows are left."""
        gaps = list(job.gaps(window)) if job.is_incremental else []
        batch = None if attempt is None else attempt.batch
        if batch is None or batch.id in self.model.batches or self._parent_of(batch) is not None:
            # Open transactions hold the high watermark back; without any, every row is planned.
            assert self.writers or not any(self.model.matching(job, gap) for gap in gaps)
            return None
        gap = next(gap for gap in gaps if batch.id_range.last_id in gap)
        assert not any(self.model.matching(job, other) for other in gaps if other < gap)
        lowest = min(self.model.rows) if gap.first_id == MIN_ID else gap.first_id
        assert batch.id_range.first_id == lowest
        self._check_cuts(job, gap, [batch], limits, is_all=False)
        self.model.batches[batch.id] = self._model_batch(job, batch)
        return self.model.batches[batch.id]

    def _check_cuts(
        self, job: Job, gap: IdRange, batches: Sequence[Batch], limits: Limits, *, is_all: bool
    ) -> None:
        """Check that batches are the first cuts of a gap, up to a safe high watermark."""
        first_id, last_id = batches[0].id_range.first_id, batches[-1].id_range.last_id
        rows = self.model.matching(job, gap)
        beyond = [row.id for row in rows if row.id > last_id]
        inside = [(row.id, row.weight) for row in rows if row.id <= last_id]
        cuts = list(cut(inside, after_id=first_id - 1, high_watermark=last_id, limits=limits))
        assert [(expected.id_range, expected.weight, expected.count) for expected in cuts] == [
            (batch.id_range, batch.weight, batch.count) for batch in batches
        ]
        assert [batch.oversized for batch in batches] == [
            expected.weight > limits.max_weight for expected in cuts
        ]
        assert all(expected.weight <= limits.max_weight or expected.count == 1 for expected in cuts)
        more = [*inside, *((row.id, row.weight) for row in rows if row.id in beyond[:1])]
        following = list(
            cut(more, after_id=first_id - 1, high_watermark=gap.last_id, limits=limits)
        )
        ends_there = len(following) > len(cuts)
        assert not beyond or self.writers or (ends_there and not is_all)
        open_ids = {row.id for writer in self.writers for row in writer.rows}
        assert job.is_stream or not any(one in gap and one <= last_id for one in open_ids)
        job.cover(gap.first_id, last_id)

    def _retried_batch(self, job: Job, window: IdRange) -> ModelBatch | None:
        """Return the batch that is to be retried now."""
        self.model.sweep(job)
        model_batch = self.model.first(job, window, *WAITING, BatchState.FAILED)
        if model_batch is not None or not job.bisect:
            return model_batch
        for dead in self.model.live(job):
            can_be = dead.state is BatchState.DEAD and dead.batch.count > 1
            if can_be and dead.is_within(window) and self.model.halves(dead) is not None:
                return self.split_into(dead)
        return None

    def split_into(self, model_batch: ModelBatch) -> ModelBatch:
        """Add the halves of a split batch to the model and return the first."""
        halves = self.model.halves(model_batch)
        assert halves is not None
        children = stored(self.observer, "b.parent_id = :id", id=model_batch.batch.id)
        for (_, batch), (ids, rows) in zip(children, halves, strict=True):
            assert batch.weight == sum(row.weight for row in rows)
            if model_batch.batch.item_ids is None:
                assert (batch.id_range, batch.count) == (ids, len(rows))
            else:
                assert batch.item_ids == tuple(
                    uid for uid in model_batch.batch.item_ids if uid in ids
                )
            ids_of_half = frozenset(uid for uid in model_batch.planned if uid in ids)
            half = ModelBatch(
                batch=batch,
                job=model_batch.job,
                planned=ids_of_half,
                parent_id=model_batch.batch.id,
            )
            self.model.batches[batch.id] = half
        model_batch.state = BatchState.SUPERSEDED
        return self.model.batches[children[0][1].id]

    def audit_job(self, number: int, job: Job, limits: Limits) -> int:
        """Audit a job, compare the result, and return the number of late rows."""
        worker, expected = self.workers[number], self.model.expected_audit(job)
        stream_table = worker.database.meta_table(STREAM).reflected()
        audit = worker.database.late_arrivals.audit(
            job.name,
            stream_table if job.is_stream else worker.tables[job.kind],
            limits=limits,
            since=None,
        )
        result = (audit.late.count, audit.known, audit.missing.count, audit.left_out)
        rest = (expected.missing, expected.left_out)
        assert result == (len(expected.late), len(expected.known), *rest)
        if not expected.late:
            return 0
        late = self.job(f"{job.name}.late")
        late.kind, late.parent, late.is_incremental = job.kind, job, False
        late.max_attempts, late.bisect = job.max_attempts, job.bisect
        new = self._add_new_batches(late)
        assert Counter(uid for batch in new for uid in batch.item_ids or ()) == Counter(
            expected.late
        )
        assert all(batch.weight <= limits.max_weight or batch.count == 1 for batch in new)
        return len(expected.late)

    def plan_backfill(self, number: int, request: Backfill) -> None:
        """Plan a backfill and compare it with the expected rows."""
        worker, job = self.workers[number], self.job(request.name)
        job.is_incremental, ids = False, request.selection.ids
        expected_ids = self._expected_items(job, request)
        try:
            worker.database.backfills.plan(request, worker.sources[None, True])
        except ConfigurationError as error:
            assert "has no items" in str(error)  # noqa: PT017 - the error is one of two outcomes
            assert self.writers or not expected_ids <= self.model.rows.keys()
            return
        is_new = job.name not in self.model.jobs
        job.max_attempts, job.bisect = request.max_attempts, request.bisect
        new = self._add_new_batches(job)
        if is_new and not new:
            del self.model.jobs[job.name]
        if not request.selection.is_window:
            listed = {uid for batch in new for uid in batch.item_ids or ()}
            assert listed == expected_ids or (self.writers and listed < expected_ids)
            return
        planned: set[int] = set()
        for gap in list(job.gaps(ids)):
            inside = [batch for batch in new if batch.id_range.last_id in gap]
            if inside:
                self._check_cuts(job, gap, inside, request.limits, is_all=True)
                planned |= {row.id for row in self.model.matching(job, gap)}
        assert self.writers or expected_ids <= planned

    def _expected_items(self, job: Job, request: Backfill) -> set[int]:
        """Return the ids that a backfill selects and has not planned yet."""
        selection = request.selection
        listed = {
            uid
            for model_batch in self.model.live(job)
            for uid in model_batch.batch.item_ids or ()
            if model_batch.job is job
        }
        if selection.item_ids is not None:
            return set(selection.item_ids) - listed
        if selection.is_window:
            gaps = job.gaps(selection.ids)
            return {row.id for gap in gaps for row in self.model.matching(job, gap)}
        assert request.parent is not None
        states = {BatchState.FAILED, BatchState.DEAD}
        failed = [
            model_batch
            for model_batch in self.model.live(self.model.jobs[request.parent])
            if model_batch.state in states
        ]
        items = {row.id for model_batch in failed for row in self.model.items(model_batch)}
        return {uid for uid in items if uid in selection.ids} - listed

    def _add_new_batches(self, job: Job) -> list[Batch]:
        """Add new batches of a job to the model and return them."""
        new = [
            batch
            for _, batch in stored(self.observer, "j.name = :name", name=job.name)
            if batch.id not in self.model.batches
        ]
        self.model.jobs[job.name] = job
        self.model.batches |= {batch.id: self._model_batch(job, batch) for batch in new}
        return new

    def _model_batch(self, job: Job, batch: Batch) -> ModelBatch:
        return ModelBatch(batch=batch, job=job, planned=self.model.planned(job, batch))

    def _parent_of(self, batch: Batch) -> int | None:
        statement = "SELECT parent_id FROM batch_pipeline.batch WHERE id = :id"
        parent_id: int | None = query(self.observer, statement, id=batch.id)[0][0]
        return parent_id
