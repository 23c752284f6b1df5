"""The group roles: each can do its own work and nothing else."""

import gc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable, all_cuts
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import (
    Candidates,
    StoredCandidates,
)
from batch_pipeline.inventory.tables import metadata
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState, IdRange
from batch_pipeline.model.errors import PermissionDeniedError
from batch_pipeline.model.load import Claim as LoadClaim
from batch_pipeline.model.load import Loaded, Loading
from batch_pipeline.model.location import to_path
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, open_defs_harness
from batch_pipeline_tests.defs.test_maintenance import collected, facts, reconciled
from batch_pipeline_tests.factories import found_file, limits, stream
from batch_pipeline_tests.inventory.audit_fixture import Feed, row_counts
from batch_pipeline_tests.inventory.logins import Logins, database_name, run, url_for_login
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    choose_watermark,
    meta_engine,
)
from batch_pipeline_tests.inventory.operations_fixture import OPERATIONS, InventoryFixture
from batch_pipeline_tests.seeds import (
    LEASE,
    ORDER_ID,
    claimed,
    expire,
    plan,
    publish,
    query,
    register,
)

PRIVILEGES = r"""
SELECT grantee, privilege_type, table_name FROM information_schema.table_privileges
 WHERE table_schema = 'batch_pipeline' AND grantee LIKE 'bp\_%' AND grantee <> 'bp_owner'
UNION
SELECT grantee, privilege_type, table_name || '.' || column_name
  FROM information_schema.column_privileges
 WHERE table_schema = 'batch_pipeline' AND privilege_type = 'UPDATE'
   AND grantee LIKE 'bp\_%' AND grantee <> 'bp_owner'
"""
PUBLIC_PRIVILEGES = """
SELECT 'schema ' || n.nspname FROM pg_catalog.pg_namespace n, aclexplode(n.nspacl) a
 WHERE n.nspname = 'batch_pipeline' AND a.grantee = 0
UNION ALL
SELECT 'relation ' || c.relname FROM pg_catalog.pg_class c, aclexplode(c.relacl) a
 WHERE c.relnamespace = 'batch_pipeline'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'column ' || t.attname FROM pg_catalog.pg_attribute t
  JOIN pg_catalog.pg_class c ON c.oid = t.attrelid, aclexplode(t.attacl) a
 WHERE c.relnamespace = 'batch_pipeline'::regnamespace AND a.grantee = 0
UNION ALL
SELECT 'function ' || p.proname FROM pg_catalog.pg_proc p
 WHERE p.pronamespace = 'batch_pipeline'::regnamespace
"""
EVEN_ROWS = """
CREATE POLICY even ON ops.files USING (id % 2 = 0);
ALTER TABLE ops.files ENABLE ROW LEVEL SECURITY
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesFixture:
    """A published batch, a running attempt, and an unplanned item."""

    logins: Logins
    published: Batch
    attempt: Attempt


@pytest.fixture
def state(logins: Logins) -> Iterator[RolesFixture]:
    """The fixture, set up by planner and worker with their own rights only."""
    planner, worker = logins.of("paul"), logins.of("wanda")
    register(planner, 6)
    first, second = plan(planner, limits(max_count=3))
    register(planner, 1, first=7)
    worker.schemas.widen("orders", [ORDER_ID], text_source=True)
    publish(worker, first)
    with claimed(worker, second) as attempt:
        yield RolesFixture(logins=logins, published=first, attempt=attempt)


@pytest.fixture
def admin(granted_url: str) -> Iterator[Database]:
    """The inventory as opened by the superuser."""
    with closing(open_database(granted_url, migrated=False)) as opened:
        yield opened


def test_roles_file_grants_only_what_each_role_needs(admin: Database) -> None:
    """DELETE only on bookmarks; UPDATE column by column; nothing to PUBLIC.

    There are no functions, which PUBLIC could execute.
    """
    assert query(admin, PUBLIC_PRIVILEGES) == []
    tables = {table.name for table in metadata.tables.values()}
    tables |= {"alembic_version", "inventory", "published"}
    rights: dict[tuple[str, str], set[str]] = defaultdict(set)
    for role, verb, name in query(admin, PRIVILEGES):
        rights[role, verb].add(name)
    may_create = "SELECT has_schema_privilege(:role, 'batch_pipeline', 'CREATE')"
    for role in ("bp_planner", "bp_worker", "bp_reader"):
        assert query(admin, may_create, role=role) == [(False,)]
        assert rights.pop((role, "SELECT")) == tables
    planner, worker = rights.pop(("bp_planner", "UPDATE")), rights.pop(("bp_worker", "UPDATE"))
    assert rights == {
        ("bp_planner", "DELETE"): {"bookmark"},
        ("bp_planner", "INSERT"): {
            *("batch", "batch_state", "bookmark", "ceiling_candidate", "item", "job")
        },
        ("bp_worker", "INSERT"): {
            *("attempt", "attempt_item", "load", "part_file", "schema_version", "target_probe")
        },
    }
    assert planner == {
        *("attempt.status", "attempt.finished_at", "attempt.error", "attempt.logging"),
        *("batch.superseded_at", "batch_state.state", "batch_state.forgiven", "bookmark.last_id"),
        *("ceiling_candidate.state", "ceiling_candidate.saved_at"),
        *("item.size_bytes", "item.modified_at", "item.etag"),
        *("job.max_attempts", "job.bisect", "job.config", "job.paused_at", "job.paused_reason"),
    }
    assert {name for name in worker if not name.startswith(("attempt.", "load."))} == {
        *("batch_state.attempts", "batch_state.forgiven", "batch_state.generation"),
        *("batch_state.state", "job.publish_count"),
    }
    never = {"id", "batch_id", "number", "token", "liveness_key", "run_id", "started_at"}
    never |= {"attempt_id", "stream", "target"}
    assert not never & {name.split(".")[1] for name in worker}


def test_planner_can_register_plan_and_control_jobs(logins: Logins) -> None:
    planner = logins.of("paul")
    register(planner, 6)
    changed = [found_file(1, size_bytes=20)]
    assert planner.meta_table("orders").register(changed, accept_changed=True).accepted == 1
    whole, _ = plan(planner, limits(max_count=3))
    register(planner, 3, first=7)
    assert len(plan(planner, limits(max_count=3))) == 1
    planner.jobs.pause("orders", "stocktaking")
    planner.jobs.resume("orders")
    halves = planner.jobs.split("orders", whole.id, planner.meta_table("orders").reflected())
    assert planner.jobs.cancel("orders", halves[0].id).batches == 1
    assert planner.jobs.retry("orders", batches=[halves[0].id]) == 1
    selection = Selection(ids=IdRange(first_id=1, last_id=3))
    backfill = Backfill.of_stream("orders", "2023", selection, limits())
    assert planner.backfills.plan(backfill, planner.meta_table("orders")).items == 3
    _save(planner)


def test_planner_can_cancel_running_attempt(state: RolesFixture) -> None:
    assert state.logins.of("paul").jobs.cancel("orders").attempts == 1
    states = [status.state for status in state.logins.of("rita").batches.statuses("orders")]
    assert states == [BatchState.PUBLISHED, BatchState.CANCELLED]


def test_worker_can_claim_publish_fail_and_take_over(state: RolesFixture) -> None:
    worker, attempt = state.logins.of("wanda"), state.attempt
    assert worker.attempts.fail(attempt, "no more paper", AttemptStatus.FAILED)
    with claimed(worker, attempt.batch) as second:
        expire(worker, second)
        assert worker.attempts.close_dead("orders") == 1
    with claimed(worker, attempt.batch) as third:
        error, status = "Spark is gone", AttemptStatus.ABANDONED
        assert worker.attempts.fail(third, error, status, counts=False)
    with claimed(worker, attempt.batch) as last:
        assert worker.attempts.succeed(last, result={"rows": 1}, logging="done", seen=None) == 1
    again = publish(worker, state.published)
    worker.attempts.record_pointer(again, "file:///batches/pointer.json")
    assert worker.stored_attempts.mark_superseded([1]) == {1}
    assert [status.state for status in worker.batches.statuses("orders")] == [
        BatchState.PUBLISHED
    ] * 2
    assert worker.manifests.of_batch(state.published) == again


def test_worker_can_load_published_batches(state: RolesFixture) -> None:
    worker = state.logins.of("wanda")
    for _ in range(2):
        loadings = list(worker.loads.due(stream(), "warehouse"))
        with _claimed_load(worker, loadings) as claim:
            assert claim is not None
            worker.heartbeat._renew_all()
            worker.loads.succeed(claim.load, Loaded(records=5), None)
        assert worker.loads.void("orders", "warehouse", [loadings[0].label])
    with _claimed_load(worker, loadings) as claim:
        assert claim is not None
        worker.loads.fail(claim.load, KeyboardInterrupt())
    (status,) = state.logins.of("rita").loads.target_statuses("orders", ["warehouse"])
    assert (status.loaded, status.due) == (0, 1)


def _claimed_load(
    database: Database, loadings: Sequence[Loading]
) -> AbstractContextManager[LoadClaim | None]:
    return database.loads.claim("orders", "warehouse", loadings, run_id="run-1", lease=LEASE)


def test_reader_stores_no_candidates(logins: Logins) -> None:
    _save(logins.of("rita"))
    assert query(logins.of("rita"), "SELECT FROM batch_pipeline.ceiling_candidate") == []


def _save(database: Database) -> None:
    candidates = Candidates(strategy=Strategy.LOCKS, epoch="")
    StoredCandidates(database.engine, "here").save("ops.files", candidates)


def test_owner_can_delete_stream(state: RolesFixture) -> None:
    owner = state.logins.of("olga")
    owner.delete_stream("orders")
    assert [query(owner, "SELECT FROM batch_pipeline.item, batch_pipeline.job")] == [[]]


@contextmanager
def _feed(logins: Logins, login: str, max_count: int = 10) -> Iterator[Feed]:
    """Create a meta table of ten files that a login may only read, and a job of the login."""
    run(logins.url, "CREATE SCHEMA ops")
    run(logins.url, CREATE_FILES)
    run(logins.url, "INSERT INTO ops.files (size_in_bytes) SELECT 1 FROM generate_series(1, 10)")
    run(logins.url, f"GRANT USAGE ON SCHEMA ops TO {login}")
    run(logins.url, f"GRANT SELECT ON ops.files TO {login}")
    with meta_engine(url_for_login(logins.url, login)) as engine:
        table = ReflectedMetaTable.open(engine, "ops.files", FILES)
        feed = Feed(logins.of(login), table, limits(max_count=max_count), job="orders")
        feed.source = MetaSource(table=table, choice=choose_watermark(table))
        yield feed


def test_planner_and_worker_can_acquire_split_and_audit(logins: Logins) -> None:
    """SELECT on the meta table is enough."""
    with _feed(logins, "lib", max_count=4) as feed:
        assert feed.source.choice.strategy is Strategy.LOCKS
        feed.terms = {"max_attempts": 1, "bisect": True}
        feed.database.attempts.fail(feed.acquired(), "bad", AttemptStatus.FAILED)
        assert feed.drain() == [[5, 6, 7, 8], [9, 10], [1, 2], [3, 4]]
        run(logins.url, "INSERT INTO ops.files (id, size_in_bytes) VALUES (-5, 1)")
        assert feed.audit().late.first == (-5,)
        store = StoredCandidates(feed.database.engine, "here")
        choose_watermark(feed.table, store=store).watermark.read()
        cuts = [str(cut.id_range) for cut in all_cuts(feed.table, 0, 10, feed.bounds)]
    assert cuts == ["1..4", "5..8", "9..10"]


def test_planner_alone_cannot_acquire(logins: Logins, admin: Database) -> None:
    """A denied acquire leaves nothing."""
    denied = pytest.raises(PermissionDeniedError, match="permission denied")
    with _feed(logins, "paul") as feed, denied:
        feed.acquire()
    assert feed.database.heartbeat._to_expire == {}
    assert row_counts(admin) == [(0, 0, 0, 0, 0)]


def test_acquire_without_temporary_privilege(logins: Logins) -> None:
    run(logins.url, f"REVOKE TEMPORARY ON DATABASE {database_name(logins.url)} FROM PUBLIC")
    with _feed(logins, "lib", max_count=2) as feed:
        assert len(feed.drain()) == 5


@pytest.mark.parametrize(
    "restriction", ["REVOKE USAGE ON SCHEMA ops FROM lib", EVEN_ROWS], ids=["schema", "rows"]
)
def test_acquire_with_less_rights_than_the_login_of_the_meta_table(
    logins: Logins, restriction: str
) -> None:
    """The login of the inventory does not cut the batches then."""
    with _feed(logins, "lib", max_count=2) as feed, meta_engine(logins.url) as engine:
        run(logins.url, restriction)
        feed.table = ReflectedMetaTable.open(engine, "ops.files", FILES)
        feed.source = MetaSource(table=feed.table, choice=choose_watermark(feed.table))
        assert feed.source.cut_statements(feed.database.engine) is None
        assert feed.drain() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]


WITH_POLICIES = """
CREATE TABLE ops.shown (LIKE ops.files INCLUDING ALL);
ALTER TABLE ops.shown ENABLE ROW LEVEL SECURITY;
"""


@pytest.mark.parametrize(
    "create",
    [
        "CREATE VIEW ops.shown AS SELECT * FROM ops.files",
        WITH_POLICIES,
    ],
    ids=["view", "policies"],
)
def test_table_that_may_show_other_rows_to_the_inventory_is_cut_by_its_own_login(
    logins: Logins, admin: Database, create: str
) -> None:
    with _feed(logins, "lib") as feed:
        assert feed.source.cut_statements(admin.engine) is not None
        run(logins.url, create)
        run(logins.url, "GRANT SELECT ON ops.shown TO lib")
        shown = ReflectedMetaTable.open(feed.table.engine, "ops.shown", FILES)
        source = MetaSource(table=shown, choice=feed.source.choice)
        assert source.cut_statements(admin.engine) is None


@pytest.fixture
def worker_url(granted_url: str) -> str:
    """URL of a login that is planner and worker; for the test it may also create meta tables."""
    run(granted_url, "GRANT CREATE ON SCHEMA public TO lib")
    return url_for_login(granted_url, "lib")


@pytest.fixture
def worker(worker_url: str) -> Iterator[Database]:
    """The inventory as opened by that login."""
    with closing(open_database(worker_url, migrated=False)) as opened:
        yield opened


@pytest.fixture
def defs_harness(
    worker: Database, worker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsHarness]:
    """The stream `orders` in Dagster, which uses that login."""
    with open_defs_harness(worker, worker_url, tmp_path, monkeypatch) as opened:
        yield opened


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_planner_and_worker_can_run_every_operation(worker: Database) -> None:
    inventory = InventoryFixture(worker)
    for prepare in OPERATIONS.values():
        prepare(inventory)()
    inventory.finish()
    inventory.close()
    gc.collect()  # collect connections here whose finalizers warn, where warnings are expected


@pytest.mark.long
def test_planner_and_worker_can_run_sensors_and_jobs(defs_harness: DefsHarness) -> None:
    batches = [status.batch for status in defs_harness.database.batches.statuses("orders")]
    publish(defs_harness.database, batches[0])
    Path(to_path(defs_harness.stream.storage.root)).mkdir(parents=True, exist_ok=True)
    ticked = []
    for sensor in defs_harness.definitions.sensors or ():
        if sensor.name != "batch_pipeline_run_ends":
            defs_harness.tick(sensor.name)
            ticked.append(sensor.name)
    failed = defs_harness.start_run(dg.RunRequest(job_name=defs_harness.batches.job, tags={}))
    defs_harness.instance.report_run_failed(failed)
    assert "closed: 0" in defs_harness.tick_run_ends()
    assert ticked == ["orders_new_files", "orders_backfill"]
    assert reconciled(defs_harness).success
    metadata = facts(collected(defs_harness, dry_run=False))
    assert metadata["removed_files"] == 0
