"""A soak: `dev` works under load while its processes are killed, and then completes all work."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any

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
_KEY = "lpad(b.first_id::text, 8, '0') || '-' || lpad(b.last_id::text, 8, '0')"
_BATCHES = f"""
SELECT {_KEY}, s.state, s.generation, b.item_count
FROM batch_pipeline.batch b
JOIN batch_pipeline.batch_state s ON s.batch_id = b.id
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s AND j.kind = 'incremental' AND b.superseded_at IS NULL
"""  # noqa: S608 - only the text above is inserted
_ITEMS = "SELECT count(*) FROM batch_pipeline.item WHERE stream = %s"
_PARTITIONS = "SELECT partition FROM dynamic_partitions WHERE partitions_def_name = %s"
_MATERIALIZATIONS = """
SELECT e.partition, t.value::integer FROM event_logs e
LEFT JOIN asset_event_tags t ON t.event_id = e.id AND t.key = 'dagster/data_version'
WHERE e.dagster_event_type = 'ASSET_MATERIALIZATION' AND e.asset_key = %s ORDER BY e.id
"""
_GENERATIONS = f"""
SELECT {_KEY}, a.generation FROM batch_pipeline.attempt a
JOIN batch_pipeline.batch b ON b.id = a.batch_id
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s AND j.kind = 'incremental' AND a.generation IS NOT NULL
"""  # noqa: S608 - as above
_LOADED = f"""
SELECT DISTINCT {_KEY} FROM batch_pipeline.load l
JOIN batch_pipeline.attempt a ON a.id = l.attempt_id
JOIN batch_pipeline.batch b ON b.id = a.batch_id
JOIN batch_pipeline.batch_state s ON s.batch_id = b.id AND s.generation = a.generation
JOIN batch_pipeline.job j ON j.id = b.job_id
WHERE j.name = %s AND j.kind = 'incremental' AND l.status = 'succeeded' AND l.voided_at IS NULL
"""  # noqa: S608 - as above


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """The load and the faults of a soak, and the final state."""

    pace: Pace
    landed: dict[str, Landed]
    faults: Faults
    backfills: Backfills
    samples: list[Sample]
    at_rest: Sample
    drained_seconds: float
    unfinished: list[str]
    drift: list[str]
    counts: dict[str, int]
    quarantined: dict[str, int]
    check_result: CheckResult

    @property
    def files(self) -> int:
        return sum(landed.files for landed in self.landed.values())

    def figures(self) -> dict[str, float]:
        """Return the figures for the table of promises."""
        return {
            "minutes": self.pace.load_seconds / 60,
            "files": self.files,
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


@dataclass(slots=True)
class _Soak:
    """Lands files, kills processes, launches backfills and takes samples, at intervals."""

    dev: LiveDev
    pace: Pace
    arrivals: Arrivals
    faults: Faults
    backfills: Backfills
    began: float = field(default_factory=time.monotonic)
    is_over: Event = field(default_factory=Event)
    samples: list[Sample] = field(default_factory=list)

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

    def result(self) -> SoakResult:
        """Wait until all work is complete, and check the results."""
        dev, landed, began = self.dev, self.arrivals.landed, time.monotonic()

        def is_drained() -> bool:
            with suppress(psycopg.Error, OSError, IndexError):
                return not (_unfinished(dev, landed) or _drift(dev))
            return False

        # Unfinished work is returned, not raised: the tests report it.
        while not is_drained() and time.monotonic() < began + _MAX_REST_SECONDS:
            time.sleep(1)
        socket = (dev.sandbox.home / "postgres" / "postmaster.pid").read_text().splitlines()[4]
        return SoakResult(
            pace=self.pace,
            landed=landed,
            faults=self.faults,
            backfills=self.backfills,
            samples=self.samples,
            drained_seconds=time.monotonic() - began,
            at_rest=self.sample(time.monotonic() - self.began),
            unfinished=_unfinished(dev, landed),
            drift=_drift(dev),
            counts={name: _count(dev, rows) for name, rows in _COUNTS.items()},
            quarantined={name: int(dev.query(_QUARANTINED, name)[0][0]) for name in _STREAMS},
            check_result=check(
                f"host={socket} user=postgres dbname=postgres",
                [dev.sandbox.storage(name) for name in _STREAMS],
                ignored_marker=MALFORMED_MARKER,
            ),
        )


@contextmanager
def soaked(sandbox: Sandbox, pace: Pace) -> Iterator[SoakResult]:
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
        soak = _Soak(
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
        yield soak.result()


def _count(dev: LiveDev, rows: str) -> int:
    return int(dev.query(f"SELECT count(*) FROM {rows}")[0][0])  # noqa: S608 - a constant


def _unfinished(dev: LiveDev, landed: dict[str, Landed]) -> list[str]:
    """Return a line for each kind of unfinished work."""
    lines = []
    for name, feed in landed.items():
        [(items,)] = dev.query(_ITEMS, name)
        batches = dev.query(_BATCHES, name)
        states = Counter(row[1] for row in batches if row[1] != "published")
        published = sum(row[3] for row in batches if row[1] == "published")
        if (items, published) != (feed.files, feed.files):
            lines.append(f"{name}: {feed.files} files, {items} items, {published} published")
        lines += [f"{name}: {count} batches {state}" for state, count in states.items()]
    counts = {name: _count(dev, rows) for name, rows in _OPEN.items()}
    return lines + [f"{count} {name} open" for name, count in counts.items() if count]


def _drift(dev: LiveDev) -> list[str]:
    """Return a line for each difference between Dagster and the inventory."""
    lines = [line for name in _STREAMS for line in _drift_of_batches(dev, name)]
    loaded = _keys(dev, _LOADED, LOADED)
    shown = {key for key, _ in _materializations(dev, LOADED, "loaded")}
    lines += _differences(f"{LOADED}: loaded", loaded, _keys(dev, _BATCHES, LOADED))
    lines += _differences(f"{LOADED}: loaded partitions", shown, loaded)
    return lines


def _drift_of_batches(dev: LiveDev, name: str) -> Iterator[str]:
    newest = {row[0]: row[2] for row in dev.query(_BATCHES, name)}
    partitions = _keys(dev, _PARTITIONS, f"{name}.batches")
    yield from _differences(f"{name}: partitions", partitions, newest)
    events = _materializations(dev, name, "batches")
    shown = dict(events)  # the last one of each partition
    yield from _differences(f"{name}: materializations", shown, newest)
    for key in shown.keys() & newest:
        if shown[key] != newest[key]:
            yield f"{name}: {key} is generation {newest[key]}, Dagster shows {shown[key]}"
    generations = {(row[0], row[1]) for row in dev.query(_GENERATIONS, name)}
    # Dagster commits an event before its tags, so a killed run can leave an event without any. The
    # next tick reports the generation again.
    tagged = {(key, generation) for key, generation in events if generation is not None}
    if unknown := tagged - generations:
        yield f"{name}: materializations of generations never published: {sorted(unknown)}"


def _materializations(dev: LiveDev, name: str, asset: str) -> list[tuple[Any, Any]]:
    rows = dev.query(_MATERIALIZATIONS, f'["{name}", "{asset}"]')
    return [(row[0], row[1]) for row in rows]


def _keys(dev: LiveDev, query: str, name: str) -> set[str]:
    return {row[0] for row in dev.query(query, name)}


def _differences(what: str, shown: Iterable[str], expected: Iterable[str]) -> Iterator[str]:
    missing, extra = {*expected} - {*shown}, {*shown} - {*expected}
    if missing:
        yield f"{what}: {len(missing)} missing, the first is {min(missing)}"
    if extra:
        yield f"{what}: {len(extra)} too many, the first is {min(extra)}"
