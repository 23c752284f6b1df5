"""The library asked for what is not there: a clear error, nothing burnt, the next call works."""

from datetime import timedelta
from typing import Any

import pytest

from batch_pipeline import acquire_batch, acquire_batches, client
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    MetaTableError,
    UnknownMetaTableError,
)
from batch_pipeline_tests.client.client_tables import (
    COLUMNS,
    acquire_or_none,
    acquired,
    delivered_ids,
    files,
    fill_evenly,
)
from batch_pipeline_tests.seeds import execute as run
from batch_pipeline_tests.seeds import query, statuses

ODD_TABLES = """
CREATE TABLE texts (uid text PRIMARY KEY, item text, weight bigint);
CREATE TABLE bare (uid bigint NOT NULL, item text, weight bigint);
CREATE TABLE maybe (uid bigint UNIQUE, item text, weight bigint);
CREATE TABLE words (uid bigint PRIMARY KEY, item text, weight text);
CREATE TABLE stamps (uid timestamptz PRIMARY KEY, item text, weight bigint);
CREATE TABLE made_by_hand (uid bigint PRIMARY KEY, item text, weight bigint);
"""


@pytest.fixture
def ten(meta_table: Database) -> Database:
    """Ten files of 10 MiB."""
    fill_evenly(meta_table.engine, 10)
    return meta_table


def _goes_on(database: Database) -> None:
    """Check that nothing is burnt: the first ids are still the next, and each comes once."""
    assert statuses(database) == []
    for batch in acquire_batches("job", "meta_table", COLUMNS, batch_count=4):
        assert batch.items == files(batch.id_range.first_id, batch.id_range.last_id)
        batch.succeeded()
    assert delivered_ids(database) == list(range(1, 11))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"meta_table_cols": {"id": "id"}}, "'id'; expected one of uid, item, weight"),
        ({"meta_table_cols": {"uid": None}}, "meta_table_cols['uid'] is None"),
        ({"meta_table_cols": ["id"]}, "meta_table_cols is ['id']"),
        ({"meta_table_name": "a.b.c"}, "meta table is 'a.b.c'"),
        ({"meta_table_name": None}, "meta_table_name is None"),
        ({"job": ""}, "job is ''"),
        ({"job": None}, "job is None"),
        ({"batch_weight": 0}, "batch_weight is 0; expected a whole number from 1"),
        ({"batch_weight": float("inf")}, "batch_weight is inf"),
        ({"batch_weight": 0.5}, "batch_weight is 0"),
        ({"batch_weight": 2**63}, "batch_weight is 9223372036854775808"),
        ({"batch_count": 0}, "batch_count is 0"),
        ({"batch_count": True}, "batch_count is True"),
        ({"batch_count": 2.0}, "batch_count is 2.0"),
        ({"batch_id_min": "1"}, "batch_id_min is '1'"),
        ({"batch_id_max": 2**63}, "batch_id_max is 9223372036854775808"),
        ({"batch_id_min": 8, "batch_id_max": 2}, "batch_id_max is 2; expected at least"),
        ({"where": "id > 1"}, "where is 'id > 1'"),
        ({"where": [{"column": "id", "operator": "~", "value": 1}]}, "'~'"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"on_bad_weight": -1}, "on_bad_weight is -1"),
        ({"ceiling": "roof"}, "expected one of locks, locking_read, sqlite, registrar, settle"),
        ({"settle_by": ("id", 5)}, "settle_by is ('id', 5)"),
        ({"lease": timedelta(0)}, "lease is datetime.timedelta(0)"),
        ({"lease": 60}, "lease is 60"),
    ],
)
def test_argument_that_cannot_be_used_is_named(
    ten: Database, wrong: dict[str, Any], named: str
) -> None:
    """Expect the caller's own name for it, what it was, and what was expected."""
    asked = {"job": "job", "meta_table_name": "meta_table", "meta_table_cols": COLUMNS} | wrong
    with pytest.raises(InvalidValueError) as caught:
        acquire_batch(**asked)
    assert named in str(caught.value)
    assert query(ten, "SELECT count(*) FROM batch_pipeline.batch") == [(0,)]


def test_configuration_by_a_dict_in_the_place_of_the_path_is_refused(ten: Database) -> None:
    settings: Any = {"inventory_conn": "postgresql://me:secret@db/ops"}
    with pytest.raises(InvalidValueError, match=r"dot_env is 'dict'.*settings=") as caught:
        client.configure(settings)
    assert "secret" not in str(caught.value)
    _goes_on(ten)


def test_iterations_below_zero_are_refused_at_once(ten: Database) -> None:
    """Expect the call to raise, not the first step of the iterator."""
    with pytest.raises(InvalidValueError, match="iterations is -1"):
        acquire_batches("job", "meta_table", COLUMNS, iterations=-1)


def test_fractional_weight_is_rounded_down(ten: Database) -> None:
    """Expect 25.5 to hold what 25 holds."""
    assert acquired(batch_weight=25.5).count == 2


@pytest.mark.parametrize(
    ("table", "columns", "expected", "message"),
    [
        ("mta_table", COLUMNS, UnknownMetaTableError, "No table or view"),
        ("nowhere.meta_table", COLUMNS, UnknownMetaTableError, "No table or view"),
        ("meta_table", COLUMNS | {"uid": "ident"}, MetaTableError, "has no column"),
        ("meta_table", COLUMNS | {"item": "fiel"}, MetaTableError, "has no column"),
        ("meta_table", COLUMNS | {"weight": "size"}, MetaTableError, "has no column"),
        ("texts", None, MetaTableError, "cannot be the uid"),
        ("stamps", None, MetaTableError, "cannot be the uid"),
        ("words", None, MetaTableError, "cannot be the weight"),
        ("bare", None, MetaTableError, "cannot be the uid"),
        ("maybe", None, MetaTableError, "cannot be the uid"),
        ("made_by_hand", None, MetaTableError, "high watermark cannot be read"),
    ],
)
def test_table_that_does_not_fit_is_refused(
    ten: Database,
    table: str,
    columns: dict[str, str] | None,
    expected: type[Exception],
    message: str,
) -> None:
    """Expect a wrong name, type or key to be told before anything is written."""
    run(ten, ODD_TABLES)
    for _ in range(2):
        with pytest.raises(expected, match=message):
            acquire_batch("job", table, columns)
    _goes_on(ten)


def test_role_without_the_right_to_read_is_told(ten: Database, database_url: str) -> None:
    """Expect the missing right to be named, and the next call to work once it is granted."""
    run(ten, "DROP ROLE IF EXISTS library_reader; CREATE ROLE library_reader LOGIN")
    client.configure(
        settings={
            "inventory_conn": database_url,
            "meta_conn": database_url.replace("postgres@", "library_reader@"),
        }
    )
    with pytest.raises(MetaTableError, match="permission denied for table meta_table"):
        acquire_or_none()
    run(ten, "GRANT SELECT ON meta_table TO library_reader")
    _goes_on(ten)
    client.close()
    run(ten, "DROP OWNED BY library_reader; DROP ROLE library_reader")


def test_inventory_that_was_not_migrated_is_told(
    ten: Database, database_url: str, empty_database_url: str
) -> None:
    """Expect the command to run to be named, and no table to be made."""
    client.configure(settings={"inventory_conn": empty_database_url})
    with pytest.raises(ConfigurationError, match="migrate"):
        acquire_or_none()
    client.configure(settings={"inventory_conn": database_url})
    _goes_on(ten)
