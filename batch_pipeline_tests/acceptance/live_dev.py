"""A running `dev` that tests can inspect, and whose processes they can kill."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import psutil
import psycopg

from batch_pipeline_tests.acceptance.graphql import BACKFILL, LAUNCH, PARTITIONS, ask
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    Sandbox,
    process_names,
    wait_until,
)

# Words in the command lines of the processes of `dev`.
SERVICES = {
    "PostgreSQL": ("bin/postgres", "-D"),
    "Spark": ("SparkConnectServer",),
    "daemon": ("dagster._daemon",),
    "code server": ("code-server", "start"),
    "webserver": ("dagster_webserver",),
    "definitions": ("api", "grpc"),
    "dev": ("batch_pipeline", "dev", "--port"),
}
WORKERS = {"run": ("spawn_main", "--multiprocessing-fork"), "Python worker": ("worker_daemon",)}
FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}
ATTEMPTS = """
SELECT lpad(b.first_id::text, 8, '0') || '-' || lpad(b.last_id::text, 8, '0') AS partition,
    a.status, a.error, a.generation, a.run_id
FROM batch_pipeline.attempt a
JOIN batch_pipeline.batch b ON b.id = a.batch_id
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s ORDER BY partition, a.number
"""
RUNS = """
query Runs {
  runsOrError { ... on Runs { results { runId jobName status tags { key value } eventConnection {
    events { ... on MessageEvent { message } }
  } } } }
}
"""


@dataclass(slots=True, kw_only=True)
class LiveDev:
    """A running `dev`, accessible through the database, GraphQL and the process table."""

    sandbox: Sandbox
    port: int
    process: "subprocess.Popen[str]" = field(init=False)
    may_be_down: bool = False

    def start(self) -> None:
        """Start `dev`, or start it again, and wait until it is up."""
        self.process = self.sandbox.start("dev", "--port", str(self.port))

        def is_up() -> bool:
            printed = "Dagster is at http" in self.sandbox.output.read_text()
            return printed or self.process.poll() is not None

        wait_until(is_up, "dev prints its URL")
        assert self.process.poll() is None, self.sandbox.output.read_text()
        assert ". Ctrl-C stops everything." in self.sandbox.output.read_text()  # as in the README

    def wait_for_exit(self) -> int:
        """Wait until `dev` and all processes that it started have ended; return its exit code."""
        code = self.process.wait(LONGEST_SECONDS)
        wait_until(lambda: not self.sandbox.processes(), "all processes end")
        return code

    def attempts(self, job: str) -> dict[str, list[tuple[str, str | None]]]:
        """Return status and error of the attempts of a job, in order, by partition."""
        return {
            partition: [(row[1], row[2]) for row in rows]
            for partition, rows in groupby(self.query(ATTEMPTS, job), key=lambda row: row[0])
        }

    def generations(self, job: str) -> dict[str, list[int]]:
        """Return the generations of a job's batches, in order of their attempts, by partition."""
        return {
            partition: [row[3] for row in rows if row[3] is not None]
            for partition, rows in groupby(self.query(ATTEMPTS, job), key=lambda row: row[0])
        }

    def query(self, query: str, *values: object) -> list[Any]:
        """Query the embedded database; raise while it is down."""
        lines = (self.sandbox.home / "postgres" / "postmaster.pid").read_text().splitlines()
        with psycopg.connect(host=lines[4], user="postgres", dbname="postgres") as connection:
            return connection.execute(query, values).fetchall()

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs with their messages."""
        runs: list[dict[str, Any]] = ask(self.port, RUNS, {})["runsOrError"]["results"]
        return runs

    def run_processes(self, job: str) -> dict[str, int]:
        """Return the processes of runs with a running attempt on a job's batch, by partition."""
        pids = {
            run["runId"]: int(message.split("pid: ")[1].split(")")[0])
            for run in self.runs()
            for message in (event.get("message", "") for event in run["eventConnection"]["events"])
            if message.startswith("Started process for run")
        }
        rows = self.query(ATTEMPTS, job)
        return {row[0]: pids[row[4]] for row in rows if row[1] == "running" and row[4] in pids}

    def partitions(self, stream: str, *, asset: str = "batches") -> dict[str, set[str]]:
        """Return the partitions of a stream's asset by their state in Dagster."""
        key = {"path": [stream, asset]}
        node = ask(self.port, PARTITIONS, {"key": key})["assetNodeOrError"]
        statuses = node["assetPartitionStatuses"]
        states = ("materialized", "failed", "unmaterialized")
        return {state: {*statuses.get(f"{state}Partitions", ())} for state in states}

    def find_processes(self, *words: str) -> list[psutil.Process]:
        """Return processes of the sandbox whose command line contains all words."""
        processes = []
        for process in self.sandbox.processes():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if all(word in line for word in words) and "run_while_parent_lives.py" not in line:
                    processes.append(process)
        return processes

    def launch(self, stream: str, partitions: Sequence[str] = (), *, asset: str = "batches") -> str:
        """Launch a backfill of partitions, or of all, as an asset's page does; return its id."""
        chosen = {"partitionNames": partitions} if partitions else {"allPartitions": True}
        parameters = {"assetSelection": [{"path": [stream, asset]}], **chosen}
        launched = ask(self.port, LAUNCH, {"parameters": parameters})["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return str(launched["backfillId"])

    def status_of(self, backfill_id: str) -> str:
        """Wait until a backfill ends and return its status."""

        def status() -> str:
            answer = ask(self.port, BACKFILL, {"id": backfill_id})
            return str(answer["partitionBackfillOrError"]["status"])

        unfinished = {"REQUESTED", "COMPLETING", "FAILING", "CANCELING"}
        wait_until(lambda: status() not in unfinished, "the backfill ends", pause_seconds=1)
        return status()

    def wait_until_idle(self) -> None:
        """Wait until no run is unfinished and no attempt is running."""
        running = "SELECT count(*) FROM batch_pipeline.attempt WHERE status = 'running'"
        wait_until(lambda: self.query(running) == [(0,)], "every attempt is closed")
        wait_until(
            lambda: {run["status"] for run in self.runs()} <= FINISHED,
            "every run has ended",
            pause_seconds=1,
        )


@contextmanager
def live_dev(sandbox: Sandbox) -> Iterator[LiveDev]:
    """Start `dev`; at the end, assert that Ctrl-C stops it and leaves no process."""
    dev = LiveDev(sandbox=sandbox, port=free_port())
    dev.start()
    yield dev
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(LONGEST_SECONDS) == 0, sandbox.output.read_text()
    assert "Traceback" not in sandbox.output.read_text()
    sandbox.release_server()
    left = process_names(sandbox.processes())
    assert not left, left


def kill(*processes: psutil.Process | int) -> None:
    """Kill processes as the kernel does when memory runs out."""
    for process in processes:
        pid = process if isinstance(process, int) else process.pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
