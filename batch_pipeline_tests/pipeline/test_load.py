"""The load step with programs and Postgres as targets and a real inventory."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.load.postgres import PostgresLoader
from batch_pipeline.model.batch import Batch
from batch_pipeline.model.errors import (
    ConfigurationError,
    FilesRemovedError,
    LoadRunningError,
    PartFileChangedError,
    TargetFailedError,
)
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.load import Loaded
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.record_rules import LineageColumn
from batch_pipeline.model.schema import Column
from batch_pipeline.pipeline.load import Outcome, load
from batch_pipeline.storage.verification import content_problem
from batch_pipeline_tests.concurrency import eventually, is_running, run_python, together
from batch_pipeline_tests.factories import encoded, item_report
from batch_pipeline_tests.load import target_scripts as scripts
from batch_pipeline_tests.load.target_scripts import lines_file, loader, read
from batch_pipeline_tests.load.warehouse import APPEND
from batch_pipeline_tests.pipeline.load_fixture import (
    FIRST,
    LEASE,
    SECOND,
    THIRD,
    due,
    load_context,
    load_due,
    outcome_states,
    publish_file,
    published,
    rows,
)
from batch_pipeline_tests.seeds import ORDER_ID, planned, planned_backfill, publish, query

BACKFILL_LABEL = f"2023:{FIRST}"
WITH_ITEM_IDS = [ORDER_ID, Column.from_text("_item_id", "integer")]
LOAD_POSTGRES = """
import sys
from pathlib import Path
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.pipeline.test_load import load_all
load_all(open_database(sys.argv[1], migrated=None), sys.argv[1], Path(sys.argv[2]))
"""
ALL_LOADED = [(FIRST, "loaded"), (SECOND, "loaded"), (THIRD, "loaded")]
LOAD_ALL = """
import sys
from pathlib import Path
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.pipeline.load_fixture import load_context, load_due
from batch_pipeline_tests.load import target_scripts
database = open_database(sys.argv[1], migrated=None)
print(load_due(load_context(database, Path(sys.argv[2]), getattr(target_scripts, sys.argv[3]))))
"""
FAILS_AT_FOUR = """
state = None
for message in messages():
    if message["type"] == "RECORD" and message["record"]["order_id"] == 4:
        sys.exit("cannot load 4")
    if message["type"] == "STATE":
        state = message["value"]
emit(state)
"""


def process_count(folder: Path) -> int:
    """Return how often the target was started: each process gets one SCHEMA first."""
    return sum(message["type"] == "SCHEMA" for message in read(folder))


def test_pending_batches_are_loaded_by_one_process(database: Database, tmp_path: Path) -> None:
    published(database, tmp_path)
    assert load_due(load_context(database, tmp_path, scripts.GOOD)) == ALL_LOADED
    records = [message["record"] for message in read(tmp_path) if message["type"] == "RECORD"]
    assert [record["order_id"] for record in records] == [1, 2, 4, 5, 7, 8]
    assert process_count(tmp_path) == 1
    assert [row[1:3] for row in rows(database)] == [(1, "succeeded")] * 3
    assert load_due(load_context(database, tmp_path, scripts.GOOD)) == []


def test_failing_batch_does_not_fail_its_neighbours(database: Database, tmp_path: Path) -> None:
    """The batch is tried three times."""
    published(database, tmp_path)
    outcomes = list(load(load_context(database, tmp_path, FAILS_AT_FOUR)))
    assert [outcome.loaded is not None for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1].error, TargetFailedError)
    assert outcomes[1].error.stderr == "cannot load 4\n"
    assert [loading.label for loading in due(database)] == [SECOND]
    assert [row[:3] for row in rows(database) if row[0] == 4] == [
        (4, number, "failed") for number in (1, 2, 3)
    ]


def test_batches_after_a_failed_one_wait_if_order_matters(
    database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path)
    first = load_context(database, tmp_path, FAILS_AT_FOUR, in_order=True)
    assert load_due(first) == [(FIRST, "loaded"), (SECOND, "failed"), (THIRD, "waits")]
    assert load_due(load_context(database, tmp_path, scripts.GOOD)) == [
        (SECOND, "loaded"),
        (THIRD, "loaded"),
    ]


def test_batch_loaded_concurrently_does_not_fail_with_its_group(
    database: Database, tmp_path: Path
) -> None:
    """The first batch fails, the second is loaded by another process, the third is loaded."""
    published(database, tmp_path)
    [_, second, _] = due(database)
    pending = [second]

    def load_second(part: PartFile) -> str | None:
        while pending:
            loads = [pending.pop()]
            with database.loads.claim(
                "orders", "warehouse", loads, run_id="x", lease=LEASE
            ) as claim:
                assert claim is not None
                database.loads.succeed(claim.load, Loaded(records=2), None)
        return content_problem(part)

    body = FAILS_AT_FOUR.replace("4", "1")
    outcomes = list(load(load_context(database, tmp_path, body, problem_of=load_second)))
    assert sorted(outcome_states(outcomes)) == [
        (FIRST, "failed"),
        (SECOND, "loaded"),
        (THIRD, "loaded"),
    ]
    assert [loading.label for loading in due(database)] == [FIRST]


@pytest.mark.parametrize(
    ("fails_at", "in_order", "expected"),
    [
        (1, False, ["failed", "loaded", "loaded", "waits"]),
        (4, False, ["loaded", "failed", "loaded", "loaded"]),
        (4, True, ["loaded", "failed", "waits", "waits"]),
    ],
)
def test_backfill_waits_for_a_failed_batch_of_its_items(
    database: Database, tmp_path: Path, fails_at: int, in_order: bool, expected: list[str]
) -> None:
    """Otherwise, the batch would replace the newer records of the backfill when it is loaded."""
    published(database, tmp_path)
    publish_file(database, planned_backfill(database)[0], tmp_path)
    body = FAILS_AT_FOUR.replace("== 4", f"== {fails_at}")
    outcomes = load_due(load_context(database, tmp_path, body, in_order=in_order))
    assert outcomes == [*zip([FIRST, SECOND, THIRD, BACKFILL_LABEL], expected, strict=True)]


def test_load_gives_up_after_three_failures_in_a_row(database: Database, tmp_path: Path) -> None:
    published(database, tmp_path, 5)
    outcomes = list(load(load_context(database, tmp_path, scripts.SILENT, attempts=1)))
    assert [outcome.gives_up for outcome in outcomes] == [False, False, True]
    assert [row[:2] for row in rows(database)] == [(1, 1), (1, 2), (4, 1), (7, 1)]
    assert len(due(database)) == 5


def test_next_load_gets_beyond_the_batches_that_failed(database: Database, tmp_path: Path) -> None:
    published(database, tmp_path, 4)
    body = FAILS_AT_FOUR.replace("== 4", "< 9")
    first = load_due(load_context(database, tmp_path, body, attempts=1))
    assert first == [(FIRST, "failed"), (SECOND, "failed"), (THIRD, "failed")]
    second = load_due(load_context(database, tmp_path, body, attempts=1))
    assert second == [*first, ("00000010-00000012", "loaded")]


def test_changed_part_file_is_not_sent(database: Database, tmp_path: Path) -> None:
    """The batch fails before the target is started, and its neighbour is loaded."""
    published(database, tmp_path, 2)
    path = Path(to_path(due(database)[0].manifest.part_files[0].uri))
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    first, second = load(load_context(database, tmp_path, scripts.GOOD))
    assert isinstance(first.error, PartFileChangedError)
    assert str(path) in str(first.error)
    assert second.loaded is not None
    assert [row[:3] for row in rows(database)] == [(1, 1, "failed"), (4, 1, "succeeded")]


def test_target_that_cannot_be_started_ends_the_load(database: Database, tmp_path: Path) -> None:
    """The load is not retried."""
    published(database, tmp_path)
    missing = loader(tmp_path, scripts.GOOD, command=("no-such-target",))
    with pytest.raises(ConfigurationError, match="cannot be started"):
        load_due(load_context(database, tmp_path, "", loader=missing))
    assert [row[:3] for row in rows(database)] == [(1, 1, "failed")]


def test_concurrent_loads_send_each_batch_once(database: Database, tmp_path: Path) -> None:
    published(database, tmp_path)
    context = load_context(database, tmp_path, scripts.GOOD)
    results = together(*[lambda: load_due(context)] * 2)
    assert ALL_LOADED in results
    for result in results:
        assert isinstance(result, LoadRunningError) or result in (ALL_LOADED, [])
    assert process_count(tmp_path) == 1
    assert [row[1:3] for row in rows(database)] == [(1, "succeeded")] * 3


@pytest.mark.parametrize(
    ("point", "recorded"),
    [
        ("load.before_claim_commit", 0),
        # Without `--long`, guarantees/test_crashes.py kills a load here.
        pytest.param("load.acknowledged", 0, marks=pytest.mark.long),
        ("load.before_commit", 0),
        ("load.after_commit", 1),
    ],
)
def test_killed_load_is_continued_by_the_next(
    database: Database, database_url: str, tmp_path: Path, point: str, recorded: int
) -> None:
    published(database, tmp_path)
    arguments = (LOAD_ALL, database_url, str(tmp_path), "EAGER")
    assert run_python(*arguments, failpoints=f"{point}=kill") == -9
    assert len(due(database)) == 3 - recorded
    assert load_due(load_context(database, tmp_path, scripts.EAGER)) == ALL_LOADED[recorded:]
    assert [row[:3:2] for row in rows(database) if row[2] == "succeeded"] == [
        (1, "succeeded"),
        (4, "succeeded"),
        (7, "succeeded"),
    ]
    assert {row[2] for row in rows(database)} <= {"succeeded", "interrupted"}


def test_killed_target_is_restarted_for_the_remaining_batches(
    database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path)
    context = load_context(database, tmp_path, scripts.KILLS_ITSELF_AT_SECOND_STATE)
    assert load_due(context) == ALL_LOADED
    assert process_count(tmp_path) == 3  # all together, and then each of the others alone


def test_load_that_is_closed_after_a_batch_interrupts_the_next_one(
    database: Database, tmp_path: Path
) -> None:
    published(database, tmp_path)
    outcomes = load(load_context(database, tmp_path, scripts.EAGER))
    assert next(outcomes).loaded is not None
    del outcomes
    assert [row[2] for row in rows(database)] == ["succeeded", "interrupted"]


def test_interrupted_load_is_recorded_and_can_be_repeated(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    published(database, tmp_path, 1)
    command = [sys.executable, "-c", LOAD_ALL, database_url, str(tmp_path), "HANGS"]
    environment = os.environ | {VARIABLE: ""}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        eventually(lambda: (tmp_path / "read").exists() and bool(read(tmp_path)))
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        assert process.wait() != 0
    assert len(children) == 1
    assert not is_running(children[0])
    assert [row[:3] for row in rows(database)] == [(1, 1, "interrupted")]
    assert query(database, "SELECT error FROM batch_pipeline.load") == [("interrupted",)]
    assert load_due(load_context(database, tmp_path, scripts.GOOD)) == [(FIRST, "loaded")]


def publish_item(database: Database, batch: Batch, folder: Path, generation: int = 1) -> None:
    """Publish a batch with one record of item 1, which has the column `_item_id`."""
    path = folder / f"{batch.job}-{generation}.jsonl.gz"
    part = lines_file(path, ['{"order_id":7,"_item_id":1}'])
    reports = (item_report(1, read=1, written=1),)
    result = encoded(str(path), part_files=(part,), items=reports)
    publish(database, batch, replace(result, schema_version=2))


def load_all(database: Database, url: str, folder: Path, *only: str) -> list[Outcome]:
    """Run all pending loads, or some, into the table `orders` of the same server."""
    with closing(PostgresLoader(APPEND, url, lineage=[LineageColumn.ITEM_ID])) as loader:
        context = load_context(database, folder, "", loader=loader)
        return list(load(replace(context, only=only or None)))


def publish_around_backfill(database: Database, url: str, folder: Path) -> None:
    """Load a batch without item ids, then publish a backfill, and the batch again with item ids."""
    [first] = planned(database)
    publish_file(database, first, folder)
    load_all(database, url, folder)
    database.schemas.widen("orders", WITH_ITEM_IDS, text_source=True)
    publish_item(database, planned_backfill(database)[0], folder)
    publish_item(database, first, folder, generation=2)


def test_next_generation_after_a_killed_backfill_load_has_no_duplicates(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """The row has the label of the batch that was published last."""
    [first] = planned(database)
    database.schemas.widen("orders", WITH_ITEM_IDS, text_source=True)
    publish_item(database, first, tmp_path)
    load_all(database, database_url, tmp_path)
    publish_item(database, planned_backfill(database)[0], tmp_path)
    killed = run_python(
        LOAD_POSTGRES, database_url, str(tmp_path), failpoints="load.acknowledged=kill"
    )
    assert killed == -9
    publish_item(database, first, tmp_path, generation=2)

    outcomes = [
        (outcome.loading.label, outcome.loaded and outcome.loaded.already)
        for outcome in load_all(database, database_url, tmp_path)
    ]
    assert outcomes == [(BACKFILL_LABEL, True), (FIRST, False)]
    assert query(database, "SELECT order_id, _batch_id FROM orders") == [(7, FIRST)]


def test_backfill_without_item_ids_is_refused_and_later_batches_are_loaded(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Its rows could not be told from those that it replaces."""
    first, second = planned(database, 2)
    publish_file(database, first, tmp_path)
    publish_file(database, planned_backfill(database)[0], tmp_path)
    publish_file(database, second, tmp_path)
    outcomes = load_all(database, database_url, tmp_path)
    assert outcome_states(outcomes) == [
        (FIRST, "loaded"),
        (BACKFILL_LABEL, "failed"),
        (SECOND, "loaded"),
    ]


def test_backfill_that_was_refused_does_not_replace_later_records(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """A batch that is published again, as the refusal advises, is loaded before the backfill."""
    publish_around_backfill(database, database_url, tmp_path)
    outcomes = [outcome_states(load_all(database, database_url, tmp_path)) for _ in range(4)]
    assert outcomes == [
        [(BACKFILL_LABEL, "failed"), (FIRST, "loaded")],
        [(BACKFILL_LABEL, "loaded")],
        [(FIRST, "loaded")],
        [],
    ]
    assert query(database, "SELECT order_id, _batch_id FROM orders") == [(7, FIRST)]


@pytest.mark.parametrize("is_killed", [False, True])
def test_backfill_loaded_before_an_earlier_batch_is_loaded_again_after_it(
    database: Database, database_url: str, tmp_path: Path, is_killed: bool
) -> None:
    """Also if the process dies right after it has recorded the earlier batch."""
    [first] = planned(database)
    database.schemas.widen("orders", WITH_ITEM_IDS, text_source=True)
    publish_item(database, first, tmp_path)
    publish_item(database, planned_backfill(database)[0], tmp_path)
    [backfill] = load_all(database, database_url, tmp_path, BACKFILL_LABEL)
    assert backfill.loaded is not None
    if is_killed:
        failpoints = "load.after_commit=kill"
        assert run_python(LOAD_POSTGRES, database_url, str(tmp_path), failpoints=failpoints) == -9
    else:
        load_all(database, database_url, tmp_path)
    load_all(database, database_url, tmp_path)
    assert query(database, "SELECT order_id, _batch_id FROM orders") == [(7, BACKFILL_LABEL)]
    assert load_all(database, database_url, tmp_path) == []


def test_backfill_that_was_refused_waits_for_later_records_whose_files_were_deleted(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """The later batch could not be loaded again after it."""
    publish_around_backfill(database, database_url, tmp_path)
    assert outcome_states(load_all(database, database_url, tmp_path)) == [
        (BACKFILL_LABEL, "failed"),
        (FIRST, "loaded"),
    ]
    [(newest,)] = query(database, "SELECT max(id) FROM batch_pipeline.attempt")
    assert database.stored_attempts.mark_loaded([newest], ["warehouse"])
    [refused] = load_all(database, database_url, tmp_path)
    assert refused.loading.label == BACKFILL_LABEL
    assert isinstance(refused.error, FilesRemovedError)
    assert query(database, "SELECT order_id, _batch_id FROM orders") == [(7, FIRST)]
