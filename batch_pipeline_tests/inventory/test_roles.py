"""The group roles: each can do its own work and nothing else."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import psycopg
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable, all_cuts
from batch_pipeline.inventory.meta_tables.sources import MetaSource
from batch_pipeline.inventory.meta_tables.watermarks import (
    Candidates,
    StoredCandidates,
)
from batch_pipeline.inventory.tables import metadata
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch, BatchState
from batch_pipeline.model.errors import MetaTableError, PermissionDeniedError
from batch_pipeline.model.load import Claim as LoadClaim
from batch_pipeline.model.load import Loaded, Loading
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, open_defs_harness
from batch_pipeline_tests.defs.test_maintenance import collected, facts, reconciled
from batch_pipeline_tests.factories import encoded, found_file, limits, stream
from batch_pipeline_tests.inventory.audit_fixture import Feed
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
    unplanned,
)

TABLES = sorted(metadata.tables.values(), key=lambda table: table.name)
WORKER_TABLES = {"attempt", "load"}  # rows that a worker inserts and ends
PRIVILEGES = r"""
SELECT grantee, table_name, privilege_type FROM information_schema.table_privileges
 WHERE table_schema = 'batch_pipeline' AND grantee LIKE 'bp\_%' AND grantee <> 'bp_owner'
UNION
SELECT grantee, table_name, 'UPDATE ' || column_name FROM information_schema.column_privileges
 WHERE table_schema = 'batch_pipeline' AND privilege_type = 'UPDATE'
   AND grantee LIKE 'bp\_%' AND grantee <> 'bp_owner'
 ORDER BY 1, 2, 3
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


def test_roles_file_grants_select_and_insert_on_every_table(admin: Database) -> None:
    rows = query(admin, PRIVILEGES)
    tables = {table.name for table in TABLES}
    for group in ("bp_planner", "bp_worker", "bp_reader"):
        read = {table for who, table, verb in rows if (who, verb) == (group, "SELECT")}
        assert read == tables | {"alembic_version", "inventory", "published"}, group
    assert {table for _, table, verb in rows if verb == "INSERT"} == tables


def test_roles_file_grants_nothing_else(admin: Database) -> None:
    """DELETE only on bookmarks; UPDATE column by column."""
    rows = query(admin, PRIVILEGES)
    verbs = {verb for _, _, verb in rows if not verb.startswith("UPDATE ")}
    assert verbs == {"SELECT", "INSERT", "DELETE"}
    assert [row[:2] for row in rows if row[2] == "DELETE"] == [("bp_planner", "bookmark")]
    assert {verb for who, _, verb in rows if who == "bp_reader"} == {"SELECT"}
    inserts = [row[:2] for row in rows if row[2] == "INSERT"]
    assert [table for who, table in inserts if who == "bp_worker"] == [
        *("attempt", "attempt_item", "load", "part_file", "schema_version", "target_probe")
    ]
    assert [table for who, table in inserts if who == "bp_planner"] == [
        *("batch", "batch_state", "bookmark", "ceiling_candidate", "item", "job")
    ]
    updates = [row[1:] for row in rows if row[0] == "bp_worker" and row[2].startswith("UPDATE ")]
    assert [(table, column) for table, column in updates if table not in WORKER_TABLES] == [
        ("batch_state", "UPDATE attempts"),
        ("batch_state", "UPDATE forgiven"),
        ("batch_state", "UPDATE generation"),
        ("batch_state", "UPDATE state"),
        ("job", "UPDATE publish_count"),
    ]
    changeable = ("max_attempts", "bisect", "config", "paused_at", "paused_reason")
    of_jobs = {row[2] for row in rows if row[:2] == ("bp_planner", "job")}
    assert of_jobs == {"SELECT", "INSERT", *(f"UPDATE {name}" for name in changeable)}
    planner = {row[2] for row in rows if row[:2] == ("bp_planner", "attempt")}
    assert planner == {
        "SELECT",
        *(f"UPDATE {name}" for name in ("status", "finished_at", "error", "logging")),
    }
    never = {"id", "batch_id", "number", "token", "liveness_key", "run_id", "started_at"}
    never |= {"attempt_id", "stream", "target"}
    assert not never & {column.split()[1] for table, column in updates if table in WORKER_TABLES}


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


def test_reader_can_read_every_table_and_view(state: RolesFixture) -> None:
    reader = state.logins.of("rita")
    for table in TABLES:
        with reader.engine.begin() as connection:
            connection.execute(sa.select(table)).all()
    statuses = query(reader, "SELECT job, status FROM batch_pipeline.inventory ORDER BY id")
    assert statuses == [("orders", "succeeded"), ("orders", "running")]
    assert reader.manifests.of_batch(state.published) is not None
    assert len(reader.history.of_item(state.published, 1)) == 1
    assert reader.schemas.latest("orders")[0] == 1
    assert unplanned(reader, reader.meta_table("orders")) == (1, 10)
    assert [report.publish_count for report in reader.jobs.jobs()] == [1]
    _save(reader)
    assert query(reader, "SELECT FROM batch_pipeline.ceiling_candidate") == []


def _save(database: Database) -> None:
    candidates = Candidates(strategy=Strategy.LOCKS, epoch="")
    StoredCandidates(database.engine, "here").save("ops.files", candidates)


def _claim_load(database: Database) -> None:
    with _claimed_load(database, list(database.loads.due(stream(), "warehouse"))):
        pass


USES: dict[str, Callable[[Database, RolesFixture], object]] = {
    "register": lambda database, _: register(database, 1, first=99),
    "accept": lambda database, _: database.meta_table("orders").register(
        [found_file(1, size_bytes=9)], accept_changed=True
    ),
    "plan": lambda database, _: plan(database, limits()),
    "pause": lambda database, _: database.jobs.pause("orders"),
    "retry": lambda database, _: database.jobs.retry("orders"),
    "claim": lambda database, state: claimed(database, state.published).__enter__(),
    "publish": lambda database, state: database.attempts.publish(
        state.attempt, encoded("forged"), stream()
    ),
    "succeed": lambda database, state: database.attempts.succeed(
        state.attempt, result=None, logging=None, seen=None
    ),
    "fail": lambda database, state: database.attempts.fail(
        state.attempt, "forged", AttemptStatus.FAILED
    ),
    "widen": lambda database, _: database.schemas.widen(
        "orders", [Column(name="amount", type=ColumnType.NUMBER)], text_source=True
    ),
    "load": lambda database, _: _claim_load(database),
    "delete a stream": lambda database, _: database.delete_stream("orders"),
}
RENEW = "UPDATE batch_pipeline.attempt SET lease_until = lease_until + interval '1 hour'"
OWNER_ONLY = (
    "delete a stream",
    "DELETE FROM batch_pipeline.attempt_item",
    "UPDATE batch_pipeline.batch SET last_id = last_id",
    "UPDATE batch_pipeline.attempt SET token = gen_random_uuid()",
    "TRUNCATE batch_pipeline.part_file",
    "ALTER TABLE batch_pipeline.job ADD own text",
    "CREATE TABLE batch_pipeline.own ()",
    "DROP VIEW batch_pipeline.inventory",
)
SAVE = "INSERT INTO batch_pipeline.ceiling_candidate VALUES ('here', 'ops.files', '{}')"
PLANNER_ONLY = ("register", "accept", "plan", "pause", SAVE)
WORKER_ONLY = ("claim", "publish", "succeed", RENEW, "widen", "load")
FORBIDDEN = {  # names of uses, and statements
    "paul": (*WORKER_ONLY, *OWNER_ONLY),
    "wanda": (*PLANNER_ONLY, *OWNER_ONLY),
    "rita": (*PLANNER_ONLY, *WORKER_ONLY, "retry", "fail", *OWNER_ONLY),
}


def _run(use: str, database: Database, state: RolesFixture) -> None:
    if use in USES:
        USES[use](database, state)
    else:
        with transaction(database.engine) as connection:
            connection.execute(sa.text(use))


@pytest.mark.parametrize("login", FORBIDDEN)
def test_role_is_denied_other_operations(state: RolesFixture, admin: Database, login: str) -> None:
    """Denied operations change nothing."""
    before, database = _all_rows(admin), state.logins.of(login)
    for use in FORBIDDEN[login]:
        with pytest.raises(PermissionDeniedError, match=r"permission denied|must be owner"):
            _run(use, database, state)
    assert _all_rows(admin) == before
    attempts = state.logins.of("wanda").attempts
    assert attempts.publish(state.attempt, encoded(), stream()).generation == 1


def _all_rows(database: Database) -> dict[str, list[str]]:
    """Read all rows, without the columns that heartbeats renew."""
    renewed = {"renewed_at", "lease_until"}
    with database.engine.begin() as connection:
        rows = {
            table.name: connection.execute(
                sa.select(*(column for column in table.c if column.name not in renewed))
            ).all()
            for table in TABLES
        }
    return {name: sorted(map(repr, table_rows)) for name, table_rows in rows.items()}


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


def test_planner_and_worker_can_acquire(logins: Logins) -> None:
    """SELECT on the meta table is enough."""
    with _feed(logins, "lib", max_count=4) as feed:
        assert feed.source.choice.strategy is Strategy.LOCKS
        assert feed.drain() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
        store = StoredCandidates(feed.database.engine, "here")
        choose_watermark(feed.table, store=store).watermark.read()
        cuts = [str(cut.id_range) for cut in all_cuts(feed.table, None, 10, feed.bounds)]
    assert cuts == ["1..4", "5..8", "9..10"]


@pytest.mark.parametrize("login", ["paul", "wanda"])
def test_planner_or_worker_alone_cannot_acquire(
    logins: Logins, admin: Database, login: str
) -> None:
    """A denied acquire leaves nothing."""
    with _feed(logins, login) as feed:
        before = _all_rows(admin)
        with pytest.raises(PermissionDeniedError):
            feed.acquire()
    assert _all_rows(admin) == before


def test_meta_table_without_select_is_rejected(logins: Logins) -> None:
    with (
        _feed(logins, "paul"),
        meta_engine(url_for_login(logins.url, "wanda")) as engine,
        pytest.raises(MetaTableError, match="cannot be read"),
    ):
        ReflectedMetaTable.open(engine, "ops.files", FILES)


def test_acquire_without_temporary_privilege(logins: Logins) -> None:
    run(logins.url, f"REVOKE TEMPORARY ON DATABASE {database_name(logins.url)} FROM PUBLIC")
    with _feed(logins, "lib", max_count=2) as feed:
        assert len(feed.drain()) == 5


pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
READ_ONLY_COMMANDS = (
    "status --json",
    "jobs list orders",
    "explain orders-1.csv",
    "messages orders",
    "verify orders",
    "plan orders --dry-run",
)
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_planner_and_worker_can_run_every_operation(worker: Database) -> None:
    inventory = InventoryFixture(worker)
    for prepare in OPERATIONS.values():
        prepare(inventory)()
    inventory.finish()
    inventory.close()
    gc.collect()  # collect connections here whose finalizers warn, where warnings are expected


def test_planner_and_worker_can_run_sensors_and_jobs(defs_harness: DefsHarness) -> None:
    batches = [status.batch for status in defs_harness.database.batches.statuses("orders")]
    publish(defs_harness.database, batches[0])
    Path(defs_harness.stream.storage.root.removeprefix("file://")).mkdir(
        parents=True, exist_ok=True
    )
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


def test_reader_can_run_read_only_commands(defs_harness: DefsHarness, granted_url: str) -> None:
    batches = [status.batch for status in defs_harness.database.batches.statuses("orders")]
    publish(defs_harness.database, batches[0])
    variables = {"BATCH_PIPELINE_INVENTORY_CONN": url_for_login(granted_url, "rita")}
    for command in READ_ONLY_COMMANDS:
        ended = CliRunner().invoke(cli, command.split(), env=variables)
        assert "permission denied" not in ended.output, command
        assert not isinstance(ended.exception, Exception), (command, ended.exception)


def test_public_has_no_privileges(granted_url: str) -> None:
    """No schema, table, view or column is granted to PUBLIC, and there are no functions."""
    with psycopg.connect(granted_url) as connection:
        assert connection.execute(PUBLIC_PRIVILEGES).fetchall() == []
