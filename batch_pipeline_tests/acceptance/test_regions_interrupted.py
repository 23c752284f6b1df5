"""The real feed in runs that are killed and interrupted again and again, until one may finish."""

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from batch_pipeline.config.home import Home
from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.defs.instance.dagster_home import open_instance
from batch_pipeline.defs.names import batches_key
from batch_pipeline.inventory import embedded_server
from batch_pipeline_tests.acceptance.regions import (
    RECORDS,
    SUM_OF_POSITIVES,
    by_stream,
    write_streams,
)
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    Sandbox,
    json_records,
    kill_group,
    manifests,
    new_sandbox,
    process_names,
    wait_until,
)

pytestmark = pytest.mark.long

SLOW = "encode.before_publish=sleep:1"  # so that the run is not over when the signal comes
KILLED_AT = ("claim.after_commit", "publish.before_commit", "pointer.before_link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A home whose runs were killed and interrupted, and what the interrupted ones had to say."""

    sandbox: Sandbox
    interrupted: dict[signal.Signals, tuple[int, str]]
    left_by_interrupts: list[str]

    @property
    def storage(self) -> Path:
        """Where the batches are."""
        return self.sandbox.storage("regions")


@pytest.fixture(scope="module")
def survivor(landing: Path, warm_spark: str) -> Iterator[Survivor]:
    """Kill a run half-way, interrupt two, kill more at named points, and let one finish."""
    with new_sandbox() as sandbox:
        yield _survivor(sandbox, landing, warm_spark)


def _survivor(sandbox: Sandbox, landing: Path, warm_spark: str) -> Survivor:
    write_streams(sandbox, landing, only="regions")
    process = _started_run(sandbox, until=2)
    kill_group(process)
    assert 2 <= len(manifests(sandbox.storage("regions"))) < 12, sandbox.output.read_text()
    wait_until(lambda: not _besides_postgres(sandbox), "JVM and workers end")
    interrupted = {}
    left: list[str] = []
    warm = sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    for number, there in ((signal.SIGINT, sandbox), (signal.SIGTERM, warm)):
        process = _started_run(there, until=len(manifests(sandbox.storage("regions"))) + 1)
        process.send_signal(number)
        interrupted[number] = (process.wait(LONGEST_SECONDS), sandbox.output.read_text())
        left += process_names(sandbox.processes())
    for point in KILLED_AT:
        ended = warm.with_variables(BATCH_PIPELINE_FAILPOINTS=f"{point}=kill").run("run")
        assert ended.returncode == -signal.SIGKILL, f"{point}: {ended.returncode}\n{ended.stderr}"
    done = by_stream(warm.json_of("run"))["regions"]
    assert (done["failed"], done["error"]) == ([], None)
    return Survivor(sandbox=sandbox, interrupted=interrupted, left_by_interrupts=left)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_says_how_to_go_on(survivor: Survivor, number: signal.Signals) -> None:
    exit_code, output = survivor.interrupted[number]
    assert exit_code == 130
    assert "Error: Interrupted. Open attempts were closed" in output
    assert "Traceback" not in output


def test_interrupted_run_leaves_no_process(survivor: Survivor) -> None:
    assert survivor.left_by_interrupts == []


def test_killed_run_ends_in_the_same_result(survivor: Survivor) -> None:
    values = [record["totale_positivi"] for record in json_records(survivor.storage)]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)


def test_killed_run_publishes_every_batch_exactly_once(survivor: Survivor) -> None:
    pointers = manifests(survivor.storage)
    [status] = survivor.sandbox.json_of("status")["streams"]
    lines = [
        json.loads(line) for line in survivor.sandbox.output_of("messages", "regions").splitlines()
    ]
    sent = [line["batch_id"] for line in lines if line["type"] == "BATCH"]
    assert [manifest["generation"] for manifest in pointers] == [1] * 12
    assert sorted(sent) == [manifest["batch_id"] for manifest in pointers]
    assert len(set(sent)) == 12
    assert status["batches"]["published"] == 12
    assert status["unfinished"] == []
    assert max(manifest["attempt"] for manifest in pointers) > 1


def test_killed_run_leaves_no_process(survivor: Survivor) -> None:
    wait_until(lambda: not survivor.sandbox.processes(), "all processes end")
    assert process_names(survivor.sandbox.processes()) == []


def test_killed_run_shows_every_partition_in_dagster(
    survivor: Survivor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(survivor.sandbox.home))
    stream = read_stream_file(survivor.sandbox.streams / "regions" / "defs.yaml")
    keys = {manifest["batch_id"] for manifest in manifests(survivor.storage)}
    home = Home(path=survivor.sandbox.home)
    try:
        with open_instance(home) as instance:
            materialized = instance.get_materialized_partitions(batches_key(stream))
            runs = instance.get_runs()
    finally:
        embedded_server.release(home.postgres)
    finished = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE}
    assert materialized == keys
    assert {run.status for run in runs} == finished


def _started_run(sandbox: Sandbox, *, until: int) -> "subprocess.Popen[str]":
    """Start a run whose batches take a while, and wait until so many are published."""
    process = sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS=SLOW).start("run")
    pointers = sandbox.storage("regions") / "manifests"
    wait_until(
        lambda: len(list(pointers.glob("*.json"))) >= until or process.poll() is not None,
        f"{until} batches are published",
        pause_seconds=0.01,
    )
    assert process.poll() is None, sandbox.output.read_text()
    return process


def _besides_postgres(sandbox: Sandbox) -> list[str]:
    return [
        line for line in process_names(sandbox.processes()) if "postgres" not in line.split()[1]
    ]
