"""Cost of cutting one batch in the database, compared with a plain window query, at any size.

The plain query computes running totals with window functions and filters the rows by the limits.
With only a weight limit it reads all remaining rows, because Postgres cannot know that later sums
are larger. With a count limit Postgres stops at the count (run condition of `rank`, since
PostgreSQL 15). Both queries get the same limit: the weight, or the count.

Times are those that Postgres reports for a statement, including planning, without the network; the
tables are analysed and in memory. Both queries alternate; medians are printed.

Run `python -m batch_pipeline_tests.benchmarks acquire [--sizes 10000 1000000]`; the default sizes
need some minutes, nearly all of it for the plain query, and 1.5 GB of disk. The rate of concurrent
workers is measured by `guarantees/test_no_overlap.py` in its long form.
"""

import argparse
import statistics
from collections.abc import Callable

import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.planning import Limits
from batch_pipeline_tests.benchmarks.servers import server
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    FILES,
    execute,
    meta_engine,
    record_statements,
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


def main() -> None:
    """Measure all sizes, and print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="rows of the table")
    args = parser.parse_args()
    print(
        f"{'rows':>11} {'items':>6} {'consumed':>8} {'limits':>7} | {'ours':>10} "
        f"| {'window query':>12} | {'ratio':>8}"
    )
    with server(max_wal_size="'4GB'", autovacuum="off") as url, meta_engine(url) as engine:
        for size in args.sizes:
            table = _create_table(engine, size)
            for items in ITEMS:
                for after_id in (0, size * 9 // 10):
                    for name, limits in _limits(items).items():
                        _compare(table, name, limits, items=items, after_id=after_id, size=size)
            execute(engine, "DROP TABLE files")


def _create_table(engine: sa.Engine, size: int) -> ReflectedMetaTable:
    execute(engine, CREATE)
    execute(engine, FILL, size=size)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM (ANALYZE) files"))
    return ReflectedMetaTable.open(engine, "files", FILES)


def _limits(items: int) -> dict[str, Limits]:
    """Return limits by name for a batch of `items` items."""
    return {
        "weight": Limits(max_weight=items * MEAN_WEIGHT, max_count=NO_LIMIT),
        "count": Limits(max_weight=NO_LIMIT, max_count=items),
    }


def _compare(
    table: ReflectedMetaTable, name: str, limits: Limits, *, items: int, after_id: int, size: int
) -> None:
    plain = _window_query(table.table, after_id, limits)

    def cut() -> None:
        table.next_cut(after_id, size, limits)

    def query() -> None:
        with table.engine.connect() as connection:
            connection.execute(plain).all()

    ours, other = _milliseconds(table.engine, cut, query)
    consumed = f"{100 * after_id // size} %"
    print(
        f"{size:>11,} {items:>6,} {consumed:>8} {name:>7} | {ours:>7.3f} ms | "
        f"{other:>9,.1f} ms | {other / ours:>7,.1f}×",
        flush=True,
    )


def _window_query(files: sa.Table, after_id: int, limits: Limits) -> sa.Select[tuple[object, ...]]:
    """Return the window query with only the limit that applies."""
    uid = files.c.id
    running_totals = (
        sa.select(
            uid,
            sa.func.rank().over(order_by=uid).label("count"),
            sa.func.sum(files.c.size_in_bytes).over(order_by=uid).label("weight"),
        )
        .where(uid >= after_id + 1)
        .order_by(uid)
        .cte()
    )
    row = running_totals.c
    if limits.max_weight < NO_LIMIT:
        condition = row.weight <= limits.max_weight
    else:
        condition = row["count"] <= limits.max_count
    bounds = (sa.func.min(row.id), sa.func.max(row.id), sa.func.max(row["count"]))
    return sa.select(*bounds, sa.func.max(row.weight)).where(condition)


def _milliseconds(engine: sa.Engine, *calls: Callable[[], None]) -> list[float]:
    """Record the statement of each call, explain them alternately, and return their medians."""
    recordings = []
    for call in calls:
        with record_statements(engine) as statements:
            call()
        recordings.append(statements)
    milliseconds: list[list[float]] = [[] for _ in calls]
    with engine.connect() as connection:
        for _ in range(REPEATS):
            for times, ((statement, parameters),) in zip(milliseconds, recordings, strict=True):
                explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}"
                (plan,) = connection.exec_driver_sql(explain, parameters).scalar_one()
                times.append(plan["Planning Time"] + plan["Execution Time"])
    return [statistics.median(times) for times in milliseconds]


if __name__ == "__main__":
    main()
