"""The whole soak: a `dev` comes up, is loaded and hurt for a while, and comes to rest.

What is told of it is a value; what of that is good or bad is for the tests to say.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import psycopg

from batch_pipeline_tests.acceptance.live_dev import LiveDev, live_dev
from batch_pipeline_tests.acceptance.sandbox import Sandbox
from batch_pipeline_tests.guarantees.checker import Verdict, check
from batch_pipeline_tests.guarantees.soak.arrivals import Arrivals, Landed
from batch_pipeline_tests.guarantees.soak.backfills import Backfills
from batch_pipeline_tests.guarantees.soak.backlog import backlog
from batch_pipeline_tests.guarantees.soak.end_state import drift, told_twice, waiting
from batch_pipeline_tests.guarantees.soak.faults import Faults, schedule
from batch_pipeline_tests.guarantees.soak.feeds import FEEDS, LOADED, TORN, attributes_of
from batch_pipeline_tests.guarantees.soak.meter import held_by_process
from batch_pipeline_tests.guarantees.soak.samples import Sample, Samples

_LONGEST_REST_SECONDS = 900  # a load that failed is tried again after ten minutes
_LATENCIES = """
SELECT extract(epoch FROM a.finished_at - i.modified_at)::float
FROM batch_pipeline.item i
JOIN batch_pipeline.job j ON j.name = i.stream AND j.kind = 'incremental'
JOIN batch_pipeline.batch b ON b.job_id = j.id AND i.id BETWEEN b.first_id AND b.last_id
JOIN batch_pipeline.attempt a ON a.batch_id = b.id AND a.generation = 1
WHERE i.modified_at > i.registered_at - interval '1 hour' ORDER BY 1
"""
_SET_ASIDE = """
SELECT coalesce(sum(f.records), 0)
FROM batch_pipeline.part_file f
JOIN batch_pipeline.attempt a ON a.id = f.attempt_id
JOIN batch_pipeline.batch_state s ON s.batch_id = a.batch_id AND s.generation = a.generation
JOIN batch_pipeline.job j ON j.id = s.job_id
WHERE f.quarantine AND j.name = %s
"""
_COUNTS = """
SELECT (SELECT count(*) FROM batch_pipeline.batch),
  (SELECT count(*) FROM batch_pipeline.attempt WHERE generation IS NOT NULL),
  (SELECT count(*) FROM batch_pipeline.attempt WHERE status = 'failed'),
  (SELECT count(*) FROM batch_pipeline.attempt WHERE status = 'abandoned'),
  (SELECT count(*) FROM batch_pipeline.load WHERE status = 'succeeded'),
  (SELECT count(*) FROM runs),
  (SELECT count(*) FROM bulk_actions WHERE strpos(status, 'FAIL') > 0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a soak is, and how far faults, backfills and samples are apart.

    `dev` and its services are killed in that share of the time, runs and Python workers until the
    end.
    """

    load_seconds: float
    fault_seconds: float
    backfill_seconds: float
    sample_seconds: float
    parts_until: float = 1.0
    seed: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the inventory and Dagster have in the end."""

    batches: int
    published: int
    failed_attempts: int
    abandoned_attempts: int
    loads: int
    runs: int
    failed_backfills: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What happened, and what there was in the end."""

    pace: Pace
    landed: dict[str, Landed]
    faults: Faults
    backfills: Backfills
    samples: Samples
    rest: Sample
    drained_seconds: float
    left: list[str]
    drift: list[str]
    told_twice: int
    latencies: list[float]
    counts: Counts
    set_aside: dict[str, int]
    verdict: Verdict

    @property
    def files(self) -> int:
        """How many files have landed."""
        return sum(one.files for one in self.landed.values())


@dataclass(slots=True)
class _Load:
    """Everything that goes on beside each other while a `dev` is up."""

    dev: LiveDev
    pace: Pace
    arrivals: Arrivals
    faults: Faults
    backfills: Backfills
    began: float = field(default_factory=time.monotonic)
    is_over: Event = field(default_factory=Event)
    samples: list[Sample] = field(default_factory=list)

    def run(self) -> None:
        """Let files land and faults happen, each at its own pace, until the time is over."""
        steps: list[tuple[Callable[[float], None], float]] = [
            (self.arrivals.catch_up, 0.2),
            (self.faults.catch_up, 0.2),
            (self.backfills.catch_up, 0.5),
            (self._sample, self.pace.sample_seconds),
        ]
        with ThreadPoolExecutor(max_workers=len(steps)) as threads:
            going_on = [threads.submit(self._repeat, *step) for step in steps]
            wait(going_on, timeout=self.pace.load_seconds, return_when=FIRST_EXCEPTION)
            self.is_over.set()
        for one in going_on:
            one.result()
        self.arrivals.finish()

    def _repeat(self, step: Callable[[float], None], pause: float) -> None:
        while not self.is_over.wait(pause):
            is_up = self.dev.may_be_down or self.dev.process.poll() is None
            assert is_up, self.dev.sandbox.output.read_text()
            step(time.monotonic() - self.began)

    def _sample(self, seconds: float) -> None:
        self.samples.append(self.sample(seconds))

    def sample(self, seconds: float) -> Sample:
        """Look at everything once."""
        landed = self.arrivals.files
        sandbox = self.dev.sandbox
        return Sample(
            seconds=seconds,
            processes=held_by_process(sandbox),
            landed=landed,
            backlog=backlog(self.dev, [LOADED]),
            temporary_files=_files_below(sandbox.folder / "tmp"),
            home_files=_files_below(sandbox.home),
            machine_load=os.getloadavg()[0],
        )


def _files_below(folder: Path) -> int:
    """Count files and folders, whatever vanishes meanwhile; those of the database are its own."""
    count = 0
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "postgres"]
        count += len(folders) + len(files)
    return count


def write_streams(sandbox: Sandbox) -> None:
    """Write the stream files of all feeds."""
    for feed in FEEDS:
        sandbox.write_stream(feed.name, **attributes_of(feed))


@contextmanager
def soaked(sandbox: Sandbox, pace: Pace) -> Iterator[Story]:
    """Soak a place whose streams are written; at the end of the context `dev` is stopped."""
    due = schedule(
        pace.load_seconds,
        every_seconds=pace.fault_seconds,
        parts_until_seconds=pace.parts_until * pace.load_seconds,
        seed=pace.seed,
    )
    with live_dev(sandbox) as dev:
        load = _Load(
            dev=dev,
            pace=pace,
            arrivals=Arrivals(sandbox.folder / "landing", FEEDS, pace.seed),
            faults=Faults(dev, [*due]),
            backfills=Backfills(
                dev,
                tuple(feed.name for feed in FEEDS),
                every_seconds=pace.backfill_seconds,
                until_seconds=0.9 * pace.load_seconds,
                seed=pace.seed,
            ),
        )
        load.run()
        yield _at_rest(load)


def _at_rest(load: _Load) -> Story:
    dev, landed, began = load.dev, load.arrivals.landed, time.monotonic()
    streams = [feed.name for feed in FEEDS]

    def left() -> list[str]:
        with suppress(psycopg.Error, OSError, IndexError):
            return waiting(dev, landed) or drift(dev, streams, [LOADED])
        return ["the database is down"]

    # What is left when the time is over is told, not raised: the tests name it.
    while left() and time.monotonic() < began + _LONGEST_REST_SECONDS:
        time.sleep(1)
    drained_seconds = time.monotonic() - began
    [counts] = dev.query(_COUNTS)
    return Story(
        pace=load.pace,
        landed=landed,
        faults=load.faults,
        backfills=load.backfills,
        samples=Samples(load.samples),
        rest=load.sample(time.monotonic() - load.began),
        drained_seconds=drained_seconds,
        left=waiting(dev, landed),
        drift=drift(dev, streams, [LOADED]),
        told_twice=told_twice(dev, streams),
        latencies=[seconds for (seconds,) in dev.query(_LATENCIES)],
        counts=Counts(**dict(zip(Counts.__slots__, counts, strict=True))),
        set_aside={name: int(dev.query(_SET_ASIDE, name)[0][0]) for name in streams},
        verdict=check(_url(dev), [dev.sandbox.storage(name) for name in streams], torn=TORN),
    )


def _url(dev: LiveDev) -> str:
    """Return the address of the embedded server, which is up by now."""
    socket = (dev.sandbox.home / "postgres" / "postmaster.pid").read_text().splitlines()[4]
    return f"host={socket} user=postgres dbname=postgres"
