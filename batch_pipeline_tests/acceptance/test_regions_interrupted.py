"""The feed in runs that are killed and interrupted repeatedly, until a run is left to finish."""

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

SLOW = "encode.before_publish=sleep:1"  # so that the run is interrupted before its end
KILL_POINTS = ("claim.after_commit", "publish.before_commit", "pointer.before_link")


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedFeed:
    """A home whose runs were killed and interrupted, and the output of the interrupted ones."""

    sandbox: Sandbox
    interrupted: dict[signal.Signals, tuple[int, str]]
    left_processes: list[str]

    @property
    def storage(self) -> Path:
        """The storage root of the stream."""
        return self.sandbox.storage("regions")


@pytest.fixture(scope="module")
def feed(landing: Path, warm_spark: str) -> Iterator[InterruptedFeed]:
    """Kill a run half-way, interrupt two, kill more at failpoints, and let one finish."""
    with new_sandbox() as sandbox:
        yield _interrupt_and_finish(sandbox, landing, warm_spark)


def _interrupt_and_finish(sandbox: Sandbox, landing: Path, warm_spark: str) -> InterruptedFeed:
    write_streams(sandbox, landing, only="regions")
    process = _start_run(sandbox, until=2)
    kill_group(process)
    assert 2 <= len(manifests(sandbox.storage("regions"))) < 12, sandbox.output.read_text()
    wait_until(lambda: not _processes_except_postgres(sandbox), "JVM and workers end")
    interrupted = {}
    remaining: list[str] = []
    warm = sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    for signal_number, run_sandbox in ((signal.SIGINT, sandbox), (signal.SIGTERM, warm)):
        process = _start_run(run_sandbox, until=len(manifests(sandbox.storage("regions"))) + 1)
        process.send_signal(signal_number)
        interrupted[signal_number] = (process.wait(LONGEST_SECONDS), sandbox.output.read_text())
        remaining += process_names(sandbox.processes())
    for point in KILL_POINTS:
        result = warm.with_variables(BATCH_PIPELINE_FAILPOINTS=f"{point}=kill").run("run")
        assert result.returncode == -signal.SIGKILL, (
            f"{point}: {result.returncode}\n{result.stderr}"
        )
    finished = by_stream(warm.json_of("run"))["regions"]
    assert (finished["failed"], finished["error"]) == ([], None)
    return InterruptedFeed(sandbox=sandbox, interrupted=interrupted, left_processes=remaining)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_exits_130_with_a_message(
    feed: InterruptedFeed, signal_number: signal.Signals
) -> None:
    exit_code, output = feed.interrupted[signal_number]
    assert exit_code == 130
    assert "Error: Interrupted. Open attempts were closed" in output
    assert "Traceback" not in output


def test_interrupted_run_leaves_no_process(feed: InterruptedFeed) -> None:
    assert feed.left_processes == []


def test_records_are_complete_after_kills(feed: InterruptedFeed) -> None:
    values = [record["totale_positivi"] for record in json_records(feed.storage)]
    assert (len(values), sum(values)) == (RECORDS, SUM_OF_POSITIVES)


def test_every_batch_is_published_once_after_kills(feed: InterruptedFeed) -> None:
    manifest_files = manifests(feed.storage)
    [status] = feed.sandbox.json_of("status")["streams"]
    lines = [
        json.loads(line) for line in feed.sandbox.output_of("messages", "regions").splitlines()
    ]
    batch_ids = [line["batch_id"] for line in lines if line["type"] == "BATCH"]
    assert [manifest["generation"] for manifest in manifest_files] == [1] * 12
    assert sorted(batch_ids) == [manifest["batch_id"] for manifest in manifest_files]
    assert len(set(batch_ids)) == 12
    assert status["batches"]["published"] == 12
    assert status["unfinished"] == []
    assert max(manifest["attempt"] for manifest in manifest_files) > 1


def test_no_process_is_left_after_kills(feed: InterruptedFeed) -> None:
    wait_until(lambda: not feed.sandbox.processes(), "all processes end")
    assert process_names(feed.sandbox.processes()) == []


def test_every_partition_is_materialized_after_kills(
    feed: InterruptedFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(feed.sandbox.home))
    stream = read_stream_file(feed.sandbox.streams / "regions" / "defs.yaml")
    keys = {manifest["batch_id"] for manifest in manifests(feed.storage)}
    home = Home(path=feed.sandbox.home)
    try:
        with open_instance(home) as instance:
            materialized = instance.get_materialized_partitions(batches_key(stream))
            runs = instance.get_runs()
    finally:
        embedded_server.release(home.postgres)
    finished = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE}
    assert materialized == keys
    assert {run.status for run in runs} == finished


def _start_run(sandbox: Sandbox, *, until: int) -> "subprocess.Popen[str]":
    """Start a slow run and wait until this many batches are published."""
    process = sandbox.with_variables(BATCH_PIPELINE_FAILPOINTS=SLOW).start("run")
    manifest_files = sandbox.storage("regions") / "manifests"
    wait_until(
        lambda: len(list(manifest_files.glob("*.json"))) >= until or process.poll() is not None,
        f"{until} batches are published",
        pause_seconds=0.01,
    )
    assert process.poll() is None, sandbox.output.read_text()
    return process


def _processes_except_postgres(sandbox: Sandbox) -> list[str]:
    return [
        line for line in process_names(sandbox.processes()) if "postgres" not in line.split()[1]
    ]
