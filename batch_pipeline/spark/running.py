"""Runs one Spark job to its end: on a thread of its own, with progress, stopped when called off.

Knows sessions, tags and engine errors; what the tasks do is up to the caller.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import pyarrow as pa

from batch_pipeline.domain.encode import Watch
from batch_pipeline.domain.errors import EncodeStoppedError
from batch_pipeline.domain.stream import Storage
from batch_pipeline.spark.clusters.engine_state import Executors, end_context
from batch_pipeline.spark.clusters.fitness import gone, trouble
from batch_pipeline.spark.clusters.shipped import TaskFunction, shipped
from batch_pipeline.spark.engine_errors import engine_errors
from batch_pipeline.spark.progress import TaskCount, Teller, followed
from batch_pipeline.spark.stop_mark import StopMark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Columns = StructType | str

WAIT_SECONDS = 0.2
STOP_SECONDS = 10.0
CARRIED_BYTES = 2**20

_Given = TypeVar("_Given")


class SparkJobs:
    """Runs the jobs of one encode on the session that the factory gives."""

    def __init__(
        self,
        session_factory: "Callable[[], SparkSession]",
        storage: Storage,
        stem: str,
        watch: Watch,
    ) -> None:
        self._session_factory = session_factory
        self._stem = stem
        self._watch = watch
        self._tag = f"encode-{uuid4().hex}"
        self.stop_mark = StopMark.of(storage, stem, self._tag[-8:])

    def run(self, job: "Callable[[SparkSession], _Given]", *, tasks: int) -> _Given:
        """Give what `job` gives when called with the session; `tasks` is how many it has, about.

        Where it is called off or interrupted, its tasks are told to end, and have ended when this
        raises, except when they do not within ten seconds: then Spark kills them.

        Raises:
            EncodeStoppedError: it was called off.
            ExecutorUnfitError: an executor lacks what tasks need.
            SparkUnavailableError: the engine is gone.
        """
        session = self._session_factory()
        count = TaskCount(tasks)
        # On a thread of its own, and so on its own connection to the JVM: an interrupt that breaks
        # off the wait leaves no answer behind that the next call would take for its own.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._tag) as executor:
            running = executor.submit(self._run, session, job, count)
            try:
                self._wait(running, count, session)
            except BaseException:  # called off, or an interrupt; Dagster has its own class
                self._end(session, running)
                raise
        try:
            return running.result()
        except engine_errors() as error:
            raise trouble(session, error) from error

    def _run(
        self, session: "SparkSession", job: "Callable[[SparkSession], _Given]", count: TaskCount
    ) -> _Given:
        session.addTag(self._tag)  # counts for this thread, which ends with the job
        with followed(session, self._tag, count):
            return job(session)

    def _wait(self, running: "Future[_Given]", count: TaskCount, session: "SparkSession") -> None:
        teller = None if self._watch.tell is None else Teller(self._watch.tell)
        is_called_off = self._watch.is_called_off
        executors = Executors(session)
        while not wait([running], timeout=WAIT_SECONDS).done:
            if is_called_off is not None and is_called_off():
                raise EncodeStoppedError(self._stem)
            if executors.are_gone():
                end_context(session)  # without tasks there is nothing else that ends the job
                raise gone(session)
            if teller is not None:
                teller.look(count)

    def _end(self, session: "SparkSession", running: "Future[_Given]") -> None:
        try:
            if self.stop_mark.set() and wait([running], timeout=STOP_SECONDS).done:
                self.stop_mark.clear()
        finally:
            if not running.done():
                with suppress(*engine_errors()):
                    session.interruptTag(self._tag)  # else the tasks would write on


def task_frame(
    session: "SparkSession", payloads: list[bytes], function: TaskFunction, columns: "Columns"
) -> "DataFrame":
    """Make a frame of what tasks give, each called with one row: its `number`, its payload `spec`.

    Payloads travel with the function while they are small, and as rows, which take a stage of
    their own, where they are not.
    """
    count = len(payloads)
    if sum(map(len, payloads)) <= CARRIED_BYTES:
        carried = shipped(session, _Carried(payloads, function))
        return session.range(0, count, 1, count).mapInArrow(carried, columns)
    rows = pa.Table.from_batches([_specs(range(count), payloads)])
    frame = session.createDataFrame(rows).repartitionById(count, "number")
    return frame.mapInArrow(shipped(session, function), columns)


def _specs(numbers: Sequence[int], payloads: Sequence[bytes]) -> pa.RecordBatch:
    columns = [pa.array(numbers, pa.int32()), pa.array(payloads, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["number", "spec"])


class _Carried:
    """Puts the payload of a task in the place of its number."""

    def __init__(self, payloads: list[bytes], function: TaskFunction) -> None:
        self._payloads = payloads
        self._function = function

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._function(self._told(batch.column("id").to_pylist()) for batch in batches)

    def _told(self, numbers: list[int]) -> pa.RecordBatch:
        return _specs(numbers, [self._payloads[number] for number in numbers])
