"""The hole in front of everybody: many writers, and a planner that must lose nothing (G1).

Writers keep transactions open, roll back, use savepoints and two-phase commit, while a planner
consumes up to the ceiling and, beside it, a bookmark at `max(id)` shows what would be lost.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
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
from batch_pipeline.inventory.meta_tables.watermarks import HighWatermark, choose_watermark
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.concurrency import eventually
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
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
    """The data folder of a running server of this module's own that allows two-phase commit."""
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    data = folder / "postgres"
    with psycopg.connect(embedded_server.ensure_running(data), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET max_prepared_transactions = 64")
    embedded_server.release(data)
    embedded_server.ensure_running(data)
    yield data
    embedded_server.release(data)
    shutil.rmtree(folder)


@pytest.fixture
def kind() -> str:
    """What kind of table the table is."""
    return "plain"


@pytest.fixture
def files(two_phase_folder: Path, kind: str) -> Iterator[ReflectedMetaTable]:
    """An empty table `ops.files` on that server."""
    with meta_engine(embedded_server.ensure_running(two_phase_folder)) as engine:
        execute(engine, "CREATE SCHEMA ops", *TABLES[kind][0])
        yield ReflectedMetaTable.open(engine, "ops.files", FILES)
        execute(engine, "DROP SCHEMA ops CASCADE")


class Writer:
    """One client that writes transactions of every kind until it is told to stop."""

    names = count(1)

    def __init__(self, url: str, seed: int, stop: Event, kinds: Sequence[str]) -> None:
        self.url, self.seed, self.stop, self.kinds = url, seed, stop, kinds
        self.random = random.Random(seed)  # noqa: S311 - a repeatable workload
        self.transactions = 0

    def run(self) -> None:
        """Write, and count the transactions."""
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
    """Consumes a table batch by batch up to its ceiling, and once more by `max(id)` alone."""

    table: ReflectedMetaTable
    ceiling: HighWatermark
    bookmark: int = 0
    taken: list[int] = field(default_factory=list)
    naive_bookmark: int = 0
    naively_taken: list[int] = field(default_factory=list)

    def poll(self) -> int | None:
        """Take what can be taken now, and give the ceiling."""
        ceiling = self.ceiling.read().value
        while ceiling is not None:
            cut = self.table.next_cut(self.bookmark, ceiling, BATCH)
            if cut is None:
                break
            found = item_ids(self.table, cut.id_range)
            assert len(found) == cut.count
            self.taken += found
            self.bookmark = cut.id_range.last_id
        self._poll_naively()
        return ceiling

    def missed_naively(self) -> set[int]:
        """Give the ids that the bookmark at `max(id)` has passed and not seen."""
        passed = {uid for uid in self.taken if uid <= self.naive_bookmark}
        return passed - set(self.naively_taken)

    def _poll_naively(self) -> None:
        highest = self.table.highest_id()
        if highest is not None and highest > self.naive_bookmark:
            above = IdRange(first_id=self.naive_bookmark + 1, last_id=highest)
            self.naively_taken += item_ids(self.table, above)
            self.naive_bookmark = highest


def consume_under_writers(planner: Planner, writers: Sequence[Writer], rows: int) -> None:
    """Let the writers loose until the hole has shown itself, then let the planner take the rest."""

    def has_met_the_hole() -> bool:
        planner.poll()
        return len(planner.taken) >= rows and bool(planner.missed_naively())

    with ThreadPoolExecutor(len(writers)) as pool:
        running = [pool.submit(writer.run) for writer in writers]
        try:
            eventually(lambda: has_met_the_hole() or any(one.done() for one in running))
        finally:
            writers[0].stop.set()
        for one in running:
            one.result(PATIENCE_SECONDS)
    assert planner.poll() == planner.table.highest_id()


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("kind", TABLES)
def test_planner_below_the_ceiling_loses_nothing_where_a_bookmark_does(
    two_phase_folder: Path,
    files: ReflectedMetaTable,
    kind: str,
    figures: Figures,
    *,
    long_form: bool,
) -> None:
    """Expect every row once, though a bookmark at the highest id misses some in the same run."""
    choice = choose_watermark(files)
    assert choice.strategy is Strategy.LOCKS
    planner, stop = Planner(files, choice.watermark), Event()
    url, kinds = embedded_server.ensure_running(two_phase_folder), TABLES[kind][1]
    writers = [Writer(url, seed, stop, kinds) for seed in range(WRITERS)]
    consume_under_writers(planner, writers, rows=150_000 if long_form else 1_500)
    rows = item_ids(files, IdRange(first_id=1, last_id=10**9))
    figures(
        writers=float(WRITERS),
        transactions=sum(writer.transactions for writer in writers),
        rows=len(rows),
        lost=len(set(rows) - set(planner.taken)),
        twice=len(planner.taken) - len(set(planner.taken)),
        lost_by_a_bookmark=len(planner.missed_naively()),
    )
    assert planner.taken == rows
    assert planner.missed_naively()


def test_prepared_transaction_holds_the_ceiling_until_it_ends(
    two_phase_folder: Path, files: ReflectedMetaTable
) -> None:
    """Expect a transaction without a session to count, named by its own name."""
    ceiling = choose_watermark(files).watermark
    with psycopg.connect(
        embedded_server.ensure_running(two_phase_folder), autocommit=True
    ) as writer:
        writer.execute("BEGIN")
        writer.execute(INSERT.encode())
        execute(files.engine, INSERT)
        assert ceiling.read().value is None
        writer.execute("PREPARE TRANSACTION 'late'")
        assert ceiling.read().value is None
        (holder,) = ceiling.read().held_by
        assert (holder.pid, holder.application) == (None, "prepared transaction late")
        assert holder.age_seconds is not None
        writer.execute("COMMIT PREPARED 'late'")
    assert ceiling.read().value == 2
    assert item_ids(files, IdRange(first_id=1, last_id=2)) == [1, 2]


def test_prepared_transaction_holds_the_ceiling_over_a_restart(
    two_phase_folder: Path, files: ReflectedMetaTable
) -> None:
    """Expect a server's restart, which renames the transaction, not to let it be forgotten."""
    ceiling = choose_watermark(files).watermark
    execute(files.engine, INSERT)
    assert ceiling.read().value == 1
    with psycopg.connect(
        embedded_server.ensure_running(two_phase_folder), autocommit=True
    ) as writer:
        writer.execute("BEGIN")
        writer.execute(INSERT.encode())
        writer.execute("PREPARE TRANSACTION 'late'")
    execute(files.engine, INSERT)
    assert ceiling.read().value == 1
    files.engine.dispose()
    embedded_server.release(two_phase_folder)
    embedded_server.ensure_running(two_phase_folder)
    assert ceiling.read().value is None
    assert [holder.application for holder in ceiling.read().held_by] == [
        "prepared transaction late"
    ]
    with files.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("COMMIT PREPARED 'late'"))
    highest = files.highest_id()
    assert highest is not None
    assert highest >= 3
    assert ceiling.read().value == highest
    assert len(item_ids(files, IdRange(first_id=1, last_id=highest))) == 3
