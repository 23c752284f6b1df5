"""The arguments of `acquire_batch` with their validation, and the library's connections.

Connections are opened on first use.
"""

import atexit
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

from batch_pipeline.app import Pipeline
from batch_pipeline.client.batch import Batch
from batch_pipeline.config.environment import Settings, load_settings
from batch_pipeline.inventory.acquire import AcquireRequest
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.chained_table import PUBLISHED_COLUMNS, is_published
from batch_pipeline.inventory.meta_tables.reflected_table import MetaItem, ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import (
    MetaSource,
    MetaSources,
    SourceTerms,
    read_items,
)
from batch_pipeline.inventory.meta_tables.watermarks import SettleBy
from batch_pipeline.model.batch import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.batch import Batch as PlannedBatch
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.job import Job, JobTerms, check_storable
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.stream import Strategy

DEFAULT_LEASE = timedelta(minutes=5)
_MIN_LEASE, _MAX_LEASE = timedelta(seconds=1), timedelta(days=36_525)
_ROLES = ("uid", "item", "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireOptions:
    """The arguments of `acquire_batch`. Each method validates the arguments that it uses.

    Raises:
        InvalidValueError: an argument is not valid; the error names it.
    """

    job: str
    meta_table_name: str
    meta_table_cols: Mapping[str, str | None] | None = None
    job_identifier: str | None = None
    batch_id_min: int | None = None
    batch_id_max: int | None = None
    batch_weight: float | None = None
    batch_count: int | None = None
    where: object = None
    max_attempts: int = 3
    bisect: bool = False
    ceiling: str | None = None
    settle_by: str | tuple[str, timedelta] | None = None
    on_bad_weight: int | None = None
    lease: timedelta = DEFAULT_LEASE

    def source_terms(self) -> SourceTerms:
        """Return the options for reading the meta table."""
        if not isinstance(self.meta_table_name, str):
            raise InvalidValueError("meta_table_name", self.meta_table_name, "the name of a table")
        is_chained = is_published(self.meta_table_name)
        columns = _column_roles(
            self.meta_table_cols, PUBLISHED_COLUMNS if is_chained else MetaColumns()
        )
        if self.batch_weight is not None and columns.weight is None:
            expected = "None, because meta_table_cols names no weight"
            raise InvalidValueError("batch_weight", self.batch_weight, expected)
        return SourceTerms(
            name=self.meta_table_name,
            columns=columns,
            where=None if self.where is None else parse_filter(self.where),
            on_bad_weight=_check_integer("on_bad_weight", self.on_bad_weight, least=0),
            strategy=_check_strategy(self.ceiling),
            settle_by=_check_settle_by(self.settle_by),
            reader=self.job_name() if is_chained else None,
        )

    def to_request(self, source: MetaSource) -> AcquireRequest:
        """Return the request to acquire a batch from an open table."""
        return AcquireRequest(
            terms=self.terms(source),
            limits=self.limits(),
            config=self.config(source),
            window=self.window(),
            run_id=self.run_id(),
            lease=self.lease_duration(),
        )

    def terms(self, source: MetaSource) -> JobTerms:
        """Return the definition of the job."""
        return JobTerms(
            name=self.job_name(),
            meta_table=source.table.canonical_name,
            where=source.table.where,
            identity=source.table.identity,
            max_attempts=self.attempt_limit(),
            bisect=self.does_bisect(),
        )

    def attempt_limit(self) -> int:
        """Return the maximum number of attempts on a batch."""
        return _required_integer("max_attempts", self.max_attempts, least=1, bits=31)

    def does_bisect(self) -> bool:
        """Return whether failing batches are split."""
        if not isinstance(self.bisect, bool):
            raise InvalidValueError("bisect", self.bisect, "True or False")
        return self.bisect

    def job_name(self) -> str:
        """Return the name of the job."""
        if not isinstance(self.job, str):
            raise InvalidValueError("job", self.job, "text")
        return self.job

    def limits(self) -> Limits:
        """Return the limits; without any, all items up to the high watermark are one batch."""
        weight = self.batch_weight
        if isinstance(weight, float) and math.isfinite(weight):
            weight = math.floor(weight)  # weights are integers
        max_weight = _check_integer("batch_weight", weight, least=1)
        max_count = _check_integer("batch_count", self.batch_count, least=1)
        return Limits(max_weight=max_weight or MAX_ID, max_count=max_count or MAX_ID)

    def window(self) -> IdRange:
        """Return the range of ids to acquire from."""
        first_id = _check_integer("batch_id_min", self.batch_id_min, least=MIN_ID)
        last_id = _check_integer("batch_id_max", self.batch_id_max, least=MIN_ID)
        first_id = MIN_ID if first_id is None else first_id
        last_id = MAX_ID if last_id is None else last_id
        if last_id < first_id:
            expected = f"at least batch_id_min, which is {first_id}"
            raise InvalidValueError("batch_id_max", last_id, expected)
        return IdRange(first_id=first_id, last_id=last_id)

    def run_id(self) -> str:
        """Return the identifier stored with the attempt; empty if none is given."""
        text = "" if self.job_identifier is None else str(self.job_identifier)
        return check_storable("job_identifier", text)

    def lease_duration(self) -> timedelta:
        """Return how long a process may be silent before its batch is handed out again."""
        lease = self.lease
        if not isinstance(lease, timedelta) or not _MIN_LEASE <= lease <= _MAX_LEASE:
            raise InvalidValueError("lease", lease, "a timedelta from 1 s to 100 years")
        return lease

    def config(self, source: MetaSource) -> dict[str, Any]:
        """Return the values to store with the batch: arguments and high watermark strategy."""
        table = source.table
        roles = table.columns
        return {
            "meta_table": {
                "name": table.canonical_name,
                "cols": {"uid": roles.uid, "item": roles.item, "weight": roles.weight},
            },
            "job": self.job,
            "job_identifier": self.run_id() or None,
            "batch_id_min": self.batch_id_min,
            "batch_id_max": self.batch_id_max,
            "batch_weight": self.batch_weight,
            "batch_count": self.batch_count,
            "where": None if table.where is None else table.where.to_json(),
            "on_bad_weight": self.on_bad_weight,
            "ceiling": source.choice.strategy.value,
        }


def _column_roles(roles: Mapping[str, str | None] | None, defaults: MetaColumns) -> MetaColumns:
    if roles is None:
        return defaults
    if not isinstance(roles, Mapping):
        raise InvalidValueError("meta_table_cols", roles, "a dict of uid, item and weight")
    names: dict[str, Any] = {}
    for role, name in roles.items():
        if role not in _ROLES:
            raise InvalidValueError("key of meta_table_cols", role, f"one of {', '.join(_ROLES)}")
        if not isinstance(name, str) and not (name is None and role == "weight"):
            raise InvalidValueError(f"meta_table_cols[{role!r}]", name, "the name of a column")
        names[role] = name
    return replace(defaults, **names)


def _check_integer(name: str, value: object, *, least: int) -> int | None:
    return None if value is None else _required_integer(name, value, least=least, bits=63)


def _required_integer(name: str, value: object, *, least: int, bits: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**bits:
        raise InvalidValueError(name, value, f"a whole number from {least} to 2^{bits} - 1")
    return value


def _check_strategy(name: str | None) -> Strategy | None:
    try:
        return None if name is None else Strategy(name)
    except ValueError as error:
        raise InvalidValueError("ceiling", name, f"one of {', '.join(Strategy)}") from error


def _check_settle_by(value: str | tuple[str, timedelta] | None) -> SettleBy | None:
    if value is None:
        return None
    if isinstance(value, str):
        return SettleBy(value)
    match value:
        case (str(column), timedelta() as delay):
            return SettleBy(column, delay)
    raise InvalidValueError("settle_by", value, "a column, or a pair of column and timedelta")


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

    def replace(self, settings: Settings | None) -> None:
        """Replace the session by one with other settings, or by none, and close the old one."""
        with self._mutex:
            previous = self._session
            self._session = None if settings is None else self._create(settings)
        if previous is not None:
            previous.close()

    def close(self) -> None:
        """Close the session; the next use configures the library from the environment."""
        self.replace(None)

    def _create(self, settings: Settings) -> Session:
        if not self._hooks_registered:
            self._hooks_registered = True
            os.register_at_fork(after_in_child=self._reset_in_child)
            atexit.register(self.close)
        return Session(settings)

    def _reset_in_child(self) -> None:
        """Replace the session without closing its connections, which would disturb the parent."""
        self._mutex = threading.Lock()  # another thread of the parent may have held it
        if self._session is not None:
            self._parent_sessions.append(self._session)
            self._session = Session(self._session.settings)


SESSIONS = Sessions()


def setting_names(settings: object) -> dict[str, object]:
    """Return settings by field name; upper-case names are accepted, as for variables."""
    if not isinstance(settings, dict):
        raise InvalidValueError("settings", type(settings).__name__, "a dict of settings")
    return {str(name).lower(): value for name, value in settings.items()}
