"""A `dev` under load for a while, with processes killed: nothing grows or stays, nothing is lost.

The long form takes BATCH_PIPELINE_TEST_SOAK_MINUTES minutes (20), and a few until all is drained.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import yaml

from batch_pipeline_tests.acceptance.sandbox import new_sandbox
from batch_pipeline_tests.guarantees.soak.feeds import LOADED, WAREHOUSE
from batch_pipeline_tests.guarantees.soak.report import WHAT, figures_of, report
from batch_pipeline_tests.guarantees.soak.soak_run import Pace, Story, soaked, write_streams
from batch_pipeline_tests.proofs import Figures

MINUTES = "BATCH_PIPELINE_TEST_SOAK_MINUTES"
REPORT = "BATCH_PIPELINE_TEST_SOAK_REPORT"
DATABASE = "soak"
QUICK = {"run_monitoring": {"poll_interval_seconds": 2}}
ROWS = f"SELECT id FROM {LOADED}"  # noqa: S608 - a name of ours
PARTS = ("dev", "daemon", "webserver", "code server", "definitions", "Spark")
pytestmark = [pytest.mark.guarantee("L1"), pytest.mark.long]


def pace_of(*, long_form: bool) -> Pace:
    """Choose how long and how hard the load is."""
    if not long_form:
        return Pace(load_seconds=15, fault_seconds=5, backfill_seconds=7, sample_seconds=2, seed=5)
    seconds = 60 * float(os.environ.get(MINUTES, "20"))
    return Pace(
        load_seconds=seconds,
        fault_seconds=20,
        parts_until=0.4,  # those after that live long enough to show what they gather
        backfill_seconds=20,
        sample_seconds=5,
    )


@pytest.fixture(scope="module")
def warehouse(server_url: str) -> Iterator[str]:
    """URL of a database of its own, in another server than the one that is killed."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
        yield server_url.replace("/postgres?", f"/{DATABASE}?")
        connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


@pytest.fixture(scope="module")
def story(warehouse: str, long_form: bool) -> Iterator[Story]:
    """Soak a `dev`; once all have looked, Ctrl-C must stop it with nothing left behind."""
    with new_sandbox() as plain:
        temporary = plain.folder / "tmp"
        temporary.mkdir()
        temporary.chmod(0o777)
        sandbox = plain.with_variables(TMPDIR=str(temporary), **{WAREHOUSE: warehouse})
        write_streams(sandbox)
        if not long_form:
            sandbox.home.mkdir()
            (sandbox.home / "dagster.yaml").write_text(yaml.safe_dump(QUICK))
        with soaked(sandbox, pace_of(long_form=long_form)) as found:
            text = "\n".join(report(found))
            sys.stderr.write(f"\n{text}\n")  # seen with -s, and when a test fails
            if REPORT in os.environ:
                Path(os.environ[REPORT]).write_text(f"{text}\n")
            yield found


def test_load_that_ends_is_drained(story: Story, figures: Figures) -> None:
    figures(**figures_of(story))
    assert story.left == []
    assert story.counts.loads > 0
    assert story.faults.done.total() > 0


def test_dagster_under_load_shows_what_the_inventory_has(story: Story) -> None:
    """Partitions, newest generations and loads are the same in both."""
    assert story.drift == []


def test_records_under_load_are_delivered_once(story: Story) -> None:
    assert story.verdict.faults == (), str(story.verdict)
    good = sum(len(landed.good_ids) for landed in story.landed.values())
    assert (story.verdict.items, story.verdict.records) == (story.files, good)
    assert story.set_aside == {name: landed.bad for name, landed in story.landed.items()}


def test_records_under_load_are_in_the_target_once(story: Story, warehouse: str) -> None:
    with psycopg.connect(warehouse) as connection:
        ids = [one for (one,) in connection.execute(ROWS)]
    assert sorted(ids) == [*story.landed[LOADED].good_ids]


def test_parts_under_load_gather_neither_files_nor_threads(story: Story, long_form: bool) -> None:
    """The last quarter is compared with the first; a run of seconds is too short for that."""
    samples = story.samples
    assert max(count for _, count in samples.told(lambda told: told.connections)) < 100
    if not long_form:
        return
    grown = [
        f"{part}: {what} {growth.first:.0f} → {growth.last:.0f}"
        for part in PARTS
        for what, most in (("files", 1.2), ("threads", 1.2), ("MiB", 1.5))
        if (growth := samples.of_oldest(part, WHAT[what])) is not None
        and growth.last > most * growth.first + 10
    ]
    assert grown == []


def test_backlog_under_load_stays_bounded(story: Story, long_form: bool) -> None:
    """The last quarter waits for little more than the first, and nothing waits in the end."""
    waits = story.samples.of_database(lambda told: told.unpublished)
    at_rest = story.rest.backlog
    assert at_rest is not None
    assert (at_rest.unpublished, at_rest.not_loaded, at_rest.unfinished_runs) == (0, 0, 0)
    if long_form:
        assert waits.last <= 2 * waits.first + 20
