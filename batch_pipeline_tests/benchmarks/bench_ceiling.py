"""The ceiling under fire (G1): what a planner loses, what a bookmark loses, what writers pay.

Sixteen processes write a meta table on a server with its usual fsync, in rounds alone and rounds
beside a planner that looks every 20 ms, which is far more often than one would. A bookmark at the
highest id reads the same rows in the same rounds, so what it costs is counted as the planner's.

Run `python -m batch_pipeline_tests.benchmarks.bench_ceiling`; it fails when a row is lost or taken
twice, never because of a time.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import sqlalchemy as sa

from batch_pipeline.domain.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.domain.planning import Limits
from batch_pipeline.inventory.meta.ceilings.ceiling import Ceiling
from batch_pipeline.inventory.meta.ceilings.choose import choose_ceiling
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.server import embedded
from batch_pipeline_tests.benchmarks.ceiling_writers import Writers, Written, running_writers
from batch_pipeline_tests.integration.meta_tables import CREATE_FILES, FILES, execute, meta_engine

WRITERS = 16
ROUNDS = 2
WARM_UP_SECONDS = 2.0
POLL_SECONDS = 0.02
BATCH = Limits(max_weight=64 * 2**20, max_count=1_000)


@dataclass
class Planner:
    """Takes a table batch by batch up to its ceiling.

    `looks` holds the seconds of each look, `reached` the last id of each batch and when it was
    taken, `changed` how many batches had other rows right after their cut.
    """

    table: ReflectedMetaTable
    ceiling: Ceiling
    bookmark: int = 0
    taken: list[int] = field(default_factory=list)
    reached: list[tuple[int, float]] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    changed: int = 0

    def poll(self) -> int | None:
        """Take what can be taken now, and give the ceiling."""
        began = time.monotonic()
        ceiling = self.ceiling.read().value
        self.looks.append(time.monotonic() - began)
        while ceiling is not None and (cut := self.table.next_cut(self.bookmark, ceiling, BATCH)):
            found = self.table.ids(cut.id_range)
            self.changed += len(found) != cut.count
            self.taken += found
            self.bookmark = cut.id_range.last_id
            self.reached.append((self.bookmark, time.monotonic()))
        return ceiling

    def lags(self, written: Written) -> list[float]:
        """Give for each commit the seconds until its last row was taken."""
        last_ids = [last_id for last_id, _ in self.reached]
        return [
            max(0.0, self.reached[bisect_left(last_ids, last_id)][1] - at)
            for last_id, at in written.commits
        ]


@dataclass
class Bookmark:
    """Takes everything above the highest id it has seen, as one would at first."""

    table: ReflectedMetaTable
    bookmark: int = 0
    taken: list[int] = field(default_factory=list)

    def poll(self) -> None:
        """Take what can be seen now."""
        highest = self.table.highest_id()
        if highest is not None and highest > self.bookmark:
            self.taken += self.table.ids(IdRange(first_id=self.bookmark + 1, last_id=highest))
            self.bookmark = highest


@dataclass
class Run:
    """Both consumers, and what the writers did in each round."""

    planner: Planner
    naive: Bookmark
    rows_beside: int = 0
    alone: list[Written] = field(default_factory=list)
    beside: list[Written] = field(default_factory=list)

    def write_alone(self, writers: Writers, seconds: float) -> Written:
        """Let the writers write while nobody reads, then take it all."""
        writers.start(seconds)
        written = writers.written()
        self.catch_up()
        return written

    def write_beside(self, writers: Writers, seconds: float) -> Written:
        """Let the writers write while both consumers look, then take the rest."""
        before = len(self.planner.taken)
        writers.start(seconds)
        while not writers.are_done():
            self.planner.poll()
            self.naive.poll()
            time.sleep(POLL_SECONDS)
        written = writers.written()
        self.catch_up()
        self.rows_beside += len(self.planner.taken) - before
        return written

    def catch_up(self) -> None:
        """Take what is left; nobody writes any more, so one look is enough."""
        reached, highest = self.planner.poll(), self.planner.table.highest_id()
        if reached != highest:
            sys.exit(f"the ceiling stayed at {reached} though nobody writes below {highest}")
        self.naive.poll()


@contextmanager
def meta_server() -> Iterator[str]:
    """An embedded server that allows two-phase commit, with an empty table `ops.files`."""
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    data = folder / "postgres"
    try:
        with psycopg.connect(embedded.ensure_running(data), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_prepared_transactions = 64")
        embedded.release(data)
        url = embedded.ensure_running(data)
        with meta_engine(url) as engine:
            execute(engine, "CREATE SCHEMA ops", CREATE_FILES)
        yield url
    finally:
        embedded.release(data)
        shutil.rmtree(folder)


def measure(url: str, engine: sa.Engine, seconds: float) -> Run:
    """Run the rounds: alone, beside, alone, beside."""
    table = ReflectedMetaTable.open(engine, "ops.files", FILES)
    run = Run(Planner(table, choose_ceiling(table).ceiling), Bookmark(table))
    with running_writers(url, WRITERS) as writers:
        run.write_alone(writers, WARM_UP_SECONDS)
        run.planner.looks.clear()
        for _ in range(ROUNDS):
            run.alone.append(run.write_alone(writers, seconds / ROUNDS))
            run.beside.append(run.write_beside(writers, seconds / ROUNDS))
    return run


def counted(taken: Sequence[int], rows: Sequence[int]) -> tuple[int, int]:
    """Count what of a table was lost and what was taken twice."""
    return len(set(rows) - set(taken)), len(taken) - len(set(taken))


def milliseconds(seconds: Sequence[float]) -> tuple[float, float]:
    """Give the median and the 99th percentile."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return 1_000 * ordered[last // 2], 1_000 * ordered[last * 99 // 100]


def merged(rounds: Sequence[Written]) -> Written:
    """Give all rounds as one."""
    together = Written()
    for one in rounds:
        together.add(one)
    return together


def report_rows(run: Run) -> bool:
    """Print what became of the rows, and tell whether the planner took every one once."""
    planner = run.planner
    rows = planner.table.ids(IdRange(first_id=MIN_ID, last_id=MAX_ID))
    say(f"{'':26}{'rows':>12}{'lost':>10}{'twice':>10}")
    for name, taken in (("planner", planner.taken), ("bookmark at max(id)", run.naive.taken)):
        lost, twice = counted(taken, rows)
        say(f"{name:26}{len(rows):12,}{lost:10,}{twice:10,}")
    say(f"rows written beside the planner: {run.rows_beside:,}")
    say(f"batches whose rows changed after their cut: {planner.changed}")
    return planner.changed == 0 and counted(planner.taken, rows) == (0, 0)


def report_times(run: Run) -> None:
    """Print what the writers paid, and how far the planner was behind."""
    say(f"\n{'write transaction':26}{'count':>12}{'p50 ms':>10}{'p99 ms':>10}")
    for number, (alone, beside) in enumerate(zip(run.alone, run.beside, strict=True), start=1):
        say(_line(f"alone, round {number}", alone.seconds))
        say(_line(f"beside, round {number}", beside.seconds))
    alone, beside = merged(run.alone), merged(run.beside)
    say(_line("alone", alone.seconds))
    say(_line("beside the planner", beside.seconds))
    ratios = [
        b / a for a, b in zip(*map(milliseconds, (alone.seconds, beside.seconds)), strict=True)
    ]
    say(f"{'beside / alone':38}{ratios[0]:10.2f}{ratios[1]:10.2f}")
    say(f"\n{'planner':26}{'count':>12}{'p50 ms':>10}{'p99 ms':>10}")
    say(_line("lag, commit to taken", run.planner.lags(beside)))
    say(_line("one look at the ceiling", run.planner.looks))


def _line(name: str, seconds: Sequence[float]) -> str:
    median, slowest = milliseconds(seconds)
    return f"{name:26}{len(seconds):12,}{median:10.1f}{slowest:10.1f}"


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def main() -> None:
    """Measure, print, and fail when a row is lost or taken twice."""
    parser = argparse.ArgumentParser(description="The ceiling under sixteen writers.")
    parser.add_argument("--seconds", type=float, default=60.0, help="beside, and as much alone")
    seconds = parser.parse_args().seconds
    with meta_server() as url, meta_engine(url) as engine:
        with engine.connect() as connection:
            version, fsync = (
                connection.execute(sa.text(f"SHOW {name}")).scalar_one()
                for name in ("server_version", "fsync")
            )
        say(f"PostgreSQL {version}, fsync {fsync}, {os.cpu_count()} cores; {WRITERS} writers")
        say(f"{ROUNDS} rounds of {seconds / ROUNDS:g} s alone, as many beside the planner\n")
        run = measure(url, engine, seconds)
        is_exact = report_rows(run)
        report_times(run)
    if not is_exact:
        sys.exit(1)


if __name__ == "__main__":
    main()
