"""Results of the asset checks of a stream."""

import dagster as dg
import pytest

from batch_pipeline.defs.names import LAUNCH_TAG
from batch_pipeline.model.checks import Check, CheckResult
from batch_pipeline.pipeline.verify import Scope, verify_stream
from batch_pipeline_tests.defs.checks_fixture import (
    check_results,
    failed,
    numbers,
    path_of,
    publish,
    publish_all,
    run_checks,
)
from batch_pipeline_tests.defs.defs_fixture import KEYS, DefsHarness, start_run
from batch_pipeline_tests.defs.downstream_fixture import execute as execute_run
from batch_pipeline_tests.defs.downstream_fixture import tags_of
from batch_pipeline_tests.seeds import execute, fail, register

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
FIRST, SECOND, *_ = KEYS
BATCH_CHECKS = ["batches.conservation", "batches.part_files", "batches.quarantine"]
CHECKSUMS = {"resources": {"batch_pipeline_checks": {"config": {"checksums": True}}}}


def run_check(harness: DefsHarness, check: Check) -> CheckResult:
    """Run a check that is not an asset check in Dagster."""
    scope = Scope(kinds=harness.batches.kinds)
    [result] = verify_stream(
        harness.database, harness.stream, [check], scope, harness.pipeline.meta_table
    )
    return result


def test_checks_pass_without_published_batches(harness: DefsHarness) -> None:
    results = run_checks(harness)
    assert failed(results) == []
    of_backfill = [name.replace("batches", "backfill") for name in BATCH_CHECKS]
    assert sorted(results) == [*of_backfill, *BATCH_CHECKS, "files.backlog"]
    assert "Nothing to check yet" in str(results["batches.part_files"].description)


def test_checks_of_valid_batches_pass(harness: DefsHarness) -> None:
    publish_all(harness)
    results = run_checks(harness)
    assert failed(results) == []
    assert numbers(results["batches.part_files"], "batches_checked", "files_checked") == [4, 4]
    assert numbers(results["batches.part_files"], "size_bytes", "problems") == [400, 0]
    assert numbers(results["batches.quarantine"], "records_read") == [60]
    coverage = run_check(harness, Check.COVERAGE).numbers
    assert (coverage["batches_checked"], coverage["batches_compared"]) == (4, 4)
    assert numbers(results["files.backlog"], "items_unpublished") == [0]
    assert failed(run_checks(harness, run_config=CHECKSUMS)) == []


def test_damaged_part_file_fails_only_its_check(harness: DefsHarness) -> None:
    """A file of the same size with other bytes is detected by checksums only."""
    path = path_of(publish_all(harness)[1])
    path.write_bytes(path.read_bytes()[:60])
    results = run_checks(harness)
    assert failed(results) == ["batches.part_files"]
    result = results["batches.part_files"]
    assert (result.severity, result.blocking) == (ERROR, True)
    assert numbers(result, "batches_checked", "batches_wrong") == [4, 1]
    description = str(result.description)
    assert f"batch {SECOND}, generation 1: {path} has 60 B, published: 100 B" in description
    assert "Materialize the partition again" in description
    path.write_bytes(b"." * 100)
    assert failed(run_checks(harness)) == []
    results = run_checks(harness, run_config=CHECKSUMS)
    assert failed(results) == ["batches.part_files"]
    assert "has the SHA-256" in str(results["batches.part_files"].description)


def test_config_limits_the_number_of_checked_batches(harness: DefsHarness) -> None:
    publish_all(harness)
    for newest, checked in ((2, 2), (0, 4)):
        config = {"resources": {"batch_pipeline_checks": {"config": {"newest": newest}}}}
        result = run_checks(harness, run_config=config)["batches.part_files"]
        assert numbers(result, "batches_checked") == [checked]


def test_inconsistent_record_counts_fail(harness: DefsHarness) -> None:
    publish_all(harness)
    table = "batch_pipeline.attempt_item"
    drop = f"ALTER TABLE {table} DROP CONSTRAINT attempt_item_records_conserved"
    execute(harness.database, drop)
    execute(harness.database, f"UPDATE {table} SET read = 6 WHERE item_id = 5")  # noqa: S608 - from above
    results = run_checks(harness)
    assert failed(results) == ["batches.conservation"]
    result = results["batches.conservation"]
    assert (result.severity, result.blocking) == (ERROR, True)
    problem = "read is not written + filtered + quarantined for the items 5"
    assert f"batch {SECOND}, generation 1: {problem}" in str(result.description)


def test_quarantined_records_above_the_limit_warn(harness: DefsHarness) -> None:
    publish_all(harness)
    publish(harness, harness.database.batches.batch("orders", FIRST), quarantined=5)
    results = run_checks(harness)
    assert failed(results) == ["batches.quarantine"]
    result = results["batches.quarantine"]
    assert result.severity is WARN
    assert numbers(result, "records_quarantined", "records_read") == [5, 65]
    assert f"batch {FIRST} with 5 of 20" in str(result.description)


def test_item_waiting_too_long_warns(harness: DefsHarness) -> None:
    """In a batch that is not published, or in no batch."""
    late = "UPDATE batch_pipeline.batch SET planned_at = now() - interval '5 hours' "
    execute(harness.database, late + "WHERE first_id = 4")
    results = run_checks(harness)
    assert failed(results) == ["files.backlog"]
    result = results["files.backlog"]
    assert (result.severity, numbers(result, "items_unpublished")) == (WARN, [12])
    assert "the oldest for 5 hours; allowed: 60 minutes" in str(result.description)
    assert f"batch {SECOND}, planned 5 hours ago" in str(result.description)
    publish_all(harness)
    register(harness.database, 1, first=13)
    old = "UPDATE batch_pipeline.item SET registered_at = now() - interval '3 days' WHERE id = 13"
    execute(harness.database, old)
    result = run_checks(harness)["files.backlog"]
    assert (result.passed, numbers(result, "items_unpublished")) == (False, [1])
    assert "the oldest for 3 days" in str(result.description)
    assert "items that are in no batch yet" in str(result.description)


def test_batch_failed_for_too_long_warns(harness: DefsHarness) -> None:
    fail(harness.database, harness.database.batches.batch("orders", FIRST), "line 3 is not csv")
    assert failed(run_checks(harness)) == []
    earlier = "UPDATE batch_pipeline.attempt SET finished_at = now() - interval '2h'"
    execute(harness.database, earlier)
    result = run_checks(harness)["files.backlog"]
    assert (result.passed, numbers(result, "batches_stuck")) == (False, [1])
    assert f"batch {FIRST} (line 3 is not csv)" in str(result.description)


def test_late_item_warns_and_is_not_planned_by_the_check(harness: DefsHarness) -> None:
    publish(harness, harness.database.batches.batch("orders", FIRST), unseen=1)
    result = run_check(harness, Check.COVERAGE)
    assert (result.passed, result.is_severe, result.numbers["items_late"]) == (False, False, 1)
    assert "items 3, which appeared after their ids had been planned" in result.sentence
    assert harness.database.batches.late_statuses("orders") == []


def test_gaps_and_overlaps_of_batches_warn(harness: DefsHarness) -> None:
    table = "batch_pipeline.batch"
    drop = f"ALTER TABLE {table} DROP CONSTRAINT batch_ranges_do_not_overlap"
    execute(harness.database, drop)
    repair = f"UPDATE {table} SET superseded_at = NULL, last_id = first_id + 2"  # noqa: S608 - from above
    for change, problem in (
        ("superseded_at = now() WHERE first_id = 4", "ids 4..6 are planned and in no live batch"),
        ("superseded_at = now() WHERE first_id = 10", "ids 10..12 are planned and in no live"),
        ("last_id = 8 WHERE first_id = 4", "ids 7..8 are in two live batches"),
    ):
        execute(harness.database, f"UPDATE {table} SET {change}")  # noqa: S608 - from above
        result = run_check(harness, Check.COVERAGE)
        assert not result.passed
        assert problem in result.sentence
        execute(harness.database, repair)
    assert run_check(harness, Check.COVERAGE).passed


def test_successful_run_does_not_hide_a_failed_check(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run checks recent batches, and after a failed check all batches."""
    monkeypatch.setattr("batch_pipeline.defs.checks._RECENT_BATCHES", 1)
    first, *_, newest = publish_all(harness)
    harness.tick("orders_new_files")
    options = {"partition_key": FIRST, "tags": {LAUNCH_TAG: "new"}}
    path_of(newest).unlink()
    results = run_checks(harness, "orders_encode", **options)
    assert (sorted(results), failed(results)) == (BATCH_CHECKS, ["batches.part_files"])
    publish(harness, newest.batch)
    assert failed(run_checks(harness, "orders_encode", **options)) == []
    path_of(first).unlink()
    assert failed(run_checks(harness, "orders_encode", **options)) == []
    assert failed(run_checks(harness)) == ["batches.part_files"]
    assert failed(run_checks(harness, "orders_encode", **options)) == ["batches.part_files"]
    publish(harness, first.batch)
    assert failed(run_checks(harness, "orders_encode", **options)) == []


def test_run_that_plans_checks_considers_recent_batches(
    harness: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a Dagster backfill. After a failure, or beside the hourly job, it considers all."""
    monkeypatch.setattr("batch_pipeline.defs.checks._RECENT_BATCHES", 1)
    first, *_ = publish_all(harness)
    harness.tick("orders_new_files")
    every = harness.definitions.resolve_implicit_global_asset_job_def()
    job = every.get_subset(asset_selection={harness.batches.asset_key})

    def checked() -> list[int]:
        run = execute_run(job, harness.instance, tags_of([FIRST]) | {LAUNCH_TAG: "new"})
        results = check_results(harness, run.run_id)
        return numbers(results["batches.part_files"], "batches_checked", "batches_wrong")

    assert checked() == [1, 0]
    path_of(first).unlink()
    assert checked() == [1, 0]
    all_streams = harness.definitions.resolve_job_def("batch_pipeline_check_streams")
    checking = start_run(harness.instance, all_streams, {})
    assert checked() == [4, 1]
    harness.instance.report_run_failed(checking)
    assert checked() == [4, 1]


def test_run_with_a_failed_batch_still_reports_checks(harness: DefsHarness) -> None:
    publish_all(harness)
    harness.instance.add_dynamic_partitions("orders.batches", ["1-3"])
    job = harness.definitions.resolve_job_def("orders_encode")
    run = job.execute_in_process(
        instance=harness.instance, partition_key="1-3", raise_on_error=False
    )
    assert not run.success
    results = check_results(harness, run.run_id)
    assert failed(results) == []
    assert sorted(results) == BATCH_CHECKS
