"""What stands behind the library's functions: connections that a process opens at first use."""

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from batch_pipeline.domain.batch import Batch as PlannedBatch
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.job import Job
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.meta.meta_sources import MetaSources
from batch_pipeline.inventory.meta.meta_table import OwnMetaTable
from batch_pipeline.inventory.meta.reflected_table import MetaItem, ReflectedMetaTable
from batch_pipeline.inventory.work.bisect import listed
from batch_pipeline.library.asked import Asked
from batch_pipeline.library.batch import Batch
from batch_pipeline.settings.environment import Settings, load_settings
from batch_pipeline.settings.pipeline import Pipeline

# An acquisition may need a second connection for the ceiling while it holds its first. With as many
# threads as connections, all would wait for a second one.
_ACQUIRING_AT_ONCE = 12
_Result = TypeVar("_Result")


class Session:
    """The connections that one configuration leads to."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pipeline = Pipeline(settings)
        self._opening = threading.Lock()
        self._turns = threading.BoundedSemaphore(_ACQUIRING_AT_ONCE)

    def acquire(self, asked: Asked) -> Batch | None:
        """Acquire the next batch; None when nothing is left."""
        source_terms = asked.source_terms()
        database, sources = self.database, self.sources_of(source_terms.name)
        with self._turns:
            attempt = sources.use(
                source_terms,
                lambda source: database.acquisitions.acquire(asked.wish(source), source),
            )
        if attempt is None:
            return None

        def read(one: PlannedBatch) -> Sequence[MetaItem]:
            return sources.use(
                source_terms, lambda source: listed(database.engine, source.table, one)
            )

        return Batch(attempt, database.attempts, read, asked.identifier() or None)

    def on_source(self, asked: Asked, work: Callable[[Database, MetaSource], _Result]) -> _Result:
        """Do some work on the meta table that is asked for."""
        terms, database = asked.source_terms(), self.database
        return self.sources_of(terms.name).use(terms, lambda source: work(database, source))

    def job(self, name: str, meta_table: str | None) -> Job:
        """Find a job by its name, and by its meta table where that is told, however it is written.

        Raises:
            UnknownJobError: there is none.
            AmbiguousJobError: several meta tables have one, and none was named.
        """
        with self._opening:  # once, whichever thread is first; the queries need no lock
            _ = self._pipeline.database
            if meta_table is not None:
                self._pipeline.sources_of(meta_table)
        return self._pipeline.job(name, meta_table)

    def table_of(self, one: Job) -> ReflectedMetaTable:
        """Open the meta table of a job as its last batch was cut from it."""
        with self._opening:
            table = self._pipeline.items_of(one)
        return table.reflected() if isinstance(table, OwnMetaTable) else table

    @property
    def database(self) -> Database:
        """The inventory."""
        with self._opening:
            return self._pipeline.database

    def sources_of(self, meta_table: str) -> MetaSources:
        """The open tables among which a meta table of this name is."""
        with self._opening:
            return self._pipeline.sources_of(meta_table)

    def close(self) -> None:
        """Close what was opened; batches that are still held are free for others."""
        with self._opening:
            self._pipeline.close()


class Sessions:
    """The present session of the process. A forked child gets one of its own."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._session: Session | None = None
        self._of_parents: list[Session] = []
        self._watching = False

    def current(self) -> Session:
        """Give the session, made from the environment unless somebody has configured it."""
        with self._mutex:
            if self._session is None:
                self._session = self._made(load_settings(environment=os.environ))
            return self._session

    def replace(self, settings: Settings) -> None:
        """Begin a session with other settings and close the one before."""
        with self._mutex:
            before, self._session = self._session, self._made(settings)
        if before is not None:
            before.close()

    def close(self) -> None:
        """End the session; the next use configures itself from the environment."""
        with self._mutex:
            before, self._session = self._session, None
        if before is not None:
            before.close()

    def _made(self, settings: Settings) -> Session:
        if not self._watching:
            self._watching = True
            os.register_at_fork(after_in_child=self._start_over)
            atexit.register(self.close)
        return Session(settings)

    def _start_over(self) -> None:
        """Leave the parent's connections alone: not even closing them is the child's business."""
        self._mutex = threading.Lock()  # a thread that is not here may have held it
        if self._session is not None:
            self._of_parents.append(self._session)
            self._session = Session(self._session.settings)


SESSIONS = Sessions()


def own_names(settings: object) -> dict[str, object]:
    """Give programmatic settings by field name; upper case is taken too, as variables have it."""
    if not isinstance(settings, dict):
        raise InvalidValueError("settings", type(settings).__name__, "a dict of settings")
    return {str(name).lower(): value for name, value in settings.items()}
