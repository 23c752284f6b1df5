"""All that is done with an inventory, by logins that have no more than the group roles' rights.

None of them has a search path, so nothing that is done depends on one.
"""

import gc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import dagster as dg
import psycopg
import pytest
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline_tests.defs.defs_fixture import DefsScene, open_defs_scene
from batch_pipeline_tests.defs.test_maintenance import collected, facts, reconciled
from batch_pipeline_tests.inventory.every_operation import OPERATIONS
from batch_pipeline_tests.inventory.logins import run, url_of
from batch_pipeline_tests.inventory.operations_fixture import Stage
from batch_pipeline_tests.seeds import publish

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
OF_PUBLIC = """
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
    """URL of the login of a program that plans and works; it may make meta tables, for the test."""
    run(granted_url, "GRANT CREATE ON SCHEMA public TO lib")
    return url_of(granted_url, "lib")


@pytest.fixture
def worker(worker_url: str) -> Iterator[Database]:
    """The inventory as that login sees it."""
    with closing(open_database(worker_url, migrated=False)) as opened:
        yield opened


@pytest.fixture
def scene(
    worker: Database, worker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """The stream `orders` in Dagster, which knows the inventory by that login."""
    with open_defs_scene(worker, worker_url, tmp_path, monkeypatch) as opened:
        yield opened


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_operation_needs_no_more_than_planner_and_worker(worker: Database) -> None:
    """Expect each operation to succeed, and what is left to be finished, without other rights."""
    stage = Stage(worker)
    for prepare in OPERATIONS.values():
        prepare(stage)()
    stage.finish()
    stage.close()
    gc.collect()  # a connection that warns when it goes shall go here, where that is expected


def test_sensors_and_jobs_need_no_more_than_planner_and_worker(scene: DefsScene) -> None:
    """Expect no tick of a sensor and no job of upkeep to be refused."""
    batches = [status.batch for status in scene.database.batches.statuses("orders")]
    publish(scene.database, batches[0])
    Path(scene.stream.storage.root.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
    ticked = []
    for sensor in scene.definitions.sensors or ():
        if sensor.name != "batch_pipeline_run_ends":
            scene.tick(sensor.name)
            ticked.append(sensor.name)
    failed = scene.started(dg.RunRequest(job_name=scene.batches.job, tags={}))
    scene.instance.report_run_failed(failed)
    assert "closed: 0" in scene.tick_run_ends()
    assert ticked == ["orders_new_files", "orders_backfill"]
    assert reconciled(scene).success
    told = facts(collected(scene, dry_run=False))
    assert told["removed_files"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--json"),
        ("jobs", "list", "orders"),
        ("explain", "orders-1.csv"),
        ("messages", "orders"),
        ("verify", "orders"),
        ("plan", "orders", "--dry-run"),
    ],
    ids=lambda words: words[0],
)
def test_commands_that_only_look_need_no_more_than_reader(
    scene: DefsScene, granted_url: str, words: tuple[str, ...]
) -> None:
    """Expect a report to be made with a login that can change nothing."""
    batches = [status.batch for status in scene.database.batches.statuses("orders")]
    publish(scene.database, batches[0])
    variables = {"BATCH_PIPELINE_INVENTORY_CONN": url_of(granted_url, "rita")}
    ended = CliRunner().invoke(cli, words, env=variables)
    assert "permission denied" not in ended.output
    assert not isinstance(ended.exception, Exception), ended.exception


def test_everybody_else_may_do_nothing(granted_url: str) -> None:
    """Expect no right of PUBLIC on schema, tables, views, columns, and no function at all."""
    with psycopg.connect(granted_url) as connection:
        assert connection.execute(OF_PUBLIC).fetchall() == []
