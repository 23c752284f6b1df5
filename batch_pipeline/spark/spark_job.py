"""Run a Spark job for an encode: watch its progress, cancel it, and translate its failures.

Also runs a function as the tasks of a job, and creates the DataFrames whose rows are tasks.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import pyarrow as pa

from batch_pipeline.encode.cancellation import CancellationFlag
from batch_pipeline.model.encode_request import EncodeCallbacks
from batch_pipeline.model.errors import ConflictError, SparkUnavailableError
from batch_pipeline.model.stream import Storage
from batch_pipeline.spark.diagnostics import (
    ExecutorWatch,
    context_of,
    diagnose_engine_error,
    engine_errors,
    target_of,
)
from batch_pipeline.spark.executor_archive import TaskFunction, with_archive

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from batch_pipeline.spark.diagnostics import SparkEngine

    FrameSchema = StructType | str


STATUS_POLL_SECONDS = 1.0
REPORT_INTERVAL_SECONDS = 5.0  # jobs that end earlier report nothing
CANCEL_POLL_SECONDS = 0.2
STOP_TIMEOUT_SECONDS = 10.0
INLINE_PAYLOAD_BYTES = 2**20

_Result = TypeVar("_Result")


class Progress:
    """The numbers of finished and of all tasks of a job, and the time of the last report."""

    def __init__(
        self,
        tasks: int,
        callback: Callable[[int, int], None] | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = (0, tasks)
        self._callback = callback
        self._now = now
        self._reported_at = now()
        self._reported = (0, 0)

    def update(self, stages: Iterable[tuple[int, int]]) -> None:
        """Record the total and finished tasks of the largest stage, which does the work.

        A stage that only distributes payloads has fewer tasks than expected and is ignored.
        """
        total, done = max(stages, default=(0, 0))
        if total >= self.count[1]:
            self.count = (done, total)

    def report(self) -> None:
        """Call back with the count if it has changed, at most every five seconds."""
        count = self.count  # another thread updates it
        if self._callback is None or count == self._reported:
            return
        now = self._now()
        if now - self._reported_at >= REPORT_INTERVAL_SECONDS:
            self._reported, self._reported_at = count, now
            self._callback(*count)


@contextmanager
def track_tasks(engine: "SparkEngine", tag: str, progress: Progress) -> Iterator[None]:
    """Keep `progress` up to date for the job that this thread runs in the block or function.

    `tag` identifies the job, which can be cancelled by it.
    """
    context = context_of(engine)
    if context is None:
        with _track_on_server(engine, tag, progress):
            yield
        return
    is_over = threading.Event()
    poller = threading.Thread(
        target=_poll_status, args=(context, tag, progress, is_over), daemon=True
    )
    context.addJobTag(tag)  # belongs to this thread, which ends with the job
    context.setJobGroup(tag, f"batch-pipeline {tag}")
    poller.start()
    try:
        yield
    finally:
        is_over.set()
        poller.join()


def _poll_status(
    context: "SparkContext", group: str, progress: Progress, is_over: threading.Event
) -> None:
    # In a separate thread, because an interrupt must not break off a call to the JVM.
    while not is_over.wait(STATUS_POLL_SECONDS):
        with suppress(Exception):  # if the engine is gone, the job fails anyway
            tracker = context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(s) for job in jobs if job for s in job.stageIds]
            progress.update((s.numTasks, s.numCompletedTasks) for s in stages if s)


@contextmanager
def _track_on_server(session: Any, tag: str, progress: Progress) -> Iterator[None]:
    # The handler is called for all jobs of the session, in the thread that waits for the job.
    own_thread = threading.get_ident()

    def on_progress(stages: Iterable[Any] | None, *_: Any, **_options: Any) -> None:
        if stages is not None and threading.get_ident() == own_thread:
            progress.update((s.num_tasks, s.num_completed_tasks) for s in stages)

    session.addTag(tag)  # belongs to this thread, which ends with the job
    session.registerProgressHandler(on_progress)
    try:
        yield
    finally:
        session.removeProgressHandler(on_progress)


class SparkJobRunner:
    """Runs the jobs of one encode on the engine that the factory returns."""

    def __init__(
        self,
        engine_factory: "Callable[[], SparkEngine]",
        storage: Storage,
        stem: str,
        watch: EncodeCallbacks,
    ) -> None:
        self._engine_factory = engine_factory
        self._stem = stem
        self._watch = watch
        self._tag = f"encode-{uuid4().hex}"
        self.cancellation_flag = CancellationFlag.of(storage, stem, self._tag[-8:])

    def run(self, job: "Callable[[SparkEngine], _Result]", *, tasks: int) -> _Result:
        """Call `job` with the engine and return its result; `tasks` is its approximate task count.

        If the encode is cancelled or interrupted, its tasks are requested to stop, and have stopped
        when this raises. Tasks that do not stop within ten seconds are killed by Spark.

        Raises:
            ConflictError: the encode was cancelled.
            ConfigurationError: an executor lacks what tasks need.
            SparkUnavailableError: the engine is gone.
        """
        engine = self._engine_factory()
        progress = Progress(tasks, self._watch.on_progress)
        tracked_job = track_tasks(engine, self._tag, progress)(job)
        # In a thread, which has its own py4j connection: an interrupted call leaves its response on
        # the connection, and the next call there would read that as its own.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._tag) as executor:
            running = executor.submit(tracked_job, engine)
            try:
                self._wait(running, progress, engine)
            except BaseException:  # Dagster interrupts with a BaseException of its own
                self._stop_tasks(engine, running)
                raise
        try:
            return running.result()
        except engine_errors() as error:
            raise diagnose_engine_error(engine, error) from error

    def _wait(self, running: "Future[_Result]", progress: Progress, engine: "SparkEngine") -> None:
        is_cancelled = self._watch.is_cancelled
        executors = ExecutorWatch(engine)
        while not wait([running], timeout=CANCEL_POLL_SECONDS).done:
            if is_cancelled is not None and is_cancelled():
                raise _encode_cancelled(self._stem)
            executors.check()
            progress.report()

    def _stop_tasks(self, engine: "SparkEngine", running: "Future[_Result]") -> None:
        # The flag is for the tasks, which then remove their part files. Killed tasks leave them.
        try:
            if self.cancellation_flag.set() and wait([running], timeout=STOP_TIMEOUT_SECONDS).done:
                self.cancellation_flag.clear()
        finally:
            if not running.done():
                with suppress(*engine_errors()):
                    _cancel(engine, self._tag)


def _cancel(engine: Any, tag: str) -> None:
    """Cancel the jobs with a tag."""
    context = context_of(engine)
    if context is None:
        engine.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


def run_function(engine: Any, payloads: list[bytes], function: TaskFunction) -> list[bytes]:
    """Run a function on a `SparkEngine`, in one task for each payload, and return its reports.

    `function` gets a batch of one row with the task's `number` and its payload `spec`, and yields
    one with a `report`. A context runs it without a query: opening a session takes a second, and
    each query 0.1 s to plan.

    Raises:
        SparkUnavailableError: not every task has reported.
    """
    context = context_of(engine)
    if context is None:
        frame = task_frame(engine, payloads, function, "number int, report binary")
        reports = [bytes(row["report"]) for row in frame.collect()]
    else:
        tasks = context.parallelize(list(enumerate(payloads)), len(payloads))
        reports = tasks.mapPartitions(partial(_reports, function)).collect()
    missing = len(payloads) - len(reports)
    if missing:  # pyspark takes a connection that breaks off for the end of the reports
        raise SparkUnavailableError(target_of(engine), f"tasks that did not report: {missing}")
    return reports


def _reports(function: TaskFunction, tasks: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """Call a function for the pairs of number and payload of an RDD, and yield its reports."""
    for batch in function(_task_rows([number], [payload]) for number, payload in tasks):
        yield from batch["report"].to_pylist()


def warm_up(engine: "SparkEngine") -> None:
    """Run a tiny job, so that Python workers start and import what tasks need.

    Raises:
        ConfigurationError: an executor lacks what tasks need.
        SparkUnavailableError: the engine is gone.
    """
    try:
        run_function(engine, [b""] * (os.cpu_count() or 1), _report_numbers)
    except engine_errors() as error:
        raise diagnose_engine_error(engine, error) from error


def _report_numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Report the number of the task; a worker imports this module for it."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch["number"], batch["spec"]], ["number", "report"])


def task_frame(
    session: "SparkSession", payloads: list[bytes], function: TaskFunction, schema: "FrameSchema"
) -> "DataFrame":
    """Return a DataFrame of the rows that tasks yield: one task for each payload.

    `function` gets a batch of one row with the task's `number` and its payload `spec`. Small
    payloads are sent within the function. Large payloads are rows, which costs an extra stage but
    sends each payload to its task only.
    """
    count = len(payloads)
    if sum(map(len, payloads)) <= INLINE_PAYLOAD_BYTES:
        inline = with_archive(session, partial(_with_payloads, payloads, function))
        return session.range(0, count, 1, count).mapInArrow(inline, schema)
    rows = pa.Table.from_batches([_task_rows(range(count), payloads)])
    frame = session.createDataFrame(rows).repartitionById(count, "number")
    return frame.mapInArrow(with_archive(session, function), schema)


def _task_rows(numbers: Sequence[int], payloads: Sequence[bytes]) -> pa.RecordBatch:
    columns = [pa.array(numbers, pa.int32()), pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["number", "spec"])


def _with_payloads(
    payloads: list[bytes], function: TaskFunction, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Call a function for batches of task numbers, to which their payloads are added."""
    task_numbers = (batch["id"].to_pylist() for batch in batches)
    return function(_task_rows(some, [payloads[one] for one in some]) for some in task_numbers)


def _encode_cancelled(stem: str) -> ConflictError:
    return ConflictError(
        f"{stem}: the encode was cancelled while it ran: another attempt took over its batch, or "
        f"the batch was cancelled. Its tasks ended and their files were removed. Nothing was "
        f"published, and no action is needed."
    )
