"""Backfills of a stream: encoded by `run`, and planned, launched and cancelled in Dagster."""

from collections import Counter
from typing import Any

import pytest

from batch_pipeline_tests.acceptance.graphql import (
    RUN,
    RUNS_OF_JOB,
    START,
    TERMINATE,
    WORKSPACE,
    ask,
)
from batch_pipeline_tests.acceptance.live_dev import FINISHED, LiveDev, live_dev
from batch_pipeline_tests.acceptance.sandbox import (
    Sandbox,
    json_records,
    manifests,
    unaccounted_files,
    wait_until,
)

pytestmark = pytest.mark.long

FILES = {f"{number}.csv": f"id\n{number}\n".encode() for number in range(1, 7)}
# Batches take three extra seconds, so that a run can be cancelled half-way.
SLOW = "encode.before_publish=sleep:3"


def published(sandbox: Sandbox, stream: str = "orders") -> dict[str, int]:
    """Count the written records of a stream or backfill by batch, from the manifests."""
    return {
        manifest["batch_id"]: manifest["records"]["written"]
        for manifest in manifests(sandbox.storage("orders"))
        if manifest["stream"] == stream
    }


def backfill(sandbox: Sandbox, job: str) -> dict[str, Any]:
    """Return the status of a backfill."""
    [status] = sandbox.json_of("status", "orders")["streams"]
    [report] = [report for report in status["backfills"] if report["job"] == job]
    counts = {state: count for state, count in report["batches"].items() if count}
    return {**report, "batches": counts}


@pytest.fixture
def sandbox(sandbox: Sandbox, warm_spark: str) -> Sandbox:
    """A stream `orders` with six files of one record, published in two batches."""
    sandbox.write_stream(
        "orders", batch={"max_count": 3}, dagster={"partitions_per_run": 3, "backfills": True}
    )
    sandbox.land("orders", FILES)
    warm = sandbox.in_process(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    warm.output_of("run")
    return warm


def test_run_encodes_planned_backfills(sandbox: Sandbox) -> None:
    sandbox.output_of("plan", "orders", "--backfill", "2023", "--first-id", "2", "--max-count", "2")
    waiting = backfill(sandbox, "orders.2023")
    assert (waiting["batches"], waiting["finished"]) == ({"planned": 3}, False)
    assert "2023:00000002-00000003" in sandbox.output_of("run")
    assert published(sandbox) == {"00000001-00000003": 3, "00000004-00000006": 3}
    assert published(sandbox, "orders.2023") == {
        "00000002-00000003": 2,
        "00000004-00000005": 2,
        "00000006-00000006": 1,
    }
    assert unaccounted_files(sandbox.storage("orders")) == []
    done = backfill(sandbox, "orders.2023")
    assert (done["batches"], done["finished"], done["items_done"]) == ({"published": 3}, True, 5)
    assert "(finished)" in sandbox.output_of("status", "orders")
    [item] = sandbox.json_of("explain", "2.csv")["items"]
    assert item["batch_id"] == "00000001-00000003"
    [backfilled] = item["backfills"]
    facts = [backfilled[key] for key in ("partition", "state", "generation")]
    assert facts == ["2023:00000002-00000003", "published", 1]
    assert [item["backfills"] for item in sandbox.json_of("explain", "1.csv")["items"]] == [[]]
    ids = Counter(str(record["id"]) for record in json_records(sandbox.storage("orders")))
    assert ids == {"1": 1, "2": 2, "3": 2, "4": 2, "5": 2, "6": 2}
    assert "nothing left to encode" in sandbox.output_of("run")


def test_run_skips_paused_backfills_and_reports_failed_batches(sandbox: Sandbox) -> None:
    """Exit code 75 is for paused work, 3 for a failed batch."""
    sandbox.output_of("plan", "orders", "--backfill", "held", "--item", "1")
    sandbox.output_of("jobs", "pause", "orders", "--reason", "schema change")
    held = sandbox.run("run")
    assert held.returncode == 75, held.stderr
    assert "Job 'orders' is paused (schema change)" in held.stderr
    assert "resume orders.held" not in held.stderr
    status = backfill(sandbox, "orders.held")
    assert (status["batches"], status["paused"]) == ({"planned": 1}, "schema change")

    sandbox.output_of("jobs", "resume", "orders")
    sandbox.output_of("jobs", "pause", "orders.held", "--reason", "wait for Ann")
    held = sandbox.run("run")
    assert held.returncode == 75, held.stderr
    assert "'orders.held' is paused (wait for Ann)" in held.stderr
    assert backfill(sandbox, "orders.held")["paused"] == "wait for Ann"

    sandbox.output_of("jobs", "cancel", "orders.held")
    (sandbox.landing("orders") / "2.csv").write_bytes(b'id\n"2\n')
    sandbox.output_of("plan", "orders", "--backfill", "again", "--last-id", "3", "--max-count", "1")
    bad = sandbox.run("run")
    assert bad.returncode == 3, bad.stderr
    assert "2.csv" in bad.stderr
    assert len(published(sandbox, "orders.again")) == 2
    assert backfill(sandbox, "orders.again")["batches"] == {"published": 2, "failed": 1}
    assert backfill(sandbox, "orders.held")["batches"] == {"cancelled": 1}


def plan(dev: LiveDev, **config: Any) -> dict[str, Any]:
    """Run the Dagster job that plans backfills, as the Launchpad does; return the ended run."""
    [entry] = ask(dev.port, WORKSPACE, {})["workspaceOrError"]["locationEntries"]
    [repository] = entry["locationOrLoadError"]["repositories"]
    parameters = {
        "selector": {
            "repositoryLocationName": entry["name"],
            "repositoryName": repository["name"],
            "jobName": "batch_pipeline_plan_backfill",
        },
        "runConfigData": {"ops": {"plan_or_estimate": {"config": {"stream": "orders", **config}}}},
    }
    launched = ask(dev.port, START, {"parameters": parameters})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    return ended_run(dev, launched["run"]["runId"])


def ended_run(dev: LiveDev, run_id: str) -> dict[str, Any]:
    """Wait until a run ends and return it."""

    def run() -> dict[str, Any]:
        answer: dict[str, Any] = ask(dev.port, RUN, {"id": run_id})["runOrError"]
        return answer

    wait_until(lambda: run()["status"] in FINISHED, "the run ends", pause_seconds=0.5)
    return run()


def run_ids(dev: LiveDev, name: str) -> list[str]:
    """Return the runs that encode a backfill."""
    runs = ask(dev.port, RUNS_OF_JOB, {"job": "orders_encode_backfill"})["runsOrError"]["results"]
    tag = {"key": "batch_pipeline/backfill", "value": name}
    return [run["runId"] for run in runs if tag in run["tags"]]


def test_backfill_planned_and_cancelled_in_dagster(sandbox: Sandbox) -> None:
    """Batches of a cancelled run stay cancelled until they are retried."""

    def wait_for(name: str, batches: int) -> None:
        wait_until(
            lambda: len(published(sandbox, f"orders.{name}")) >= batches,
            f"{batches} batches of {name} are published",
        )

    with live_dev(sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS=SLOW)) as dev:
        assert plan(dev, name="ui", max_count=2, dry_run=False)["status"] == "SUCCESS"
        wait_for("ui", 3)
        [run_id] = run_ids(dev, "ui")
        assert ended_run(dev, run_id)["status"] == "SUCCESS"
        assert dev.partitions("orders", asset="backfill")["materialized"] == {
            "ui:00000001-00000002",
            "ui:00000003-00000004",
            "ui:00000005-00000006",
        }

        assert plan(dev, name="off", max_count=1, dry_run=False)["status"] == "SUCCESS"
        wait_for("off", 1)
        cancelled_runs = run_ids(dev, "off")
        for run_id in cancelled_runs:
            ask(dev.port, TERMINATE, {"id": run_id})
        ends = {ended_run(dev, run_id)["status"] for run_id in cancelled_runs}
        assert "CANCELED" in ends
        assert ends <= {"CANCELED", "SUCCESS"}  # a run can end before it is terminated
        wait_until(
            lambda: bool(backfill(sandbox, "orders.off")["finished"]),
            "the remaining batches are cancelled",
            pause_seconds=1,
        )
        count = len(published(sandbox, "orders.off"))
        cancelled = {"published": count, "cancelled": 6 - count}
        assert backfill(sandbox, "orders.off")["batches"] == cancelled

        sandbox.output_of("plan", "orders", "--backfill", "after", "--item", "1")
        wait_for("after", 1)  # the sensor continues
        assert run_ids(dev, "off") == cancelled_runs
        assert backfill(sandbox, "orders.off")["batches"] == cancelled
        sandbox.output_of("jobs", "retry", "orders.off")
        wait_for("off", 6)
        dev.wait_until_idle()
