"""A process killed at each failpoint (G3): another process completes everything exactly once.

Failpoints are read from the source. A new one fails here until an operation reaches it or another
test covers it.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import batch_pipeline
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.concurrency import run_python
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.operations_fixture import OPERATIONS, InventoryFixture
from batch_pipeline_tests.proofs import Figures

PACKAGE = Path(batch_pipeline.__file__).parent
TESTS = Path(__file__).parents[1]
SCRIPT = "from batch_pipeline_tests.inventory.operations_fixture import main; main()"

# Operations that reach failpoints, by the first part of the failpoint's name.
REACHED_BY = {
    "register": "register",
    "plan": "plan",
    "schema": "widen a schema",
    "claim": "claim",
    "publish": "publish",
    "acquire": "acquire client-side",
    "succeed": "succeed",
    "fail": "fail",
    "pause": "pause",
    "cancel": "cancel",
    "retry": "retry",
    "bisect": "bisect",
    "backfill": "plan a backfill",
    "audit": "audit",
}
# Failpoints outside of the inventory, with the test that stops or kills a process there.
COVERED_BY = {
    "encode.after_claim": "pipeline/test_attempt_failures.py",
    "encode.before_publish": "pipeline/test_attempt_failures.py",
    "encode.before_pointer": "pipeline/test_attempt_failures.py",
    "encode.before_rename": "encode/writers/test_part_writer.py",
    "upload.before_complete": "storage/test_s3.py",
    "pointer.before_link": "guarantees/test_crashes.py",
    "collect.listed": "pipeline/test_collect_garbage_races.py",
    "collect.judged": "pipeline/test_collect_garbage_races.py",
    "collect.marked": "pipeline/test_collect_garbage_races.py",
    "collect.before_remove": "pipeline/test_collect_garbage_races.py",
    "discard.copied": "storage/test_part_storage.py",
    "discard.counted": "guarantees/test_restored_inventory.py",
    "discard.moved": "guarantees/test_restored_inventory.py",
    "load.before_claim_commit": "pipeline/test_load.py",
    "load.acknowledged": "pipeline/test_load.py",
    "load.before_commit": "pipeline/test_load.py",
    "load.after_commit": "pipeline/test_load.py",
    "warehouse.in_copy": "load/test_postgres_failures.py",
    "warehouse.before_commit": "load/test_postgres_failures.py",
    "target.before_rename": "singer/target/test_target_kills.py",
    "target.after_rename": "singer/target/test_target_kills.py",
    "target.after_register": "singer/target/test_target_kills.py",
    "target.after_state": "singer/target/test_target_kills.py",
}


def _failpoints() -> list[str]:
    calls = (re.findall(r"\bfailpoint\((.*?)\)", path.read_text()) for path in _modules())
    return sorted({argument.strip("\"'") for arguments in calls for argument in arguments})


def _modules() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path.name != "failpoint.py"]


def _family(failpoint: str) -> str:
    return failpoint.split(".", maxsplit=1)[0]


INVENTORY_FAILPOINTS = [name for name in _failpoints() if name not in COVERED_BY]


def test_every_failpoint_is_covered() -> None:
    """Each is reached by an operation here or by a test named above."""
    failpoints = _failpoints()
    assert len(failpoints) > 30
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in failpoints), failpoints
    assert {_family(name) for name in INVENTORY_FAILPOINTS} == REACHED_BY.keys()
    assert COVERED_BY.keys() <= set(failpoints)
    for name, test in COVERED_BY.items():
        assert f'"{name}' in (TESTS / test).read_text(), f"no test stops at {name}"


@pytest.fixture
def inventory(database: Database) -> Iterator[InventoryFixture]:
    """The inventory as another process uses it."""
    opened = InventoryFixture(database)
    yield opened
    opened.files_job.engine.dispose()


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("family", REACHED_BY)
def test_process_killed_at_failpoint_leaves_completable_state(
    inventory: InventoryFixture, database_url: str, family: str, figures: Figures
) -> None:
    """Invariants hold after each kill, and every item is published once in the end."""
    operation = REACHED_BY[family]
    failpoints = [name for name in INVENTORY_FAILPOINTS if _family(name) == family]
    for failpoint in failpoints:
        killed = run_python(SCRIPT, database_url, operation, failpoints=f"{failpoint}=kill")
        assert killed == -signal.SIGKILL, f"{operation!r} does not reach {failpoint}"
        check_invariants(inventory.database)
        OPERATIONS[operation](inventory)()
    inventory.finish()
    check_invariants(inventory.database)
    figures(operations_killed=len(failpoints))
