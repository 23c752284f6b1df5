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

# Operations that are named differently from the first part of their failpoints' names.
REACHED_BY = {
    "schema": "widen a schema",
    "acquire": "acquire client-side",
    "backfill": "plan a backfill",
}
# Operations of one transaction each, which a killed process leaves undone or done.
ONLY_LONG = {"schema", "fail", "pause", "retry"}
# Other failpoints, with the test that stops or kills a process there.
COVERED_BY = {
    "audit.found": "inventory/test_late_arrivals.py",
    "audit.locked": "inventory/test_late_arrivals.py",
    "audit.before_commit": "inventory/test_late_arrivals.py",
    "audit.after_commit": "inventory/test_late_arrivals.py",
    "encode.after_claim": "pipeline/test_attempt.py",
    "encode.before_publish": "pipeline/test_attempt.py",
    "encode.before_pointer": "pipeline/test_attempt.py",
    "encode.before_rename": "encode/writers/test_part_writer.py",
    "upload.before_complete": "storage/test_s3.py",
    "pointer.before_link": "guarantees/test_crashes.py",
    "collect.listed": "pipeline/test_collect_garbage.py",
    "collect.judged": "pipeline/test_collect_garbage.py",
    "collect.marked": "pipeline/test_collect_garbage.py",
    "collect.before_remove": "pipeline/test_collect_garbage.py",
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
FAMILIES = sorted({_family(name) for name in INVENTORY_FAILPOINTS})


def test_every_failpoint_is_covered() -> None:
    """Each is reached by an operation here or by a test named above."""
    failpoints = _failpoints()
    assert len(failpoints) > 30
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in failpoints), failpoints
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
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.long if name in ONLY_LONG else ()) for name in FAMILIES],
)
def test_process_killed_at_failpoint_leaves_completable_state(
    inventory: InventoryFixture, database_url: str, family: str, figures: Figures
) -> None:
    """Invariants hold after each kill, and every item is published once in the end."""
    operation = REACHED_BY.get(family, family)
    failpoints = [name for name in INVENTORY_FAILPOINTS if _family(name) == family]
    for failpoint in failpoints:
        killed = run_python(SCRIPT, database_url, operation, failpoints=f"{failpoint}=kill")
        assert killed == -signal.SIGKILL, f"{operation!r} does not reach {failpoint}"
        check_invariants(inventory.database)
        OPERATIONS[operation](inventory)()
    inventory.finish()
    check_invariants(inventory.database)
    figures(operations_killed=len(failpoints))
