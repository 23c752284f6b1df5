"""A `dev` runs under load while processes are killed: nothing is lost, and resources stay bounded.

The long form takes BATCH_PIPELINE_TEST_SOAK_MINUTES minutes (20), and a few more to drain.
"""

import os
from collections.abc import Iterator

import psycopg
import pytest
import yaml

from batch_pipeline_tests.acceptance.sandbox import new_sandbox
from batch_pipeline_tests.guarantees.soak.load import LOADED, WAREHOUSE
from batch_pipeline_tests.guarantees.soak.measurements import growth, of_database, of_oldest
from batch_pipeline_tests.guarantees.soak.soak_run import Pace, Soak, soaked
from batch_pipeline_tests.inventory.logins import copied_database
from batch_pipeline_tests.proofs import Figures

MINUTES = "BATCH_PIPELINE_TEST_SOAK_MINUTES"
QUICK = {"run_monitoring": {"poll_interval_seconds": 2}}
ROWS = f"SELECT id FROM {LOADED}"  # noqa: S608 - a constant
PARTS = ("dev", "daemon", "webserver", "code server", "definitions", "Spark")
SHORT = Pace(load_seconds=15, fault_seconds=5, backfill_seconds=7, sample_seconds=2, seed=5)
LONG = Pace(
    load_seconds=60 * float(os.environ.get(MINUTES, "20")),
    fault_seconds=20,
    services_until=0.4,  # services that start later live long enough to show leaks
    backfill_seconds=20,
    sample_seconds=5,
)
pytestmark = [pytest.mark.guarantee("L1"), pytest.mark.long]


@pytest.fixture(scope="module")
def warehouse(server_url: str) -> Iterator[str]:
    """URL of a database on a server that is not killed."""
    with copied_database(server_url) as url:
        yield url


@pytest.fixture(scope="module")
def result(warehouse: str, long_form: bool) -> Iterator[Soak]:
    """The result of a soak. At the end, Ctrl-C must stop `dev` and leave nothing behind."""
    with new_sandbox() as empty:
        temporary = empty.folder / "tmp"
        temporary.mkdir()
        temporary.chmod(0o777)
        sandbox = empty.with_variables(TMPDIR=str(temporary), **{WAREHOUSE: warehouse})
        if not long_form:
            sandbox.home.mkdir()
            (sandbox.home / "dagster.yaml").write_text(yaml.safe_dump(QUICK))
        with soaked(sandbox, LONG if long_form else SHORT) as soak:
            yield soak


def test_all_work_completes_and_dagster_matches_inventory_after_load(
    result: Soak, figures: Figures
) -> None:
    """Partitions, newest generations and loads are the same in both."""
    figures(**result.figures())
    assert result.unfinished == []
    assert result.counts["loads"] > 0
    assert result.faults.done.total() > 0
    assert result.drift == []


def test_records_are_published_and_loaded_once_under_load(result: Soak, warehouse: str) -> None:
    assert result.check_result.faults == (), str(result.check_result)
    good = sum(len(landed.good_ids) for landed in result.arrivals.landed.values())
    assert (result.check_result.items, result.check_result.records) == (result.arrivals.files, good)
    assert result.quarantined == {
        name: landed.bad for name, landed in result.arrivals.landed.items()
    }
    with psycopg.connect(warehouse) as connection:
        ids = [uid for (uid,) in connection.execute(ROWS)]
    assert sorted(ids) == [*result.arrivals.landed[LOADED].good_ids]


def test_processes_do_not_leak_files_threads_or_memory_under_load(
    result: Soak, long_form: bool
) -> None:
    """Compares the last quarter with the first, for which the short form is too short."""
    samples = result.samples
    assert max(count for _, count in of_database(samples, "connections")) < 100
    if not long_form:
        return
    for part in PARTS:
        for name, factor in (("files", 1.2), ("threads", 1.2), ("MiB", 1.5)):
            first, last = growth(of_oldest(samples, part, name))
            assert last <= factor * first + 10, (part, name, first)


def test_backlog_stays_bounded_under_load(result: Soak, long_form: bool) -> None:
    """The backlog of the last quarter is about that of the first, and empty in the end."""
    first, last = growth(of_database(result.samples, "waiting items"))
    at_rest = result.at_rest.database
    numbers = ("waiting items", "generations not loaded", "unfinished runs")
    assert [at_rest[name] for name in numbers] == [0, 0, 0]
    if long_form:
        assert last <= 2 * first + 20
