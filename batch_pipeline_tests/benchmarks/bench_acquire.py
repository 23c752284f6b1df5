"""What cutting one batch costs in the database, beside the plain window query, at any size.

The plain query computes running totals with window functions and keeps the rows within the limits.
With a limit of the weight alone it reads all rows that are left, since Postgres cannot know that
later sums are larger. With a limit of the count Postgres stops at the count (run condition of
`rank`, from PostgreSQL 15 on). So both queries get the same limits, in three forms: the weight
alone, the weight with a count ten times as high as a batch needs, and the count alone.

Times are those that Postgres reports for a statement, planning included, without the network; the
tables are analysed and in memory. Both queries take turns; medians are printed.

Run `python -m batch_pipeline_tests.benchmarks acquire [--sizes 10000 1000000]`; the default sizes
need some five minutes, nearly all of it for the plain query, and 1.5 GB of disk.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from batch_pipeline.domain.planning import Limits
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable
from batch_pipeline_tests.benchmarks.server import server
from batch_pipeline_tests.integration.meta_tables import (
    FILES,
    execute,
    meta_engine,
    recorded,
    rows_touched,
)

SIZES = (10_000, 1_000_000, 10_000_000)
ITEMS = (10, 1_000)
MEAN_WEIGHT = 500
REPEATS = 5
NO_LIMIT = 2**40
CREATE = (
    "CREATE UNLOGGED TABLE files (id bigint PRIMARY KEY, file_location text, size_in_bytes bigint)"
)
FILL = (
    "INSERT INTO files SELECT n, 'file:///landing/orders-' || n || '.csv.gz', "
    "(n * 7919 + n / 7) % 1000 FROM generate_series(1, CAST(:size AS bigint)) n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Median milliseconds in the database, and the rows that the scans read."""

    milliseconds: float
    rows: int


def main() -> None:
    """Measure every size and print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="rows of the table")
    sizes: list[int] = parser.parse_args().sizes
    _tell(
        f"{'rows':>11} {'items':>6} {'consumed':>8} {'limits':>16} | {'ours':>10} "
        f"{'rows read':>9} | {'window query':>12} {'rows read':>10} | {'ratio':>8}"
    )
    with server(max_wal_size="'4GB'", autovacuum="off") as url, meta_engine(url) as engine:
        for size in sizes:
            table = _filled(engine, size)
            for items in ITEMS:
                for after_id in (0, size * 9 // 10):
                    for name, limits in _limits(items).items():
                        _compare(table, name, limits, items=items, after_id=after_id, size=size)
            execute(engine, "DROP TABLE files")


def _filled(engine: sa.Engine, size: int) -> ReflectedMetaTable:
    execute(engine, CREATE)
    execute(engine, FILL, size=size)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM (ANALYZE) files"))
    return ReflectedMetaTable.open(engine, "files", FILES)


def _limits(items: int) -> dict[str, Limits]:
    """Return the limits that a batch of so many items is acquired with, by their name."""
    weight = items * MEAN_WEIGHT
    return {
        "weight": Limits(max_weight=weight, max_count=NO_LIMIT),
        "weight and count": Limits(max_weight=weight, max_count=10 * items),
        "count": Limits(max_weight=NO_LIMIT, max_count=items),
    }


def _compare(
    table: ReflectedMetaTable, name: str, limits: Limits, *, items: int, after_id: int, size: int
) -> None:
    plain = _plain(table.table, after_id, limits)

    def cut() -> None:
        table.next_cut(after_id, size, limits)

    def query() -> None:
        with table.engine.connect() as connection:
            connection.execute(plain).all()

    ours, other = _costs(table.engine, cut, query)
    consumed = f"{100 * after_id // size} %"
    _tell(
        f"{size:>11,} {items:>6,} {consumed:>8} {name:>16} | {ours.milliseconds:>7.3f} ms "
        f"{ours.rows:>9,} | {other.milliseconds:>9,.1f} ms {other.rows:>10,} | "
        f"{other.milliseconds / ours.milliseconds:>7,.1f}×"
    )


def _plain(files: sa.Table, after_id: int, limits: Limits) -> sa.Select[tuple[object, ...]]:
    """Return the window query, which states only the limits that there are."""
    uid = files.c.id
    summed = (
        sa.select(
            uid,
            sa.func.rank().over(order_by=uid).label("count"),
            sa.func.sum(files.c.size_in_bytes).over(order_by=uid).label("weight"),
        )
        .where(uid >= after_id + 1)
        .order_by(uid)
        .cte()
    )
    row = summed.c
    within = []
    if limits.max_weight < NO_LIMIT:
        within.append(row.weight <= limits.max_weight)
    if limits.max_count < NO_LIMIT:
        within.append(row["count"] <= limits.max_count)
    found = (sa.func.min(row.id), sa.func.max(row.id), sa.func.max(row["count"]))
    return sa.select(*found, sa.func.max(row.weight)).where(*within)


def _costs(engine: sa.Engine, *calls: Callable[[], None]) -> list[Cost]:
    """Record the one statement of each call, then explain them in turn and return their costs."""
    recordings = []
    for call in calls:
        with recorded(engine) as statements:
            call()
        recordings.append(statements)
    milliseconds: list[list[float]] = [[] for _ in calls]
    with engine.connect() as connection:
        for _ in range(REPEATS):
            for times, ((statement, parameters),) in zip(milliseconds, recordings, strict=True):
                explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}"
                (plan,) = connection.exec_driver_sql(explain, parameters).scalar_one()
                times.append(plan["Planning Time"] + plan["Execution Time"])
    return [
        Cost(milliseconds=statistics.median(times), rows=rows_touched(engine, statements))
        for times, statements in zip(milliseconds, recordings, strict=True)
    ]


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
