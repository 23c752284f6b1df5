"""Users' meta tables: names and columns, cutting, weights of any type, reads, filters."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline import acquire_batches, audit_job
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.connection import read_transaction
from batch_pipeline.inventory.meta_tables.reflected_table import (
    MetaItem,
    ReflectedMetaTable,
    all_cuts,
    range_facts,
)
from batch_pipeline.model.batch import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.errors import (
    BadWeightError,
    InvalidValueError,
    MetaTableError,
    SettingError,
    UnknownMetaTableError,
)
from batch_pipeline.model.filter import Condition, Operator, parse_filter
from batch_pipeline.model.planning import Cut
from batch_pipeline_tests.client.client_tables import COLUMNS, acquired, fill
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    MARIADB,
    cut_all,
    delete,
    execute,
    insert,
    item_ids,
    items_of,
    meta_engine,
    new_role,
    record_statements,
)

ALL_IDS = IdRange(first_id=MIN_ID, last_id=MAX_ID)
ODD_NAMES = (
    "select",
    "MiXed name",
    "per%(cent)s",
    ":colon",
    "back\\slash",
    "x'); DROP TABLE files; --",
    'x"; DROP TABLE files; --',
    "`",
)


def ids(first_id: int, last_id: int) -> IdRange:
    return IdRange(first_id=first_id, last_id=last_id)


def a_cut(first_id: int, last_id: int, weight: int, count: int, *, closed: bool) -> Cut:
    return Cut(id_range=ids(first_id, last_id), weight=weight, count=count, closed=closed)


# Opening a table


def test_any_spelling_gives_one_canonical_name(postgres: sa.Engine, sqlite: sa.Engine) -> None:
    """Otherwise one table could have two bookmarks."""
    execute(postgres, CREATE_FILES.replace("ops.files", "public.files"))
    for name in ("files", "public.files", '"public"."files"', "FILES", "`files`"):
        assert ReflectedMetaTable.open(postgres, name, FILES).canonical_name == "public.files"
    for name in ("files", "main.files", "FILES"):
        assert ReflectedMetaTable.open(sqlite, name, FILES).canonical_name == "main.files"
    with pytest.raises(UnknownMetaTableError):
        ReflectedMetaTable.open(sqlite, '"Files"', FILES)


def test_unqualified_name_follows_search_path(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    engine = sa.create_engine(
        postgres.url, connect_args={"options": "-c search_path=public,ops,nowhere"}
    )
    assert ReflectedMetaTable.open(engine, "files", FILES).canonical_name == "ops.files"
    engine.dispose()


def test_names_that_look_like_sql_are_quoted(any_table: ReflectedMetaTable) -> None:
    """Of the table, of each column, and in a filter."""
    schema = any_table.table.schema
    for name in ODD_NAMES:
        if "`" in name and any_table.engine.dialect.name in {"mysql", "mariadb"}:
            continue  # SQLAlchemy reflects names of columns there with doubled backticks
        columns = MetaColumns(uid=name, item=f"{name}2", weight=f"{name}3")
        sa.Table(
            name,
            sa.MetaData(),
            sa.Column(name, sa.BigInteger, primary_key=True),
            sa.Column(f"{name}2", sa.String(100)),
            sa.Column(f"{name}3", sa.BigInteger),
            schema=schema,
        ).create(any_table.engine)
        where = parse_filter([{"column": f"{name}2", "operator": "!=", "value": "file-8"}])
        quoted = f'{schema}."' + name.replace('"', '""') + '"'
        opened = ReflectedMetaTable.open(any_table.engine, quoted, columns, where)
        insert(opened, {7: 3, 8: 5})
        assert opened.next_cut(None, 9, limits()) == a_cut(7, 9, 3, 1, closed=False), name
        assert items_of(opened, ALL_IDS) == [MetaItem(id=7, item="file-7", weight=3)], name
        assert opened.facts(ALL_IDS).count == 1, name


def test_unknown_table_suggests_similar_names(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    with pytest.raises(UnknownMetaTableError, match=r"Did you mean ops\.files\?"):
        ReflectedMetaTable.open(postgres, "ops.fils", FILES)
    with pytest.raises(UnknownMetaTableError):
        ReflectedMetaTable.open(postgres, "nowhere.files", FILES)


def test_malformed_table_name_is_rejected(postgres: sa.Engine) -> None:
    for name in ("", ".", "a.", ".a", "a..b", "a.b.c", '"a', "a\0", '""', " "):
        with pytest.raises(InvalidValueError, match="table or schema"):
            ReflectedMetaTable.open(postgres, name, FILES)


def test_unknown_column_lists_columns(files: ReflectedMetaTable, postgres: sa.Engine) -> None:
    where = parse_filter([{"column": "kind", "operator": "=", "value": "a"}])
    for role, changes, condition in (
        ("uid", {"uid": "uid"}, None),
        ("item", {"item": "file"}, None),
        ("weight", {"weight": "size"}, None),
        ("filter", {}, where),
    ):
        with pytest.raises(MetaTableError, match="has no column") as raised:
            ReflectedMetaTable.open(postgres, "ops.files", replace(FILES, **changes), condition)
        assert f"named as its {role} (its columns" in str(raised.value)
        assert "(its columns: id, file_location, size_in_bytes, imported)" in str(raised.value)


def test_column_unsuitable_for_its_role_is_rejected(postgres: sa.Engine) -> None:
    for definition, problem in (
        ("id text PRIMARY KEY, w bigint", "ids must be integers"),
        ("id numeric PRIMARY KEY, w bigint", "ids must be integers"),
        ("id bigint, w bigint", "neither a primary key nor a unique index"),
        ("id bigint, w bigint, PRIMARY KEY (id, w)", "neither a primary key nor a unique index"),
        ("id bigint UNIQUE, w bigint", "may be NULL"),
        ("id bigint PRIMARY KEY, w text", "weights must be numbers"),
        ("id bigint NOT NULL, w bigint", "neither a primary key nor a unique index"),
    ):
        execute(
            postgres,
            "DROP TABLE IF EXISTS ops.odd",
            f"CREATE TABLE ops.odd (item text, {definition})",
            "CREATE UNIQUE INDEX ON ops.odd (id) WHERE item > ''",  # not of all rows
        )
        with pytest.raises(MetaTableError, match=problem):
            ReflectedMetaTable.open(postgres, "ops.odd", MetaColumns(uid="id", weight="w"))


def test_invalid_unique_index_does_not_make_ids_unique(postgres: sa.Engine) -> None:
    """`CREATE UNIQUE INDEX CONCURRENTLY` that fails because of duplicates leaves one."""
    execute(
        postgres,
        "CREATE TABLE ops.odd (uid bigint NOT NULL, item text, weight bigint)",
        "CREATE UNIQUE INDEX odd_uid ON ops.odd (uid)",
    )
    assert ReflectedMetaTable.open(postgres, "ops.odd").highest_id() is None
    execute(
        postgres,
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ops.odd_uid'::regclass",
    )
    with pytest.raises(MetaTableError, match="neither a primary key nor a unique index"):
        ReflectedMetaTable.open(postgres, "ops.odd")


def test_partitioned_table_with_composite_key_is_accepted_with_note(postgres: sa.Engine) -> None:
    execute(
        postgres,
        "CREATE TABLE ops.days (uid bigint, item text, weight bigint, day int, "
        "PRIMARY KEY (uid, day)) PARTITION BY LIST (day)",
        "CREATE TABLE ops.day_1 PARTITION OF ops.days FOR VALUES IN (1)",
        "CREATE TABLE ops.day_2 PARTITION OF ops.days FOR VALUES IN (2)",
    )
    table = ReflectedMetaTable.open(postgres, "ops.days")
    assert "cannot be checked" in table.notes[0]
    execute(postgres, "INSERT INTO ops.days VALUES (7, 'f', 1, 1), (7, 'f', 1, 2)")
    with pytest.raises(MetaTableError, match=r"id 7 is a duplicate.* Change the table"):
        table.next_cut(None, 9, limits())


def test_partitioned_table_with_unique_id_has_no_note(postgres: sa.Engine) -> None:
    execute(
        postgres,
        "CREATE TABLE ops.ranges (uid bigint NOT NULL UNIQUE, item text, weight bigint) "
        "PARTITION BY RANGE (uid)",
    )
    assert ReflectedMetaTable.open(postgres, "ops.ranges").notes == ()


def test_missing_select_privilege_names_grant(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    with new_role(postgres, "column_reader") as engine:
        with pytest.raises(MetaTableError, match=r"denied for table files.*Grant SELECT"):
            ReflectedMetaTable.open(engine, "ops.files", FILES)
        execute(postgres, "GRANT SELECT (id, file_location) ON ops.files TO column_reader")
        without_weight = MetaColumns(uid="id", item="file_location", weight=None)
        assert ReflectedMetaTable.open(engine, "ops.files", without_weight).highest_id() is None
        with pytest.raises(MetaTableError, match="cannot be read"):
            ReflectedMetaTable.open(engine, "ops.files", FILES)


# Bad weights


def test_bad_weight_is_rejected_with_its_id(any_table: ReflectedMetaTable) -> None:
    """It does not affect a batch that ends before it."""
    readers: list[Callable[[], object]] = [
        lambda: any_table.next_cut(0, 4, limits()),
        lambda: any_table.next_cut(2, 4, limits(max_count=2)),
        lambda: list(any_table.weights(0, 4)),
        lambda: items_of(any_table, ALL_IDS),
    ]
    for bad in (None, -1):
        delete(any_table)
        insert(any_table, {1: 5, 2: 5, 3: bad, 4: 5})
        assert any_table.next_cut(0, 4, limits(max_count=2)) == a_cut(1, 2, 10, 2, closed=True)
        for read in readers:
            with pytest.raises(BadWeightError, match="id 3") as raised:
                read()
            assert (raised.value.item_id, raised.value.weight) == (3, bad)
        assert any_table.facts(ALL_IDS).bad_id == 3


def test_bad_weight_is_replaced_by_configured_weight(any_table: ReflectedMetaTable) -> None:
    insert(any_table, {1: None, 2: 10, 3: -4})
    for counted, weight in ((0, 10), (7, 24)):
        table = replace(any_table, on_bad_weight=counted)
        assert table.next_cut(None, 3, limits()) == a_cut(1, 3, weight, 3, closed=False)
        assert list(table.weights(None, 3)) == [(1, counted), (2, 10), (3, counted)]
        cuts = all_cuts(table, 0, 3, limits(max_count=1))
        assert [cut.weight for cut in cuts] == [counted, 10, counted]
        assert [item.weight for item in items_of(table, ALL_IDS)] == [counted, 10, counted]
        assert table.facts(ALL_IDS).weight == weight
    with pytest.raises(InvalidValueError, match="on_bad_weight"):
        ReflectedMetaTable.open(any_table.engine, any_table.canonical_name, FILES, on_bad_weight=-1)


def test_sqlite_weight_of_other_type_than_its_column_is_rejected(sqlite: sa.Engine) -> None:
    """SQLite accepts any value in any column."""
    execute(sqlite, "CREATE TABLE odd (uid INTEGER PRIMARY KEY, item TEXT, w BIGINT, real FLOAT)")
    for column, bad in (("w", "many"), ("w", 2.5), ("w", b"\x01"), ("real", "heavy")):
        row = f"REPLACE INTO odd (uid, item, {column}) VALUES (1, 'f', :bad)"  # noqa: S608 - constant
        execute(sqlite, row, bad=bad)
        table = ReflectedMetaTable.open(sqlite, "odd", MetaColumns(weight=column))
        with pytest.raises(BadWeightError):
            table.next_cut(None, 1, limits())
        with pytest.raises(BadWeightError):
            items_of(table, ALL_IDS)


# Reading


def test_items_are_ordered_by_id_after_update(files: ReflectedMetaTable) -> None:
    insert(files, {number: number for number in range(1, 8)})
    execute(files.engine, "UPDATE ops.files SET file_location = 'new' WHERE id <= 3")
    items = [(item.id, item.item) for item in items_of(files, ids(2, 5))]
    assert items == [(2, "new"), (3, "new"), (4, "file-4"), (5, "file-5")]


def test_facts_match_reference_in_every_database(any_table: ReflectedMetaTable) -> None:
    weights = {-5: 1, 0: 2, 3: 2**40, 2**31 - 1: 4, 2**31: 5, 10**12 + 7: 6, MAX_ID: 7}
    prime = 2**31 - 1
    hashed = sum((abs(uid) ** 3 % prime) * (1 if uid > 0 else -1) for uid in weights)
    insert(any_table, weights)
    facts = any_table.facts(ALL_IDS)
    assert (facts.count, facts.weight) == (7, sum(weights.values()))
    assert facts.fingerprint == hashed


# Filters


def test_filter_selects_matching_rows(any_engine: sa.Engine) -> None:
    execute(
        any_engine,
        "CREATE TABLE kinds (uid integer NOT NULL PRIMARY KEY, item varchar(10), weight integer, "
        "kind varchar(10), small smallint, ready boolean, price numeric(10, 2), "
        "arrived timestamp, day date)",
    )
    for number, kind in ((1, "a"), (2, "b"), (3, None)):
        execute(
            any_engine,
            "INSERT INTO kinds VALUES (:n, 'f', 1, :kind, :n, :ready, :n, :arrived, :day)",
            n=number,
            kind=kind,
            ready=number != 2,
            arrived=f"2026-03-01 0{number - 1}:00:00.000000",
            day=f"2026-03-0{number}",
        )
    for column, operator, value, expected_ids in (
        ("kind", "=", "a", [1]),
        ("kind", "!=", "a", [2]),
        ("kind", "in", ["a", "b"], [1, 2]),
        ("kind", "not in", ["b"], [1]),
        ("kind", "like", "a%", [1]),
        ("kind", "like", r"\a%", [1]),
        ("kind", "is null", None, [3]),
        ("kind", "is not null", None, [1, 2]),
        ("small", "<", 2**40, [1, 2, 3]),
        ("small", ">=", 2, [2, 3]),
        ("ready", "=", True, [1, 3]),
        ("price", "<=", 2.5, [1, 2]),
        ("arrived", ">", "2026-03-01T00:30:00+00:00", [2, 3]),
        ("day", "<", "2026-03-02", [1]),
    ):
        compared = {} if value is None else {"value": value}
        where = parse_filter([{"column": column, "operator": operator} | compared])
        table = ReflectedMetaTable.open(any_engine, "kinds", where=where)
        assert item_ids(table, ALL_IDS) == expected_ids, (column, operator)


@pytest.mark.skipif(not MARIADB, reason="needs MariaDB")
def test_filter_on_mysql_timestamp_ignores_zone_of_session(mariadb: sa.Engine) -> None:
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    insertion = "INSERT INTO files VALUES (:id, 'f', 1, :imported)"
    for uid in (1, 2, 3):
        execute(mariadb, insertion, id=uid, imported=start + timedelta(seconds=uid / 2))
    second = (start + timedelta(seconds=1)).isoformat()
    many = tuple((start + timedelta(seconds=n)).isoformat() for n in range(1, 1_100))
    options = {"init_command": "SET time_zone = '+05:00'"}
    engine = sa.create_engine(mariadb.url, connect_args=options)
    for operator, value, expected_ids in (
        (Operator.EQUAL, second, [2]),
        (Operator.GREATER_OR_EQUAL, second, [2, 3]),
        (Operator.LESS, second, [1]),
        (Operator.IN, (second,), [2]),
        (Operator.NOT_IN, many, [1, 3]),
    ):
        where = Condition("imported", operator, value)
        table = ReflectedMetaTable.open(engine, "files", FILES, where)
        assert item_ids(table, ALL_IDS) == expected_ids, operator
    engine.dispose()


def test_filter_value_of_wrong_type_is_rejected_on_open(files: ReflectedMetaTable) -> None:
    execute(files.engine, "CREATE TYPE ops.kinds AS ENUM ('7')")
    execute(files.engine, "ALTER TABLE ops.files ADD kind ops.kinds")
    conditions: list[tuple[str, str, Any]] = [
        ("id", "=", "7"),
        ("id", "<", 2**63),
        ("id", "like", "7%"),
        ("kind", "like", "7%"),
        ("file_location", "=", 7),
        ("imported", ">", "yesterday"),
        ("imported", ">", 20260301),
        ("imported", "in", ["2026-03-01", "never"]),
    ]
    for column, operator, value in conditions:
        where = parse_filter([{"column": column, "operator": operator, "value": value}])
        with pytest.raises(InvalidValueError, match=column):
            ReflectedMetaTable.open(files.engine, "ops.files", FILES, where)


def test_lowest_and_highest_id_ignore_filter(any_table: ReflectedMetaTable) -> None:
    """A high watermark must not depend on a job's filter."""
    assert (any_table.lowest_id(), any_table.highest_id()) == (None, None)
    insert(any_table, {1: 1, 5: 1, 9: 1})
    where = parse_filter([{"column": "id", "operator": "=", "value": 5}])
    table = ReflectedMetaTable.open(any_table.engine, any_table.canonical_name, FILES, where)
    assert (table.lowest_id(), table.highest_id()) == (1, 9)
    assert table.next_cut(None, 9, limits(max_wait=timedelta(0))) == a_cut(1, 9, 1, 1, closed=False)
    assert list(all_cuts(table, None, 9, limits())) == [a_cut(1, 9, 1, 1, closed=False)]


# Long value lists and missing databases


@pytest.mark.parametrize("column", ["id", "file_location", "imported"])
def test_filter_with_many_values_selects_matching_rows(
    any_table: ReflectedMetaTable, column: str
) -> None:
    """Except on MySQL, all are one parameter, since the number of parameters is limited."""
    start, last = datetime(2000, 1, 1, tzinfo=UTC), 80_000
    rows = [
        {
            "id": uid,
            "file_location": f"file-{uid}",
            "size_in_bytes": 10,
            "imported": start + timedelta(seconds=uid),
        }
        for uid in (1, 2, last)
    ]
    with any_table.engine.begin() as connection:
        connection.execute(sa.insert(any_table.table), rows)
    many = range(1, 1_002)
    values: dict[str, list[int] | list[str]] = {
        "id": list(many),
        "file_location": [f"file-{uid}" for uid in many],
        "imported": [(start + timedelta(seconds=uid)).isoformat() for uid in many],
    }
    for operator, expected_ids in ((Operator.IN, [1, 2]), (Operator.NOT_IN, [last])):
        long = replace(any_table, where=Condition(column, operator, tuple(values[column])))
        with record_statements(any_table.engine) as statements:
            assert item_ids(long, ids(1, last)) == expected_ids
        if any_table.engine.dialect.name != "mysql":
            assert len(statements[0][1]) < 10
        cut = long.next_cut(0, last, limits())
        assert cut is not None
        assert cut.count == len(expected_ids)


def test_too_many_parameters_raise_invalid_value(postgres: sa.Engine) -> None:
    values = ("a",) * 65_536
    placeholders = ", ".join("%s" for _ in values)
    too_many = pytest.raises(InvalidValueError, match="fewer or shorter values")
    with too_many, read_transaction(postgres) as connection:
        connection.exec_driver_sql(f"VALUES ({placeholders})", values)


@pytest.mark.parametrize("server", ["server_url", *(["mariadb_url"] if MARIADB else [])])
def test_nonexistent_database_raises_setting_error(
    request: pytest.FixtureRequest, server: str
) -> None:
    url: str = request.getfixturevalue(server)
    missing = url.replace("/postgres?", "/no_such_files?").replace("/mysql?", "/no_such_files?")
    with meta_engine(missing) as engine, pytest.raises(SettingError, match="does not exist"):
        ReflectedMetaTable.open(engine, "files")


ROLES = MetaColumns(uid="id", item="file", weight="weight")
TYPES = [
    *(("postgres", kind) for kind in ("float8", "numeric", "numeric(30, 6)")),
    *(("sqlite", kind) for kind in ("FLOAT", "NUMERIC", "")),
    *(("mariadb", kind) for kind in ("FLOAT", "DOUBLE", "DECIMAL(30, 6)") if MARIADB),
]
FRACTIONS = {1: 0.25, 2: 1.5, 3: 2, 4: 0, 5: 2.75, 6: 0.5}
ROUNDED = [1, 2, 2, 0, 3, 1]
LARGEST_BELOW_2_63 = 9_223_372_036_854_774_784
FLOATING = [kind for kind in TYPES if kind[1] in {"float8", "DOUBLE"}]


@pytest.fixture(params=TYPES, ids=" ".join)
def weighted(request: pytest.FixtureRequest) -> Iterator[ReflectedMetaTable]:
    """An empty table `weighed` for each weight type."""
    database, kind = request.param
    engine: sa.Engine = request.getfixturevalue(database)
    columns = f"id bigint NOT NULL PRIMARY KEY, file varchar(99), weight {kind}"
    execute(engine, f"CREATE TABLE weighed ({columns})")
    yield ReflectedMetaTable.open(engine, "weighed", ROLES)
    execute(engine, "DROP TABLE weighed")


def test_fractions_are_rounded_up_and_bad_weights_rejected(weighted: ReflectedMetaTable) -> None:
    """By every read, and per item."""
    insert(weighted, FRACTIONS)
    assert [item.weight for item in items_of(weighted, ids(1, 6))] == ROUNDED
    assert [weight for _, weight in weighted.weights(None, 6)] == ROUNDED
    assert weighted.facts(ids(1, 6)).weight == sum(ROUNDED)
    halves = [ids(1, 3), ids(4, 6)]
    assert [facts.weight for facts in range_facts(weighted, halves) if facts] == [5, 4]
    bounds = limits(max_weight=4)
    cuts = cut_all(weighted, 6, bounds)
    assert [(cut.count, cut.weight) for cut in cuts] == [(2, 3), (2, 2), (2, 4)]
    assert list(all_cuts(weighted, None, 6, bounds)) == cuts
    for uid, bad in ((7, None), (8, -0.5)):
        insert(weighted, {uid: bad})
        with pytest.raises(BadWeightError) as caught:
            weighted.next_cut(uid - 1, uid, limits())
        assert caught.value.item_id == uid
    counted = items_of(replace(weighted, on_bad_weight=7), ids(6, 8))
    assert [item.weight for item in counted] == [1, 7, 7]


@pytest.mark.parametrize(
    ("weighted", "largest", "too_large", "weight"),
    [
        *((kind, float(LARGEST_BELOW_2_63), float(2**63), LARGEST_BELOW_2_63) for kind in FLOATING),
        (
            ("postgres", "numeric"),
            Decimal(MAX_ID) - Decimal("0.5"),
            Decimal(MAX_ID) + Decimal("0.1"),
            MAX_ID,
        ),
    ],
    indirect=["weighted"],
)
def test_weights_beyond_64_bits_are_rejected(
    weighted: ReflectedMetaTable, largest: float | Decimal, too_large: float | Decimal, weight: int
) -> None:
    insert(weighted, {1: largest, 2: too_large})
    assert items_of(weighted, ids(1, 1))[0].weight == weight
    with pytest.raises(BadWeightError):
        items_of(weighted, ids(2, 2))


@pytest.mark.parametrize(
    "weighted",
    [kind for kind in TYPES if kind[0] == "postgres" and kind[1] != "numeric(30, 6)"],
    indirect=True,
    ids=" ".join,
)
def test_nan_and_infinity_are_rejected(weighted: ReflectedMetaTable) -> None:
    for uid, bad in enumerate((nan, inf, -inf), start=1):
        execute(weighted.engine, "INSERT INTO weighed VALUES (:id, 'file', :bad)", id=uid, bad=bad)
        with pytest.raises(BadWeightError, match=r"from 0 to 2\^63 - 1"):
            weighted.next_cut(uid - 1, uid, limits())


@pytest.mark.usefixtures("configured")
def test_library_batches_and_audits_by_rounded_weights(database: Database) -> None:
    columns = "id bigserial PRIMARY KEY, file text, size_in_mib float8"
    execute(database.engine, f"CREATE TABLE meta_table ({columns})")
    fill(database.engine, FRACTIONS)
    weights = []
    for batch in acquire_batches("job", "meta_table", COLUMNS, batch_weight=4):
        weights.append((batch.weight, [row.weight for row in batch.rows]))
        batch.succeeded()
    assert weights == [(3, [1, 2]), (2, [2, 0]), (4, [3, 1])]
    assert audit_job("job").is_clean
    execute(database.engine, "INSERT INTO meta_table VALUES (0, 'file-0', 3.2)")
    assert audit_job("job").late.count == 1
    late = acquired()
    assert (late.items, late.weight) == (["file-0"], 4)
