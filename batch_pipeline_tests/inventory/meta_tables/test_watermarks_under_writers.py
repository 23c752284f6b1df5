"""High watermarks under many concurrent writers: no row is skipped (G1).

Writers keep transactions open, roll back, use savepoints and two-phase commit. A planner processes
rows up to the high watermark, and a second bookmark at `max(id)` shows what would be lost.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event

import psycopg
import pytest
import sqlalchemy as sa

from batch_pipeline.inventory import embedded_server
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.watermarks import HighWatermark
from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.concurrency import eventually
from batch_pipeline_tests.inventory.logins import new_data_folder, run
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    choose_watermark,
    execute,
    item_ids,
    meta_engine,
)
from batch_pipeline_tests.proofs import Figures

WRITERS = 16
BATCH = Limits(max_weight=10_000, max_count=50)
INSERT = "INSERT INTO ops.files (file_location, size_in_bytes) VALUES ('f', 1)"
INSERT_MANY = f"{INSERT}, ('f', 2), ('f', 3)"
INSERT_PART = "INSERT INTO ops.day_2 (file_location, size_in_bytes, day) VALUES ('f', 6, 2)"
COPY = "COPY ops.files (file_location, size_in_bytes) FROM STDIN"
COPIED_ROWS = 20
KINDS = ("one", "one", "many", "copy", "savepoint", "conflict", "update")
TABLES = {
    "plain": ([CREATE_FILES], KINDS),
    "partitioned": (
        [
            "CREATE SEQUENCE ops.numbers",
            """
            CREATE TABLE ops.files (
                id bigint DEFAULT nextval('ops.numbers'), file_location text, size_in_bytes bigint,
                day int DEFAULT 1, PRIMARY KEY (id, day)
            ) PARTITION BY LIST (day)
            """,
            "ALTER SEQUENCE ops.numbers OWNED BY ops.files.id",
            "CREATE TABLE ops.day_1 PARTITION OF ops.files FOR VALUES IN (1)",
            "CREATE TABLE ops.day_2 PARTITION OF ops.files FOR VALUES IN (2)",
        ],
        (*KINDS, "part", "part"),
    ),
}
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def two_phase_folder() -> Iterator[Path]:
    """The data folder of a running server that allows two-phase commit."""
    with new_data_folder() as data:
        run(embedded_server.ensure_running(data), "ALTER SYSTEM SET max_prepared_transactions = 64")
        embedded_server.release(data)
        embedded_server.ensure_running(data)
        yield data


@pytest.fixture
def table_kind() -> str:
    """The kind of table, a key of TABLES."""
    return "plain"


@pytest.fixture
def files(two_phase_folder: Path, table_kind: str) -> Iterator[ReflectedMetaTable]:
    """An empty table `ops.files` on that server."""
    with meta_engine(embedded_server.ensure_running(two_phase_folder)) as engine:
        execute(engine, "CREATE SCHEMA ops", *TABLES[table_kind][0])
        yield ReflectedMetaTable.open(engine, "ops.files", FILES)
        execute(engine, "DROP SCHEMA ops CASCADE")


class Writer:
    """A client that writes transactions of all kinds until it is stopped."""

    names = count(1)

    def __init__(self, url: str, seed: int, stop: Event, kinds: Sequence[str]) -> None:
        self.url, self.seed, self.stop, self.kinds = url, seed, stop, kinds
        self.random = random.Random(seed)  # noqa: S311 - a repeatable workload
        self.transactions = 0

    def run(self) -> None:
        """Write transactions and count them."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self.stop.is_set():
                self._transaction(connection)
                self.transactions += 1

    def _transaction(self, connection: psycopg.Connection) -> None:
        chance = self.random.random()
        connection.execute("BEGIN")
        for _ in range(self.random.randint(1, 4)):
            self._rows(connection)
        if chance < 0.05:
            self._stay_open(0.8)
        elif chance < 0.5:
            self._stay_open(0.02)
        if 0.05 < chance < 0.12:
            connection.execute("ROLLBACK")
        elif 0.12 < chance < 0.17:
            name = f"writer_{next(self.names)}"
            connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
            self._stay_open(0.3)
            end = "ROLLBACK" if chance < 0.13 else "COMMIT"
            connection.execute(f"{end} PREPARED '{name}'".encode())
        else:
            connection.execute("COMMIT")

    def _rows(self, connection: psycopg.Connection) -> None:
        kind = self.random.choice(self.kinds)
        if kind == "copy":
            with connection.cursor() as cursor, cursor.copy(COPY) as rows:
                for _ in range(COPIED_ROWS):
                    rows.write_row(("f", 4))
        elif kind == "savepoint":
            connection.execute("SAVEPOINT part")
            connection.execute(INSERT)
            undo = self.random.random() < 0.5
            connection.execute("ROLLBACK TO part" if undo else "RELEASE part")
        elif kind == "conflict":
            connection.execute(f"{INSERT} ON CONFLICT DO NOTHING".encode())
        elif kind == "part":
            connection.execute(INSERT_PART.encode())
        elif kind == "update":
            connection.execute("UPDATE ops.files SET size_in_bytes = 1 WHERE id = %s", [self.seed])
        else:
            connection.execute((INSERT if kind == "one" else INSERT_MANY).encode())

    def _stay_open(self, seconds: float) -> None:
        self.stop.wait(self.random.uniform(0, seconds))


@dataclass
class Planner:
    """Processes a table up to its high watermark, and for comparison up to `max(id)`."""

    table: ReflectedMetaTable
    watermark: HighWatermark
    bookmark: int = 0
    processed: list[int] = field(default_factory=list)
    naive_bookmark: int = 0
    naive_processed: list[int] = field(default_factory=list)

    def poll(self) -> int | None:
        """Process what is available and return the high watermark."""
        watermark = self.watermark.read().value
        while watermark is not None:
            cut = self.table.next_cut(self.bookmark, watermark, BATCH)
            if cut is None:
                break
            ids = item_ids(self.table, cut.id_range)
            assert len(ids) == cut.count
            self.processed += ids
            self.bookmark = cut.id_range.last_id
        self._poll_max_id()
        return watermark

    def missed_by_max_id(self) -> set[int]:
        """Return the ids that the `max(id)` bookmark has skipped."""
        passed = {uid for uid in self.processed if uid <= self.naive_bookmark}
        return passed - set(self.naive_processed)

    def _poll_max_id(self) -> None:
        highest = self.table.highest_id()
        if highest is not None and highest > self.naive_bookmark:
            above = IdRange(first_id=self.naive_bookmark + 1, last_id=highest)
            self.naive_processed += item_ids(self.table, above)
            self.naive_bookmark = highest


def consume_under_writers(
    planner: Planner, writers: Sequence[Callable[[], None]], stop: Event, rows: int
) -> None:
    """Run the writers until `max(id)` has missed rows, then process the rest."""
    with ThreadPoolExecutor(len(writers)) as pool:
        running = [pool.submit(writer) for writer in writers]

        def has_missed_rows() -> bool:
            planner.poll()
            is_enough = len(planner.processed) >= rows and bool(planner.missed_by_max_id())
            return is_enough or any(future.done() for future in running)

        try:
            eventually(has_missed_rows)
        finally:
            stop.set()
        for future in running:
            future.result(PATIENCE_SECONDS)
    assert planner.poll() == planner.table.highest_id()


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    "table_kind", ["plain", pytest.param("partitioned", marks=pytest.mark.long)]
)
def test_planner_with_watermark_loses_no_row_that_max_id_bookmark_loses(
    two_phase_folder: Path,
    files: ReflectedMetaTable,
    table_kind: str,
    figures: Figures,
    *,
    long_form: bool,
) -> None:
    """Every row is processed once, while a bookmark at `max(id)` misses rows in the same run."""
    choice = choose_watermark(files)
    assert choice.strategy is Strategy.LOCKS
    planner, stop = Planner(files, choice.watermark), Event()
    url, kinds = embedded_server.ensure_running(two_phase_folder), TABLES[table_kind][1]
    writers = [Writer(url, seed, stop, kinds) for seed in range(WRITERS)]
    runs = [writer.run for writer in writers]
    consume_under_writers(planner, runs, stop, rows=150_000 if long_form else 1_500)
    rows = item_ids(files, IdRange(first_id=1, last_id=10**9))
    figures(
        writers=float(WRITERS),
        transactions=sum(writer.transactions for writer in writers),
        rows=len(rows),
        lost=len(set(rows) - set(planner.processed)),
        twice=len(planner.processed) - len(set(planner.processed)),
        lost_by_a_bookmark=len(planner.missed_by_max_id()),
    )
    assert planner.processed == rows
    assert planner.missed_by_max_id()


def test_prepared_transaction_holds_watermark_across_restart(
    two_phase_folder: Path, files: ReflectedMetaTable
) -> None:
    """It has no session and is named by its own name. The restart changes its identity."""

    def check_held() -> None:
        (holder,) = watermark.read().held_by
        assert (holder.pid, holder.application) == (None, "prepared transaction late")
        assert holder.age_seconds is not None

    watermark = choose_watermark(files).watermark
    execute(files.engine, INSERT)
    assert watermark.read().value == 1
    url = embedded_server.ensure_running(two_phase_folder)
    with psycopg.connect(url, autocommit=True) as writer:
        writer.execute("BEGIN")
        writer.execute(INSERT.encode())
        execute(files.engine, INSERT)
        assert watermark.read().value == 1
        writer.execute("PREPARE TRANSACTION 'late'")
    assert watermark.read().value == 1
    check_held()
    files.engine.dispose()
    embedded_server.release(two_phase_folder)
    embedded_server.ensure_running(two_phase_folder)
    assert watermark.read().value is None
    check_held()
    with files.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("COMMIT PREPARED 'late'"))
    highest = files.highest_id()
    assert highest is not None
    assert watermark.read().value == highest
    assert len(item_ids(files, IdRange(first_id=1, last_id=highest))) == 3
