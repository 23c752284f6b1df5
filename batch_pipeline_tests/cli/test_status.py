"""What `status` and `explain` say for people: what is wrong first, what to do, and how it reads."""

import json
import os
import pty
import re
import sys
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
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
from batch_pipeline.model.batch import AttemptStatus
from batch_pipeline_tests.defs.checks_fixture import publish, publish_all
from batch_pipeline_tests.defs.defs_fixture import DefsScene
from batch_pipeline_tests.seeds import claimed, execute, insert_batches, register

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
FIRST, SECOND = "00000001-00000003", "00000004-00000006"
ERROR = "orders: /landing/4.csv, line 2: a quote is not closed. Repair the file; then run again."


def shown(*words: str) -> list[str]:
    """Run a command that ends well and give its lines."""
    ended = CliRunner().invoke(cli, words)
    assert ended.exit_code == 0, ended.output
    return ended.stdout.splitlines()


def fail(scene: DefsScene, key: str) -> None:
    """Let an attempt on a batch fail."""
    with claimed(scene.database, scene.database.batches.batch("orders", key)) as attempt:
        scene.database.attempts.fail(attempt, ERROR, AttemptStatus.FAILED)


def passed(scene: DefsScene, time: str) -> None:
    """Let all that happened have happened so long before."""
    execute(
        scene.database,
        "UPDATE batch_pipeline.attempt SET started_at = started_at - CAST(:time AS interval), "
        "finished_at = finished_at - CAST(:time AS interval)",
        time=time,
    )


def test_status_of_a_stream_in_order_is_four_lines(scene: DefsScene) -> None:
    """Expect that all is done and since when, how much, and where it comes from."""
    publish_all(scene)
    passed(scene, "3 hours")
    landing = scene.stream.source.place
    assert shown("status") == [
        "orders",
        "  now         everything is published, last 3 hours ago",
        "  batches     4 published",
        f"  source      folder {landing}",
        "  ceiling     12 (registrar); nothing holds it back",
    ]


def test_status_tells_first_what_is_wrong_and_what_to_do(scene: DefsScene) -> None:
    """Expect failed and cancelled batches with age and reason, and the command for each."""
    publish(scene, scene.database.batches.batch("orders", FIRST))
    fail(scene, SECOND)
    passed(scene, "90 minutes")
    scene.database.jobs.cancel_batch("orders", "00000007-00000009")
    scene.database.jobs.pause("orders", "disk full")
    register(scene.database, 2, first=13)
    lines = shown("status")
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


def set_dagster_status(instance: dg.DagsterInstance, name: str, status: str) -> None:
    """Store the status of a sensor or schedule, as the page Automation and the daemon do."""
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
    told = json.loads("\n".join(shown("status", "--json")))
    names: list[str] = told.get("automation_stopped", [])
    assert names or {*told} == {"streams"}
    return names


def test_status_warns_of_sensors_and_schedules_that_are_stopped_in_dagster(
    scene: DefsScene,
) -> None:
    ended = CliRunner().invoke(cli, ["status"])
    assert (ended.stderr, automation_stopped()) == ("", [])  # there is no Dagster instance
    definitions = scene.definitions
    sensors = [sensor.name for sensor in definitions.sensors or ()]
    schedules = [schedule.name for schedule in definitions.schedules or ()]
    with open_instance(scene.pipeline.home) as instance:
        for name in (*sensors, *schedules):
            set_dagster_status(instance, name, "DECLARED_IN_CODE")
        assert automation_stopped() == []
        for name in (*sensors, *schedules):
            set_dagster_status(instance, name, "STOPPED")
        assert automation_stopped() == [
            "batch_pipeline_reconcile_hourly",
            "batch_pipeline_collect_garbage_daily",
            "batch_pipeline_check_streams_hourly",
            "orders_new_files",
            "orders_backfill",
        ]
        for name in (*schedules, "orders_backfill"):
            set_dagster_status(instance, name, "RUNNING")
    ended = CliRunner().invoke(cli, ["status"])
    assert ended.exit_code == 0
    assert ended.stderr == (
        "Note: Automation is stopped: orders_new_files. "
        "Start it on the page Automation of Dagster's UI.\n"
    )


def test_status_warns_of_a_stream_whose_file_says_stopped_until_it_is_started(
    scene: DefsScene, tmp_path: Path
) -> None:
    path = tmp_path / "streams" / "orders" / "defs.yaml"
    document = yaml.safe_load(path.read_text())
    document["attributes"]["dagster"]["automation"] = "stopped"
    document["attributes"]["dagster"]["schedule"] = "0 6 * * *"
    path.write_text(yaml.safe_dump(document))
    assert automation_stopped() == []  # there is no Dagster instance
    with open_instance(scene.pipeline.home) as instance:
        names = automation_stopped()
        assert names[-3:] == ["orders_planned", "orders_new_files_at", "orders_backfill"]
        assert len(names) == 6
        set_dagster_status(instance, "orders_planned", "DECLARED_IN_CODE")  # of an earlier file
        assert automation_stopped() == names
        for name in names:
            set_dagster_status(instance, name, "RUNNING")
    assert automation_stopped() == []


def test_status_of_a_new_stream_says_how_to_begin(scene: DefsScene) -> None:
    """Expect the command that takes what has landed."""
    scene.database.delete_stream("orders")
    lines = shown("status")
    assert lines[1] == "  now         nothing is registered yet"
    assert lines[2].startswith("  next        `batch-pipeline run orders` registers")
    assert lines[-1] == "  ceiling     none yet (registrar); nothing holds it back"


def test_status_with_50000_partitions_warns_and_names_the_limits(scene: DefsScene) -> None:
    assert not any("warning" in line for line in shown("status"))
    execute(scene.database, "DELETE FROM batch_pipeline.batch_state")
    execute(scene.database, "DELETE FROM batch_pipeline.batch")
    insert_batches(scene.database, "orders", 50_000)
    [line] = [one for one in shown("status") if one.startswith("  warning")]
    assert line.startswith("  warning     orders/batches has 50,000 partitions. Dagster advises")
    (report,) = json.loads("\n".join(shown("status", "--json")))["streams"]
    assert report["warnings"] == [line.removeprefix("  warning     ")]


def test_status_for_programs_has_the_same_facts(scene: DefsScene) -> None:
    """Expect ages in seconds and times with a zone."""
    publish(scene, scene.database.batches.batch("orders", FIRST))
    fail(scene, SECOND)
    (report,) = json.loads("\n".join(shown("status", "--json")))["streams"]
    assert (report["items_waiting"], report["items_unpublished"]) == (0, 9)
    assert report["oldest_seconds"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", report["last_published_at"])
    failed = next(one for one in report["unfinished"] if one["state"] == "failed")
    assert (failed["batch_id"], failed["attempts"], failed["error"]) == (SECOND, 1, ERROR)
    assert failed["finished_at"] > report["last_published_at"]


@pytest.mark.parametrize(
    ("happened", "now", "following"),
    [
        ("planned", "planned, not started yet", "`batch-pipeline run orders` encodes it"),
        ("failed", "failed 2 days ago, attempts: 1", "`batch-pipeline jobs retry orders`, then"),
        ("published", "published 2 days ago, generation 1; records quarantined: 4 of 9", None),
        (
            "failed again",
            "published 2 days ago, generation 1; failed 2 days ago, attempts: 2",
            None,
        ),
    ],
)
def test_explain_tells_first_where_a_file_is_by_now(
    scene: DefsScene, happened: str, now: str, following: str | None
) -> None:
    """Expect the state of its batch with its age, and what takes it further if nothing does."""
    batch = scene.database.batches.batch("orders", FIRST)
    if happened in {"published", "failed again"}:
        publish(scene, batch, quarantined=4 if happened == "published" else 0)
    if happened in {"failed", "failed again"}:
        fail(scene, FIRST)
    passed(scene, "49 hours")
    lines = shown("explain", "1")
    assert lines[1] == f"  now         {now}"
    if following is None:
        assert lines[2].startswith("  1 land      ")
    else:
        assert lines[2].startswith(f"  next        {following}")


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("words", [("status",), ("explain", "4")])
def test_lines_are_broken_between_words_on_a_terminal(
    scene: DefsScene, monkeypatch: pytest.MonkeyPatch, columns: int, words: tuple[str, ...]
) -> None:
    """Expect no line beyond the edge but a path that must stay whole, all below the first word."""
    fail(scene, SECOND)
    lines = on_terminal(monkeypatch, columns, *words)
    assert any(len(line) > columns - 12 for line in lines)
    for line in lines[1:]:
        assert line.startswith((" " * 14, "  ")), line
        assert len(line) <= columns or " " not in line.strip(), line
    told = " ".join(line.strip() for line in lines)
    assert ERROR in told
    assert told.split() == " ".join(shown(*words)).split()


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, *words: str) -> list[str]:
    """Run a command whose output goes to a terminal of so many columns, and give its lines."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(console.out, "_width", columns)  # else as it was when that was made
        patch.setattr(sys, "stdout", stream)
        cli.main([*words], standalone_mode=False)
    sent = b""
    with suppress(OSError):  # the other end is closed
        while True:
            sent += os.read(ours, 65_536)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m", "", sent.decode()).splitlines()


def test_status_for_programs_has_the_ceiling_as_a_number(scene: DefsScene) -> None:
    (report,) = json.loads("\n".join(shown("status", "--json")))["streams"]
    assert (report["ceiling"], report["ceiling_strategy"]) == (12, "registrar")
    assert report["ceiling_held_by"] == []
    scene.database.delete_stream("orders")
    (report,) = json.loads("\n".join(shown("status", "--json")))["streams"]
    assert report["ceiling"] is None


@pytest.mark.parametrize("name", [SECOND, "4..6"])
def test_explain_of_a_batch_shows_its_files_attempts_and_generations(
    scene: DefsScene, name: str
) -> None:
    batch = scene.database.batches.batch("orders", SECOND)
    fail(scene, SECOND)
    publish(scene, batch)
    publish(scene, batch)
    (told,) = json.loads("\n".join(shown("explain", name, "--json")))["batches"]
    assert (told["stream"], told["job"], told["batch_id"]) == ("orders", "orders", SECOND)
    assert (told["state"], told["items"], told["generation"]) == ("published", 3, 2)
    assert [one["item_id"] for one in told["files"]] == [4, 5, 6]
    tries = [(one["number"], one["status"], one["generation"]) for one in told["attempts"]]
    assert tries == [(1, "failed", None), (2, "succeeded", 1), (3, "succeeded", 2)]
    assert told["attempts"][1]["read"] == 15
    assert len(told["part_files"]) == 1
    text = "\n".join(shown("explain", name))
    assert text.startswith(f"orders: batch {SECOND}\n  now         published, generation 2\n")
    for file in told["files"]:
        assert file["location"] in text
    for words in ("attempt 1 failed", ERROR, "generation 1 by attempt 2", "generation 2 by att"):
        assert words in text


def test_explain_of_a_backfill_batch_takes_its_partition_key(scene: DefsScene) -> None:
    scene.plan(ids=(1, 3))
    key = f"2023:{FIRST}"
    (told,) = json.loads("\n".join(shown("explain", key, "--json")))["batches"]
    assert (told["job"], told["batch_id"], told["state"]) == ("orders.2023", key, "planned")
    assert shown("explain", key)[1] == "  now         planned"


def test_explain_of_a_key_that_no_stream_has_says_so(scene: DefsScene) -> None:
    ended = CliRunner().invoke(cli, ["explain", "00000004-00000007"])
    assert ended.exit_code == 1
    assert "is not a registered item or batch of any stream" in ended.stdout


def test_explain_of_a_split_batch_names_its_parts(scene: DefsScene) -> None:
    table = scene.database.meta_table("orders").reflected()
    scene.database.jobs.split("orders", FIRST, table)
    ended = CliRunner().invoke(cli, ["explain", FIRST])
    assert ended.exit_code == 1
    assert "00000001-0000000" in ended.stderr
