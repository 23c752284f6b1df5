"""Everything up: what `dev` listens on, does by itself, refuses, and leaves behind."""

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.cli.demo import write_demo
from batch_pipeline_tests.acceptance.graphql import BACKFILL, LAUNCH, RUNS, WORKSPACE, answers, ask
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    CompletedCommand,
    Sandbox,
    kill_group,
    manifests,
    process_names,
    wait_until,
)
from batch_pipeline_tests.guarantees.secrets.watcher import Observations
from batch_pipeline_tests.proofs import Figures

ASKED = "/graphql?query=%7Bversion%7D"
ELSEWHERE = {"Origin": "https://example.org"}
# Path, body (None for GET) and headers of what other pages can make a browser send.
FOREIGN: list[tuple[str, bytes | None, dict[str, str]]] = [
    (ASKED, None, {"Accept": "image/*"}),
    (ASKED, b"", {"Content-Type": "text/plain"}),
    ("/graphql", b'{"query": "{version}"}', {"Content-Type": "application/json", **ELSEWHERE}),
    ("/", None, {"Host": "example.org"}),
]
PROJECT = Path(__file__).parents[2]
STREAM = "demo_orders"
CHOSEN = ["00000001-00000007", "00000040-00000046"]
ONE_MORE = "00000061-00000061"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was seen of one `dev`, from start to Ctrl-C."""

    port: int
    output: str
    exit_code: int
    seen: Observations
    foreign: list[int]
    backfill: str
    second_dev: CompletedCommand
    second_run: CompletedCommand
    runs: set[str]
    manifests: list[dict[str, Any]]
    left: list[str]


@pytest.fixture(scope="module")
def story(shared_sandbox: Sandbox) -> Story:
    """Start `dev` after a crash, let it work, drop a file, backfill two partitions, stop it."""
    sandbox, port = shared_sandbox, free_port()
    folder = sandbox.home / "demo"
    write_demo(folder)
    storage = folder / "batches"
    crashed = sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS="claim.after_commit=kill").run("run")
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr
    process = sandbox.start("dev", "--port", str(port))
    wait_for_url(sandbox, process)
    second_dev = sandbox.run("dev", "--port", str(free_port()))
    second_run = sandbox.run("run")
    wait_until(lambda: len(manifests(storage)) == 10, "the demo's batches are published")
    backfill_id = _launched_backfill(port)
    unfinished = folder / "landing" / ".orders-2026-03-02.csv"
    unfinished.write_text("order_id,quantity\n900001,3\n")
    unfinished.rename(unfinished.with_name("orders-2026-03-02.csv"))
    backfill = _ended_backfill(port, backfill_id)
    one_more = storage / "manifests" / f"{STREAM}-{ONE_MORE}.g1.json"
    wait_until(one_more.exists, "the dropped file is published")
    seen = Observations()
    seen.poll_sockets(sandbox.processes())
    foreign = [_status(port, request) for request in FOREIGN]
    wait_until(lambda: _runs(port) <= {"SUCCESS", "FAILURE"}, "the last run has ended")
    runs = _runs(port)
    process.send_signal(signal.SIGINT)
    exit_code = process.wait(LONGEST_SECONDS)
    return Story(
        port=port,
        output=sandbox.output.read_text(),
        exit_code=exit_code,
        seen=seen,
        foreign=foreign,
        backfill=backfill,
        second_dev=second_dev,
        second_run=second_run,
        runs=runs,
        manifests=manifests(storage),
        left=process_names(sandbox.processes()),
    )


def test_dev_prints_its_url(story: Story) -> None:
    assert f"http://127.0.0.1:{story.port}" in story.output
    assert "Everything is stopped." in story.output
    assert "Traceback" not in story.output


@pytest.mark.guarantee("S3")
def test_dev_listens_on_the_loopback_interface_only(story: Story, figures: Figures) -> None:
    """No TCP socket can be reached from another machine; unix sockets belong to this user."""
    assert story.seen.beyond_loopback == []
    assert story.seen.open_to_others == []
    assert {port for _, _, port in story.seen.tcp} > {story.port}
    assert any(path.endswith(".s.PGSQL.5432") for path in story.seen.unix)
    assert any(path.endswith("code.sock") for path in story.seen.unix)
    figures(sockets=len(story.seen.tcp) + len(story.seen.unix), beyond_loopback=0)


@pytest.mark.guarantee("S3")
def test_dev_takes_no_orders_from_pages_of_others(story: Story, figures: Figures) -> None:
    """Cross-site links, forms and JSON, and a foreign Host header, are refused."""
    assert story.foreign == [403] * len(FOREIGN)
    figures(foreign_requests_refused=len(story.foreign))


def test_dev_publishes_what_lands_by_itself(story: Story) -> None:
    records = {
        manifest["batch_id"]: manifest["records"]["written"]
        for manifest in story.manifests
        if manifest["generation"] == 1
    }
    assert len(records) == 11
    assert records.pop(ONE_MORE) == 1
    assert sum(records.values()) == 6_133


def test_dev_takes_over_the_batches_of_a_crashed_run(story: Story) -> None:
    attempts = {
        manifest["batch_id"]: manifest["attempt"]
        for manifest in story.manifests
        if manifest["generation"] == 1
    }
    assert attempts.pop(CHOSEN[0]) == 2
    assert set(attempts.values()) == {1}
    assert story.runs == {"SUCCESS", "FAILURE"}


def test_dev_backfill_makes_a_second_generation(story: Story) -> None:
    first, second = (
        {m["batch_id"]: m for m in story.manifests if m["generation"] == generation}
        for generation in (1, 2)
    )
    assert story.backfill == "COMPLETED_SUCCESS"
    assert sorted(second) == CHOSEN
    assert max(manifest["generation"] for manifest in story.manifests) == 2
    for key, again in second.items():
        assert again["records"] == first[key]["records"]
        assert again["token"] != first[key]["token"]
        # Also where a column was added since: absent columns stay absent in JSON lines.
        assert _digests(again) == _digests(first[key])


@pytest.mark.parametrize("which", ["second_dev", "second_run"])
def test_second_command_on_the_same_home_is_refused(story: Story, which: str) -> None:
    ended: CompletedCommand = getattr(story, which)
    assert ended.returncode == 75
    assert "is in use by `batch-pipeline dev` (process " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_dev_ends_with_everything_it_started(story: Story) -> None:
    assert story.exit_code == 0
    assert story.left == []


def test_dev_that_is_killed_takes_everything_along(sandbox: Sandbox, warm_spark: str) -> None:
    """The servers end by themselves when `dev` cannot end them."""
    sandbox.write_stream("orders")
    sandbox.landing("orders").mkdir(parents=True)
    sandbox = sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    process = sandbox.start("dev", "--port", str(free_port()))
    wait_for_url(sandbox, process)
    assert len(sandbox.processes()) > 4
    kill_group(process)
    wait_until(lambda: not sandbox.processes(), "all processes end")


def test_dev_on_a_taken_port_names_the_next_step(sandbox: Sandbox) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = sandbox.run("dev", "--port", str(port))
    assert ended.returncode == 1
    assert f"Port {port} on 127.0.0.1 is taken" in ended.stderr
    assert f"dev --port {port + 1}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sandbox.processes() == []


def test_plain_dagster_dev_loads_the_project_and_stops(sandbox: Sandbox) -> None:
    write_demo(sandbox.home / "demo")
    port = free_port()
    dagster = [sys.executable, "-m", "dagster", "dev", "--port", str(port)]
    process = sandbox.start_program(dagster, PROJECT)
    wait_until(lambda: answers(port) or process.poll() is not None, "the webserver answers")
    [entry] = ask(port, WORKSPACE, {})["workspaceOrError"]["locationEntries"]
    location = entry["locationOrLoadError"]
    assert location["__typename"] == "RepositoryLocation", location
    [repository] = location["repositories"]
    keys = {tuple(node["assetKey"]["path"]) for node in repository["assetNodes"]}
    assets = {"files", "batches"}
    assert keys == {(STREAM, asset) for asset in assets}
    assert any("postgres" in line for line in process_names(sandbox.processes()))
    assert (sandbox.home / "postgres" / "PG_VERSION").exists()
    assert not list(PROJECT.glob("history")), "the instance stores into files of the project"
    process.send_signal(signal.SIGINT)
    assert process.wait(LONGEST_SECONDS) == 0, sandbox.output.read_text()
    wait_until(lambda: not sandbox.processes(), "all processes end")


def _digests(manifest: dict[str, Any]) -> list[str]:
    return [part["sha256"] for part in manifest["part_files"]]


def wait_for_url(sandbox: Sandbox, process: "subprocess.Popen[str]") -> None:
    """Wait until `dev` has said where Dagster is."""

    def printed() -> bool:
        return "Dagster is at http" in sandbox.output.read_text() or process.poll() is not None

    wait_until(printed, "dev prints its URL")
    assert process.poll() is None, sandbox.output.read_text()


def _launched_backfill(port: int) -> str:
    parameters = {
        "assetSelection": [{"path": [STREAM, "batches"]}],
        "partitionNames": CHOSEN,
    }
    launched = ask(port, LAUNCH, {"parameters": parameters})["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    return str(launched["backfillId"])


def _ended_backfill(port: int, backfill_id: str) -> str:
    """Wait for a backfill's end and give its status."""

    def status() -> str:
        answer = ask(port, BACKFILL, {"id": backfill_id})
        return str(answer["partitionBackfillOrError"]["status"])

    on_the_way = {"REQUESTED", "COMPLETING", "FAILING", "CANCELING"}
    wait_until(lambda: status() not in on_the_way, "the backfill ends", pause_seconds=0.5)
    return status()


def _runs(port: int) -> set[str]:
    """Return the statuses that runs are in."""
    return {run["status"] for run in ask(port, RUNS, {})["runsOrError"]["results"]}


def _status(port: int, request: tuple[str, bytes | None, dict[str, str]]) -> int:
    """Return the status of an answer."""
    path, body, headers = request
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310 - http on loopback
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
