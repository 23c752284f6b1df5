"""Latency from a landed file to its published manifest in a running `dev` with defaults.

Files land one after the other at random times. The seconds of each step are derived from Dagster's
timestamps of the runs.
"""

import random
import statistics
import time
from dataclasses import dataclass, fields
from typing import Any

from batch_pipeline_tests.acceptance.graphql import ask
from batch_pipeline_tests.acceptance.live_dev import live_dev
from batch_pipeline_tests.acceptance.sandbox import Sandbox, manifests, new_sandbox, wait_until

_TIMES = """
query Times { runsOrError(filter: {pipelineName: "orders_encode"}) { ... on Runs { results {
  runId creationTime startTime endTime
  eventConnection { events { ... on MessageEvent { eventType timestamp } } }
} } } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The seconds of one file per step."""

    noticed: float  # landed until the sensor's run is created
    queued: float  # created until a process is launched
    started: float  # launched until the run begins to work
    encoded: float  # begun until the manifest is published

    @property
    def total(self) -> float:
        """From landing to publication."""
        return self.noticed + self.queued + self.started + self.encoded


def latency(files: int, seed: int) -> list[Latency]:
    """Land files in a new `dev` and return the latency of each; the first one warms up."""
    choose = random.Random(seed)  # noqa: S311 - not for security
    with new_sandbox() as sandbox:
        sandbox.write_stream("orders")
        sandbox.landing("orders").mkdir(parents=True)
        with live_dev(sandbox) as dev:
            _land_and_wait(sandbox, 0)
            latencies = []
            for number in range(1, files + 1):
                time.sleep(choose.uniform(0, 10))
                landed, published = _land_and_wait(sandbox, number)
                latencies.append(_latency(dev.port, landed, published))
    return latencies


def latency_table(latencies: list[Latency]) -> list[str]:
    """Return a table of median, 95th percentile and maximum per step."""
    names = [*(field.name for field in fields(Latency)), "total"]
    lines = ["| step | median s | p95 s | max s |", "|---|---:|---:|---:|"]
    for name in names:
        seconds = sorted(getattr(each, name) for each in latencies)
        p95 = seconds[min(len(seconds) - 1, round(0.95 * len(seconds)))]
        median = statistics.median(seconds)
        lines.append(f"| {name} | {median:.1f} | {p95:.1f} | {seconds[-1]:.1f} |")
    return lines


def _land_and_wait(sandbox: Sandbox, number: int) -> tuple[float, float]:
    """Land a file and return the times of landing and of publication."""
    path = sandbox.landing("orders") / f"orders-{number:04d}.csv"
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(f"id,name\n{number},one\n")
    landed = time.time()
    unfinished.rename(path)
    storage = sandbox.storage("orders")
    wait_until(lambda: len(manifests(storage)) > number, f"{path.name} is published")
    published = max(pointer.stat().st_mtime for pointer in storage.glob("manifests/*.json"))
    return landed, published


def _latency(port: int, landed: float, published: float) -> Latency:
    runs = ask(port, _TIMES, {})["runsOrError"]["results"]
    newest_run: dict[str, Any] = max(runs, key=lambda run: run["creationTime"])
    event_times = {
        event["eventType"]: float(event["timestamp"]) / 1000
        for event in newest_run["eventConnection"]["events"]
        if event and "eventType" in event
    }
    created, launched = newest_run["creationTime"], event_times["RUN_STARTING"]
    step_started = event_times["STEP_START"]
    return Latency(
        noticed=created - landed,
        queued=launched - created,
        started=step_started - launched,
        encoded=published - step_started,
    )
