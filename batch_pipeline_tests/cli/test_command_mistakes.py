"""Commands with wrong names, in a wrong folder or at a wrong time."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from batch_pipeline.cli.run import report_failures
from batch_pipeline.model.batch import BatchState
from batch_pipeline.model.errors import (
    ConfigurationError,
    DatabaseUnreachableError,
    UnknownJobError,
)
from batch_pipeline.pipeline.pending_work import RunResult
from batch_pipeline_tests.cli.commands import invoke, run_json
from batch_pipeline_tests.defs.checks_fixture import publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.factories import batch_status
from batch_pipeline_tests.seeds import execute

FIRST, SECOND = "00000001-00000003", "00000004-00000006"


def test_unknown_command_suggests_the_nearest_one() -> None:
    result = invoke("statsu")
    assert result.exit_code == 2
    assert "No such command 'statsu'. Did you mean 'status'?" in result.output
    far = invoke("xyzzy")
    assert far.exit_code == 2
    assert "Did you mean" not in far.output


def test_migrate_in_a_folder_without_a_home_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATCH_PIPELINE_HOME", raising=False)
    monkeypatch.delenv("BATCH_PIPELINE_INVENTORY_CONN", raising=False)
    result = invoke("migrate")
    assert isinstance(result.exception, ConfigurationError)
    home = tmp_path / ".batch_pipeline"
    assert f"There is no inventory in {home}." in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_unknown_job_error_lists_jobs_and_streams(project: DefsHarness) -> None:
    for command in ("pause", "resume", "cancel", "retry", "list"):
        error = invoke("jobs", command, "ordres").exception
        assert isinstance(error, UnknownJobError)
        assert str(error) == (
            "There is no job 'ordres' (jobs: orders; streams: orders). Did you mean 'orders'? "
            "Nothing was done. Correct the name."
        )


def test_pause_distinguishes_unknown_streams_from_new_ones(project: DefsHarness) -> None:
    project.database.delete_stream("orders")
    unknown = invoke("jobs", "pause", "ordres")
    assert "no job 'ordres' (jobs: none; streams: orders). Did you mean 'orders'? " in str(
        unknown.exception
    )
    new = invoke("jobs", "pause", "orders")
    assert str(new.exception) == (
        "The stream 'orders' has no job yet. Nothing was done. `batch-pipeline plan orders` "
        "creates it."
    )


def test_advised_commands_can_be_pasted(project: DefsHarness) -> None:
    """The library's jobs may have any name, and several tables may have a job of a name."""
    for table in ("ops.files", "ops.more"):
        insert = "INSERT INTO batch_pipeline.job (name, meta_table) VALUES ('redo 20', :table)"
        execute(project.database, insert, table=table)
    again = "'redo 20' --meta-table ops.files"
    paused = invoke("jobs", "pause", "redo 20", "--meta-table", "ops.files")
    assert f"`batch-pipeline jobs resume {again}` resumes it" in paused.output
    unknown = invoke("jobs", "split", "redo 20", "--meta-table", "ops.more", "--batch", "9")
    assert "`batch-pipeline jobs list 'redo 20'` lists" in str(unknown.exception)
    assert "`batch-pipeline jobs list 'redo 20'`?" in invoke("jobs", "redo 20").output


def test_job_of_another_table_with_the_name_of_a_stream_is_not_the_streams(
    project: DefsHarness,
) -> None:
    insert = "INSERT INTO batch_pipeline.job (name, meta_table) VALUES ('orders', 'ops.files')"
    execute(project.database, insert)
    publish_all(project)
    assert [batch["batch_id"] for batch in _dry_run("--batch", "4..6")] == [SECOND]
    [batch] = run_json(invoke, "explain", "4..6")["batches"]
    assert (batch["batch_id"], batch["state"]) == (SECOND, "published")


def test_stream_named_twice_is_shown_once(project: DefsHarness) -> None:
    [shown] = run_json(invoke, "status", "orders", "orders")["streams"]
    assert shown["stream"] == "orders"


def test_exit_code_is_that_of_failed_batches_if_another_stream_has_to_wait() -> None:
    failed = RunResult(stream="orders", statuses=[batch_status(1, BatchState.FAILED)])
    waits = RunResult(stream="clicks", error=DatabaseUnreachableError("here", "refused"))
    assert report_failures([waits]) == 75
    assert report_failures([waits, failed]) == 3


def test_resumed_backfill_of_a_paused_stream_stays_paused(project: DefsHarness) -> None:
    invoke("plan", "orders", "--backfill", "again")
    for job in ("orders", "orders.again"):
        invoke("jobs", "pause", job)
    assert invoke("jobs", "resume", "orders.again").output == (
        "orders.again is resumed, but its stream is still paused. "
        "`batch-pipeline jobs resume orders` resumes it.\n"
    )
    assert invoke("jobs", "resume", "orders").output == "orders is resumed.\n"


def test_reprocess_selects_by_range_number_key_and_publication_time(project: DefsHarness) -> None:
    """A dry run ignores the lock of the home."""
    publish_all(project)
    for label in ("4..6", "2", SECOND):
        assert [batch["batch_id"] for batch in _dry_run("--batch", label)] == [SECOND]
    unknown = invoke("reprocess", "orders", "--batch", "4..7", "--dry-run")
    assert "'4..7'" in str(unknown.exception)
    with project.pipeline.home.lock("batch-pipeline dev"):
        assert len(_dry_run("--all")) == len(_dry_run("--since", "2020-01-01")) == 4
    assert _dry_run("--since", "2020-01-01", "--until", "2020-01-02") == []
    assert _dry_run("--since", "2999-01-01T00:00:00+01:00") == []


def test_reprocess_beside_another_command_starts_no_spark(project: DefsHarness) -> None:
    publish_all(project)
    with project.pipeline.home.lock("batch-pipeline dev"):
        refused = invoke("reprocess", "orders", "--all")
    assert "is in use by `batch-pipeline dev`" in str(refused.exception)
    assert not (project.pipeline.home.path / "spark").exists()


def _dry_run(*words: str) -> list[dict[str, object]]:
    report = run_json(invoke, "reprocess", "orders", *words, "--dry-run")
    batches: list[dict[str, object]] = report["batches"]
    return batches


def test_batch_option_accepts_lists_and_names_unknown_batches(project: DefsHarness) -> None:
    labels = [status.batch.label for status in project.database.batches.statuses("orders")]
    listed = f"{labels[0]}, {labels[1]}"
    unknown = invoke("jobs", "cancel", "orders", "--batch", f"{listed},x")
    assert "no batch 'x'" in str(unknown.exception)
    words = ["jobs", "cancel", "orders", "--batch", listed, "--batch", labels[2], "--json"]
    with project.database.engine.begin() as other_session:
        lock = "SELECT FROM batch_pipeline.batch_state WHERE batch_id = 3 FOR UPDATE"
        other_session.execute(sa.text(lock))
        assert "Nothing was changed" in str(invoke(*words).exception)
    assert '"batches":3' in invoke(*words).stdout.replace(" ", "")
    words = ["jobs", "retry", "orders", "--batch", listed, "--json"]
    assert '"batches":2' in invoke(*words).stdout.replace(" ", "")
    empty = invoke("jobs", "retry", "orders", "--batch", "1,,2")
    assert empty.exit_code == 2
