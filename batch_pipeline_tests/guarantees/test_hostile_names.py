"""Databases treat untrusted names and values as names and values only."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.load.tables import MAX_NAME_BYTES, short_name
from batch_pipeline.model.batch import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline.model.filter import Operator, parse_filter
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.guarantees.inputs.hostile import TEXTS, is_text
from batch_pipeline_tests.inventory.meta_tables.test_user_table import open_user_table
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    FILES,
    execute,
    item_ids,
    items_of,
    record_statements,
)
from batch_pipeline_tests.load.warehouse import APPEND, Warehouse, schema_of
from batch_pipeline_tests.proofs import Figures

pytestmark = pytest.mark.guarantee("S1")

VALUES = [text for text in TEXTS if is_text(text)]
NAMES = [text for text in VALUES if len(text.encode()) < MAX_NAME_BYTES]
SYSTEM_COLUMNS = {"ctid", "xmin", "tableoid"}  # of every Postgres table
ALL_IDS = IdRange(first_id=MIN_ID, last_id=MAX_ID)
SHORT_FORM_STEP = 8  # the short form tries one in this many texts
SHORT_FORM_PAIRS = 29  # and one in this many pairs of a text and an operator, beside some quotes


@pytest.fixture(params=["postgres", "sqlite"])
def files(request: pytest.FixtureRequest) -> ReflectedMetaTable:
    """An empty meta table of a user, beside a table that must not change."""
    engine: sa.Engine = request.getfixturevalue(request.param)
    schema = "ops" if request.param == "postgres" else "main"
    if request.param == "postgres":
        columns = "id bigint PRIMARY KEY, file_location text, size_in_bytes bigint"
        execute(engine, f"CREATE TABLE ops.files ({columns})")
    execute(
        engine,
        f"CREATE TABLE {schema}.sentinel (secret text)",
        f"INSERT INTO {schema}.sentinel VALUES ('untouched')",  # noqa: S608 - a constant
    )
    return ReflectedMetaTable.open(engine, f"{schema}.files", FILES)


def check_untouched(files: ReflectedMetaTable, *expected: str) -> None:
    """Check that the other table has its row, and that there are no unexpected tables."""
    schema = files.table.schema
    with files.engine.connect() as connection:
        rows = connection.execute(sa.text(f"SELECT secret FROM {schema}.sentinel")).all()  # noqa: S608 - a constant
        assert rows == [("untouched",)]
        tables = set(sa.inspect(connection).get_table_names(schema))
    assert tables - {"files", "sentinel", "sqlite_sequence"} == set(expected)


def test_filter_values_are_bound(
    files: ReflectedMetaTable, figures: Figures, *, long_form: bool
) -> None:
    """The text of the statement is the same for all values."""
    rows = [
        {"id": number, "file_location": text, "size_in_bytes": 1}
        for number, text in enumerate(VALUES)
    ]
    tried = rows if long_form else rows[::SHORT_FORM_STEP]
    with files.engine.begin() as connection:
        connection.execute(sa.insert(files.table), rows)
    with record_statements(files.engine) as statements:
        for row in tried:
            condition = {"column": "file_location", "operator": "=", "value": row["file_location"]}
            filtered = replace(files, where=parse_filter([condition]))
            assert item_ids(filtered, ALL_IDS) == [row["id"]]
    distinct = {statement for statement, _ in statements if "file_location" in statement}
    assert len(distinct) == 1
    check_untouched(files)
    figures(hostile_texts=len(tried), executed=0)


def test_filter_patterns_and_lists_are_bound(
    files: ReflectedMetaTable, figures: Figures, *, long_form: bool
) -> None:
    execute(
        files.engine,
        f"INSERT INTO {files.table.schema}.files (id, file_location, size_in_bytes) "  # noqa: S608 - a constant
        "VALUES (1, 'a', 1)",
    )
    operators = [each for each in Operator if each not in {Operator.IS_NULL, Operator.IS_NOT_NULL}]
    pairs = list(product(VALUES, operators))
    if not long_form:
        quotes = [text for text in VALUES if "'" in text]
        pairs = [*product(quotes[:2], operators), *pairs[::SHORT_FORM_PAIRS]]
    for text, operator in pairs:
        value = [text, "a"] if operator in {Operator.IN, Operator.NOT_IN} else text
        condition = {"column": "file_location", "operator": operator.value, "value": value}
        try:
            filtered = replace(files, where=parse_filter([condition]))
            assert item_ids(filtered, ALL_IDS) in ([], [1])
        except ConfigurationError:
            assert operator is Operator.LIKE
    check_untouched(files)
    figures(hostile_texts=len(pairs))


def test_unknown_names_are_refused(
    files: ReflectedMetaTable, figures: Figures, *, long_form: bool
) -> None:
    known = {operator.value for operator in Operator}
    texts = TEXTS if long_form else TEXTS[::SHORT_FORM_STEP]
    for text in texts:
        with pytest.raises(ConfigurationError):
            ReflectedMetaTable.open(files.engine, text, FILES)
        if text not in known:
            with pytest.raises(InvalidValueError):
                parse_filter([{"column": "id", "operator": text, "value": 1}])
    for text in TEXTS[::SHORT_FORM_STEP]:
        roles = MetaColumns(uid="id", item=text, weight=None)
        with pytest.raises(ConfigurationError):
            ReflectedMetaTable.open(files.engine, str(files.table.fullname), roles)
    check_untouched(files)
    figures(hostile_texts=2 * len(texts))


def test_tables_and_columns_with_hostile_names_are_read(
    files: ReflectedMetaTable, figures: Figures, *, long_form: bool
) -> None:
    schema = files.table.schema
    names = [name for name in NAMES if name.casefold() not in {"files", "sentinel"}]
    names = names if long_form else names[::SHORT_FORM_STEP]
    names = [name for name in names if name not in SYSTEM_COLUMNS]
    for name in names:
        columns: list[sa.Column[Any]] = [
            sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("place", sa.Text),
        ]
        table = sa.Table(name, sa.MetaData(), *columns, schema=schema)
        table.create(files.engine)
        with files.engine.begin() as connection:
            connection.execute(sa.insert(table), [{name: 7, "place": "/a"}])
        quoted = f'{schema}."' + name.replace('"', '""') + '"'
        roles = MetaColumns(uid=name, item="place", weight=None)
        where = parse_filter([{"column": name, "operator": ">=", "value": 0}])
        opened = ReflectedMetaTable.open(files.engine, quoted, roles, where)
        cut = opened.next_cut(None, 9, limits())
        assert cut is not None
        assert cut.count == 1
        assert [item.item for item in items_of(opened, ALL_IDS)] == ["/a"]
        check_untouched(files, name)
        table.drop(files.engine)
    figures(hostile_texts=len(names))


def test_find_returns_items_with_hostile_locations(
    sqlite: sa.Engine, database: Database, figures: Figures
) -> None:
    harness = open_user_table("sqlite", sqlite, database)
    texts = [text for text in VALUES if "/" not in text and not text.isdigit()]
    for number, text in enumerate(texts):
        harness.insert(number, file_location=f"/landing/{text}")
    for number, text in enumerate(texts):
        assert number in [item.id for item in harness.table.find(text)], text
    figures(hostile_texts=len(texts))


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Iterator[Warehouse]:
    """A warehouse with a table that must not change."""
    warehouse = Warehouse(url=empty_database_url, folder=tmp_path, target=APPEND)
    warehouse.execute("CREATE TABLE sentinel AS SELECT 'untouched' AS secret")
    yield warehouse
    assert warehouse.rows("secret", table="sentinel") == [("untouched",)]


def columns_of(*names: str) -> RecordSchema:
    return schema_of(*((name, "string") for name in names))


def test_record_keys_with_hostile_names_become_columns(
    warehouse: Warehouse, figures: Figures
) -> None:
    names = [text for text in VALUES if text not in SYSTEM_COLUMNS]
    record = {name: name for name in names}
    warehouse.load(warehouse.loading([record], schema=columns_of(*names), key_properties=()))
    column_names = [short_name(name) for name in names]
    assert len(set(column_names)) == len(names)
    assert warehouse.rows(*column_names) == [tuple(names)]
    figures(hostile_texts=2 * len(names))


@pytest.mark.parametrize("name", sorted(SYSTEM_COLUMNS))
def test_record_key_named_like_system_column_is_refused(warehouse: Warehouse, name: str) -> None:
    loading = warehouse.loading([{name: "1"}], schema=columns_of(name), key_properties=())
    with pytest.raises(ConfigurationError, match=name):
        warehouse.load(loading)
    with pytest.raises(psycopg.errors.UndefinedTable):
        warehouse.rows("_batch_id")
