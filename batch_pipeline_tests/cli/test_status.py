"""The text output of `status` and `explain`: problems first, then next steps."""

import json
import re
from datetime import timedelta
from itertools import product
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from batch_pipeline.cli import cli, console
from batch_pipeline.defs.instance.dagster_home import open_instance
from batch_pipeline.model.errors import OLDER
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.cli.commands import invoke, on_terminal, run_json
from batch_pipeline_tests.defs.checks_fixture import publish, publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.factories import part_file
from batch_pipeline_tests.seeds import claimed, execute, fail, insert_batches, register

FIRST, SECOND = "00000001-00000003", "00000004-00000006"
ERROR = "orders: /landing/4.csv, line 2: a quote is not closed. Repair the file; then run again."


def run_lines(*words: str) -> list[str]:
    """Run a command that succeeds and return its lines."""
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def fail_attempt(project: DefsHarness, key: str) -> None:
    """Let an attempt on a batch fail."""
    fail(project.database, project.database.batches.batch("orders", key), ERROR)


def make_older(project: DefsHarness, time: str) -> None:
    """Move all attempts into the past."""
    execute(
        project.database,
        "UPDATE batch_pipeline.attempt SET started_at = started_at - CAST(:time AS interval), "
        "finished_at = finished_at - CAST(:time AS interval)",
        time=time,
    )


def test_status_of_a_fully_published_stream(project: DefsHarness) -> None:
    publish_all(project)
    make_older(project, "3 hours")
    landing = project.stream.source.place
    assert run_lines("status") == [
        "orders",
        "  now         everything is published, last 3 hours ago",
        "  batches     4 published",
        f"  source      folder {landing}",
        "  watermark   12 (registrar); nothing holds it back",
    ]


def test_status_lists_problems_first_and_a_command_for_each(project: DefsHarness) -> None:
    publish(project, project.database.batches.batch("orders", FIRST))
    fail_attempt(project, SECOND)
    make_older(project, "90 minutes")
    project.database.jobs.cancel("orders", "00000007-00000009")
    project.database.jobs.pause("orders", "disk full")
    register(project.database, 2, first=13)
    lines = run_lines("status")
    assert lines[1].startswith(
        "  now         paused; batches failed: 1; batches cancelled: 1; "
        "items waiting: 8, the oldest for "
    )
    assert lines[1].endswith("; last published 90 minutes ago")
    assert lines[2:11] == [
        "  paused      disk full",
        f"  failed      {SECOND}, attempts: 1, 90 minutes ago",
        f"              {ERROR}",
        "  cancelled   00000007-00000009, attempts: 0",
        "  next        `batch-pipeline jobs resume orders` resumes it",
        "              `batch-pipeline run orders` retries failed batches",
        "              `batch-pipeline jobs retry orders` retries dead and cancelled batches",
        "  batches     1 planned, 1 published, 1 failed, 1 cancelled",
        "  waiting     items not planned yet: 2, 20 B",
    ]
    project.database.jobs.pause("orders", f"{OLDER}: reconcile --discard")
    assert "jobs resume" not in invoke("status").output


def set_dagster_status(instance: dg.DagsterInstance, name: str, status: str) -> None:
    """Store the status of a sensor or schedule, as Dagster's Automation page and the daemon do."""
    target = LoadableTargetOrigin(executable_path="python")
    code_location = RemoteRepositoryOrigin(InProcessCodeLocationOrigin(target), "__repository__")
    origin = RemoteInstigatorOrigin(code_location, name)
    stored = InstigatorStatus[status]
    state = InstigatorState(origin, InstigatorType.SENSOR, stored, SensorInstigatorData())
    if instance.get_instigator_state(state.instigator_origin_id, state.selector_id) is None:
        instance.add_instigator_state(state)
    else:
        instance.update_instigator_state(state)


def automation_stopped() -> list[str]:
    output = run_json(invoke, "status")
    names: list[str] = output.get("automation_stopped", [])
    assert names or {*output} == {"streams"}
    return names


def test_status_warns_of_stopped_sensors_and_schedules(
    project: DefsHarness,
) -> None:
    result = invoke("status")
    assert (result.stderr, automation_stopped()) == ("", [])  # there is no Dagster instance
    definitions = project.definitions
    sensors = [sensor.name for sensor in definitions.sensors or ()]
    schedules = [schedule.name for schedule in definitions.schedules or ()]
    with open_instance(project.pipeline.home) as instance:
        for name in (*sensors, *schedules):
            set_dagster_status(instance, name, "DECLARED_IN_CODE")
        assert automation_stopped() == []
        for name in (*sensors, *schedules):
            set_dagster_status(instance, name, "STOPPED")
        assert automation_stopped() == [
            "batch_pipeline_reconcile_hourly",
            "batch_pipeline_collect_garbage_daily",
            "batch_pipeline_check_streams_hourly",
            "batch_pipeline_run_ends",
            "orders_new_files",
            "orders_backfill",
        ]
        for name in (*schedules, "batch_pipeline_run_ends", "orders_backfill"):
            set_dagster_status(instance, name, "RUNNING")
    result = invoke("status")
    assert result.exit_code == 0
    assert result.stderr == (
        "Note: Automation is stopped: orders_new_files. "
        "Start it on the page Automation of Dagster's UI.\n"
    )


def test_status_warns_of_automation_that_the_stream_file_stops(
    project: DefsHarness, tmp_path: Path
) -> None:
    path = tmp_path / "streams" / "orders" / "defs.yaml"
    document = yaml.safe_load(path.read_text())
    document["attributes"]["dagster"]["automation"] = "stopped"
    document["attributes"]["dagster"]["schedule"] = "0 6 * * *"
    path.write_text(yaml.safe_dump(document))
    assert automation_stopped() == []  # there is no Dagster instance
    with open_instance(project.pipeline.home) as instance:
        names = automation_stopped()
        assert names[-3:] == ["orders_planned", "orders_new_files_at", "orders_backfill"]
        assert len(names) == 7
        set_dagster_status(instance, "orders_planned", "DECLARED_IN_CODE")  # of an earlier file
        assert automation_stopped() == names
        for name in names:
            set_dagster_status(instance, name, "RUNNING")
    assert automation_stopped() == []


def test_status_creates_no_home(
    project: DefsHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path / "new"))
    run_lines("status", "orders")
    assert not (tmp_path / "new").exists()


def test_status_of_a_new_stream_names_the_first_command(project: DefsHarness) -> None:
    project.database.delete_stream("orders")
    lines = run_lines("status")
    assert lines[1] == "  now         nothing is registered yet"
    assert lines[2].startswith("  next        `batch-pipeline run orders` registers")
    assert lines[-1] == "  watermark   none yet (registrar); nothing holds it back"


@pytest.mark.long
def test_status_with_50000_partitions_warns_and_names_the_limits(project: DefsHarness) -> None:
    assert not any("warning" in line for line in run_lines("status"))
    execute(project.database, "DELETE FROM batch_pipeline.batch_state")
    execute(project.database, "DELETE FROM batch_pipeline.batch")
    insert_batches(project.database, "orders", 50_000)
    [line] = [line for line in run_lines("status") if line.startswith("  warning")]
    assert line.startswith("  warning     orders/batches has 50,000 partitions. Dagster advises")
    (report,) = run_json(invoke, "status")["streams"]
    assert report["warnings"] == [line.removeprefix("  warning     ")]


def test_status_json_has_batches_ages_and_times(project: DefsHarness) -> None:
    publish(project, project.database.batches.batch("orders", FIRST))
    fail_attempt(project, SECOND)
    (published,) = run_json(invoke, "status")["streams"]
    fail_attempt(project, FIRST)  # encoded again
    (report,) = run_json(invoke, "status")["streams"]
    assert report["last_published_at"] == published["last_published_at"]
    assert (report["items_waiting"], report["items_unpublished"]) == (0, 9)
    assert report["oldest_seconds"] > 0
    assert (report["ceiling"], report["ceiling_strategy"]) == (12, "registrar")
    assert report["ceiling_held_by"] == []
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", report["last_published_at"])
    failed = next(batch for batch in report["unfinished"] if batch["state"] == "failed")
    assert (failed["batch_id"], failed["attempts"], failed["error"]) == (SECOND, 1, ERROR)
    assert failed["finished_at"] > report["last_published_at"]


def test_explain_starts_with_the_current_state(project: DefsHarness) -> None:
    _, second, third, fourth = (one.batch for one in project.database.batches.statuses("orders"))
    fail_attempt(project, second.key)
    publish(project, third, quarantined=4)
    publish(project, fourth)
    fail_attempt(project, fourth.key)
    make_older(project, "49 hours")
    published = "published 2 days ago, generation 1; "
    expected = [
        ("1", "planned, not started yet", "next        `batch-pipeline run orders` encodes it"),
        (
            "4",
            "failed 2 days ago, attempts: 1",
            "next        `batch-pipeline jobs retry orders`, t",
        ),
        ("7", f"{published}records quarantined: 4 of 9", "1 land      "),
        ("10", f"{published}failed 2 days ago, attempts: 2", "1 land      "),
    ]
    for item, now, following in expected:
        lines = run_lines("explain", item)
        assert lines[1] == f"  now         {now}"
        assert lines[2].startswith(f"  {following}")
    project.database.jobs.pause("orders", "disk full")
    assert run_lines("explain", "1")[2:4] == [
        "  next        `batch-pipeline jobs resume orders` resumes it",
        "              `batch-pipeline run orders` encodes it, as do the sensors of `dev`",
    ]


@pytest.mark.parametrize("targets", [{"wh": {"command": "target-csv"}}])
def test_explain_advises_no_load_of_files_that_were_deleted(project: DefsHarness) -> None:
    publish_all(project)
    removed = """UPDATE batch_pipeline.attempt SET facts = facts || '{"files_removed_at": "%s"}'"""
    execute(project.database, removed % "2026-03-01T00:00:00+00:00")
    for name in ("1", FIRST):
        text = "\n".join(run_lines("explain", name))
        assert "these files were deleted 2026-03-01" in text
        assert "  9 load      wh: not loaded, and its files were deleted\n" in f"{text}\n"


def test_run_of_a_paused_stream_names_the_reason_and_counts_no_files(project: DefsHarness) -> None:
    project.database.jobs.pause("orders", "disk full")
    paused = invoke("run", "--json")
    assert "Job 'orders' is paused (disk full)" in paused.stderr
    assert "`batch-pipeline jobs resume orders`" in paused.stderr
    assert (paused.exit_code, json.loads(paused.stdout)["streams"][0]["files_found"]) == (75, None)
    assert "1 land" not in invoke("run").stdout


def test_explain_finds_a_path_with_dots_and_takes_any_name(project: DefsHarness) -> None:
    items = run_json(invoke, "explain", "1")["items"]
    path = Path(to_path(items[0]["location"]))
    dotted = path.parent / "no" / ".." / ".." / path.parent.name / path.name
    assert run_json(invoke, "explain", str(dotted))["items"] == items
    for name in ("x" * 300, f"{path}/{'x' * 300}"):
        assert f"{name} is not a registered item" in invoke("explain", name).stdout


def test_lines_wrap_between_words_on_a_terminal(
    project: DefsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a path that must not be broken may exceed the width."""
    fail_attempt(project, SECOND)
    for columns, words in product((40, 80), (("status",), ("explain", "4"))):
        lines = lines_on_terminal(monkeypatch, columns, *words)
        assert any(len(line) > columns - 12 for line in lines)
        for line in lines[1:]:
            assert line.startswith((" " * 14, "  ")), line
            assert len(line) <= columns or " " not in line.strip(), line
        output = " ".join(line.strip() for line in lines)
        assert ERROR in output
        assert output.split() == " ".join(run_lines(*words)).split()


def lines_on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, *words: str) -> list[str]:
    """Run a command whose output is a terminal of that width, and return its lines."""
    with monkeypatch.context() as patch:
        patch.setattr(console.out, "_width", columns)  # otherwise the width at creation
        sent = on_terminal(patch, lambda: cli.main([*words], standalone_mode=False), "stdout")
    return re.sub(r"\x1b\[[0-9;]*m", "", sent).splitlines()


def test_explain_of_a_batch_shows_its_files_attempts_and_generations(project: DefsHarness) -> None:
    batch = project.database.batches.batch("orders", SECOND)
    fail_attempt(project, SECOND)
    publish(project, batch)
    publish(project, batch)
    (output,) = run_json(invoke, "explain", SECOND)["batches"]
    assert run_json(invoke, "explain", "4..6")["batches"] == [output]
    assert (output["stream"], output["job"], output["batch_id"]) == ("orders", "orders", SECOND)
    assert (output["state"], output["items"], output["generation"]) == ("published", 3, 2)
    assert [file["item_id"] for file in output["files"]] == [4, 5, 6]
    attempts = [(it["number"], it["status"], it["generation"]) for it in output["attempts"]]
    assert attempts == [(1, "failed", None), (2, "succeeded", 1), (3, "succeeded", 2)]
    assert output["attempts"][1]["read"] == 15
    assert len(output["part_files"]) == 1
    text = "\n".join(run_lines("explain", SECOND))
    assert text.startswith(f"orders: batch {SECOND}\n  now         published, generation 2\n")
    for file in output["files"]:
        assert file["location"] in text
    for words in ("attempt 1 failed", ERROR, "generation 1 by attempt 2", "generation 2 by att"):
        assert words in text


def test_explain_names_quarantine_files_of_the_newest_generation(project: DefsHarness) -> None:
    batch = project.database.batches.batch("orders", FIRST)
    for count, names, are_shown in ((4, ["bad"], True), (4, [], False), (0, ["of-2"], False)):
        files = tuple(map(part_file, names))
        publish(project, batch, quarantined=count, quarantine_files=files)
        assert ("with line and reason" in "".join(run_lines("explain", "1"))) is are_shown


def test_explain_of_a_backfill_batch_takes_its_partition_key(project: DefsHarness) -> None:
    project.plan(ids=(1, 3))
    key = f"2023:{FIRST}"
    (output,) = run_json(invoke, "explain", key)["batches"]
    assert (output["job"], output["batch_id"], output["state"]) == ("orders.2023", key, "planned")
    assert run_lines("explain", key)[1] == "  now         planned"


def test_late_batches_have_their_partition_keys_in_all_commands(project: DefsHarness) -> None:
    publish_all(project)
    key, other = project.plan_late(2, 3)
    run_lines("jobs", "cancel", "orders", "--batch", other)
    fail_attempt(project, key)
    report = run_json(invoke, "status")["streams"][0]
    assert (report["batches"]["failed"], report["batches"]["cancelled"]) == (1, 1)
    assert [batch["batch_id"] for batch in report["unfinished"]] == [key, other]
    assert f"  failed      {key}, attempts: 1, just now" in run_lines("status")
    listed = run_json(invoke, "jobs", "list", "orders")["unfinished"]
    assert [batch["batch_id"] for batch in listed] == [key, other]
    statuses = project.database.stream_statuses
    assert statuses.stuck("orders", timedelta(0)).first == key
    assert statuses.status("orders", project.database.meta_table("orders")).oldest_batch == key
    (output,) = run_json(invoke, "explain", key)["batches"]
    assert (output["batch_id"], output["is_late"], output["items"]) == (key, True, 1)
    assert run_lines("explain", "2")[2].startswith(
        "  next        `batch-pipeline jobs retry orders`"
    )
    assert run_json(invoke, "jobs", "retry", "orders", "--batch", key)["batches"] == 1
    assert run_json(invoke, "jobs", "cancel", "orders", "--batch", f"{key},{other}")["batches"] == 1


def test_explain_follows_cancelling_and_retrying(project: DefsHarness) -> None:
    cancel, retry = ("jobs", "cancel", "orders"), ("jobs", "retry", "orders")
    advice = "  next        `batch-pipeline jobs retry orders` retries the batch"
    run_lines(*cancel, "--batch", FIRST)
    assert run_lines("explain", "1")[1:3] == ["  now         cancelled", advice]
    fail_attempt(project, SECOND)
    run_lines(*cancel, "--batch", SECOND)
    failed = "  now         failed just now, attempts: 1"
    assert run_lines("explain", "4")[1:3] == [f"{failed}; cancelled since", advice]
    run_lines(*retry)
    assert run_lines("explain", "1")[1] == "  now         planned, not started yet"
    now, following, *_ = run_lines("explain", "4")[1:]
    assert now == f"{failed}; to be tried again"
    assert following.startswith("  next        `batch-pipeline run orders` encodes it")


def test_cancel_of_reprocessing_cancels_the_attempt_and_not_the_batch(project: DefsHarness) -> None:
    publish_all(project)
    with claimed(project.database, project.database.batches.batch("orders", FIRST)):
        (line,) = run_lines("jobs", "cancel", "orders")
    assert line == "orders: batches cancelled: 0, attempts cancelled: 1."
    assert run_lines("jobs", "cancel", "orders") == ["orders: nothing to cancel."]


def test_explain_of_a_split_batch_names_its_parts(project: DefsHarness) -> None:
    table = project.database.meta_table("orders").reflected()
    project.database.jobs.split("orders", FIRST, table)
    result = invoke("explain", FIRST)
    assert result.exit_code == 1
    assert "00000001-0000000" in result.stderr
