"""Station 9 on Postgres with programs as targets: nothing is lost or believed too early."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.errors import (
    ConfigurationError,
    LoadRunningError,
    PartFileChangedError,
    TargetFailedError,
)
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.load import Loaded
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.pipeline.load import load
from batch_pipeline.storage.verification import content_problem
from batch_pipeline_tests.concurrency import eventually, is_running, run_python, together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.load import target_scripts as scripts
from batch_pipeline_tests.load.target_scripts import loader, read
from batch_pipeline_tests.pipeline.load_fixture import (
    FIRST,
    LEASE,
    SECOND,
    THIRD,
    dock,
    due,
    loaded,
    publish_file,
    published,
    rows,
    settled,
)
from batch_pipeline_tests.seeds import query

ALL_LOADED = [(FIRST, "loaded"), (SECOND, "loaded"), (THIRD, "loaded")]
LOAD_ALL = """
import sys
from pathlib import Path
from batch_pipeline.inventory.database import open_database
from batch_pipeline_tests.pipeline.load_fixture import dock, loaded
from batch_pipeline_tests.load import target_scripts
database = open_database(sys.argv[1], migrated=None)
print(loaded(dock(database, Path(sys.argv[2]), getattr(target_scripts, sys.argv[3]))))
"""
FAILS_AT_FOUR = """
state = None
for message in messages():
    if message["type"] == "RECORD" and message["record"]["order_id"] == 4:
        sys.exit("no room for 4")
    if message["type"] == "STATE":
        state = message["value"]
say(state)
"""


def backfill(database: Database, folder: Path) -> None:
    """Publish the backfill `2023`, which brings the items of the first batch again."""
    ids = IdRange(first_id=1, last_id=3)
    request = Backfill.of_stream("orders", "2023", Selection(ids=ids), limits(max_count=3))
    database.backfills.plan(request, database.meta_table("orders"))
    publish_file(database, database.batches.batch("orders", f"2023:{FIRST}"), folder)


def starts(folder: Path) -> int:
    """How many batches have been announced, which each start of a target begins with."""
    return sum(one["type"] == "SCHEMA" for one in read(folder))


def test_load_brings_all_that_is_due_in_one_start(database: Database, tmp_path: Path) -> None:
    """Expect three batches in publish order, each recorded, and nothing left to do."""
    published(database, tmp_path)
    assert loaded(dock(database, tmp_path, scripts.GOOD)) == ALL_LOADED
    ids = [one["record"]["order_id"] for one in read(tmp_path) if one["type"] == "RECORD"]
    assert ids == [1, 2, 4, 5, 7, 8]
    assert starts(tmp_path) == 1
    assert [row[1:3] for row in rows(database)] == [(1, "succeeded")] * 3
    assert loaded(dock(database, tmp_path, scripts.GOOD)) == []


def test_bad_batch_of_a_group_fails_alone(database: Database, tmp_path: Path) -> None:
    """Expect the neighbours to be loaded, and the bad one tried three times."""
    published(database, tmp_path)
    found = list(load(dock(database, tmp_path, FAILS_AT_FOUR)))
    assert [one.loaded is not None for one in found] == [True, False, True]
    assert isinstance(found[1].error, TargetFailedError)
    assert found[1].error.said == "no room for 4\n"
    assert [one.label for one in due(database)] == [SECOND]
    assert [row[:3] for row in rows(database) if row[0] == 4] == [
        (4, number, "failed") for number in (1, 2, 3)
    ]


def test_batches_behind_a_failed_one_wait_where_order_counts(
    database: Database, tmp_path: Path
) -> None:
    """Expect the third not to be sent, and both to be loaded in order later."""
    published(database, tmp_path)
    first = dock(database, tmp_path, FAILS_AT_FOUR, in_order=True)
    assert loaded(first) == [(FIRST, "loaded"), (SECOND, "failed"), (THIRD, "waits")]
    assert loaded(dock(database, tmp_path, scripts.GOOD)) == [(SECOND, "loaded"), (THIRD, "loaded")]


def test_next_generation_takes_the_place_of_one_that_failed(
    database: Database, tmp_path: Path
) -> None:
    """Expect the bad generation never to be sent again."""
    _, second = published(database, tmp_path, 2)
    loaded(dock(database, tmp_path, FAILS_AT_FOUR))
    publish_file(database, second, tmp_path, generation=2)
    (outcome,) = load(dock(database, tmp_path, scripts.GOOD))
    assert outcome.loading.manifest.generation == 2
    assert due(database) == []


def test_batch_that_fails_beside_one_that_somebody_has_loaded_is_tried_alone(
    database: Database, tmp_path: Path
) -> None:
    """Expect each of three once: the first failed, the second there, the third loaded."""
    published(database, tmp_path)
    [_, second, _] = due(database)
    meanwhile = [second]

    def load_second_meanwhile(part: PartFile) -> str | None:
        while meanwhile:
            some = [meanwhile.pop()]
            with database.loads.claim("orders", "warehouse", some, run_id="x", lease=LEASE) as got:
                assert got is not None
                database.loads.succeed(got.load, Loaded(records=2), None)
        return content_problem(part)

    body = FAILS_AT_FOUR.replace("4", "1")
    found = list(load(dock(database, tmp_path, body, problem_of=load_second_meanwhile)))
    assert sorted(settled(found)) == [(FIRST, "failed"), (SECOND, "loaded"), (THIRD, "loaded")]
    assert [one.label for one in due(database)] == [FIRST]


def test_batches_of_several_jobs_share_a_start(database: Database, tmp_path: Path) -> None:
    """Expect the stream's own batches and those of a backfill from one start, as published."""
    published(database, tmp_path, 1)
    backfill(database, tmp_path)
    target = dock(database, tmp_path, scripts.EAGER)
    assert loaded(target) == [(FIRST, "loaded"), (f"2023:{FIRST}", "loaded")]
    assert starts(tmp_path) == 1


def test_job_whose_batch_failed_holds_up_no_other_job(database: Database, tmp_path: Path) -> None:
    """Expect a backfill that was published later to be loaded, and the job's own rest to wait."""
    published(database, tmp_path)
    backfill(database, tmp_path)
    found = loaded(dock(database, tmp_path, FAILS_AT_FOUR, in_order=True))
    assert found == [
        (FIRST, "loaded"),
        (SECOND, "failed"),
        (THIRD, "waits"),
        (f"2023:{FIRST}", "loaded"),
    ]


def test_target_that_fails_with_three_in_a_row_gets_no_more(
    database: Database, tmp_path: Path
) -> None:
    """Expect the third to say so, and the other two batches to stay due untried."""
    published(database, tmp_path, 5)
    found = list(load(dock(database, tmp_path, scripts.SILENT, attempts=1)))
    assert [one.gives_up for one in found] == [False, False, True]
    assert [row[:2] for row in rows(database)] == [(1, 1), (1, 2), (4, 1), (7, 1)]
    assert len(due(database)) == 5


def test_batches_that_no_target_takes_do_not_keep_what_is_behind_them(
    database: Database, tmp_path: Path
) -> None:
    """Expect a second load to fail with the same three once more, and to load the fourth."""
    published(database, tmp_path, 4)
    body = FAILS_AT_FOUR.replace("== 4", "< 9")
    first = loaded(dock(database, tmp_path, body, attempts=1))
    assert first == [(FIRST, "failed"), (SECOND, "failed"), (THIRD, "failed")]
    second = loaded(dock(database, tmp_path, body, attempts=1))
    assert second == [*first, ("00000010-00000012", "loaded")]


@pytest.mark.parametrize("body", [scripts.SILENT, scripts.NO_JSON, scripts.WRONG_STATE])
def test_target_without_acknowledgement_leaves_all_due(
    database: Database, tmp_path: Path, body: str
) -> None:
    """Expect nothing to be recorded as loaded."""
    published(database, tmp_path, 1)
    assert loaded(dock(database, tmp_path, body)) == [(FIRST, "failed")]
    assert [one.label for one in due(database)] == [FIRST]
    assert {row[2] for row in rows(database)} == {"failed"}


@pytest.mark.parametrize("change", ["gone", "longer", "other"])
def test_file_that_is_not_what_was_published_is_not_sent(
    database: Database, tmp_path: Path, change: str
) -> None:
    """Expect the batch to fail at once, before a target is started, and its neighbour to go on."""
    published(database, tmp_path, 2)
    path = Path(to_path(due(database)[0].manifest.part_files[0].uri))
    content = path.read_bytes()
    path.unlink()
    if change != "gone":
        path.write_bytes(content + b"x" if change == "longer" else content[:-1] + b"\1")
    first, second = load(dock(database, tmp_path, scripts.GOOD))
    assert isinstance(first.error, PartFileChangedError)
    assert str(path) in str(first.error)
    assert second.loaded is not None
    assert [row[:3] for row in rows(database)] == [(1, 1, "failed"), (4, 1, "succeeded")]


def test_target_that_cannot_be_started_ends_the_load(database: Database, tmp_path: Path) -> None:
    """Expect one try, for no repetition mends it."""
    published(database, tmp_path)
    missing = loader(tmp_path, scripts.GOOD, command=("no-such-target",))
    with pytest.raises(ConfigurationError, match="cannot be started"):
        loaded(dock(database, tmp_path, "", loader=missing))
    assert [row[:3] for row in rows(database)] == [(1, 1, "failed")]


def test_two_loads_at_once_send_each_batch_once(database: Database, tmp_path: Path) -> None:
    """Expect one to load all and the other to be refused, or to find nothing left to do."""
    published(database, tmp_path)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    results = together(
        *[lambda folder=folder: loaded(dock(database, folder, scripts.GOOD)) for folder in folders]
    )
    assert ALL_LOADED in results
    assert all(isinstance(one, LoadRunningError) or one in (ALL_LOADED, []) for one in results), (
        results
    )
    kept = [folder for folder in folders if (folder / "read").exists()]
    assert sum(starts(folder) for folder in kept) == 1
    assert [row[1:3] for row in rows(database)] == [(1, "succeeded")] * 3


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("load.before_claim_commit", 0),
        ("load.acknowledged", 0),
        ("load.before_commit", 0),
        ("load.after_commit", 1),
    ],
)
def test_killed_load_goes_on_where_it_stood(
    database: Database, database_url: str, tmp_path: Path, point: str, left: int
) -> None:
    """Expect what was recorded to stay, and the rest to be loaded by the next run at once."""
    published(database, tmp_path)
    arguments = (LOAD_ALL, database_url, str(tmp_path), "EAGER")
    assert run_python(*arguments, failpoints=f"{point}=kill") == -9
    assert len(due(database)) == 3 - left
    assert loaded(dock(database, tmp_path, scripts.EAGER)) == ALL_LOADED[left:]
    assert [row[:3:2] for row in rows(database) if row[2] == "succeeded"] == [
        (1, "succeeded"),
        (4, "succeeded"),
        (7, "succeeded"),
    ]
    assert {row[2] for row in rows(database)} <= {"succeeded", "interrupted"}


def test_killed_target_leaves_the_rest_due(database: Database, tmp_path: Path) -> None:
    """Expect the batch it acknowledged to stay loaded, and the next run to bring the others."""
    published(database, tmp_path)
    first = list(load(dock(database, tmp_path, scripts.DIES_AT_SECOND)))
    assert [one.loaded is not None for one in first] == [True, True, True]
    assert starts(tmp_path) == 3  # together, and then each of the others alone


def test_interrupted_load_is_called_so(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Expect Ctrl-C to end target and load, and the next run to bring the batch."""
    published(database, tmp_path, 1)
    command = [sys.executable, "-c", LOAD_ALL, database_url, str(tmp_path), "HANGS"]
    quiet = subprocess.DEVNULL
    environment = os.environ | {VARIABLE: ""}
    with subprocess.Popen(command, stderr=quiet, env=environment) as ours:
        eventually(lambda: (tmp_path / "read").exists() and bool(read(tmp_path)))
        children = psutil.Process(ours.pid).children()
        ours.send_signal(2)
        assert ours.wait() != 0
    assert [child for child in children if is_running(child)] == []
    assert [row[:3] for row in rows(database)] == [(1, 1, "interrupted")]
    assert query(database, "SELECT error FROM batch_pipeline.load") == [("interrupted",)]
    assert loaded(dock(database, tmp_path, scripts.GOOD)) == [(FIRST, "loaded")]
