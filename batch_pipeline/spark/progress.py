"""Follows the tasks of one Spark job from beside it: how many there are, how many are done.

Only looks and counts; what is said of it, and to whom, is the caller's business.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[int, int], None]

LOOK_SECONDS = 1.0
QUIET_SECONDS = 5.0  # a job that is over by then says nothing, any other one speaks no more often


class TaskCount:
    """How many tasks of a job are done, of how many; another thread keeps it up to date."""

    def __init__(self, total: int) -> None:
        self.done, self.total = 0, total

    def of_stages(self, stages: Iterable[tuple[int, int]]) -> None:
        """Take in the tasks and finished tasks of each stage; the largest stage does the work."""
        counted = max(stages, default=(0, 0))
        if counted[0] >= self.total:
            self.total, self.done = counted


class Teller:
    """Tells the count to a callback when it has changed, every few seconds at most."""

    def __init__(self, tell: Tell, now: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._now = now
        self._told_at = now()
        self._told = (0, 0)

    def look(self, count: TaskCount) -> None:
        """Tell the count if it is time to."""
        seen = (count.done, count.total)
        if seen != self._told and self._now() - self._told_at >= QUIET_SECONDS:
            self._told, self._told_at = seen, self._now()
            self._tell(*seen)


@contextmanager
def followed(session: "SparkSession", group: str, count: TaskCount) -> Iterator[None]:
    """Keep the count of the job that this thread runs in the block, named `group`, up to date."""
    if ".connect." in type(session).__module__:
        with _told_by_server(session, count):
            yield
        return
    over = threading.Event()
    looking = threading.Thread(target=_look, args=(session, group, count, over), daemon=True)
    session.sparkContext.setJobGroup(group, f"batch-pipeline {group}")
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _look(session: "SparkSession", group: str, count: TaskCount, over: threading.Event) -> None:
    # On a thread of its own, for an interrupt must not break off a call to the JVM.
    while not over.wait(LOOK_SECONDS):
        with suppress(Exception):  # the job itself finds out that the engine is gone
            tracker = session.sparkContext.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(s) for job in jobs if job for s in job.stageIds]
            count.of_stages((s.numTasks, s.numCompletedTasks) for s in stages if s)


@contextmanager
def _told_by_server(session: "SparkSession", count: TaskCount) -> Iterator[None]:
    mine = threading.get_ident()  # the handler hears of all jobs, each on the thread that waits

    def hear(stages: Iterable[Any] | None, *_facts: Any, **_more: Any) -> None:
        if stages is not None and threading.get_ident() == mine:
            count.of_stages((s.num_tasks, s.num_completed_tasks) for s in stages)

    handler: Any = hear  # what is asked for is a class of pyspark's with nothing but this call
    session.registerProgressHandler(handler)
    try:
        yield
    finally:
        session.removeProgressHandler(handler)
