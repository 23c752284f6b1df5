"""A soak: `dev` works under load while its processes are killed, and then completes all work."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event

import psycopg

from batch_pipeline_tests.acceptance.live_dev import LiveDev, live_dev
from batch_pipeline_tests.acceptance.sandbox import Sandbox
from batch_pipeline_tests.guarantees.checker import CheckResult, Kind, check
from batch_pipeline_tests.guarantees.soak.faults import Faults, schedule
from batch_pipeline_tests.guarantees.soak.load import (
    FEEDS,
    LOADED,
    MALFORMED_MARKER,
    Arrivals,
    Backfills,
    Landed,
)
from batch_pipeline_tests.guarantees.soak.measurements import (
    Sample,
    max_backlog,
)

_MAX_REST_SECONDS = 900  # a failed load is retried after ten minutes
_STREAMS = [feed.name for feed in FEEDS]
_QUARANTINED = """
SELECT coalesce(sum(f.records), 0)
FROM batch_pipeline.part_file f
JOIN batch_pipeline.attempt a ON a.id = f.attempt_id
JOIN batch_pipeline.batch_state s ON s.batch_id = a.batch_id AND s.generation = a.generation
JOIN batch_pipeline.job j ON j.id = s.job_id
WHERE f.quarantine AND j.name = %s
"""
_COUNTS = {
    "batches": "batch_pipeline.batch",
    "loads": "batch_pipeline.load WHERE status = 'succeeded'",
}
_OPEN = {
    "attempts": "batch_pipeline.attempt WHERE status = 'running'",
    "loads": "batch_pipeline.load WHERE status = 'running'",
    "runs": "runs WHERE status NOT IN ('SUCCESS', 'FAILURE', 'CANCELED')",
    "backfills": "bulk_actions WHERE status IN ('REQUESTED', 'CANCELING', 'COMPLETING', 'FAILING')",
}
_BATCHES = """
SELECT s.state, b.item_count
FROM batch_pipeline.batch b
JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s AND j.kind = 'incremental' AND b.superseded_at IS NULL
"""
_ITEMS = "SELECT count(*) FROM batch_pipeline.item WHERE stream = %s"
# Dagster commits an event before its tags, so a killed run can leave an event without any. The next
# tick reports the generation again.
_DRIFT = """
WITH stream AS (SELECT %s AS name, %s AS is_loaded),
batch AS (
    SELECT b.id, lpad(b.first_id::text, 8, '0') || '-' || lpad(b.last_id::text, 8, '0') AS key,
           s.generation, b.superseded_at
      FROM stream
      JOIN batch_pipeline.job j ON j.name = stream.name AND j.kind = 'incremental'
      JOIN batch_pipeline.batch b ON b.job_id = j.id
      JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
),
live AS (SELECT * FROM batch WHERE superseded_at IS NULL),
published AS (
    SELECT batch.key, a.id, a.generation FROM batch_pipeline.attempt a
      JOIN batch ON batch.id = a.batch_id WHERE a.generation IS NOT NULL
),
loaded AS (
    SELECT DISTINCT key FROM batch_pipeline.load l JOIN published ON published.id = l.attempt_id
      JOIN live USING (key, generation)
     WHERE l.status = 'succeeded' AND l.voided_at IS NULL
),
event AS (
    SELECT e.id, e.asset_key::jsonb ->> 1 AS asset, e.partition AS key,
           t.value::integer AS generation
      FROM stream
      JOIN event_logs e ON e.dagster_event_type = 'ASSET_MATERIALIZATION'
       AND e.asset_key::jsonb ->> 0 = stream.name
       AND e.asset_key::jsonb ->> 1 IN ('batches', 'loaded')
      LEFT JOIN asset_event_tags t ON t.event_id = e.id AND t.key = 'dagster/data_version'
),
newest_event AS (
    SELECT DISTINCT ON (asset, key) asset, key, generation FROM event ORDER BY asset, key, id DESC
)
SELECT 'partition', key FROM stream
  JOIN dynamic_partitions d ON d.partitions_def_name = stream.name || '.batches'
  FULL JOIN live ON live.key = d.partition WHERE live.key IS NULL OR d.partition IS NULL
UNION ALL
SELECT 'generation', key FROM live
  FULL JOIN (SELECT * FROM newest_event WHERE asset = 'batches') e USING (key)
 WHERE live.key IS NULL OR e.key IS NULL OR live.generation IS DISTINCT FROM e.generation
UNION ALL
SELECT 'generation never published', key FROM event
 WHERE asset = 'batches' AND generation IS NOT NULL
   AND (key, generation) NOT IN (SELECT key, generation FROM published)
UNION ALL
SELECT 'load', key FROM live FULL JOIN loaded USING (key)
  FULL JOIN (SELECT * FROM newest_event WHERE asset = 'loaded') e USING (key)
 WHERE (SELECT is_loaded FROM stream)
   AND (live.key IS NULL OR loaded.key IS NULL OR e.key IS NULL)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The length of a soak, and the intervals of faults, backfills and samples.

    `dev` and its services are killed in the share `services_until` of the time, runs and Python
    workers until the end.
    """

    load_seconds: float
    fault_seconds: float
    backfill_seconds: float
    sample_seconds: float
    services_until: float = 1.0
    seed: int = 8


@dataclass(slots=True, kw_only=True)
class Soak:
    """A soak: lands files, kills processes, launches backfills and takes samples, at intervals.

    The final state is complete after `finish`.
    """

    dev: LiveDev
    pace: Pace
    arrivals: Arrivals
    faults: Faults
    backfills: Backfills
    began: float = field(default_factory=time.monotonic)
    is_over: Event = field(default_factory=Event)
    samples: list[Sample] = field(default_factory=list)
    at_rest: Sample = field(init=False)
    drained_seconds: float = field(init=False)
    unfinished: list[str] = field(init=False)
    drift: list[str] = field(init=False)
    counts: dict[str, int] = field(init=False)
    quarantined: dict[str, int] = field(init=False)
    check_result: CheckResult = field(init=False)

    def run(self) -> None:
        """Put `dev` under load until the time is over."""
        steps: list[tuple[Callable[[float], object], float]] = [
            (self.arrivals.catch_up, 0.2),
            (self.faults.catch_up, 0.2),
            (self.backfills.catch_up, 0.5),
            (lambda seconds: self.samples.append(self.sample(seconds)), self.pace.sample_seconds),
        ]
        with ThreadPoolExecutor(max_workers=len(steps)) as threads:
            running = [threads.submit(self._repeat, *step) for step in steps]
            wait(running, timeout=self.pace.load_seconds, return_when=FIRST_EXCEPTION)
            self.is_over.set()
        for future in running:
            future.result()
        self.arrivals.finish()

    def _repeat(self, step: Callable[[float], object], pause: float) -> None:
        while not self.is_over.wait(pause):
            is_up = self.dev.may_be_down or self.dev.process.poll() is None
            assert is_up, self.dev.sandbox.output.read_text()
            step(time.monotonic() - self.began)

    def sample(self, seconds: float) -> Sample:
        """Measure everything once."""
        return Sample.take(self.dev, seconds, self.arrivals.files, LOADED)

    def finish(self) -> None:
        """Wait until all work is complete, and check the results."""
        dev, landed, began = self.dev, self.arrivals.landed, time.monotonic()

        def is_drained() -> bool:
            with suppress(psycopg.Error, OSError, IndexError):
                return not (_unfinished(dev, landed) or _drift(dev))
            return False

        # Unfinished work is a result, not an error: the tests report it.
        while not is_drained() and time.monotonic() < began + _MAX_REST_SECONDS:
            time.sleep(1)
        socket = (dev.sandbox.home / "postgres" / "postmaster.pid").read_text().splitlines()[4]
        self.drained_seconds = time.monotonic() - began
        self.at_rest = self.sample(time.monotonic() - self.began)
        self.unfinished, self.drift = _unfinished(dev, landed), _drift(dev)
        self.counts = {name: _count(dev, rows) for name, rows in _COUNTS.items()}
        self.quarantined = {name: int(dev.query(_QUARANTINED, name)[0][0]) for name in _STREAMS}
        self.check_result = check(
            f"host={socket} user=postgres dbname=postgres",
            [dev.sandbox.storage(name) for name in _STREAMS],
            ignored_marker=MALFORMED_MARKER,
        )

    def figures(self) -> dict[str, float]:
        """Return the figures for the table of promises."""
        return {
            "minutes": self.pace.load_seconds / 60,
            "files": self.arrivals.files,
            "batches": self.counts["batches"],
            "loads": self.counts["loads"],
            "faults": self.faults.done.total(),
            "backfills": self.backfills.launched,
            "max_files_waiting": max_backlog(self.samples),
            "seconds_to_drain": self.drained_seconds,
            "lost": self.check_result.count(Kind.LOST),
            "twice": self.check_result.count(Kind.TWICE),
            "unreadable": self.check_result.count(Kind.UNREADABLE),
            "differences_to_Dagster": len(self.drift),
        }


@contextmanager
def soaked(sandbox: Sandbox, pace: Pace) -> Iterator[Soak]:
    """Soak an empty sandbox. At the end of the context `dev` is stopped."""
    for feed in FEEDS:
        bad_records = {"max_bad_records": 1_000}
        sandbox.write_stream(feed.name, on_bad_record=bad_records, **feed.attributes)
    due = schedule(
        pace.load_seconds,
        every_seconds=pace.fault_seconds,
        services_until_seconds=pace.services_until * pace.load_seconds,
        seed=pace.seed,
    )
    with live_dev(sandbox) as dev:
        soak = Soak(
            dev=dev,
            pace=pace,
            arrivals=Arrivals(sandbox.folder / "landing", FEEDS, pace.seed),
            faults=Faults(dev, [*due]),
            backfills=Backfills(
                dev,
                _STREAMS,
                every_seconds=pace.backfill_seconds,
                until_seconds=0.9 * pace.load_seconds,
                seed=pace.seed,
            ),
        )
        soak.run()
        soak.finish()
        yield soak


def _count(dev: LiveDev, rows: str) -> int:
    return int(dev.query(f"SELECT count(*) FROM {rows}")[0][0])  # noqa: S608 - a constant


def _unfinished(dev: LiveDev, landed: dict[str, Landed]) -> list[str]:
    """Return a line for each kind of unfinished work."""
    lines = []
    for name, feed in landed.items():
        [(items,)] = dev.query(_ITEMS, name)
        batches = dev.query(_BATCHES, name)
        states = Counter(state for state, _ in batches if state != "published")
        published = sum(count for state, count in batches if state == "published")
        if (items, published) != (feed.files, feed.files):
            lines.append(f"{name}: {feed.files} files, {items} items, {published} published")
        lines += [f"{name}: {count} batches {state}" for state, count in states.items()]
    counts = {name: _count(dev, rows) for name, rows in _OPEN.items()}
    return lines + [f"{count} {name} open" for name, count in counts.items() if count]


def _drift(dev: LiveDev) -> list[str]:
    """Return a line for each difference between Dagster and the inventory."""
    return [
        f"{name}: {what} {key}"
        for name in _STREAMS
        for what, key in dev.query(_DRIFT, name, name == LOADED)
    ]
