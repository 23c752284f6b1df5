"""`dev`: its sockets, its automatic work, its refusals and its shutdown."""

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

VERSION_QUERY = "/graphql?query=%7Bversion%7D"
FOREIGN_ORIGIN = {"Origin": "https://example.org"}
# Path, body (None for GET) and headers of requests that other sites can make a browser send.
CROSS_SITE_REQUESTS: list[tuple[str, bytes | None, dict[str, str]]] = [
    (VERSION_QUERY, None, {"Accept": "image/*"}),
    (VERSION_QUERY, b"", {"Content-Type": "text/plain"}),
    ("/graphql", b'{"query": "{version}"}', {"Content-Type": "application/json", **FOREIGN_ORIGIN}),
    ("/", None, {"Host": "example.org"}),
]
PROJECT = Path(__file__).parents[2]
STREAM = "demo_orders"
BACKFILLED = ["00000001-00000007", "00000040-00000046"]
ADDED = "00000061-00000061"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Observations of one `dev`, from its start to Ctrl-C."""

    port: int
    output: str
    exit_code: int
    sockets: Observations
    cross_site_statuses: list[int]
    backfill_status: str
    second_dev: CompletedCommand
    second_run: CompletedCommand
    runs: set[str]
    manifests: list[dict[str, Any]]
    remaining_processes: list[str]


@pytest.fixture(scope="module")
def session(shared_sandbox: Sandbox) -> Session:
    """Start `dev` after a crash, add a file, backfill two partitions, and stop it."""
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
    backfill_id = _launch_backfill(port)
    unfinished = folder / "landing" / ".orders-2026-03-02.csv"
    unfinished.write_text("order_id,quantity\n900001,3\n")
    unfinished.rename(unfinished.with_name("orders-2026-03-02.csv"))
    backfill_status = _wait_for_backfill(port, backfill_id)
    added = storage / "manifests" / f"{STREAM}-{ADDED}.g1.json"
    wait_until(added.exists, "the dropped file is published")
    sockets = Observations()
    sockets.poll_sockets(sandbox.processes())
    cross_site_statuses = [_response_status(port, request) for request in CROSS_SITE_REQUESTS]
    wait_until(lambda: _run_statuses(port) <= {"SUCCESS", "FAILURE"}, "the last run has ended")
    runs = _run_statuses(port)
    process.send_signal(signal.SIGINT)
    exit_code = process.wait(LONGEST_SECONDS)
    return Session(
        port=port,
        output=sandbox.output.read_text(),
        exit_code=exit_code,
        sockets=sockets,
        cross_site_statuses=cross_site_statuses,
        backfill_status=backfill_status,
        second_dev=second_dev,
        second_run=second_run,
        runs=runs,
        manifests=manifests(storage),
        remaining_processes=process_names(sandbox.processes()),
    )


def test_dev_prints_its_url(session: Session) -> None:
    assert f"http://127.0.0.1:{session.port}" in session.output
    assert "Everything is stopped." in session.output
    assert "Traceback" not in session.output


@pytest.mark.guarantee("S3")
def test_dev_listens_on_the_loopback_interface_only(session: Session, figures: Figures) -> None:
    """Unix sockets are accessible only to this user."""
    assert session.sockets.beyond_loopback == []
    assert session.sockets.open_to_others == []
    assert {port for _, _, port in session.sockets.tcp} > {session.port}
    assert any(path.endswith(".s.PGSQL.5432") for path in session.sockets.unix)
    assert any(path.endswith("code.sock") for path in session.sockets.unix)
    figures(sockets=len(session.sockets.tcp) + len(session.sockets.unix), beyond_loopback=0)


@pytest.mark.guarantee("S3")
def test_dev_refuses_cross_site_requests(session: Session, figures: Figures) -> None:
    """Links, forms and JSON from other sites, and a foreign Host header."""
    assert session.cross_site_statuses == [403] * len(CROSS_SITE_REQUESTS)
    figures(foreign_requests_refused=len(session.cross_site_statuses))


def test_dev_publishes_new_files_automatically(session: Session) -> None:
    records = {
        manifest["batch_id"]: manifest["records"]["written"]
        for manifest in session.manifests
        if manifest["generation"] == 1
    }
    assert len(records) == 11
    assert records.pop(ADDED) == 1
    assert sum(records.values()) == 6_133


def test_dev_retries_batches_of_a_crashed_run(session: Session) -> None:
    attempts = {
        manifest["batch_id"]: manifest["attempt"]
        for manifest in session.manifests
        if manifest["generation"] == 1
    }
    assert attempts.pop(BACKFILLED[0]) == 2
    assert set(attempts.values()) == {1}
    assert session.runs == {"SUCCESS", "FAILURE"}


def test_backfill_publishes_a_second_generation(session: Session) -> None:
    first, second = (
        {m["batch_id"]: m for m in session.manifests if m["generation"] == generation}
        for generation in (1, 2)
    )
    assert session.backfill_status == "COMPLETED_SUCCESS"
    assert sorted(second) == BACKFILLED
    assert max(manifest["generation"] for manifest in session.manifests) == 2
    for key, manifest in second.items():
        assert manifest["records"] == first[key]["records"]
        assert manifest["token"] != first[key]["token"]
        # Even if a column was added since: absent columns are omitted in JSON lines.
        assert _digests(manifest) == _digests(first[key])


@pytest.mark.parametrize("command", ["second_dev", "second_run"])
def test_second_command_on_the_same_home_is_refused(session: Session, command: str) -> None:
    result: CompletedCommand = getattr(session, command)
    assert result.returncode == 75
    assert "is in use by `batch-pipeline dev` (process " in result.stderr
    assert "Traceback" not in result.stderr


def test_interrupted_dev_leaves_no_process(session: Session) -> None:
    assert session.exit_code == 0
    assert session.remaining_processes == []


def test_killed_dev_leaves_no_process(sandbox: Sandbox, warm_spark: str) -> None:
    """The services notice that `dev` is gone."""
    sandbox.write_stream("orders")
    sandbox.landing("orders").mkdir(parents=True)
    sandbox = sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    process = sandbox.start("dev", "--port", str(free_port()))
    wait_for_url(sandbox, process)
    assert len(sandbox.processes()) > 4
    kill_group(process)
    wait_until(lambda: not sandbox.processes(), "all processes end")


def test_dev_on_a_port_in_use_suggests_another(sandbox: Sandbox) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = sandbox.run("dev", "--port", str(port))
    assert result.returncode == 1
    assert f"Port {port} on 127.0.0.1 is in use" in result.stderr
    assert f"dev --port {port + 1}" in result.stderr
    assert "Traceback" not in result.stderr
    assert sandbox.processes() == []


@pytest.mark.long
def test_dagster_dev_loads_the_project_and_stops(sandbox: Sandbox) -> None:
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
    """Wait until `dev` has printed Dagster's URL."""

    def printed() -> bool:
        return "Dagster is at http" in sandbox.output.read_text() or process.poll() is not None

    wait_until(printed, "dev prints its URL")
    assert process.poll() is None, sandbox.output.read_text()
    assert ". Ctrl-C stops everything." in sandbox.output.read_text()  # as in the README


def _launch_backfill(port: int) -> str:
    parameters = {
        "assetSelection": [{"path": [STREAM, "batches"]}],
        "partitionNames": BACKFILLED,
    }
    launched = ask(port, LAUNCH, {"parameters": parameters})["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    return str(launched["backfillId"])


def _wait_for_backfill(port: int, backfill_id: str) -> str:
    """Wait until a backfill ends and return its status."""

    def status() -> str:
        answer = ask(port, BACKFILL, {"id": backfill_id})
        return str(answer["partitionBackfillOrError"]["status"])

    unfinished = {"REQUESTED", "COMPLETING", "FAILING", "CANCELING"}
    wait_until(lambda: status() not in unfinished, "the backfill ends", pause_seconds=0.5)
    return status()


def _run_statuses(port: int) -> set[str]:
    """Return the statuses of all runs."""
    return {run["status"] for run in ask(port, RUNS, {})["runsOrError"]["results"]}


def _response_status(port: int, request: tuple[str, bytes | None, dict[str, str]]) -> int:
    """Return the status of the response."""
    path, body, headers = request
    http_request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    try:
        with urllib.request.urlopen(http_request, timeout=60) as response:  # noqa: S310 - http on loopback
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
