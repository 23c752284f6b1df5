"""The product's own meta table in front of many: ids become visible in their order (G1).

Eight processes register at once, while a planner takes everything up to the highest id, which is
all the ceiling that this table has.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.id_range import IdRange
from batch_pipeline_tests.concurrency import python, said
from batch_pipeline_tests.factories import batch, limits
from batch_pipeline_tests.seeds import plan, query

PROCESSES = 8
CALLS = 25
FILES_PER_CALL = 4
FILES = CALLS * FILES_PER_CALL

# Half of each call's files are the process's own, half are found by all processes.
REGISTER = f"""
import sys
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.factories import found_file
database = open_database(sys.argv[1], migrated=None)
table, process, new = database.meta_table("orders"), int(sys.argv[2]), 0
print("ready")
sys.stdin.readline()
for call in range({CALLS}):
    numbers = range({FILES_PER_CALL} * call, {FILES_PER_CALL} * (call + 1))
    files = [found_file(1_000 * (process + 1) + number) for number in numbers]
    files += [found_file(number) for number in numbers]
    new += table.register(files, accept_changed=False).new_items
print(new)
"""


@pytest.fixture
def processes(database_url: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ready to register and wait for the word."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(python(REGISTER, database_url, str(number)))
            for number in range(PROCESSES)
        ]
        assert [said(child) for child in children] == ["ready"] * PROCESSES
        yield children


def planned_ids(database: Database) -> list[int]:
    """Plan what can be planned now, and give the ids that lie in the new batches."""
    taken: list[int] = []
    small = limits(max_weight=10_000, max_count=7)
    for one in plan(database, small):
        found = [item.id for item in database.meta_table("orders").items(one)]
        assert len(found) == one.count
        taken += found
    return taken


def test_planner_loses_nothing_while_eight_processes_register(
    database: Database, processes: list[subprocess.Popen[str]]
) -> None:
    """Expect every file once, in dense ids, by plans made while registrations commit."""
    plans: list[list[int]] = []
    for child in processes:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    while any(child.poll() is None for child in processes):
        plans.append(planned_ids(database))
    plans.append(planned_ids(database))
    total = PROCESSES * FILES + FILES
    assert sum(int(said(child)) for child in processes) == total
    assert len([ids for ids in plans if ids]) > 3
    assert [uid for ids in plans for uid in ids] == list(range(1, total + 1))
    everything = batch(id_range=IdRange(first_id=1, last_id=total + 1))
    locations = {item.file.location for item in database.meta_table("orders").items(everything)}
    assert len(locations) == total
    counted = "SELECT count(*), max(id) FROM batch_pipeline.item"
    assert query(database, counted) == [(total, total)]
