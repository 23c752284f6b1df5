"""High watermarks of InnoDB tables: a locking read that sees open inserts and blocks no writer."""

import random
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.sources import NextIds, next_ids
from batch_pipeline.inventory.meta_tables.watermarks import HighWatermark, SettleBy
from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.errors import MetaTableError
from batch_pipeline.model.stream import Strategy
from batch_pipeline_tests.inventory.meta_tables.test_watermarks_under_writers import (
    Planner,
    consume_under_writers,
)
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    FILES,
    InMemoryCandidates,
    choose_watermark,
    execute,
    item_ids,
)

INSERT = "INSERT INTO files (file_location, size_in_bytes) VALUES ('f', 1)"
INSERT_MANY = f"{INSERT}, ('f', 2), ('f', 3)"
WRITERS = 8
ROWS = 500


@pytest.fixture
def watermark(mariadb_files: ReflectedMetaTable) -> HighWatermark:
    """The high watermark of `files`."""
    choice = choose_watermark(mariadb_files)
    assert (choice.strategy, choice.warnings) == (Strategy.LOCKING_READ, ())
    return choice.watermark


def test_locking_read_stays_below_open_insert_without_blocking(
    watermark: HighWatermark, mariadb: sa.Engine, mariadb_files: ReflectedMetaTable
) -> None:
    assert watermark.read().value is None
    execute(mariadb, INSERT)
    assert watermark.read().value == 1
    with mariadb.connect() as late, late.begin():
        late.execute(sa.text(INSERT))
        execute(mariadb, INSERT)
        assert mariadb_files.highest_id() == 3
        assert watermark.read().value == 1
    assert watermark.read().value == 3


def test_locking_read_does_not_wait_for_later_writer(
    watermark: HighWatermark, mariadb: sa.Engine
) -> None:
    with mariadb.connect() as first, mariadb.connect() as second:
        ending = first.begin()
        first.execute(sa.text(INSERT))
        execute(mariadb, INSERT)
        assert watermark.read().value is None
        with second.begin():
            second.execute(sa.text(INSERT))
            ending.commit()
            assert watermark.read().value == 2


def test_locking_read_takes_no_gap_locks(watermark: HighWatermark, mariadb: sa.Engine) -> None:
    """An insert succeeds even while the read holds its locks."""
    execute(mariadb, INSERT)
    statements: list[str] = []

    def insert_meanwhile(*event: object) -> None:
        statements.append(str(event[2]))
        if "LOCK IN SHARE MODE" in statements[-1]:
            execute(mariadb, "SET STATEMENT innodb_lock_wait_timeout = 0 FOR " + INSERT)

    sa.event.listen(mariadb, "after_cursor_execute", insert_meanwhile)
    assert watermark.read().value == 1
    sa.event.remove(mariadb, "after_cursor_execute", insert_meanwhile)
    assert [text for text in statements if text.startswith("SET STATEMENT")]
    assert watermark.read().value == 2


def test_locking_read_after_truncate_discards_old_watermark(
    watermark: HighWatermark, mariadb: sa.Engine
) -> None:
    execute(mariadb, INSERT_MANY)
    assert watermark.read().value == 3
    execute(mariadb, "TRUNCATE files", INSERT)
    assert watermark.read().value == 1


def test_locking_read_discards_watermark_of_replaced_table(
    mariadb: sa.Engine, mariadb_files: ReflectedMetaTable
) -> None:
    store = InMemoryCandidates(mariadb, "memory")
    watermark = choose_watermark(mariadb_files, store=store).watermark
    execute(mariadb, INSERT_MANY)
    assert watermark.read().value == 3
    [(name, state)] = store.states.items()
    store.states[name] = replace(state, epoch=str(float(state.epoch) - 1), released=5)
    with mariadb.connect() as late, late.begin():
        late.execute(sa.text(INSERT))
        execute(mariadb, INSERT)
        assert watermark.read().value is None


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("id BIGINT PRIMARY KEY", "not AUTO_INCREMENT"),
        ("id BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=MyISAM COMMENT=(''", "MyISAM"),
    ],
)
def test_other_tables_use_settle_and_give_reason(
    mariadb: sa.Engine, definition: str, reason: str
) -> None:
    columns = "file_location VARCHAR(9), size_in_bytes BIGINT, imported DATETIME"
    definition = definition.replace("=(''", "=''") if "(''" in definition else f"{definition})"
    execute(mariadb, f"CREATE TABLE odd ({columns}, {definition}")
    table = ReflectedMetaTable.open(mariadb, "odd", FILES)
    choice = choose_watermark(table, settle_by=SettleBy("imported"))
    assert choice.strategy is Strategy.SETTLE
    assert reason in choice.reason
    with pytest.raises(MetaTableError, match=reason):
        choose_watermark(table, Strategy.LOCKING_READ)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("wsrep_cluster_state_uuid", "e2c1-9"), ("group_replication_single_primary_mode", "OFF")],
)
def test_node_of_cluster_uses_settle(
    mariadb: sa.Engine, mariadb_files: ReflectedMetaTable, variable: str, value: str
) -> None:
    """Locks of a node are not visible on the others."""

    def answer(*event: Any) -> tuple[str, Any]:
        return (f"SELECT '{variable}', '{value}'" if variable in event[2] else event[2]), event[3]

    sa.event.listen(mariadb, "before_cursor_execute", answer, retval=True)
    choice = choose_watermark(mariadb_files, settle_by=SettleBy("imported"))
    assert (choice.strategy, "node of a cluster" in choice.reason) == (Strategy.SETTLE, True)


@pytest.mark.parametrize(
    ("variable", "value", "strategy"),
    [
        ("innodb_read_only", "1", Strategy.SETTLE),
        ("read_only", "1", Strategy.SETTLE),
        ("read_only", "'ON'", Strategy.SETTLE),
        ("read_only", "'OFF'", Strategy.LOCKING_READ),
    ],
    ids=["aurora", "replica", "mariadb-12-replica", "mariadb-12"],
)
def test_read_only_server_uses_settle(
    mariadb: sa.Engine,
    mariadb_files: ReflectedMetaTable,
    variable: str,
    value: str,
    strategy: Strategy,
) -> None:
    """It does not see the locks of the server that writes."""

    def answer(*event: Any) -> tuple[str, Any]:
        return event[2].replace(f"@@global.{variable}", value), event[3]

    sa.event.listen(mariadb, "before_cursor_execute", answer, retval=True)
    assert choose_watermark(mariadb_files, settle_by=SettleBy("imported")).strategy is strategy


def test_settle_waits_for_unsigned_id_0(mariadb: sa.Engine) -> None:
    execute(
        mariadb,
        "CREATE TABLE odd (id INT UNSIGNED PRIMARY KEY, file_location VARCHAR(9), "
        "size_in_bytes BIGINT, imported TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP)",
        "INSERT INTO odd (id) VALUES (0)",
    )
    table = ReflectedMetaTable.open(mariadb, "odd", FILES)
    choice = choose_watermark(table, settle_by=SettleBy("imported"))
    assert choice.watermark.read().value is None


def test_next_id_of_mysql_5_7_is_known(
    mariadb: sa.Engine, mariadb_files: ReflectedMetaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the setting of MySQL 8, as MariaDB does."""
    monkeypatch.setattr(mariadb.dialect, "is_mariadb", False)
    monkeypatch.setattr(mariadb.dialect, "server_version_info", (5, 7, 44))
    assert next_ids(mariadb_files, None) == NextIds(ids=(1,))


def test_next_id_that_mysql_does_not_report_is_unknown(
    mariadb: sa.Engine, mariadb_files: ReflectedMetaTable
) -> None:
    def answer(*event: Any) -> tuple[str, Any]:
        return event[2].replace("t.auto_increment AS", "NULL AS"), event[3]

    sa.event.listen(mariadb, "before_cursor_execute", answer, retval=True)
    assert next_ids(mariadb_files, None) == NextIds(unknown="MySQL does not report the next id")


def write(engine: sa.Engine, seed: int, stop: Event) -> None:
    """Write transactions, some long and some rolled back, until stopped."""
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


def test_planner_with_watermark_loses_no_row_that_max_id_bookmark_loses(
    watermark: HighWatermark, mariadb_files: ReflectedMetaTable
) -> None:
    """Every row is processed once, while a bookmark at `max(id)` misses rows in the same run."""
    planner, stop = Planner(mariadb_files, watermark), Event()
    engine = sa.create_engine(mariadb_files.engine.url, pool_size=WRITERS)
    writers = [partial(write, engine, seed, stop) for seed in range(WRITERS)]
    consume_under_writers(planner, writers, stop, rows=ROWS)
    engine.dispose()
    assert planner.processed == item_ids(mariadb_files, IdRange(first_id=1, last_id=10**9))
    assert planner.missed_by_max_id()
