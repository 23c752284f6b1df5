"""The connections of the library's functions, opened at first use."""

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from batch_pipeline.app import Pipeline
from batch_pipeline.client.batch import Batch
from batch_pipeline.client.options import AcquireOptions
from batch_pipeline.config.environment import Settings, load_settings
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.reflected_table import MetaItem, ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import MetaSource, MetaSources, read_items
from batch_pipeline.model.batch import Batch as PlannedBatch
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.job import Job

# An acquisition may need a second connection, for the high watermark, while it holds its first.
# With as many threads as connections, all could wait for a second one.
_MAX_ACQUISITIONS = 12
_Result = TypeVar("_Result")


class Session:
    """The connections of one configuration."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pipeline = Pipeline(settings)
        self._opening = threading.Lock()
        self._acquisition_slots = threading.BoundedSemaphore(_MAX_ACQUISITIONS)

    def acquire(self, options: AcquireOptions) -> Batch | None:
        """Acquire the next batch; return None if nothing is left."""
        source_terms = options.source_terms()
        database, sources = self.database, self.sources_of(source_terms.name)
        with self._acquisition_slots:
            attempt = sources.use(
                source_terms,
                lambda source: database.acquisitions.acquire(options.to_request(source), source),
            )
        if attempt is None:
            return None

        def read(planned: PlannedBatch) -> Sequence[MetaItem]:
            return sources.use(
                source_terms, lambda source: read_items(database.engine, source.table, planned)
            )

        return Batch(attempt, database.attempts, read, options.run_id() or None)

    def use_source(
        self, options: AcquireOptions, work: Callable[[Database, MetaSource], _Result]
    ) -> _Result:
        """Call a function with the inventory and the open meta table."""
        terms, database = options.source_terms(), self.database
        return self.sources_of(terms.name).use(terms, lambda source: work(database, source))

    def job(self, name: str, meta_table: str | None) -> Job:
        """Return a job by its name and, if given, its meta table, in any spelling.

        Raises:
            UnknownJobError: there is no such job.
            AmbiguousJobError: jobs of several meta tables have the name, and none is given.
        """
        with self._opening:  # opening needs the lock, the queries do not
            _ = self._pipeline.database
            if meta_table is not None:
                self._pipeline.sources_of(meta_table)
        return self._pipeline.job(name, meta_table)

    def table_of(self, stored_job: Job) -> ReflectedMetaTable:
        """Open the meta table of a job with the options of its last batch."""
        with self._opening:
            return self._pipeline.items_of(stored_job)

    @property
    def database(self) -> Database:
        """The inventory."""
        with self._opening:
            return self._pipeline.database

    def sources_of(self, meta_table: str) -> MetaSources:
        """Return the open tables that a meta table of this name belongs to."""
        with self._opening:
            return self._pipeline.sources_of(meta_table)

    def close(self) -> None:
        """Close all connections; unreleased batches are handed out again."""
        with self._opening:
            self._pipeline.close()


class Sessions:
    """The current session of the process. A forked child gets its own."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._session: Session | None = None
        self._parent_sessions: list[Session] = []
        self._hooks_registered = False

    def current(self) -> Session:
        """Return the session, created from the environment unless it was configured."""
        with self._mutex:
            if self._session is None:
                self._session = self._create(load_settings(environment=os.environ))
            return self._session

    def replace(self, settings: Settings) -> None:
        """Replace the session by one with other settings and close the old one."""
        with self._mutex:
            previous, self._session = self._session, self._create(settings)
        if previous is not None:
            previous.close()

    def close(self) -> None:
        """Close the session; the next use configures itself from the environment."""
        with self._mutex:
            previous, self._session = self._session, None
        if previous is not None:
            previous.close()

    def _create(self, settings: Settings) -> Session:
        if not self._hooks_registered:
            self._hooks_registered = True
            os.register_at_fork(after_in_child=self._reset_in_child)
            atexit.register(self.close)
        return Session(settings)

    def _reset_in_child(self) -> None:
        """Replace the session, without closing the parent's connections, which would disturb it."""
        self._mutex = threading.Lock()  # another thread of the parent may have held it
        if self._session is not None:
            self._parent_sessions.append(self._session)
            self._session = Session(self._session.settings)


SESSIONS = Sessions()


def setting_names(settings: object) -> dict[str, object]:
    """Return settings by field name; upper-case names are accepted like variables."""
    if not isinstance(settings, dict):
        raise InvalidValueError("settings", type(settings).__name__, "a dict of settings")
    return {str(name).lower(): value for name, value in settings.items()}
