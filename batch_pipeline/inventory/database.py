"""Open the inventory as one object with its parts: batches, attempts, jobs, loads and so on."""

import sqlalchemy as sa

from batch_pipeline.inventory import tables
from batch_pipeline.inventory.acquire import Acquirer
from batch_pipeline.inventory.attempts import FencedAttempts, Heartbeat
from batch_pipeline.inventory.backfills import Backfills
from batch_pipeline.inventory.change_feed import ChangeFeed
from batch_pipeline.inventory.connection import location, open_engine, transaction
from batch_pipeline.inventory.garbage import StoredAttempts
from batch_pipeline.inventory.job_control import JobControl, RestoreCheck, RunEnds
from batch_pipeline.inventory.late_arrivals import LateArrivals
from batch_pipeline.inventory.loads import TargetLoads
from batch_pipeline.inventory.manifests import AttemptHistory, Manifests, PublishedBatches
from batch_pipeline.inventory.meta_tables.own_table import OwnMetaTable
from batch_pipeline.inventory.migrate import check_revision, migrate
from batch_pipeline.inventory.planning import PlannedBatches
from batch_pipeline.inventory.schema_versions import SchemaVersions
from batch_pipeline.inventory.status import StreamStatuses, WorkCounts


class Database:
    """An open inventory; each attribute is a part of its interface."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.heartbeat = Heartbeat(engine)
        self.batches = PlannedBatches(engine)
        self.change_feed = ChangeFeed(engine)
        self.attempts = FencedAttempts(engine, self.heartbeat)
        self.acquisitions = Acquirer(engine, self.attempts)
        self.backfills = Backfills(engine)
        self.schemas = SchemaVersions(engine)
        self.manifests = Manifests(engine)
        self.history = AttemptHistory(engine)
        self.jobs = JobControl(engine)
        self.late_arrivals = LateArrivals(engine)
        self.run_ends = RunEnds(engine)
        self.published = PublishedBatches(engine)
        self.stream_statuses = StreamStatuses(engine)
        self.stored_attempts = StoredAttempts(engine)
        self.loads = TargetLoads(engine, self.heartbeat)
        self.work_counts = WorkCounts(engine)
        self.restore_check = RestoreCheck(engine)

    @property
    def location(self) -> str:
        """Host and database, without credentials."""
        return location(self.engine)

    def meta_table(self, stream: str) -> OwnMetaTable:
        """Return the meta table of a stream whose files the product registers."""
        return OwnMetaTable(inventory=self.engine, stream=stream)

    def migrate(self) -> tuple[str, str]:
        """Migrate the schema to this release; return the revisions before and after."""
        return migrate(self.engine)

    def delete_stream(self, stream: str) -> None:
        """Delete a stream's items, jobs, batches, attempts and manifests in one transaction."""
        jobs = sa.select(tables.job.c.id).where(tables.job.c.stream == stream)
        batches = sa.select(tables.batch.c.id).where(tables.batch.c.job_id.in_(jobs))
        attempts = sa.select(tables.attempt.c.id).where(tables.attempt.c.batch_id.in_(batches))
        with transaction(self.engine) as connection:
            for table in (tables.load, tables.part_file, tables.attempt_item):
                connection.execute(sa.delete(table).where(table.c.attempt_id.in_(attempts)))
            of_batches = tables.attempt.c.batch_id.in_(batches)
            connection.execute(sa.delete(tables.attempt).where(of_batches))
            for table in (tables.schema_version, tables.batch_state, tables.batch, tables.bookmark):
                connection.execute(sa.delete(table).where(table.c.job_id.in_(jobs)))
            for table in (tables.job, tables.item):
                connection.execute(sa.delete(table).where(table.c.stream == stream))

    def close(self) -> None:
        """Close all connections."""
        self.heartbeat.close()
        self.engine.dispose()


def open_database(url: str, *, migrated: bool | None) -> Database:
    """Open the inventory at a URL.

    If `migrated` is True, its schema is migrated; if False, it is checked; if None, neither.

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
