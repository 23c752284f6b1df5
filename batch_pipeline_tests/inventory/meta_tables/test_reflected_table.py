"""The user's own meta table on Postgres and SQLite: found by any spelling, read exactly."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.connection import read_transaction
from batch_pipeline.inventory.meta_tables.reflected_table import (
    MetaItem,
    ReflectedMetaTable,
    all_cuts,
)
from batch_pipeline.model.errors import (
    BadWeightError,
    ConfigurationError,
    InvalidValueError,
    MetaTableError,
    MetaUnreachableError,
    SettingError,
    UnknownMetaTableError,
)
from batch_pipeline.model.filter import Condition, Operator, parse_filter
from batch_pipeline.model.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.planning import Cut
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    MARIADB,
    delete,
    drained,
    execute,
    insert,
    item_ids,
    meta_engine,
)

EVERYTHING = IdRange(first_id=MIN_ID, last_id=MAX_ID)
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


TABLES = ["files", "sqlite_files", *(["mariadb_files"] if MARIADB else [])]
ENGINES = ["postgres", "sqlite", *(["mariadb"] if MARIADB else [])]


@pytest.fixture(params=TABLES)
def either(request: pytest.FixtureRequest) -> ReflectedMetaTable:
    """An empty meta table, once in every database that there is."""
    table: ReflectedMetaTable = request.getfixturevalue(request.param)
    return table


def ids(first_id: int, last_id: int) -> IdRange:
    """A range."""
    return IdRange(first_id=first_id, last_id=last_id)


def one_cut(first_id: int, last_id: int, weight: int, count: int, *, closed: bool) -> Cut:
    """A cut."""
    return Cut(id_range=ids(first_id, last_id), weight=weight, count=count, closed=closed)


# Finding the table


@pytest.mark.parametrize("name", ["files", "public.files", '"public"."files"', "FILES", "`files`"])
def test_name_of_one_table_however_written_is_one_canonical_name(
    postgres: sa.Engine, name: str
) -> None:
    """Expect one text for one table, so that it cannot have two bookmarks."""
    execute(postgres, CREATE_FILES.replace("ops.files", "public.files"))
    assert ReflectedMetaTable.open(postgres, name, FILES).canonical_name == "public.files"


def test_name_without_schema_follows_the_search_path(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    """Expect a table in a later schema of the search path to be found as SQL would find it."""
    engine = sa.create_engine(
        postgres.url, connect_args={"options": "-c search_path=public,ops,nowhere"}
    )
    assert ReflectedMetaTable.open(engine, "files", FILES).canonical_name == "ops.files"
    engine.dispose()


@pytest.mark.parametrize("name", ["files", "main.files", '"Files"', "FILES"])
def test_name_of_a_sqlite_table_in_any_case_is_one_canonical_name(
    sqlite: sa.Engine, name: str
) -> None:
    """Expect the schema to be `main` and letters to be those of the catalogue."""
    if name == '"Files"':
        with pytest.raises(UnknownMetaTableError):
            ReflectedMetaTable.open(sqlite, name, FILES)
    else:
        assert ReflectedMetaTable.open(sqlite, name, FILES).canonical_name == "main.files"


@pytest.mark.parametrize("odd", ODD_NAMES)
def test_names_and_values_of_any_spelling_are_only_ever_names_and_values(
    either: ReflectedMetaTable, odd: str
) -> None:
    """Expect tables, columns and values that look like SQL to be found, read and compared."""
    quoted_in_schema = f'{either.table.schema}."' + odd.replace('"', '""') + '"'
    table = sa.Table(
        odd,
        sa.MetaData(),
        sa.Column(odd, sa.BigInteger, primary_key=True),
        sa.Column(f"{odd}2", sa.String(100)),
        sa.Column(f"{odd}3", sa.BigInteger),
        schema=either.table.schema,
    )
    table.create(either.engine)
    columns = MetaColumns(uid=odd, item=f"{odd}2", weight=f"{odd}3")
    where = parse_filter([{"column": f"{odd}2", "operator": "!=", "value": odd}])
    opened = ReflectedMetaTable.open(either.engine, quoted_in_schema, columns, where)
    insert(opened, {7: 3})
    with either.engine.begin() as connection:
        connection.execute(sa.insert(table).values({odd: 8, f"{odd}2": odd, f"{odd}3": 5}))
    assert opened.next_cut(None, 9, limits()) == one_cut(7, 9, 3, 1, closed=False)
    assert opened.items(EVERYTHING) == [MetaItem(id=7, item="file-7", weight=3)]
    assert opened.facts(EVERYTHING).count == 1
    assert either.highest_id() is None


def test_unknown_table_names_close_ones(files: ReflectedMetaTable, postgres: sa.Engine) -> None:
    """Expect a slip of the pen to be answered with what was meant."""
    with pytest.raises(UnknownMetaTableError, match=r"Did you mean ops\.files\?"):
        ReflectedMetaTable.open(postgres, "ops.fils", FILES)
    with pytest.raises(UnknownMetaTableError):
        ReflectedMetaTable.open(postgres, "nowhere.files", FILES)


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "a.b.c", '"a', "a\0", '""', " "])
def test_name_that_is_none_is_refused(postgres: sa.Engine, name: str) -> None:
    """Expect whatever is not `table` or `schema.table` to be refused before it is looked up."""
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
def test_unknown_column_lists_the_columns(
    files: ReflectedMetaTable, postgres: sa.Engine, columns: MetaColumns, role: str
) -> None:
    """Expect the message to name the role, the column and what there is."""
    with pytest.raises(MetaTableError, match="has no column") as raised:
        ReflectedMetaTable.open(postgres, "ops.files", columns)
    assert f"named as its {role} (its columns" in str(raised.value)
    assert "(its columns: id, file_location, size_in_bytes, imported)" in str(raised.value)


def test_unknown_column_of_a_filter_is_refused(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    """Expect a filter's column to be looked up like any other."""
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
def test_column_that_cannot_play_its_role_is_refused(
    postgres: sa.Engine, definition: str, problem: str
) -> None:
    """Expect the type and the key of columns to be checked before anything is planned."""
    execute(postgres, f"CREATE TABLE ops.odd (item text, {definition})")
    with pytest.raises(MetaTableError, match=problem):
        ReflectedMetaTable.open(postgres, "ops.odd", MetaColumns(uid="id", weight="w"))


@pytest.mark.parametrize(
    "definition",
    [
        "id bigint PRIMARY KEY, w bigint",
        "id smallint PRIMARY KEY, w smallint",
        "id bigint NOT NULL UNIQUE, w integer",
        "id serial PRIMARY KEY, w numeric(20, 0)",
    ],
)
def test_integer_columns_of_any_width_are_fine(postgres: sa.Engine, definition: str) -> None:
    """Expect every integer type, and a ceiling far beyond a narrow one, to do."""
    execute(postgres, f"CREATE TABLE ops.odd (item text, {definition})")
    table = ReflectedMetaTable.open(postgres, "ops.odd", MetaColumns(uid="id", weight="w"))
    insert(table, {1: 5, 2: 6})
    assert table.next_cut(0, MAX_ID, limits()) == one_cut(1, MAX_ID, 11, 2, closed=False)
    assert list(table.weights(None, MAX_ID)) == [(1, 5), (2, 6)]


def test_partial_unique_index_does_not_vouch_for_ids(postgres: sa.Engine) -> None:
    """Expect an index over some rows not to count as unique."""
    execute(
        postgres,
        "CREATE TABLE ops.odd (uid bigint NOT NULL, item text, weight bigint)",
        "CREATE UNIQUE INDEX ON ops.odd (uid) WHERE weight > 0",
    )
    with pytest.raises(MetaTableError, match="cannot be the"):
        ReflectedMetaTable.open(postgres, "ops.odd")


def test_view_is_read_with_a_note(files: ReflectedMetaTable, postgres: sa.Engine) -> None:
    """Expect a view to work, and to say what could not be checked."""
    execute(postgres, "CREATE VIEW ops.big AS SELECT * FROM ops.files WHERE size_in_bytes > 5")
    insert(files, {1: 5, 2: 6, 3: 7})
    view = ReflectedMetaTable.open(postgres, "ops.big", FILES)
    assert "unique cannot be checked" in view.notes[0]
    assert view.next_cut(None, 3, limits()) == one_cut(2, 3, 13, 2, closed=False)


def test_partitioned_table_with_a_wider_key_is_read_with_a_note(postgres: sa.Engine) -> None:
    """Expect a table partitioned by day to do, though its key holds the day too."""
    execute(
        postgres,
        "CREATE TABLE ops.days (uid bigint, item text, weight bigint, day int, "
        "PRIMARY KEY (uid, day)) PARTITION BY LIST (day)",
        "CREATE TABLE ops.day_1 PARTITION OF ops.days FOR VALUES IN (1)",
    )
    assert "cannot be checked" in ReflectedMetaTable.open(postgres, "ops.days").notes[0]


def test_role_without_select_is_told_what_to_grant(
    files: ReflectedMetaTable, postgres: sa.Engine
) -> None:
    """Expect a missing right to be found when the table is opened."""
    role = "reader_of_nothing"
    execute(postgres, f"CREATE ROLE {role} LOGIN", f"GRANT USAGE ON SCHEMA ops TO {role}")
    engine = sa.create_engine(postgres.url.set(username=role))
    try:
        with pytest.raises(MetaTableError, match="Grant SELECT"):
            ReflectedMetaTable.open(engine, "ops.files", FILES)
        execute(postgres, f"GRANT SELECT (id, file_location) ON ops.files TO {role}")
        unweighed = MetaColumns(uid="id", item="file_location", weight=None)
        assert ReflectedMetaTable.open(engine, "ops.files", unweighed).highest_id() is None
        with pytest.raises(MetaTableError, match="cannot be read"):
            ReflectedMetaTable.open(engine, "ops.files", FILES)
    finally:
        engine.dispose()
        execute(postgres, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "url",
    ["postgresql+psycopg://me:canary@127.0.0.1:1/meta", "sqlite:////nowhere/canary-free/meta.db"],
)
def test_database_that_does_not_answer_is_named_without_credentials(url: str) -> None:
    """Expect a retryable error that tells where, and no password."""
    engine = sa.create_engine(url)
    with pytest.raises(MetaUnreachableError) as raised:
        ReflectedMetaTable.open(engine, "files")
    assert "canary@" not in str(raised.value)
    assert ("127.0.0.1:1/meta" in str(raised.value)) or ("meta.db" in str(raised.value))


# Cutting


def test_next_cut_of_an_empty_table_is_none(either: ReflectedMetaTable) -> None:
    """Expect nothing where there is nothing."""
    assert either.next_cut(None, 10, limits()) is None
    assert either.next_cut(0, 10, limits()) is None
    assert (either.lowest_id(), either.highest_id()) == (None, None)


def test_next_cut_ends_before_the_first_item_that_does_not_fit(either: ReflectedMetaTable) -> None:
    """Expect the gap above the last item to belong to the batch, and the next item not."""
    insert(either, {1: 40, 2: 60, 10: 1, 11: 5})
    assert either.next_cut(0, 20, limits()) == one_cut(1, 9, 100, 2, closed=True)
    assert either.next_cut(9, 20, limits()) == one_cut(10, 20, 6, 2, closed=False)
    assert either.next_cut(20, 20, limits()) is None


def test_next_cut_leaves_an_oversized_item_alone(either: ReflectedMetaTable) -> None:
    """Expect one batch for it, whatever follows."""
    insert(either, {1: 101, 2: 0, 3: 200})
    assert drained(either, 3, limits()) == [
        one_cut(1, 1, 101, 1, closed=True),
        one_cut(2, 2, 0, 1, closed=True),
        one_cut(3, 3, 200, 1, closed=True),
    ]


def test_next_cut_from_no_bookmark_starts_at_the_lowest_id(either: ReflectedMetaTable) -> None:
    """Expect ids at and below zero to be items like all others."""
    insert(either, {-7: 1, 0: 2, 5: 3})
    assert either.next_cut(None, 5, limits(max_count=2)) == one_cut(-7, 4, 3, 2, closed=True)


def test_ids_and_weights_at_the_ends_of_64_bits_are_handled(either: ReflectedMetaTable) -> None:
    """Expect the smallest and the largest id, and sums beyond 2^63, to be cut and counted."""
    insert(either, {MIN_ID: 2**62, -1: 2**63 - 1, MAX_ID - 1: 2**62, MAX_ID: 2**63 - 1})
    whole = limits(max_weight=2**63 - 1)
    assert [one.id_range for one in drained(either, MAX_ID, whole)] == [
        ids(MIN_ID, -2),
        ids(-1, MAX_ID - 2),
        ids(MAX_ID - 1, MAX_ID - 1),
        ids(MAX_ID, MAX_ID),
    ]
    assert either.facts(EVERYTHING).weight == 2**63 + 2 * (2**63 - 1)
    assert either.next_cut(MAX_ID, MAX_ID, whole) is None


# Weights that cannot be counted


@pytest.mark.parametrize("bad", [None, -1])
def test_bad_weight_is_refused_by_name(either: ReflectedMetaTable, bad: int | None) -> None:
    """Expect every reader to stop at the row and to name it."""
    insert(either, {1: 5, 2: bad, 3: 5})
    readers: list[Any] = [
        lambda: either.next_cut(0, 3, limits()),
        lambda: list(either.weights(0, 3)),
        lambda: either.items(EVERYTHING),
    ]
    for read in readers:
        with pytest.raises(BadWeightError) as raised:
            read()
        assert (raised.value.item_id, raised.value.weight) == (2, bad)
    assert "id 2" in str(raised.value)
    assert either.facts(EVERYTHING).bad_id == 2


def test_bad_weight_beyond_the_batch_does_not_stop_it(either: ReflectedMetaTable) -> None:
    """Expect the batches before the row to be cut, and the row to be named when it is reached."""
    insert(either, {1: 5, 2: 5, 3: None})
    assert either.next_cut(0, 3, limits(max_count=2)) == one_cut(1, 2, 10, 2, closed=True)
    with pytest.raises(BadWeightError):
        either.next_cut(2, 3, limits(max_count=2))


@pytest.mark.parametrize(("counted", "weight"), [(0, 10), (7, 24)])
def test_bad_weight_counts_what_is_configured(
    either: ReflectedMetaTable, counted: int, weight: int
) -> None:
    """Expect such rows to be items of their batch with the weight that was stated."""
    insert(either, {1: None, 2: 10, 3: -4})
    name = either.canonical_name
    table = ReflectedMetaTable.open(either.engine, name, FILES, on_bad_weight=counted)
    assert table.next_cut(None, 3, limits()) == one_cut(1, 3, weight, 3, closed=False)
    assert list(table.weights(None, 3)) == [(1, counted), (2, 10), (3, counted)]
    cuts = all_cuts(table, 0, 3, limits(max_count=1))
    assert [one.weight for one in cuts] == [counted, 10, counted]
    assert [item.weight for item in table.items(EVERYTHING)] == [counted, 10, counted]
    assert table.facts(EVERYTHING).weight == weight


def test_stated_weight_that_is_none_is_refused(either: ReflectedMetaTable) -> None:
    """Expect the substitute to be a weight itself."""
    with pytest.raises(InvalidValueError, match="on_bad_weight"):
        ReflectedMetaTable.open(either.engine, either.canonical_name, FILES, on_bad_weight=-1)


@pytest.mark.parametrize("bad", [Decimal(2**63), Decimal(10**19)])
def test_weight_beyond_64_bits_is_refused_by_name(postgres: sa.Engine, bad: Decimal) -> None:
    """Expect a decimal that no bigint holds to be named like any bad weight."""
    execute(
        postgres,
        "CREATE TABLE ops.wide (uid bigint PRIMARY KEY, item text, weight numeric(20, 0))",
    )
    table = ReflectedMetaTable.open(postgres, "ops.wide")
    insert(table, {1: bad})
    with pytest.raises(BadWeightError, match="id 1"):
        table.next_cut(None, 1, limits())


@pytest.mark.parametrize("bad", ["many", 2.5, b"\x01"])
def test_weight_of_another_type_in_sqlite_is_refused(
    sqlite_files: ReflectedMetaTable, bad: object
) -> None:
    """Expect a value that SQLite let into an integer column not to count as a number."""
    insertion = "INSERT INTO files (id, file_location, size_in_bytes) VALUES (1, 'f', :bad)"
    execute(sqlite_files.engine, insertion, bad=bad)
    with pytest.raises(BadWeightError):
        sqlite_files.next_cut(None, 1, limits())


# Reading


def test_items_are_ordered_by_id_after_an_update(files: ReflectedMetaTable) -> None:
    """Expect the order of ids, not that of the storage."""
    insert(files, {number: number for number in range(1, 8)})
    execute(files.engine, "UPDATE ops.files SET file_location = 'new' WHERE id <= 3")
    found = files.items(ids(2, 5))
    assert [(item.id, item.item) for item in found] == [
        (2, "new"),
        (3, "new"),
        (4, "file-4"),
        (5, "file-5"),
    ]
    assert item_ids(files, ids(2, 5)) == [2, 3, 4, 5]


def test_weights_left_early_give_the_connection_back(either: ReflectedMetaTable) -> None:
    """Expect a reader that stops to hold no cursor open."""
    insert(either, {1: 1, 2: 2, 3: 3})
    stream = either.weights(None, 3)
    assert next(stream) == (1, 1)
    stream.close()  # type: ignore[attr-defined] # it is a generator
    assert either.engine.pool.checkedout() == 0  # type: ignore[attr-defined] # of a QueuePool


def test_facts_are_the_same_in_every_database(
    either: ReflectedMetaTable,
) -> None:
    """Expect count, weight and hash to be what plain Python gives."""
    weights = {-5: 1, 0: 2, 3: 2**40, 2**31 - 1: 4, 2**31: 5, 10**12 + 7: 6, MAX_ID: 7}
    prime = 2**31 - 1
    hashed = sum((abs(uid) ** 3 % prime) * (1 if uid > 0 else -1) for uid in weights)
    insert(either, weights)
    facts = either.facts(EVERYTHING)
    assert (facts.count, facts.weight) == (7, sum(weights.values()))
    assert facts.fingerprint == hashed


def test_facts_of_a_range_tell_a_late_row_and_an_exchanged_one(
    either: ReflectedMetaTable,
) -> None:
    """Expect the hash to tell apart sets of ids of one size, weight and sum."""
    insert(either, {1: 1, 4: 1, 20: 1})
    before = either.facts(ids(1, 10))
    assert (before.count, before.weight) == (2, 2)
    delete(either, either.uid <= 4)
    assert either.facts(ids(1, 10)).count == 0
    insert(either, {2: 1, 3: 1})
    after = either.facts(ids(1, 10))
    assert (after.count, after.weight) == (before.count, before.weight)
    assert after.fingerprint != before.fingerprint


# Filters


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ({"column": "kind", "operator": "=", "value": "a"}, [1]),
        ({"column": "kind", "operator": "!=", "value": "a"}, [2]),
        ({"column": "kind", "operator": "in", "value": ["a", "b"]}, [1, 2]),
        ({"column": "kind", "operator": "not in", "value": ["b"]}, [1]),
        ({"column": "kind", "operator": "like", "value": "a%"}, [1]),
        ({"column": "kind", "operator": "is null"}, [3]),
        ({"column": "kind", "operator": "is not null"}, [1, 2]),
        ({"column": "small", "operator": "<", "value": 2**40}, [1, 2, 3]),
        ({"column": "small", "operator": ">=", "value": 2}, [2, 3]),
        ({"column": "ready", "operator": "=", "value": True}, [1, 3]),
        ({"column": "price", "operator": "<=", "value": 2.5}, [1, 2]),
        ({"column": "arrived", "operator": ">", "value": "2026-03-01T00:30:00+00:00"}, [2, 3]),
        ({"column": "day", "operator": "<", "value": "2026-03-02"}, [1]),
    ],
)
@pytest.mark.parametrize("fixture", ENGINES)
def test_filter_keeps_the_rows_that_fit(
    request: pytest.FixtureRequest, fixture: str, condition: dict[str, Any], kept: list[int]
) -> None:
    """Expect every operator and type of column to compare as SQL does, bound as values."""
    engine: sa.Engine = request.getfixturevalue(fixture)
    execute(
        engine,
        "CREATE TABLE kinds (uid integer NOT NULL PRIMARY KEY, item varchar(10), weight integer, "
        "kind varchar(10), small smallint, ready boolean, price numeric(10, 2), "
        "arrived timestamp, day date)",
    )
    opened = ReflectedMetaTable.open(engine, "kinds", where=parse_filter([condition]))
    for number, kind in ((1, "a"), (2, "b"), (3, None)):
        execute(
            engine,
            "INSERT INTO kinds VALUES (:n, 'f', 1, :kind, :n, :ready, :n, :arrived, :day)",
            n=number,
            kind=kind,
            ready=number != 2,
            arrived=f"2026-03-01 0{number - 1}:00:00.000000",
            day=f"2026-03-0{number}",
        )
    assert item_ids(opened, EVERYTHING) == kept


@pytest.mark.parametrize(
    "condition",
    [
        {"column": "id", "operator": "=", "value": "7"},
        {"column": "id", "operator": "<", "value": 2**63},
        {"column": "id", "operator": "like", "value": "7%"},
        {"column": "file_location", "operator": "=", "value": 7},
        {"column": "imported", "operator": ">", "value": "yesterday"},
        {"column": "imported", "operator": ">", "value": 20260301},
        {"column": "imported", "operator": "in", "value": ["2026-03-01", "never"]},
    ],
)
def test_value_that_does_not_fit_its_column_is_refused_on_opening(
    files: ReflectedMetaTable, condition: dict[str, Any]
) -> None:
    """Expect a message that names the column instead of an error of the driver later."""
    with pytest.raises(ConfigurationError, match=condition["column"]):
        ReflectedMetaTable.open(files.engine, "ops.files", FILES, parse_filter([condition]))


def test_lowest_and_highest_id_ignore_the_filter(either: ReflectedMetaTable) -> None:
    """Expect the edges of the table, since a ceiling must not depend on a job's filter."""
    insert(either, {1: 1, 5: 1, 9: 1})
    where = parse_filter([{"column": "id", "operator": "=", "value": 5}])
    table = ReflectedMetaTable.open(either.engine, either.canonical_name, FILES, where)
    assert (table.lowest_id(), table.highest_id()) == (1, 9)
    assert table.next_cut(None, 9, limits(max_wait=timedelta(0))) == one_cut(
        1, 9, 1, 1, closed=False
    )
    assert list(all_cuts(table, None, 9, limits())) == [one_cut(1, 9, 1, 1, closed=False)]


# Long lists and missing databases


@pytest.mark.parametrize("name", ["files", "sqlite_files", *(["mariadb_files"] if MARIADB else [])])
@pytest.mark.parametrize("column", ["id", "file_location", "imported"])
def test_filter_by_seventy_thousand_values_reads_the_rows_that_fit(
    request: pytest.FixtureRequest, name: str, column: str
) -> None:
    table: ReflectedMetaTable = request.getfixturevalue(name)
    insert(table, {1: 10, 2: 10, 80_000: 10})
    early, late = datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)
    with table.engine.begin() as connection:
        for imported, ids in ((early, table.uid < 3), (late, table.uid > 3)):
            connection.execute(sa.update(table.table).where(ids).values(imported=imported))
    start = datetime(2000, 1, 1, tzinfo=UTC)
    values: dict[str, list[int] | list[str]] = {
        "id": list(range(1, 70_001)),
        "file_location": [f"file-{uid}" for uid in range(1, 70_001)],
        "imported": [(start + timedelta(seconds=n)).isoformat() for n in range(70_000)],
    }
    everything = IdRange(first_id=1, last_id=80_000)
    for operator, taken in ((Operator.IN, [1, 2]), (Operator.NOT_IN, [80_000])):
        where = Condition(column, operator, tuple(values[column]))
        long = ReflectedMetaTable.open(table.engine, table.canonical_name, FILES, where)
        assert item_ids(long, everything) == taken
        cut = long.next_cut(0, 80_000, limits())
        assert cut is not None
        assert cut.count == len(taken)


def test_statement_with_too_many_values_is_no_retryable_error(postgres: sa.Engine) -> None:
    values = tuple(range(70_000))
    marks = ", ".join("%s" for _ in values)
    too_many = pytest.raises(InvalidValueError, match="fewer or shorter values")
    with too_many, read_transaction(postgres) as connection:
        connection.exec_driver_sql(f"VALUES ({marks})", values)


@pytest.mark.parametrize("server", ["server_url", *(["mariadb_url"] if MARIADB else [])])
def test_database_that_does_not_exist_is_no_retryable_error(
    request: pytest.FixtureRequest, server: str
) -> None:
    url: str = request.getfixturevalue(server)
    missing = url.replace("/postgres?", "/no_such_files?").replace("/mysql?", "/no_such_files?")
    with meta_engine(missing) as engine, pytest.raises(SettingError, match="does not exist"):
        ReflectedMetaTable.open(engine, "files")
