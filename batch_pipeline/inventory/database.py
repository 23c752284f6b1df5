"""Open the inventory as one object with its parts: batches, attempts, jobs, loads and so on."""

from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from batch_pipeline.inventory import embedded_server
from batch_pipeline.inventory.acquire import Acquirer
from batch_pipeline.inventory.attempts import FencedAttempts
from batch_pipeline.inventory.backfills import Backfills
from batch_pipeline.inventory.change_feed import ChangeFeed
from batch_pipeline.inventory.connection import location, open_engine, transaction
from batch_pipeline.inventory.garbage import StoredAttempts
from batch_pipeline.inventory.heartbeat import Heartbeat
from batch_pipeline.inventory.job_control import JobControl, RestoreCheck, RunEnds
from batch_pipeline.inventory.late_arrivals import LateArrivals
from batch_pipeline.inventory.loads import TargetLoads
from batch_pipeline.inventory.manifests import AttemptHistory, Manifests, PublishedBatches
from batch_pipeline.inventory.meta_tables.registered_table import OwnMetaTable
from batch_pipeline.inventory.migrate import check_revision, migrate
from batch_pipeline.inventory.planning import PlannedBatches
from batch_pipeline.inventory.schemas import SchemaVersions
from batch_pipeline.inventory.status import StreamStatuses, WorkCounts
from batch_pipeline.inventory.tables import (
    attempt,
    attempt_item,
    batch,
    batch_state,
    bookmark,
    item,
    job,
    load,
    part_file,
    schema_version,
)


def _delete_stream(engine: sa.Engine, stream: str) -> None:
    """Delete a stream's items, jobs, batches, attempts and manifests in one transaction."""
    jobs = sa.select(job.c.id).where(job.c.stream == stream)
    batches = sa.select(batch.c.id).where(batch.c.job_id.in_(jobs))
    attempts = sa.select(attempt.c.id).where(attempt.c.batch_id.in_(batches))
    with transaction(engine) as connection:
        for delete in (
            sa.delete(load).where(load.c.attempt_id.in_(attempts)),
            sa.delete(part_file).where(part_file.c.attempt_id.in_(attempts)),
            sa.delete(attempt_item).where(attempt_item.c.attempt_id.in_(attempts)),
            sa.delete(attempt).where(attempt.c.batch_id.in_(batches)),
            sa.delete(schema_version).where(schema_version.c.job_id.in_(jobs)),
            sa.delete(batch_state).where(batch_state.c.job_id.in_(jobs)),
            sa.delete(batch).where(batch.c.job_id.in_(jobs)),
            sa.delete(bookmark).where(bookmark.c.job_id.in_(jobs)),
            sa.delete(job).where(job.c.stream == stream),
            sa.delete(item).where(item.c.stream == stream),
        ):
            connection.execute(delete)


@dataclass(frozen=True, slots=True)
class Database:
    """An open inventory; each attribute is a part of its interface."""

    engine: sa.Engine
    heartbeat: Heartbeat = field(init=False)
    batches: PlannedBatches = field(init=False)
    change_feed: ChangeFeed = field(init=False)
    attempts: FencedAttempts = field(init=False)
    acquisitions: Acquirer = field(init=False)
    backfills: Backfills = field(init=False)
    schemas: SchemaVersions = field(init=False)
    manifests: Manifests = field(init=False)
    history: AttemptHistory = field(init=False)
    jobs: JobControl = field(init=False)
    late_arrivals: LateArrivals = field(init=False)
    run_ends: RunEnds = field(init=False)
    published: PublishedBatches = field(init=False)
    stream_statuses: StreamStatuses = field(init=False)
    stored_attempts: StoredAttempts = field(init=False)
    loads: TargetLoads = field(init=False)
    work_counts: WorkCounts = field(init=False)
    restore_check: RestoreCheck = field(init=False)

    def __post_init__(self) -> None:
        heartbeat = Heartbeat(self.engine)
        attempts = FencedAttempts(self.engine, heartbeat)
        for name, part in (
            ("heartbeat", heartbeat),
            ("batches", PlannedBatches(self.engine)),
            ("change_feed", ChangeFeed(self.engine)),
            ("attempts", attempts),
            ("acquisitions", Acquirer(self.engine, attempts)),
            ("backfills", Backfills(self.engine)),
            ("schemas", SchemaVersions(self.engine)),
            ("manifests", Manifests(self.engine)),
            ("history", AttemptHistory(self.engine)),
            ("jobs", JobControl(self.engine)),
            ("late_arrivals", LateArrivals(self.engine)),
            ("run_ends", RunEnds(self.engine)),
            ("published", PublishedBatches(self.engine)),
            ("stream_statuses", StreamStatuses(self.engine)),
            ("stored_attempts", StoredAttempts(self.engine)),
            ("loads", TargetLoads(self.engine, heartbeat)),
            ("work_counts", WorkCounts(self.engine)),
            ("restore_check", RestoreCheck(self.engine)),
        ):
            object.__setattr__(self, name, part)

    @property
    def location(self) -> str:
        """Host and database, without credentials."""
        return location(self.engine)

    def meta_table(self, stream: str) -> OwnMetaTable:
        """Return the meta table of a stream whose files the product registers."""
        return OwnMetaTable(engine=self.engine, stream=stream)

    def migrate(self) -> tuple[str, str]:
        """Migrate the schema to this release; return the revisions before and after."""
        return migrate(self.engine)

    def delete_stream(self, stream: str) -> None:
        """Delete all rows of a stream."""
        _delete_stream(self.engine, stream)

    def close(self) -> None:
        """Close all connections."""
        self.heartbeat.close()
        self.engine.dispose()


def database_url(configured: str | None, embedded_folder: Path) -> str:
    """Return the configured URL, or start the embedded server and return its URL.

    Raises:
        ConfigurationError: the embedded server did not start.
    """
    return embedded_server.ensure_running(embedded_folder) if configured is None else configured


def open_database(url: str, *, migrated: bool | None) -> Database:
    """Open the inventory at a URL.

    With `migrated` True its schema is migrated, with False checked, with None neither.

    Raises:
        DatabaseUnreachableError, ConfigurationError: the server cannot be used.
        ConfigurationError: the schema has another revision.
    """
    database = Database(open_engine(url))
    try:
        if migrated:
            database.migrate()
        elif migrated is False:
            check_revision(database.engine)
    except BaseException:
        database.close()
        raise
    return database
