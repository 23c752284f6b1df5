"""The inventory as one object: what the rooms above open, use and close."""

from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from batch_pipeline.inventory.forget import forget
from batch_pipeline.inventory.jobs.backfills import Backfills
from batch_pipeline.inventory.jobs.job_control import JobControl
from batch_pipeline.inventory.jobs.late_arrivals import LateArrivals
from batch_pipeline.inventory.jobs.run_ends import RunEnds
from batch_pipeline.inventory.jobs.standings import Standings
from batch_pipeline.inventory.meta.meta_table import OwnMetaTable
from batch_pipeline.inventory.server import embedded
from batch_pipeline.inventory.server.engine import location, open_engine
from batch_pipeline.inventory.upkeep.migrate import check_revision, migrate
from batch_pipeline.inventory.upkeep.older import RestoredInventory
from batch_pipeline.inventory.work.acquire import Acquisitions
from batch_pipeline.inventory.work.attempts import FencedAttempts
from batch_pipeline.inventory.work.batch_news import BatchNews
from batch_pipeline.inventory.work.batches import PlannedBatches
from batch_pipeline.inventory.work.garbage import StoredAttempts
from batch_pipeline.inventory.work.heartbeat import Heartbeat
from batch_pipeline.inventory.work.history import History
from batch_pipeline.inventory.work.loads import TargetLoads
from batch_pipeline.inventory.work.manifests import Manifests
from batch_pipeline.inventory.work.published_batches import PublishedBatches
from batch_pipeline.inventory.work.schemas import SchemaVersions
from batch_pipeline.inventory.work.work_counts import WorkCounts


@dataclass(frozen=True, slots=True)
class Database:
    """An open inventory; each attribute is one of its tables' faces."""

    engine: sa.Engine
    heartbeat: Heartbeat = field(init=False)
    batches: PlannedBatches = field(init=False)
    batch_news: BatchNews = field(init=False)
    attempts: FencedAttempts = field(init=False)
    acquisitions: Acquisitions = field(init=False)
    backfills: Backfills = field(init=False)
    schemas: SchemaVersions = field(init=False)
    manifests: Manifests = field(init=False)
    history: History = field(init=False)
    jobs: JobControl = field(init=False)
    late_arrivals: LateArrivals = field(init=False)
    run_ends: RunEnds = field(init=False)
    published: PublishedBatches = field(init=False)
    standings: Standings = field(init=False)
    stored_attempts: StoredAttempts = field(init=False)
    loads: TargetLoads = field(init=False)
    work_counts: WorkCounts = field(init=False)
    restored: RestoredInventory = field(init=False)

    def __post_init__(self) -> None:
        heartbeat = Heartbeat(self.engine)
        attempts = FencedAttempts(self.engine, heartbeat)
        for name, face in (
            ("heartbeat", heartbeat),
            ("batches", PlannedBatches(self.engine)),
            ("batch_news", BatchNews(self.engine)),
            ("attempts", attempts),
            ("acquisitions", Acquisitions(self.engine, attempts)),
            ("backfills", Backfills(self.engine)),
            ("schemas", SchemaVersions(self.engine)),
            ("manifests", Manifests(self.engine)),
            ("history", History(self.engine)),
            ("jobs", JobControl(self.engine)),
            ("late_arrivals", LateArrivals(self.engine)),
            ("run_ends", RunEnds(self.engine)),
            ("published", PublishedBatches(self.engine)),
            ("standings", Standings(self.engine)),
            ("stored_attempts", StoredAttempts(self.engine)),
            ("loads", TargetLoads(self.engine, heartbeat)),
            ("work_counts", WorkCounts(self.engine)),
            ("restored", RestoredInventory(self.engine)),
        ):
            object.__setattr__(self, name, face)

    @property
    def location(self) -> str:
        """Host and database, without credentials."""
        return location(self.engine)

    def meta_table(self, stream: str) -> OwnMetaTable:
        """Give the items of a stream."""
        return OwnMetaTable(engine=self.engine, stream=stream)

    def migrate(self) -> tuple[str, str]:
        """Bring the schema to this release's revision; gives the revisions before and after."""
        return migrate(self.engine)

    def forget(self, stream: str) -> None:
        """Delete all rows of a stream."""
        forget(self.engine, stream)

    def close(self) -> None:
        """Close all connections."""
        self.heartbeat.close()
        self.engine.dispose()


def database_url(configured: str | None, embedded_folder: Path) -> str:
    """Give the URL of the configured server, or start the embedded one and give its URL.

    Raises:
        EmbeddedDatabaseError: it did not start.
    """
    return embedded.ensure_running(embedded_folder) if configured is None else configured


def open_database(url: str, *, migrated: bool | None) -> Database:
    """Open the inventory at a URL.

    `migrated` brings its schema up to date, False only checks it, None does neither.

    Raises:
        DatabaseUnreachableError, DatabaseTooOldError: the server cannot be used.
        SchemaRevisionError: the schema is not the one this release works with.
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
