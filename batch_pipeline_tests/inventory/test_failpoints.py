"""Killed at every failpoint there is (G3): another process completes everything exactly once.

Failpoints are found in the source, so that a new one fails here until it has an operation that
reaches it, or another test that covers it.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import batch_pipeline
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.concurrency import run_python
from batch_pipeline_tests.inventory.every_operation import OPERATIONS
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.inventory.operations_fixture import Stage
from batch_pipeline_tests.proofs import Figures

PACKAGE = Path(batch_pipeline.__file__).parent
TESTS = Path(__file__).parents[1]
SCRIPT = "from batch_pipeline_tests.inventory.every_operation import main; main()"

# By the first part of their names: the operation that reaches them.
REACHED_BY = {
    "register": "register",
    "plan": "plan",
    "schema": "widen a schema",
    "claim": "claim",
    "publish": "publish",
    "acquire": "acquire the long way",
    "succeed": "succeed",
    "fail": "fail",
    "pause": "pause",
    "cancel": "cancel",
    "retry": "retry",
    "bisect": "bisect",
    "backfill": "plan a backfill",
    "audit": "audit",
}
# Not the inventory's: the test that stops or kills a process there.
COVERED_BY = {
    "encode.after_claim": "pipeline/test_attempt_failures.py",
    "encode.before_publish": "pipeline/test_attempt_failures.py",
    "encode.before_pointer": "pipeline/test_attempt_failures.py",
    "encode.before_rename": "encode/writers/test_part_writer.py",
    "upload.before_complete": "spark/test_part_files_in_s3.py",
    "pointer.before_link": "acceptance/test_regions_interrupted.py",
    "collect.listed": "pipeline/test_collect_garbage_races.py",
    "collect.judged": "pipeline/test_collect_garbage_races.py",
    "collect.marked": "pipeline/test_collect_garbage_races.py",
    "collect.before_remove": "pipeline/test_collect_garbage_races.py",
    "discard.copied": "storage/test_manifest_files.py",
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
    return sorted({argument.strip("\"'") for found in calls for argument in found})


def _modules() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path.name != "failpoint.py"]


def _family(failpoint: str) -> str:
    return failpoint.split(".", maxsplit=1)[0]


OURS = [one for one in _failpoints() if one not in COVERED_BY]


def test_every_failpoint_is_reached_by_an_operation_or_covered_elsewhere() -> None:
    """Expect names that can be found by reading, and none that nobody tests."""
    found = _failpoints()
    assert len(found) > 30
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", one) for one in found), found
    assert {_family(one) for one in OURS} == REACHED_BY.keys()
    assert COVERED_BY.keys() <= set(found)
    for one, test in COVERED_BY.items():
        assert f'"{one}' in (TESTS / test).read_text(), f"nobody stops at {one}"


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    """What another process sees."""
    opened = Stage(database)
    yield opened
    opened.scene.engine.dispose()


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("failpoint", OURS)
def test_process_killed_at_a_failpoint_leaves_what_another_one_completes(
    stage: Stage, database_url: str, failpoint: str, figures: Figures
) -> None:
    """Expect every promise to hold after the kill, and every item once in the end."""
    operation = REACHED_BY[_family(failpoint)]
    killed = run_python(SCRIPT, database_url, operation, failpoints=f"{failpoint}=kill")
    assert killed == -signal.SIGKILL, f"{operation!r} does not reach {failpoint}"
    check_invariants(stage.database)
    OPERATIONS[operation](stage)()
    stage.finish()
    check_invariants(stage.database)
    figures(operations_killed=1)
