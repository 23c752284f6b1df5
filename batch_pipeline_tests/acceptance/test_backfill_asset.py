"""Backfills of a stream: encoded by `run`, and planned, launched and cancelled in Dagster."""

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from batch_pipeline_tests.acceptance.graphql import (
    PARTITIONS,
    RUN,
    RUNS_OF_JOB,
    START,
    TERMINATE,
    WORKSPACE,
    ask,
)
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    Sandbox,
    json_records,
    manifests,
    unaccounted_files,
    wait_until,
)

pytestmark = pytest.mark.long

FILES = {f"{number}.csv": f"id\n{number}\n".encode() for number in range(1, 7)}
BACKFILL_JOB = "orders_encode_backfill"


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
    warm = sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    warm.output_of("run")
    return warm


def test_run_encodes_planned_backfills(sandbox: Sandbox) -> None:
    sandbox.output_of("plan", "orders", "--backfill", "2023", "--first-id", "2", "--max-count", "2")
    waiting = backfill(sandbox, "orders.2023")
    assert (waiting["batches"], waiting["finished"]) == ({"planned": 3}, False)
    output = sandbox.output_of("run")
    assert "orders.2023" in output
    assert published(sandbox) == {
        "00000001-00000003": 3,
        "00000004-00000006": 3,
    }
    assert published(sandbox, "orders.2023") == {
        "00000002-00000003": 2,
        "00000004-00000005": 2,
        "00000006-00000006": 1,
    }
    assert unaccounted_files(sandbox.storage("orders")) == []
    done = backfill(sandbox, "orders.2023")
    assert (done["batches"], done["finished"], done["items_done"]) == ({"published": 3}, True, 5)
    assert "(finished)" in sandbox.output_of("status", "orders")
    [job] = sandbox.json_of("jobs", "list", "orders.2023")["jobs"]
    assert (job["finished"], job["batches"]["published"]) == (True, 3)
    [item] = sandbox.json_of("explain", "2.csv")["items"]
    assert item["batch_id"] == "00000001-00000003"
    [backfilled] = item["backfills"]
    assert backfilled["partition"] == "2023:00000002-00000003"
    assert (backfilled["state"], backfilled["generation"], len(backfilled["attempts"])) == (
        "published",
        1,
        1,
    )
    assert "2023:00000002-00000003 of orders/backfill" in sandbox.output_of("explain", "2.csv")
    assert [item["backfills"] for item in sandbox.json_of("explain", "1.csv")["items"]] == [[]]
    ids = Counter(str(record["id"]) for record in json_records(sandbox.storage("orders")))
    assert ids == {"1": 1, "2": 2, "3": 2, "4": 2, "5": 2, "6": 2}
    assert "nothing left to encode" in sandbox.output_of("run")


def test_run_skips_paused_backfills_and_reports_failed_batches(sandbox: Sandbox) -> None:
    """Exit code 75 is for paused work, 3 for a failed batch."""
    sandbox.output_of("plan", "orders", "--backfill", "held", "--item", "1")
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


def test_run_of_a_paused_stream_skips_its_backfills(sandbox: Sandbox) -> None:
    sandbox.output_of("plan", "orders")
    sandbox.output_of("plan", "orders", "--backfill", "2023", "--item", "1")
    sandbox.output_of("jobs", "pause", "orders", "--reason", "schema change")
    result = sandbox.run("run")
    assert result.returncode == 75, result.stderr
    assert "Job 'orders' is paused (schema change)" in result.stderr
    assert "resume orders.2023" not in result.stderr
    held = backfill(sandbox, "orders.2023")
    assert (held["batches"], held["paused"]) == ({"planned": 1}, "schema change")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDev:
    """A `dev` whose batches take three extra seconds, so that a run can be cancelled half-way."""

    sandbox: Sandbox
    port: int
    process: "subprocess.Popen[str]"

    def start(self, **config: Any) -> str:
        """Run the Dagster job that plans backfills, as the Launchpad does; return the run's id."""
        [entry] = ask(self.port, WORKSPACE, {})["workspaceOrError"]["locationEntries"]
        [repository] = entry["locationOrLoadError"]["repositories"]
        parameters = {
            "selector": {
                "repositoryLocationName": entry["name"],
                "repositoryName": repository["name"],
                "jobName": "batch_pipeline_plan_backfill",
            },
            "runConfigData": {
                "ops": {"plan_or_estimate": {"config": {"stream": "orders", **config}}}
            },
        }
        launched = ask(self.port, START, {"parameters": parameters})["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return str(launched["run"]["runId"])

    def status_of(self, run_id: str) -> dict[str, Any]:
        """Wait until a run ends and return it."""
        ends = {"SUCCESS", "FAILURE", "CANCELED"}
        wait_until(lambda: self.run(run_id)["status"] in ends, "the run ends", pause_seconds=0.5)
        return self.run(run_id)

    def run(self, run_id: str) -> dict[str, Any]:
        """Return a run."""
        run: dict[str, Any] = ask(self.port, RUN, {"id": run_id})["runOrError"]
        return run

    def runs(self, name: str) -> list[dict[str, Any]]:
        """Return the runs that encode a backfill."""
        runs = ask(self.port, RUNS_OF_JOB, {"job": BACKFILL_JOB})["runsOrError"]["results"]
        tag = {"key": "batch_pipeline/backfill", "value": name}
        return [run for run in runs if tag in run["tags"]]

    def asset(self) -> dict[str, Any]:
        """Return partitions and observations of the asset."""
        key = {"path": ["orders", "backfill"]}
        node: dict[str, Any] = ask(self.port, PARTITIONS, {"key": key})["assetNodeOrError"]
        return node


@pytest.fixture
def dev(sandbox: Sandbox) -> Iterator[RunningDev]:
    """The sandbox with a running `dev`."""
    slow = sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS="encode.before_publish=sleep:3")
    port = free_port()
    process = slow.start("dev", "--port", str(port))

    def is_up() -> bool:
        return "Dagster is at http" in slow.output.read_text() or process.poll() is not None

    wait_until(is_up, "dev prints its URL")
    yield RunningDev(sandbox=sandbox, port=port, process=process)
    process.send_signal(signal.SIGINT)
    assert process.wait(LONGEST_SECONDS) == 0, slow.output.read_text()


def test_backfill_planned_and_cancelled_in_dagster(dev: RunningDev) -> None:
    """Batches of a cancelled run stay cancelled until they are retried."""
    dry_run = dev.status_of(dev.start(name="ui", max_count=2))
    assert dry_run["status"] == "SUCCESS"
    assert any("batches: 3, items: 6" in event.get("message", "") for event in _events(dry_run))
    assert dev.asset()["assetPartitionStatuses"].get("unmaterializedPartitions", []) == []
    refused = dev.status_of(dev.start(name="ui", first_id=1, since="2026-03-01"))
    assert refused["status"] == "FAILURE"
    assert "expected one of them" in str(_events(refused))

    assert dev.status_of(dev.start(name="ui", max_count=2, dry_run=False))["status"] == "SUCCESS"
    wait_until(lambda: len(published(dev.sandbox, "orders.ui")) == 3, "the backfill is published")
    [run] = dev.runs("ui")
    assert dev.status_of(run["runId"])["status"] == "SUCCESS"
    assert sorted(dev.asset()["assetPartitionStatuses"]["materializedPartitions"]) == [
        "ui:00000001-00000002",
        "ui:00000003-00000004",
        "ui:00000005-00000006",
    ]

    assert dev.status_of(dev.start(name="off", max_count=1, dry_run=False))["status"] == "SUCCESS"
    wait_until(
        lambda: len(published(dev.sandbox, "orders.off")) > 0, "its first batch is published"
    )
    for run in dev.runs("off"):
        ask(dev.port, TERMINATE, {"id": run["runId"]})
    ends = [dev.status_of(run["runId"])["status"] for run in dev.runs("off")]
    assert "CANCELED" in ends
    assert {*ends} <= {"CANCELED", "SUCCESS"}  # a run can end before it is terminated
    wait_until(
        lambda: bool(backfill(dev.sandbox, "orders.off")["finished"]),
        "the remaining batches are cancelled",
        pause_seconds=1,
    )
    published_count = len(published(dev.sandbox, "orders.off"))
    cancelled = {"published": published_count, "cancelled": 6 - published_count}
    assert backfill(dev.sandbox, "orders.off")["batches"] == cancelled

    dev.sandbox.output_of("plan", "orders", "--backfill", "after", "--item", "1")
    wait_until(lambda: len(published(dev.sandbox, "orders.after")) == 1, "the sensor continues")
    assert len(dev.runs("off")) == len(ends)
    assert backfill(dev.sandbox, "orders.off")["batches"] == cancelled
    dev.sandbox.output_of("jobs", "retry", "orders.off")
    wait_until(lambda: len(published(dev.sandbox, "orders.off")) == 6, "the retry is published")


def _events(run: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = run["eventConnection"]["events"]
    return events
