"""What cutting one batch costs in the database, beside the plain window query, at any size.

The plain query sums up all rows that are left and then keeps those within the limit, which is how
one would write it first. Times are those that Postgres tells of a statement itself, planning
included, without the way to it and back; the tables are analysed and were just read.

Run `python -m batch_pipeline_tests.benchmarks.bench_acquire [--sizes 10000 1000000]`; the default
sizes need two minutes or more, nearly all of it for the plain query, and 1.5 GB of disk.
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
REPEATS = 15
REPEATS_OF_THE_PLAIN = 3
CREATE = (
    "CREATE UNLOGGED TABLE files (id bigint PRIMARY KEY, file_location text, size_in_bytes bigint)"
)
FILL = (
    "INSERT INTO files SELECT n, 'file:///landing/orders-' || n || '.csv.gz', "
    "(n * 7919 + n / 7) % 1000 FROM generate_series(1, CAST(:size AS bigint)) n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Median milliseconds in the database, and the rows that the scans met."""

    milliseconds: float
    rows: int


def main() -> None:
    """Measure every size and print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="rows of the table")
    sizes: list[int] = parser.parse_args().sizes
    _tell(
        f"{'rows':>11} {'items':>6} {'consumed':>8} | {'early stop':>10} {'rows read':>9} | "
        f"{'plain':>11} {'rows read':>10} | {'ratio':>8}"
    )
    with server(max_wal_size="'4GB'", autovacuum="off") as url, meta_engine(url) as engine:
        for size in sizes:
            table = _filled(engine, size)
            for items in ITEMS:
                for after_id in (0, size * 9 // 10):
                    _compare(table, size, items, after_id)
            execute(engine, "DROP TABLE files")


def _filled(engine: sa.Engine, size: int) -> ReflectedMetaTable:
    execute(engine, CREATE)
    execute(engine, FILL, size=size)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM (ANALYZE) files"))
    return ReflectedMetaTable.open(engine, "files", FILES)


def _compare(table: ReflectedMetaTable, size: int, items: int, after_id: int) -> None:
    limits = Limits(max_weight=items * MEAN_WEIGHT, max_count=10 * items)
    plain = _plain(table.table, after_id, limits.max_weight)

    def cut() -> None:
        table.next_cut(after_id, size, limits)

    def query() -> None:
        with table.engine.connect() as connection:
            connection.execute(plain).all()

    early, other = (
        _cost(table.engine, cut, REPEATS),
        _cost(table.engine, query, REPEATS_OF_THE_PLAIN),
    )
    consumed = f"{100 * after_id // size} %"
    _tell(
        f"{size:>11,} {items:>6,} {consumed:>8} | {early.milliseconds:>7.3f} ms {early.rows:>9,} | "
        f"{other.milliseconds:>8,.1f} ms {other.rows:>10,} | "
        f"{other.milliseconds / early.milliseconds:>7,.0f}×"
    )


def _plain(files: sa.Table, after_id: int, max_weight: int) -> sa.Select[tuple[object, ...]]:
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
    found = (sa.func.min(row.id), sa.func.max(row.id), sa.func.max(row["count"]))
    return sa.select(*found, sa.func.max(row.weight)).where(row.weight <= max_weight)


def _cost(engine: sa.Engine, call: Callable[[], None], repeats: int) -> Cost:
    """Let a call send its one statement, then let the server explain that, again and again."""
    with recorded(engine) as statements:
        call()
    ((statement, parameters),) = statements
    explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}"
    milliseconds = []
    with engine.connect() as connection:
        for _ in range(repeats):
            (plan,) = connection.exec_driver_sql(explain, parameters).scalar_one()
            milliseconds.append(plan["Planning Time"] + plan["Execution Time"])
    return Cost(milliseconds=statistics.median(milliseconds), rows=rows_touched(engine, statements))


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
