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
from batch_pipeline_tests.guarantees.soak.load import LOADED, WAREHOUSE
from batch_pipeline_tests.guarantees.soak.measurements import growth, of_database, of_oldest
from batch_pipeline_tests.guarantees.soak.soak_run import Pace, SoakResult, soaked
from batch_pipeline_tests.proofs import Figures

MINUTES = "BATCH_PIPELINE_TEST_SOAK_MINUTES"
REPORT = "BATCH_PIPELINE_TEST_SOAK_REPORT"
DATABASE = "soak"
QUICK = {"run_monitoring": {"poll_interval_seconds": 2}}
ROWS = f"SELECT id FROM {LOADED}"  # noqa: S608 - a name of ours
PARTS = ("dev", "daemon", "webserver", "code server", "definitions", "Spark")
SHORT = Pace(load_seconds=15, fault_seconds=5, backfill_seconds=7, sample_seconds=2, seed=5)
LONG = Pace(
    load_seconds=60 * float(os.environ.get(MINUTES, "20")),
    fault_seconds=20,
    services_until=0.4,  # those after that live long enough to show what they gather
    backfill_seconds=20,
    sample_seconds=5,
)
pytestmark = [pytest.mark.guarantee("L1"), pytest.mark.long]


@pytest.fixture(scope="module")
def warehouse(server_url: str) -> Iterator[str]:
    """URL of a database of its own, in another server than the one that is killed."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
        yield server_url.replace("/postgres?", f"/{DATABASE}?")
        connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


@pytest.fixture(scope="module")
def result(warehouse: str, long_form: bool) -> Iterator[SoakResult]:
    """Soak a `dev`; at the end Ctrl-C must stop it with nothing left behind."""
    with new_sandbox() as plain:
        temporary = plain.folder / "tmp"
        temporary.mkdir()
        temporary.chmod(0o777)
        sandbox = plain.with_variables(TMPDIR=str(temporary), **{WAREHOUSE: warehouse})
        if not long_form:
            sandbox.home.mkdir()
            (sandbox.home / "dagster.yaml").write_text(yaml.safe_dump(QUICK))
        with soaked(sandbox, LONG if long_form else SHORT) as soak:
            text = "\n".join(soak.report())
            sys.stderr.write(f"\n{text}\n")  # seen with -s, and when a test fails
            if REPORT in os.environ:
                Path(os.environ[REPORT]).write_text(f"{text}\n")
            yield soak


def test_load_that_ends_is_drained(result: SoakResult, figures: Figures) -> None:
    figures(**result.figures())
    assert result.unfinished == []
    assert result.counts["loads"] > 0
    assert result.faults.done.total() > 0


def test_dagster_under_load_shows_what_the_inventory_has(result: SoakResult) -> None:
    """Partitions, newest generations and loads are the same in both."""
    assert result.drift == []


def test_records_under_load_are_delivered_once(result: SoakResult) -> None:
    assert result.verdict.faults == (), str(result.verdict)
    good = sum(len(landed.good_ids) for landed in result.landed.values())
    assert (result.verdict.items, result.verdict.records) == (result.files, good)
    assert result.quarantined == {name: landed.bad for name, landed in result.landed.items()}


def test_records_under_load_are_in_the_target_once(result: SoakResult, warehouse: str) -> None:
    with psycopg.connect(warehouse) as connection:
        ids = [one for (one,) in connection.execute(ROWS)]
    assert sorted(ids) == [*result.landed[LOADED].good_ids]


def test_parts_under_load_gather_neither_files_nor_threads(
    result: SoakResult, long_form: bool
) -> None:
    """The last quarter is compared with the first; a run of seconds is too short for that."""
    samples = result.samples
    assert max(count for _, count in of_database(samples, "connections")) < 100
    if not long_form:
        return
    grown = [
        f"{part}: {name} {change}"
        for part in PARTS
        for name, most in (("files", 1.2), ("threads", 1.2), ("MiB", 1.5))
        if (change := growth(of_oldest(samples, part, name))).last > most * change.first + 10
    ]
    assert grown == []


def test_backlog_under_load_stays_bounded(result: SoakResult, long_form: bool) -> None:
    """The last quarter waits for little more than the first, and nothing waits in the end."""
    waiting = growth(of_database(result.samples, "waiting items"))
    at_rest = result.at_rest.database
    numbers = ("waiting items", "generations not loaded", "unfinished runs")
    assert [at_rest[name] for name in numbers] == [0, 0, 0]
    if long_form:
        assert waiting.last <= 2 * waiting.first + 20
