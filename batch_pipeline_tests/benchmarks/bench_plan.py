"""Planning everything: what one pass costs beside reading the weights once, and beside other ways.

Sizes are log-normal (median 5.4 MB, mean 11 MB), batches are 1 GiB. The server is an embedded one
with its usual fsync, and no query may use parallel workers. Every round runs all ways in turn.

Run `python -m batch_pipeline_tests.benchmarks.bench_plan [--rows N …] [--repeats K]`.
"""

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from batch_pipeline.domain.planning import Limits, cut
from batch_pipeline.inventory.meta.all_cuts import all_cuts
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.server import embedded
from batch_pipeline_tests.integration.meta_tables import (
    CREATE_FILES,
    FILES,
    drained,
    execute,
    meta_engine,
)

BATCH = Limits(max_weight=2**30, max_count=100_000)
LARGEST_FOR_NEXT_CUT = 1_000_000
FILL = """
INSERT INTO ops.files (id, file_location, size_in_bytes)
SELECT n, 's3://landing/orders/' || n || '.csv',
       exp(15.5 + 1.2 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()))::bigint
  FROM generate_series(1, :rows) n
"""


@dataclass
class Way:
    """One way to go over the table: what it is called, what it does, how long it took."""

    name: str
    run: Callable[[], int | None]
    seconds: list[float] = field(default_factory=list)
    batches: int | None = None

    def measure(self) -> None:
        """Run once."""
        began = time.perf_counter()
        self.batches = self.run()
        self.seconds.append(time.perf_counter() - began)


def main() -> None:
    """Fill a table of each size, go over it in all ways, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=float, default=0.5, help="from -1 to 1")
    asked = parser.parse_args()
    for rows in asked.rows:
        with a_server() as engine:
            measure(engine, rows, asked.repeats, asked.seed)


@contextmanager
def a_server() -> Iterator[sa.Engine]:
    """Start an embedded server in a folder of its own, and remove both."""
    folder = Path(tempfile.mkdtemp(prefix="bp-bench-"))
    data = folder / "postgres"
    try:
        url = f"{embedded.ensure_running(data)}&options=-c%20max_parallel_workers_per_gather%3D0"
        with meta_engine(url) as engine:
            yield engine
    finally:
        embedded.release(data)
        shutil.rmtree(folder)


def filled_table(engine: sa.Engine, rows: int, seed: float) -> ReflectedMetaTable:
    """Make `ops.files` with so many rows; the same seed gives the same sizes."""
    execute(engine, "CREATE SCHEMA ops", CREATE_FILES)
    with engine.begin() as connection:
        connection.execute(sa.select(sa.func.setseed(seed)))
        connection.execute(sa.text(FILL), {"rows": rows})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM (ANALYZE) ops.files")
    return ReflectedMetaTable.open(engine, "ops.files", FILES)


def measure(engine: sa.Engine, rows: int, repeats: int, seed: float) -> None:
    """Go over a table in all ways, round by round, and print what they took."""
    table = filled_table(engine, rows, seed)
    ways = ways_over(table, rows)
    before = peak_mebibytes()
    ways[2].run()  # before all others, which need more memory; it also warms the caches
    after = peak_mebibytes()
    for _ in range(repeats):
        for way in ways:
            way.measure()
    print_table(ways, rows, repeats)
    sys.stdout.write(f"peak memory of this process: {after:.0f} MiB after a first all_cuts, ")
    sys.stdout.write(f"{before:.0f} before, {peak_mebibytes():.0f} at the end\n")


def ways_over(table: ReflectedMetaTable, rows: int) -> list[Way]:
    """Give the ways, the two that only read first."""
    size, uid = table.table.c.size_in_bytes, table.uid
    in_order = sa.select(size).order_by(uid).offset(sa.literal(0)).subquery()

    def read(query: sa.Select[tuple[object]]) -> None:
        with table.engine.connect() as connection:
            connection.execute(query).one()

    def streamed() -> int:
        weights = table.weights(None, rows)
        return sum(1 for _ in cut(weights, after_id=0, ceiling=rows, limits=BATCH))

    ways = [
        Way("sum(weight)", lambda: read(sa.select(sa.func.sum(size)))),
        Way("sum(weight) in id order", lambda: read(sa.select(sa.func.sum(in_order.c[0])))),
        Way("all_cuts", lambda: sum(1 for _ in all_cuts(table, None, rows, BATCH))),
        Way("streaming", streamed),
    ]
    if rows <= LARGEST_FOR_NEXT_CUT:
        ways.append(Way("next_cut per batch", lambda: len(drained(table, rows, BATCH))))
    return ways


def peak_mebibytes() -> float:
    """Give the largest resident memory that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def print_table(ways: list[Way], rows: int, repeats: int) -> None:
    """Print medians, spreads and ratios."""
    out = sys.stdout.write
    out(f"\n{rows:,} rows, 1 GiB a batch, median (least..most) of {repeats}\n")
    out(f"{'':26}{'seconds':>9}{'':>18}{'x sum':>8}{'x ordered':>11}{'batches':>10}\n")
    plain, ordered = (statistics.median(way.seconds) for way in ways[:2])
    for way in ways:
        median = statistics.median(way.seconds)
        spread = f"({min(way.seconds):.3f}..{max(way.seconds):.3f})"
        batches = "" if way.batches is None else f"{way.batches:,}"
        ratios = f"{median / plain:>8.2f}{median / ordered:>11.2f}"
        out(f"{way.name:26}{median:>9.3f}{spread:>18}{ratios}{batches:>10}\n")


if __name__ == "__main__":
    main()
