"""How long a file that lands in a live `dev`, with defaults, takes to its published manifest.

Files land one after the other at random moments; where the seconds go is read from Dagster's own
times of the runs. Nothing here knows how the command works inside.
"""

import random
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from batch_pipeline_tests.acceptance.graphql import ask
from batch_pipeline_tests.acceptance.ports import free_port
from batch_pipeline_tests.acceptance.sandbox import (
    LONGEST_SECONDS,
    Sandbox,
    manifests,
    new_sandbox,
    wait_until,
)

_TIMES = """
query Times { runsOrError(filter: {pipelineName: "orders_encode"}) { ... on Runs { results {
  runId creationTime startTime endTime
  eventConnection { events { ... on MessageEvent { eventType timestamp } } }
} } } }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The seconds of one file, station by station."""

    noticed: float  # landed until the sensor's run is created
    queued: float  # created until a process is launched
    started: float  # launched until the run begins to work
    encoded: float  # begun until the manifest is there

    @property
    def total(self) -> float:
        """From landed to published."""
        return self.noticed + self.queued + self.started + self.encoded


@contextmanager
def live(sandbox: Sandbox) -> Iterator[int]:
    """Keep `dev` up and give its port."""
    port = free_port()
    process = sandbox.start("dev", "--port", str(port))
    wait_until(lambda: _is_up(sandbox, process), "dev prints its URL")
    try:
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(LONGEST_SECONDS)


def latency(files: int, seed: int) -> list[Way]:
    """Land files in a new `dev`, and give the way of each; the first one warms up."""
    choose = random.Random(seed)  # noqa: S311 - moments, no secrets
    with new_sandbox() as sandbox:
        sandbox.write_stream("orders")
        sandbox.landing("orders").mkdir(parents=True)
        with live(sandbox) as port:
            _landed(sandbox, 0)
            ways = []
            for number in range(1, files + 1):
                time.sleep(choose.uniform(0, 10))
                landed, published = _landed(sandbox, number)
                ways.append(_way(port, landed, published))
    return ways


def told(ways: list[Way]) -> list[str]:
    """Tell median and 95th percentile of each station and of the whole."""
    names = [*(field.name for field in fields(Way)), "total"]
    lines = ["| station | median s | p95 s | max s |", "|---|---:|---:|---:|"]
    for name in names:
        seconds = sorted(getattr(way, name) for way in ways)
        p95 = seconds[min(len(seconds) - 1, round(0.95 * len(seconds)))]
        median = statistics.median(seconds)
        lines.append(f"| {name} | {median:.1f} | {p95:.1f} | {seconds[-1]:.1f} |")
    return lines


def _landed(sandbox: Sandbox, number: int) -> tuple[float, float]:
    """Land a file and give when it landed and when its manifest was there."""
    path = sandbox.landing("orders") / f"orders-{number:04d}.csv"
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(f"id,name\n{number},one\n")
    landed = time.time()
    unfinished.rename(path)
    storage = sandbox.storage("orders")
    wait_until(lambda: len(manifests(storage)) > number, f"{path.name} is published")
    newest = max(pointer.stat().st_mtime for pointer in storage.glob("manifests/*.json"))
    return landed, newest


def _way(port: int, landed: float, published: float) -> Way:
    runs = ask(port, _TIMES, {})["runsOrError"]["results"]
    newest: dict[str, Any] = max(runs, key=lambda run: run["creationTime"])
    at = {
        event["eventType"]: float(event["timestamp"]) / 1000
        for event in newest["eventConnection"]["events"]
        if event and "eventType" in event
    }
    created, launched = newest["creationTime"], at["RUN_STARTING"]
    begun = at["STEP_START"]
    return Way(
        noticed=created - landed,
        queued=launched - created,
        started=begun - launched,
        encoded=published - begun,
    )


def _is_up(sandbox: Sandbox, process: "subprocess.Popen[str]") -> bool:
    return "Dagster is at http" in sandbox.output.read_text() or process.poll() is not None
