"""Detecting pending work; `run` without pending work does not import Dagster."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline.pipeline.pending_work import RunResult, Work, find_work
from batch_pipeline_tests.defs.checks_fixture import publish, publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, open_defs_harness
from batch_pipeline_tests.seeds import claimed, register

RUN = (
    "import sys, batch_pipeline.cli as cli\n"
    "try:\n    cli.cli.main(['run'], standalone_mode=False)\n"
    "except SystemExit as end:\n    print('code', end.code)\n"
    "print([name for name in ('dagster', 'pyspark', 'pyarrow') if name in sys.modules])"
)


@pytest.fixture
def harness(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsHarness]:
    """The stream `orders` with all batches published and reported."""
    with open_defs_harness(database, database_url, tmp_path, monkeypatch) as opened:
        publish_all(opened)
        counts = database.change_feed.publish_counts("orders")
        opened.pipeline.home.set_reported("orders", counts)
        yield opened


def _find_work(harness: DefsHarness) -> tuple[Work, RunResult]:
    pipeline, stream = harness.pipeline, harness.stream
    return find_work(
        pipeline.database,
        stream,
        pipeline.meta_table(stream),
        pipeline.landing(stream, wait=True),
        pipeline.home.reported("orders"),
    )


def _land(harness: DefsHarness) -> None:
    Path(harness.stream.source.place.removeprefix("file://"), "1.csv").write_text("id\n1\n")


def _register_landed(harness: DefsHarness) -> None:
    _land(harness)
    table = harness.database.meta_table("orders")
    table.register(harness.pipeline.landing(harness.stream, wait=True).found_files())


def _change_registered(harness: DefsHarness) -> None:
    _register_landed(harness)
    _plan(harness)
    Path(harness.stream.source.place.removeprefix("file://"), "1.csv").write_text("id\n1\n2\n")


def _plan(harness: DefsHarness) -> None:
    table = harness.database.meta_table("orders")
    harness.database.batches.plan(table, harness.stream.limits, drain=True)


def _fail(harness: DefsHarness) -> None:
    register(harness.database, 1, first=13)
    _plan(harness)
    batch = harness.database.batches.statuses("orders")[-1].batch
    with claimed(harness.database, batch) as attempt:
        harness.database.attempts.fail(attempt, "bad", AttemptStatus.FAILED)


def _pause(harness: DefsHarness) -> None:
    harness.database.jobs.pause("orders", "maintenance")


def _plan_late(harness: DefsHarness) -> None:
    first = harness.database.batches.statuses("orders")[0].batch
    publish(harness, first, unseen=1)
    audit = harness.pipeline.audit(harness.stream, None)
    assert audit is not None
    assert audit.late_batches == 1


def test_stream_with_all_batches_published_has_no_work(harness: DefsHarness) -> None:
    assert _find_work(harness) == (Work.NONE, RunResult(stream="orders"))


@pytest.mark.parametrize(
    ("change", "work"),
    [
        pytest.param(_land, Work.BATCHES, id="landed"),
        pytest.param(_register_landed, Work.BATCHES, id="registered"),
        pytest.param(_change_registered, Work.BATCHES, id="changed"),
        pytest.param(
            lambda harness: register(harness.database, 1, first=13), Work.BATCHES, id="item"
        ),
        pytest.param(lambda harness: harness.plan(), Work.BATCHES, id="backfill"),
        pytest.param(_plan_late, Work.BATCHES, id="late"),
        pytest.param(_fail, Work.BATCHES, id="failed"),
        pytest.param(publish_all, Work.REPORTS, id="unreported"),
        pytest.param(_pause, Work.REPORTS, id="paused"),
        pytest.param(
            lambda harness: harness.pipeline.home.set_reported("orders", {}),
            Work.REPORTS,
            id="never reported",
        ),
    ],
)
def test_pending_work_is_detected(
    harness: DefsHarness, change: Callable[[DefsHarness], object], work: Work
) -> None:
    change(harness)
    assert _find_work(harness)[0] is work


def test_run_without_work_imports_neither_dagster_nor_spark(harness: DefsHarness) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, check=False
    )
    assert "nothing left to encode" in completed.stdout, completed.stderr
    assert completed.stdout.endswith("code 0\n[]\n")


def test_unreadable_publish_counts_are_ignored(harness: DefsHarness) -> None:
    home = harness.pipeline.home
    assert home.reported("orders") != {}
    assert home.reported("refunds") == {}
    (home.path / "reported.json").write_text('{"orders": 3')
    assert home.reported("orders") == {}
    home.set_reported("orders", {1: 2})
    assert home.reported("orders") == {1: 2}
