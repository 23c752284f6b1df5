"""`dev`: its sockets, its automatic work, its refusals and its shutdown."""

import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.cli.demo import write_demo
from batch_pipeline_tests.acceptance.graphql import WORKSPACE, answers, ask
from batch_pipeline_tests.acceptance.live_dev import live_dev
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    Sandbox,
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
FILES_OF_TWO_BATCHES = 14


@pytest.mark.guarantee("S3")
def test_dev_publishes_backfills_refuses_other_sites_and_stops(
    shared_sandbox: Sandbox, figures: Figures, long_form: bool
) -> None:
    """A file is added to the demo and a partition is backfilled.

    Unix sockets are accessible only to this user. Requests of other sites are links, forms, JSON
    and a foreign Host header. The short form has two batches of the demo. In the long form, `dev`
    starts after a crash, with all of them.
    """
    sandbox = shared_sandbox
    folder = sandbox.home / "demo"
    storage = folder / "batches"
    write_demo(folder)
    if long_form:
        crash = sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS="claim.after_commit=kill")
        assert crash.run("run").returncode == -signal.SIGKILL
    else:
        for file in sorted((folder / "landing").iterdir())[FILES_OF_TWO_BATCHES:]:
            file.unlink()
    batches, added = (10, 61) if long_form else (2, FILES_OF_TWO_BATCHES + 1)
    backfilled = BACKFILLED if long_form else BACKFILLED[:1]
    with live_dev(sandbox) as dev:
        second_dev = sandbox.run("dev", "--port", str(free_port()))
        for refused in (second_dev, sandbox.in_process().run("run")):
            assert refused.returncode == 75
            assert "is in use by `batch-pipeline dev` (process " in refused.stderr
            assert "Traceback" not in refused.stderr
        wait_until(lambda: len(manifests(storage)) == batches, "the demo's batches are published")
        backfill = dev.launch(STREAM, backfilled)
        unfinished = folder / "landing" / ".orders-2026-03-02.csv"
        unfinished.write_text("order_id,quantity\n900001,3\n")
        unfinished.rename(unfinished.with_name("orders-2026-03-02.csv"))
        assert dev.status_of(backfill) == "COMPLETED_SUCCESS"
        manifest = storage / "manifests" / f"{STREAM}-{added:08}-{added:08}.g1.json"
        wait_until(manifest.exists, "the dropped file is published")
        processes = sandbox.processes()
        assert any("multiprocessing.forkserver" in name for name in process_names(processes))
        sockets = Observations()
        sockets.poll_sockets(processes)
        statuses = [_response_status(dev.port, request) for request in CROSS_SITE_REQUESTS]
        dev.wait_until_idle()
        crashed_runs = {"FAILURE"} if long_form else set()
        assert {run["status"] for run in dev.runs()} == {"SUCCESS", *crashed_runs}

    assert f"http://127.0.0.1:{dev.port}" in sandbox.output.read_text()
    assert "Everything is stopped." in sandbox.output.read_text()
    assert statuses == [403] * len(CROSS_SITE_REQUESTS)
    assert sockets.beyond_loopback == []
    assert sockets.open_to_others == []
    assert {port for _, _, port in sockets.tcp} > {dev.port}
    assert any(path.endswith(".s.PGSQL.5432") for path in sockets.unix)
    assert any(path.endswith("code.sock") for path in sockets.unix)
    figures(
        sockets=len(sockets.tcp) + len(sockets.unix),
        beyond_loopback=0,
        foreign_requests_refused=len(statuses),
    )
    _check_generations(manifests(storage), long_form=long_form)


def _check_generations(published: list[dict[str, Any]], *, long_form: bool) -> None:
    """Assert that each batch has one generation, and each backfilled one a second, equal one."""
    first, second = (
        {m["batch_id"]: m for m in published if m["generation"] == generation}
        for generation in (1, 2)
    )
    assert len(published) == len(first) + len(second)
    assert len(first) == (11 if long_form else 3)
    assert [*first.values()][-1]["records"]["written"] == 1
    written = sum(manifest["records"]["written"] for manifest in first.values())
    assert written == (6_133 if long_form else 1_400) + 1
    attempts = {key: manifest["attempt"] for key, manifest in first.items()}
    claimed_by_the_crash = {BACKFILLED[0]: 2} if long_form else {}
    assert attempts == {**dict.fromkeys(first, 1), **claimed_by_the_crash}
    assert sorted(second) == (BACKFILLED if long_form else BACKFILLED[:1])
    for key, manifest in second.items():
        assert manifest["records"] == first[key]["records"]
        assert manifest["token"] != first[key]["token"]
        # Even if a column was added since: absent columns are omitted in JSON lines.
        assert _digests(manifest) == _digests(first[key])


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
