"""The ceiling of an InnoDB table: a locking read that meets open inserts and makes nobody wait."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.watermarks import (
    HighWatermark,
    SettleBy,
    choose_watermark,
)
from batch_pipeline.model.errors import MetaTableError
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.concurrency import eventually
from batch_pipeline_tests.inventory.meta_tables.user_tables import FILES, execute, item_ids

INSERT = "INSERT INTO files (file_location, size_in_bytes) VALUES ('f', 1)"
INSERT_MANY = f"{INSERT}, ('f', 2), ('f', 3)"
WRITERS = 8
ROWS = 500


@pytest.fixture
def ceiling(mariadb_files: ReflectedMetaTable) -> HighWatermark:
    """The ceiling of `files`."""
    choice = choose_watermark(mariadb_files)
    assert (choice.strategy, choice.warnings) == (Strategy.LOCKING_READ, ())
    return choice.watermark


def test_locking_read_of_an_idle_table_gives_its_highest_id(
    ceiling: HighWatermark, mariadb: sa.Engine
) -> None:
    """Expect one look to do when nobody writes."""
    assert ceiling.read().value is None
    execute(mariadb, INSERT, INSERT)
    assert ceiling.read().value == 2


def test_locking_read_waits_for_an_open_insert_without_waiting_itself(
    ceiling: HighWatermark, mariadb: sa.Engine, mariadb_files: ReflectedMetaTable
) -> None:
    """Expect id 3 to be out of reach while id 2 may still come, until it comes."""
    execute(mariadb, INSERT)
    assert ceiling.read().value == 1
    with mariadb.connect() as late, late.begin():
        late.execute(sa.text(INSERT))
        execute(mariadb, INSERT)
        assert mariadb_files.highest_id() == 3
        assert ceiling.read().value == 1
    assert ceiling.read().value == 3


def test_locking_read_passes_an_insert_that_was_rolled_back(
    ceiling: HighWatermark, mariadb: sa.Engine
) -> None:
    """Expect a wasted id to hold nothing back."""
    with mariadb.connect() as late:
        transaction = late.begin()
        late.execute(sa.text(INSERT))
        execute(mariadb, INSERT)
        assert ceiling.read().value is None
        transaction.rollback()
    assert ceiling.read().value == 2


def test_locking_read_does_not_wait_for_a_writer_that_came_later(
    ceiling: HighWatermark, mariadb: sa.Engine
) -> None:
    """Expect a table that is never idle to have a ceiling that rises."""
    with mariadb.connect() as first, mariadb.connect() as second:
        ending = first.begin()
        first.execute(sa.text(INSERT))
        execute(mariadb, INSERT)
        assert ceiling.read().value is None
        with second.begin():
            second.execute(sa.text(INSERT))
            ending.commit()
            assert ceiling.read().value == 2


def test_locking_read_locks_no_gap_that_an_insert_needs(
    ceiling: HighWatermark, mariadb: sa.Engine
) -> None:
    """Expect the level at which it reads to leave inserts alone, even while it reads."""
    execute(mariadb, INSERT)
    statements: list[str] = []

    def insert_meanwhile(*event: object) -> None:
        statements.append(str(event[2]))
        if "LOCK IN SHARE MODE" in statements[-1]:
            execute(mariadb, "SET STATEMENT innodb_lock_wait_timeout = 0 FOR " + INSERT)

    sa.event.listen(mariadb, "after_cursor_execute", insert_meanwhile)
    assert ceiling.read().value == 1
    sa.event.remove(mariadb, "after_cursor_execute", insert_meanwhile)
    assert [one for one in statements if one.startswith("SET STATEMENT")]
    assert ceiling.read().value == 2


def test_locking_read_after_truncate_forgets_the_old_ceiling(
    ceiling: HighWatermark, mariadb: sa.Engine
) -> None:
    """Expect ids that begin again not to lie below a ceiling of the past."""
    execute(mariadb, INSERT_MANY)
    assert ceiling.read().value == 3
    execute(mariadb, "TRUNCATE files", INSERT)
    assert ceiling.read().value == 1


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("id BIGINT PRIMARY KEY", "not AUTO_INCREMENT"),
        ("id BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=MyISAM COMMENT=(''", "MyISAM"),
    ],
)
def test_choice_on_another_table_is_settle_with_the_reason(
    mariadb: sa.Engine, definition: str, reason: str
) -> None:
    """Expect what a locking read cannot see to be found beforehand."""
    columns = "file_location VARCHAR(9), size_in_bytes BIGINT, imported DATETIME"
    definition = definition.replace("=(''", "=''") if "(''" in definition else f"{definition})"
    execute(mariadb, f"CREATE TABLE odd ({columns}, {definition}")
    table = ReflectedMetaTable.open(mariadb, "odd", FILES)
    choice = choose_watermark(table, settle_by=SettleBy("imported"))
    assert choice.strategy is Strategy.SETTLE
    assert reason in choice.reason
    with pytest.raises(MetaTableError, match=reason):
        choose_watermark(table, Strategy.LOCKING_READ)


@dataclass
class Planner:
    """Consumes a table batch by batch up to its ceiling, and once more by `max(id)` alone."""

    table: ReflectedMetaTable
    ceiling: HighWatermark
    bookmark: int = 0
    taken: list[int] = field(default_factory=list)
    naive_bookmark: int = 0
    naively_taken: set[int] = field(default_factory=set)

    def poll(self) -> None:
        """Take what can be taken now."""
        reached = self.ceiling.read().value or 0
        limits = Limits(max_weight=1_000, max_count=50)
        while (cut := self.table.next_cut(self.bookmark, reached, limits)) is not None:
            self.taken += item_ids(self.table, cut.id_range)
            self.bookmark = cut.id_range.last_id
        highest = self.table.highest_id() or 0
        if highest > self.naive_bookmark:
            above = IdRange(first_id=self.naive_bookmark + 1, last_id=highest)
            self.naively_taken |= set(item_ids(self.table, above))
            self.naive_bookmark = highest

    def has_met_the_hole(self) -> bool:
        """Tell whether the bookmark has passed ids that it had not seen, among many rows."""
        passed = {uid for uid in self.taken if uid <= self.naive_bookmark}
        return len(self.taken) >= ROWS and not passed <= self.naively_taken


def write(engine: sa.Engine, seed: int, stop: Event) -> None:
    """Write transactions, some long and some rolled back, until told to stop."""
    chance = random.Random(seed)  # noqa: S311 - a repeatable workload
    with engine.connect() as connection:
        while not stop.is_set():
            transaction = connection.begin()
            for _ in range(chance.randint(1, 3)):
                connection.execute(sa.text(chance.choice([INSERT, INSERT_MANY])))
            stop.wait(chance.uniform(0, 0.5 if chance.random() < 0.1 else 0.02))
            if chance.random() < 0.1:
                transaction.rollback()
            else:
                transaction.commit()


def test_planner_below_the_ceiling_loses_nothing_where_a_bookmark_does(
    ceiling: HighWatermark, mariadb_files: ReflectedMetaTable
) -> None:
    """Expect every row once, though a bookmark at the highest id misses some in the same run."""
    table, stop = mariadb_files, Event()
    planner = Planner(table, ceiling)
    writers = sa.create_engine(table.engine.url, pool_size=WRITERS)
    with ThreadPoolExecutor(WRITERS) as pool:
        running = [pool.submit(write, writers, seed, stop) for seed in range(WRITERS)]

        def is_enough() -> bool:
            planner.poll()
            return planner.has_met_the_hole() or any(one.done() for one in running)

        def has_ended() -> bool:
            planner.poll()
            return all(one.done() for one in running)

        try:
            eventually(is_enough)
        finally:
            stop.set()
        eventually(has_ended)
        for one in running:
            one.result()
    planner.poll()
    writers.dispose()
    assert planner.taken == item_ids(table, IdRange(first_id=1, last_id=10**9))
    assert planner.has_met_the_hole()
