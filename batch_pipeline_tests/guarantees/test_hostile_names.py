"""Names and values that others choose are names and values to databases, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.load.tables import MAX_NAME_BYTES, short_name
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError
from batch_pipeline.model.filter import Operator, parse_filter
from batch_pipeline.model.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.load import PostgresTarget
from batch_pipeline.model.schema import Column, RecordSchema
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.guarantees.inputs.hostile import TEXTS, is_text
from batch_pipeline_tests.inventory.meta_tables.test_user_table import open_user_table
from batch_pipeline_tests.inventory.meta_tables.user_tables import FILES, execute, record_statements
from batch_pipeline_tests.load.warehouse import Warehouse
from batch_pipeline_tests.proofs import Figures

pytestmark = pytest.mark.guarantee("S1")

VALUES = [text for text in TEXTS if is_text(text)]
NAMES = [text for text in VALUES if len(text.encode()) < MAX_NAME_BYTES]
OF_THE_SYSTEM = {"ctid", "xmin", "tableoid"}  # columns that every table of Postgres has
EVERYTHING = IdRange(first_id=MIN_ID, last_id=MAX_ID)
SOME = 8  # of so many names, one is tried in the short form


@pytest.fixture(params=["postgres", "sqlite"])
def files(request: pytest.FixtureRequest) -> ReflectedMetaTable:
    """An empty meta table of a user, beside a table that must stay as it is."""
    engine: sa.Engine = request.getfixturevalue(request.param)
    schema = "ops" if request.param == "postgres" else "main"
    if request.param == "postgres":
        made = "id bigint PRIMARY KEY, file_location text, size_in_bytes bigint"
        execute(engine, f"CREATE TABLE ops.files ({made})")
    execute(
        engine,
        f"CREATE TABLE {schema}.sentinel (secret text)",
        f"INSERT INTO {schema}.sentinel VALUES ('untouched')",  # noqa: S608 - the test's own
    )
    return ReflectedMetaTable.open(engine, f"{schema}.files", FILES)


def check_untouched(files: ReflectedMetaTable, *others: str) -> None:
    """Check that the other table has its row, and that there are no tables but those known."""
    schema = files.table.schema
    with files.engine.connect() as connection:
        rows = connection.execute(sa.text(f"SELECT secret FROM {schema}.sentinel")).all()  # noqa: S608 - the test's own
        assert rows == [("untouched",)]
        tables = set(sa.inspect(connection).get_table_names(schema))
    assert tables - {"files", "sentinel", "sqlite_sequence"} == set(others)


def test_values_of_filters_are_compared_and_nothing_else(
    files: ReflectedMetaTable, figures: Figures
) -> None:
    """Values are bound: the statement's text is the same for all of them."""
    rows = [
        {"id": number, "file_location": text, "size_in_bytes": 1}
        for number, text in enumerate(VALUES)
    ]
    with files.engine.begin() as connection:
        connection.execute(sa.insert(files.table), rows)
    with record_statements(files.engine) as statements:
        for number, text in enumerate(VALUES):
            condition = {"column": "file_location", "operator": "=", "value": text}
            chosen = replace(files, where=parse_filter([condition]))
            assert [one.id for one in chosen.items(EVERYTHING)] == [number]
    distinct = {statement for statement, _ in statements if "file_location" in statement}
    assert len(distinct) == 1
    check_untouched(files)
    figures(hostile_texts=len(VALUES), executed=0)


def test_patterns_and_lists_of_filters_are_values_too(
    files: ReflectedMetaTable, figures: Figures
) -> None:
    execute(
        files.engine,
        f"INSERT INTO {files.table.schema}.files (id, file_location, size_in_bytes) "  # noqa: S608 - the test's own
        "VALUES (1, 'a', 1)",
    )
    takes = [one for one in Operator if one not in {Operator.IS_NULL, Operator.IS_NOT_NULL}]
    for text in VALUES:
        for one in takes:
            value = [text, "a"] if one in {Operator.IN, Operator.NOT_IN} else text
            condition = {"column": "file_location", "operator": one.value, "value": value}
            try:
                chosen = replace(files, where=parse_filter([condition]))
                assert [item.id for item in chosen.items(EVERYTHING)] in ([], [1])
            except ConfigurationError:
                assert one is Operator.LIKE
    check_untouched(files)
    figures(hostile_texts=len(VALUES) * len(takes))


def test_names_that_are_not_there_are_refused(files: ReflectedMetaTable, figures: Figures) -> None:
    known = {one.value for one in Operator}
    for text in TEXTS:
        with pytest.raises(ConfigurationError):
            ReflectedMetaTable.open(files.engine, text, FILES)
        if text not in known:
            with pytest.raises(InvalidValueError):
                parse_filter([{"column": "id", "operator": text, "value": 1}])
    for text in TEXTS[::SOME]:
        roles = MetaColumns(uid="id", item=text, weight=None)
        with pytest.raises(ConfigurationError):
            ReflectedMetaTable.open(files.engine, str(files.table.fullname), roles)
    check_untouched(files)
    figures(hostile_texts=2 * len(TEXTS))


def test_tables_and_columns_of_any_name_are_read(
    files: ReflectedMetaTable, figures: Figures, *, long_form: bool
) -> None:
    schema = files.table.schema
    names = [one for one in NAMES if one.casefold() not in {"files", "sentinel"}]
    names = names if long_form else names[::SOME]
    made: list[str] = []
    for name in names:
        if name in OF_THE_SYSTEM:
            continue
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
        assert [one.item for one in opened.items(EVERYTHING)] == ["/a"]
        check_untouched(files, name)
        table.drop(files.engine)
        made.append(name)
    assert len(made) > len(names) - len(OF_THE_SYSTEM) - 1
    figures(hostile_texts=len(made))


def test_searches_for_files_find_what_they_name(
    sqlite: sa.Engine, database: Database, figures: Figures
) -> None:
    scene = open_user_table("sqlite", sqlite, database)
    texts = [text for text in VALUES if "/" not in text and not text.isdigit()]
    for number, text in enumerate(texts):
        scene.insert(number, file_location=f"/landing/{text}")
    for number, text in enumerate(texts):
        assert number in [item.id for item in scene.table.find(text)], text
    figures(hostile_texts=len(texts))


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Iterator[Warehouse]:
    """A warehouse with a table that must stay as it is."""
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE")
    made = Warehouse(url=empty_database_url, folder=tmp_path, target=target)
    made.execute("CREATE TABLE sentinel AS SELECT 'untouched' AS secret")
    yield made
    assert made.rows("secret", table="sentinel") == [("untouched",)]


def columns_of(*names: str) -> RecordSchema:
    """Text columns."""
    return RecordSchema(tuple(Column.from_text(name, "string") for name in names))


def test_keys_of_records_become_columns_of_these_names(
    warehouse: Warehouse, figures: Figures
) -> None:
    names = [text for text in VALUES if text not in OF_THE_SYSTEM]
    record = {name: name for name in names}
    warehouse.load(warehouse.loading([record], schema=columns_of(*names), key_properties=()))
    shorter = [short_name(name) for name in names]
    assert len(set(shorter)) == len(names)
    assert warehouse.rows(*shorter) == [tuple(names)]
    figures(hostile_texts=2 * len(names))


@pytest.mark.parametrize("name", sorted(OF_THE_SYSTEM))
def test_keys_that_are_columns_of_the_system_are_refused(warehouse: Warehouse, name: str) -> None:
    loading = warehouse.loading([{name: "1"}], schema=columns_of(name), key_properties=())
    with pytest.raises(ConfigurationError, match=name):
        warehouse.load(loading)
    with pytest.raises(psycopg.errors.UndefinedTable):
        warehouse.rows("_batch_id")
