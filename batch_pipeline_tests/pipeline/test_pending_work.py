"""Detecting pending work; `run` without pending work does not import Dagster."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batch_pipeline.pipeline.pending_work import RunResult, Work, find_work
from batch_pipeline_tests.acceptance.sandbox import run_program
from batch_pipeline_tests.defs.checks_fixture import publish, publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.seeds import fail, register

RUN = (
    "import sys, batch_pipeline.cli as cli\n"
    "try:\n    cli.cli.main(['run'], standalone_mode=False)\n"
    "except SystemExit as end:\n    print('code', end.code)\n"
    "print([name for name in ('dagster', 'pyspark', 'pyarrow') if name in sys.modules])"
)


@pytest.fixture
def harness(project: DefsHarness) -> DefsHarness:
    """The stream `orders` with all batches published and reported."""
    publish_all(project)
    _report(project)
    return project


def _find_work(harness: DefsHarness) -> tuple[Work, RunResult]:
    pipeline, stream = harness.pipeline, harness.stream
    return find_work(
        pipeline.database,
        stream,
        pipeline.meta_table(stream),
        pipeline.landing(stream, wait=True),
        pipeline.home.reported("orders"),
    )


def _plan(harness: DefsHarness) -> None:
    table = harness.database.meta_table("orders")
    harness.database.batches.plan(table, harness.stream.limits, drain=True)


def _fail(harness: DefsHarness) -> None:
    register(harness.database, 1, first=13)
    _plan(harness)
    fail(harness.database, harness.database.batches.statuses("orders")[-1].batch)


def _plan_late(harness: DefsHarness) -> None:
    first = harness.database.batches.statuses("orders")[0].batch
    publish(harness, first, unseen=1)
    audit = harness.pipeline.audit(harness.stream, None)
    assert audit is not None
    assert audit.late_batches == 1


def _report(harness: DefsHarness) -> None:
    counts = harness.database.change_feed.publish_counts("orders")
    harness.pipeline.home.set_reported("orders", counts)


def test_paused_or_unreported_stream_has_only_reports(harness: DefsHarness) -> None:
    assert _find_work(harness) == (Work.NONE, RunResult(stream="orders", files_found=0))
    harness.database.jobs.pause("orders", "maintenance")
    assert _find_work(harness)[0] is Work.REPORTS
    harness.database.jobs.resume("orders")
    harness.pipeline.home.set_reported("orders", {})
    assert _find_work(harness)[0] is Work.REPORTS
    _report(harness)
    assert _find_work(harness)[0] is Work.NONE
    publish_all(harness)
    assert _find_work(harness)[0] is Work.REPORTS


def test_new_or_changed_file_is_work_until_it_is_published(harness: DefsHarness) -> None:
    path = Path(harness.stream.source.place.removeprefix("file://"), "1.csv")
    path.write_text("id\n1\n")
    assert _find_work(harness)[0] is Work.BATCHES
    landing = harness.pipeline.landing(harness.stream, wait=True)
    harness.database.meta_table("orders").register(landing.found_files())
    assert _find_work(harness)[0] is Work.BATCHES
    _plan(harness)
    assert _find_work(harness)[0] is Work.BATCHES
    publish(harness, harness.database.batches.statuses("orders")[-1].batch)
    _report(harness)
    assert _find_work(harness)[0] is Work.NONE
    path.write_text("id\n1\n2\n")
    assert _find_work(harness)[0] is Work.BATCHES


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda harness: register(harness.database, 1, first=13), id="item"),
        pytest.param(lambda harness: harness.plan(), id="backfill"),
        pytest.param(_plan_late, id="late"),
        pytest.param(_fail, id="failed"),
    ],
)
def test_unpublished_items_and_batches_are_work(
    harness: DefsHarness, change: Callable[[DefsHarness], object]
) -> None:
    change(harness)
    assert _find_work(harness)[0] is Work.BATCHES


def test_run_without_work_imports_neither_dagster_nor_spark(harness: DefsHarness) -> None:
    completed = run_program(sys.executable, "-c", RUN)
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
