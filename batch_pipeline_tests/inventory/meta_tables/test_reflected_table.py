"""Users' meta tables: names and columns, cutting, weights of any type, reads, filters."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline import acquire_batches, audit_job, client
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
    MetaUnreachableError,
    SettingError,
    UnknownMetaTableError,
)
from batch_pipeline.model.filter import Condition, Operator, parse_filter
from batch_pipeline.model.planning import Cut
from batch_pipeline_tests.client.client_tables import COLUMNS, acquire_or_none, fill
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    MARIADB,
    cut_all,
    execute,
    insert,
    item_ids,
    meta_engine,
    new_role,
)
from batch_pipeline_tests.seeds import query

ALL_IDS = IdRange(first_id=MIN_ID, last_id=MAX_ID)
ODD_NAMES = [
    "select",
    "MiXed",
    "with space",
    "dash-ed",
    "per%cent",
    "per%(cent)s",
    "co:lon",
    ":colon",
    "quo'te",
    'quo"te',
    "back\\slash",
    "ta;ble",
    "x; DROP TABLE ops.files; --",
    'x"; DROP TABLE ops.files; --',
    "x') OR 1=1 --",
    "$1",
    "{0.__class__}",
    "ünï",
    "表",
]


def ids(first_id: int, last_id: int) -> IdRange:
    return IdRange(first_id=first_id, last_id=last_id)


def a_cut(first_id: int, last_id: int, weight: int, count: int, *, closed: bool) -> Cut:
    return Cut(id_range=ids(first_id, last_id), weight=weight, count=count, closed=closed)


# Opening a table


@pytest.mark.parametrize("name", ["files", "public.files", '"public"."files"', "FILES", "`files`"])
def test_any_spelling_gives_one_canonical_name(postgres: sa.Engine, name: str) -> None:
    """Otherwise one table could have two bookmarks."""
    execute(postgres, CREATE_FILES.replace("ops.files", "public.files"))
    assert ReflectedMetaTable.open(postgres, name, FILES).canonical_name == "public.files"


def test_unqualified_name_follows_search_path(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    engine = sa.create_engine(
        postgres.url, connect_args={"options": "-c search_path=public,ops,nowhere"}
    )
    assert ReflectedMetaTable.open(engine, "files", FILES).canonical_name == "ops.files"
    engine.dispose()


@pytest.mark.parametrize("name", ["files", "main.files", '"Files"', "FILES"])
def test_any_case_of_sqlite_name_gives_one_canonical_name(sqlite: sa.Engine, name: str) -> None:
    if name == '"Files"':
        with pytest.raises(UnknownMetaTableError):
            ReflectedMetaTable.open(sqlite, name, FILES)
    else:
        assert ReflectedMetaTable.open(sqlite, name, FILES).canonical_name == "main.files"


def test_names_and_values_that_look_like_sql_are_not_executed(
    any_table: ReflectedMetaTable,
) -> None:
    schema = any_table.table.schema
    for name in ODD_NAMES:
        table = sa.Table(
            name,
            sa.MetaData(),
            sa.Column(name, sa.BigInteger, primary_key=True),
            sa.Column(f"{name}2", sa.String(100)),
            sa.Column(f"{name}3", sa.BigInteger),
            schema=schema,
        )
        table.create(any_table.engine)
        columns = MetaColumns(uid=name, item=f"{name}2", weight=f"{name}3")
        where = parse_filter([{"column": f"{name}2", "operator": "!=", "value": name}])
        quoted = f'{schema}."' + name.replace('"', '""') + '"'
        opened = ReflectedMetaTable.open(any_table.engine, quoted, columns, where)
        insert(opened, {7: 3})
        with any_table.engine.begin() as connection:
            connection.execute(sa.insert(table).values({name: 8, f"{name}2": name, f"{name}3": 5}))
        assert opened.next_cut(None, 9, limits()) == a_cut(7, 9, 3, 1, closed=False), name
        assert opened.items(ALL_IDS) == [MetaItem(id=7, item="file-7", weight=3)], name
        assert opened.facts(ALL_IDS).count == 1, name
        assert any_table.highest_id() is None


def test_unknown_table_suggests_similar_names(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    with pytest.raises(UnknownMetaTableError, match=r"Did you mean ops\.files\?"):
        ReflectedMetaTable.open(postgres, "ops.fils", FILES)
    with pytest.raises(UnknownMetaTableError):
        ReflectedMetaTable.open(postgres, "nowhere.files", FILES)


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "a.b.c", '"a', "a\0", '""', " "])
def test_malformed_table_name_is_rejected(postgres: sa.Engine, name: str) -> None:
    with pytest.raises(InvalidValueError, match="table or schema"):
        ReflectedMetaTable.open(postgres, name, FILES)


@pytest.mark.parametrize(
    ("columns", "role"),
    [
        (MetaColumns(uid="uid", item="file_location", weight=None), "uid"),
        (MetaColumns(uid="id", item="file", weight=None), "item"),
        (MetaColumns(uid="id", item="file_location", weight="size"), "weight"),
    ],
)
def test_unknown_column_lists_columns(
    files: ReflectedMetaTable, postgres: sa.Engine, columns: MetaColumns, role: str
) -> None:
    with pytest.raises(MetaTableError, match="has no column") as raised:
        ReflectedMetaTable.open(postgres, "ops.files", columns)
    assert f"named as its {role} (its columns" in str(raised.value)
    assert "(its columns: id, file_location, size_in_bytes, imported)" in str(raised.value)


def test_unknown_filter_column_is_rejected(files: ReflectedMetaTable, postgres: sa.Engine) -> None:
    where = parse_filter([{"column": "kind", "operator": "=", "value": "a"}])
    with pytest.raises(MetaTableError, match="filter"):
        ReflectedMetaTable.open(postgres, "ops.files", FILES, where)


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("id text PRIMARY KEY, w bigint", "ids must be integers"),
        ("id uuid PRIMARY KEY, w bigint", "ids must be integers"),
        ("id numeric PRIMARY KEY, w bigint", "ids must be integers"),
        ("id bigint, w bigint", "neither a primary key nor a unique index"),
        ("id bigint, w bigint, PRIMARY KEY (id, w)", "neither a primary key nor a unique index"),
        ("id bigint UNIQUE, w bigint", "may be NULL"),
        ("id bigint PRIMARY KEY, w text", "weights must be numbers"),
    ],
)
def test_column_unsuitable_for_its_role_is_rejected(
    postgres: sa.Engine, definition: str, problem: str
) -> None:
    execute(postgres, f"CREATE TABLE ops.odd (item text, {definition})")
    with pytest.raises(MetaTableError, match=problem):
        ReflectedMetaTable.open(postgres, "ops.odd", MetaColumns(uid="id", weight="w"))


def test_partial_unique_index_does_not_make_ids_unique(postgres: sa.Engine) -> None:
    execute(
        postgres,
        "CREATE TABLE ops.odd (uid bigint NOT NULL, item text, weight bigint)",
        "CREATE UNIQUE INDEX ON ops.odd (uid) WHERE weight > 0",
    )
    with pytest.raises(MetaTableError, match="cannot be the"):
        ReflectedMetaTable.open(postgres, "ops.odd")


def test_partitioned_table_with_composite_key_is_accepted_with_note(postgres: sa.Engine) -> None:
    execute(
        postgres,
        "CREATE TABLE ops.days (uid bigint, item text, weight bigint, day int, "
        "PRIMARY KEY (uid, day)) PARTITION BY LIST (day)",
        "CREATE TABLE ops.day_1 PARTITION OF ops.days FOR VALUES IN (1)",
    )
    assert "cannot be checked" in ReflectedMetaTable.open(postgres, "ops.days").notes[0]


def test_missing_select_privilege_names_grant(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    with new_role(postgres, "column_reader") as engine:
        with pytest.raises(MetaTableError, match="Grant SELECT"):
            ReflectedMetaTable.open(engine, "ops.files", FILES)
        execute(postgres, "GRANT SELECT (id, file_location) ON ops.files TO column_reader")
        without_weight = MetaColumns(uid="id", item="file_location", weight=None)
        assert ReflectedMetaTable.open(engine, "ops.files", without_weight).highest_id() is None
        with pytest.raises(MetaTableError, match="cannot be read"):
            ReflectedMetaTable.open(engine, "ops.files", FILES)


@pytest.mark.parametrize(
    "url",
    ["postgresql+psycopg://me:canary@127.0.0.1:1/meta", "sqlite:////nowhere/canary-free/meta.db"],
)
def test_unreachable_database_is_named_without_credentials(url: str) -> None:
    engine = sa.create_engine(url)
    with pytest.raises(MetaUnreachableError) as raised:
        ReflectedMetaTable.open(engine, "files")
    assert "canary@" not in str(raised.value)
    assert ("127.0.0.1:1/meta" in str(raised.value)) or ("meta.db" in str(raised.value))


# Bad weights


@pytest.mark.parametrize("bad", [None, -1])
def test_bad_weight_is_rejected_with_its_id(any_table: ReflectedMetaTable, bad: int | None) -> None:
    """It does not affect a batch that ends before it."""
    insert(any_table, {1: 5, 2: 5, 3: bad, 4: 5})
    assert any_table.next_cut(0, 4, limits(max_count=2)) == a_cut(1, 2, 10, 2, closed=True)
    readers: list[Any] = [
        lambda: any_table.next_cut(0, 4, limits()),
        lambda: any_table.next_cut(2, 4, limits(max_count=2)),
        lambda: list(any_table.weights(0, 4)),
        lambda: any_table.items(ALL_IDS),
    ]
    for read in readers:
        with pytest.raises(BadWeightError) as raised:
            read()
        assert (raised.value.item_id, raised.value.weight) == (3, bad)
    assert "id 3" in str(raised.value)
    assert any_table.facts(ALL_IDS).bad_id == 3


@pytest.mark.parametrize(("counted", "weight"), [(0, 10), (7, 24)])
def test_bad_weight_is_replaced_by_configured_weight(
    any_table: ReflectedMetaTable, counted: int, weight: int
) -> None:
    insert(any_table, {1: None, 2: 10, 3: -4})
    name = any_table.canonical_name
    table = ReflectedMetaTable.open(any_table.engine, name, FILES, on_bad_weight=counted)
    assert table.next_cut(None, 3, limits()) == a_cut(1, 3, weight, 3, closed=False)
    assert list(table.weights(None, 3)) == [(1, counted), (2, 10), (3, counted)]
    cuts = all_cuts(table, 0, 3, limits(max_count=1))
    assert [cut.weight for cut in cuts] == [counted, 10, counted]
    assert [item.weight for item in table.items(ALL_IDS)] == [counted, 10, counted]
    assert table.facts(ALL_IDS).weight == weight


def test_negative_replacement_weight_is_rejected(any_table: ReflectedMetaTable) -> None:
    with pytest.raises(InvalidValueError, match="on_bad_weight"):
        ReflectedMetaTable.open(any_table.engine, any_table.canonical_name, FILES, on_bad_weight=-1)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [("BIGINT", "many"), ("BIGINT", 2.5), ("BIGINT", b"\x01"), ("FLOAT", "heavy")],
)
def test_sqlite_weight_of_other_type_than_its_column_is_rejected(
    sqlite: sa.Engine, kind: str, bad: object
) -> None:
    """SQLite accepts any value in any column."""
    execute(sqlite, f"CREATE TABLE odd (uid INTEGER PRIMARY KEY, item TEXT, weight {kind})")
    execute(sqlite, "INSERT INTO odd VALUES (1, 'f', :bad)", bad=bad)
    table = ReflectedMetaTable.open(sqlite, "odd")
    for read in (lambda: table.next_cut(None, 1, limits()), lambda: table.items(ALL_IDS)):
        with pytest.raises(BadWeightError):
            read()


# Reading


def test_items_are_ordered_by_id_after_update(files: ReflectedMetaTable) -> None:
    insert(files, {number: number for number in range(1, 8)})
    execute(files.engine, "UPDATE ops.files SET file_location = 'new' WHERE id <= 3")
    items = [(item.id, item.item) for item in files.items(ids(2, 5))]
    assert items == [(2, "new"), (3, "new"), (4, "file-4"), (5, "file-5")]


def test_closing_weights_early_returns_connection(any_table: ReflectedMetaTable) -> None:
    insert(any_table, {1: 1, 2: 2, 3: 3})
    stream = any_table.weights(None, 3)
    assert next(stream) == (1, 1)
    stream.close()  # type: ignore[attr-defined] # it is a generator
    assert any_table.engine.pool.checkedout() == 0  # type: ignore[attr-defined] # of a QueuePool


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


@pytest.mark.parametrize(
    "condition",
    [
        {"column": "id", "operator": "=", "value": "7"},
        {"column": "id", "operator": "<", "value": 2**63},
        {"column": "id", "operator": "like", "value": "7%"},
        {"column": "kind", "operator": "like", "value": "7%"},
        {"column": "file_location", "operator": "=", "value": 7},
        {"column": "imported", "operator": ">", "value": "yesterday"},
        {"column": "imported", "operator": ">", "value": 20260301},
        {"column": "imported", "operator": "in", "value": ["2026-03-01", "never"]},
    ],
)
def test_filter_value_of_wrong_type_is_rejected_on_open(
    files: ReflectedMetaTable, condition: dict[str, Any]
) -> None:
    execute(files.engine, "CREATE TYPE ops.kinds AS ENUM ('7')")
    execute(files.engine, "ALTER TABLE ops.files ADD kind ops.kinds")
    with pytest.raises(InvalidValueError, match=condition["column"]):
        ReflectedMetaTable.open(files.engine, "ops.files", FILES, parse_filter([condition]))


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


@pytest.mark.parametrize(
    ("column", "number"),
    # More values than any database accepts as parameters, and more than are sent as such.
    [("id", 70_000), ("file_location", 1_001), ("imported", 1_001)],
)
def test_filter_with_many_values_selects_matching_rows(
    any_table: ReflectedMetaTable, column: str, number: int
) -> None:
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
    values: dict[str, list[int] | list[str]] = {
        "id": list(range(1, number + 1)),
        "file_location": [f"file-{uid}" for uid in range(1, number + 1)],
        "imported": [(start + timedelta(seconds=n)).isoformat() for n in range(1, number + 1)],
    }
    for operator, expected_ids in ((Operator.IN, [1, 2]), (Operator.NOT_IN, [last])):
        where = Condition(column, operator, tuple(values[column]))
        long = ReflectedMetaTable.open(any_table.engine, any_table.canonical_name, FILES, where)
        assert item_ids(long, ids(1, last)) == expected_ids
        cut = long.next_cut(0, last, limits())
        assert cut is not None
        assert cut.count == len(expected_ids)


def test_too_many_parameters_raise_invalid_value(postgres: sa.Engine) -> None:
    values = tuple(range(70_000))
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
    *(("postgres", kind) for kind in ("float8", "real", "numeric", "numeric(30, 6)")),
    *(("sqlite", kind) for kind in ("FLOAT", "REAL", "DOUBLE", "NUMERIC", "DECIMAL(10, 2)", "")),
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
    assert [item.weight for item in weighted.items(ids(1, 6))] == ROUNDED
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
    counted = replace(weighted, on_bad_weight=7).items(ids(6, 8))
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
    assert weighted.items(ids(1, 1))[0].weight == weight
    with pytest.raises(BadWeightError):
        weighted.items(ids(2, 2))


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
    execute(
        database.engine,
        "CREATE TABLE meta_table (id bigserial PRIMARY KEY, file text, size_in_mib float8)",
    )
    fill(database.engine, FRACTIONS)
    batches = acquire_batches("job", "meta_table", COLUMNS, batch_weight=4)
    weights = []
    for batch in batches:
        weights.append((batch.weight, [row.weight for row in batch.rows]))
        batch.succeeded()
    assert weights == [(3, [1, 2]), (2, [2, 0]), (4, [3, 1])]
    assert audit_job("job").is_clean
    execute(database.engine, "INSERT INTO meta_table VALUES (0, 'file-0', 3.2)")
    audit = audit_job("job")
    assert audit.late.count == 1
    late = acquire_or_none()
    assert late is not None
    assert (late.items, late.weight) == (["file-0"], 4)
    assert query(database, "SELECT max(batch_weight) FROM batch_pipeline.inventory") == [(4,)]
    client.close()
