"""Invalid calls of the library: a clear error, no state changes, and the next call works."""

from datetime import timedelta
from typing import Any

import pytest

from batch_pipeline import acquire_batch, acquire_batches, client
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import (
    InvalidValueError,
    MetaTableError,
    UnknownMetaTableError,
)
from batch_pipeline_tests.client.client_tables import (
    COLUMNS,
    acquired,
    delivered_ids,
    files,
)
from batch_pipeline_tests.seeds import execute as run
from batch_pipeline_tests.seeds import query, statuses

UNSUITABLE_TABLES = """
CREATE TABLE text_ids (uid text PRIMARY KEY, item text, weight bigint);
CREATE TABLE no_sequence (uid bigint PRIMARY KEY, item text, weight bigint);
"""
INVALID: list[tuple[dict[str, Any], str]] = [
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
    ({"max_attempts": None}, "max_attempts is None"),
    ({"max_attempts": 2**31}, "max_attempts is 2147483648; expected a whole number from 1 to 2^31"),
    ({"bisect": "yes"}, "bisect is 'yes'; expected True or False"),
    ({"on_bad_weight": -1}, "on_bad_weight is -1"),
    ({"on_bad_weight": 1.5}, "on_bad_weight is 1.5"),
    ({"ceiling": "roof"}, "expected one of locks, locking_read, sqlite, registrar, settle"),
    ({"settle_by": ("id", 5)}, "settle_by is ('id', 5)"),
    ({"lease": timedelta(0)}, "lease is datetime.timedelta(0)"),
    ({"lease": timedelta.max}, "expected a timedelta from 1 s to 100 years"),
    ({"lease": 60}, "lease is 60"),
]
UNSUITABLE: list[tuple[str, dict[str, str] | None, type[Exception], str]] = [
    ("mta_table", COLUMNS, UnknownMetaTableError, "No table or view"),
    ("meta_table", COLUMNS | {"weight": "size"}, MetaTableError, "has no column"),
    ("text_ids", None, MetaTableError, "cannot be the uid"),
    ("no_sequence", None, MetaTableError, "high watermark cannot be read"),
]


def _check_nothing_is_lost(ten_files: Database) -> None:
    """Assert that there are no attempts yet and that each id is delivered once."""
    assert statuses(ten_files) == []
    for batch in acquire_batches("job", "meta_table", COLUMNS, batch_count=4):
        assert batch.items == files(batch.id_range.first_id, batch.id_range.last_id)
        batch.succeeded()
    assert delivered_ids(ten_files) == list(range(1, 11))


def test_invalid_argument_is_named(ten_files: Database) -> None:
    """The error states the argument's name as in the call, its value and the expected form."""
    arguments = {"job": "job", "meta_table_name": "meta_table", "meta_table_cols": COLUMNS}
    for invalid, message in INVALID:
        with pytest.raises(InvalidValueError) as caught:
            acquire_batch(**(arguments | invalid))
        assert message in str(caught.value)
    with pytest.raises(InvalidValueError, match="iterations is -1"):
        acquire_batches("job", "meta_table", COLUMNS, iterations=-1)
    assert query(ten_files, "SELECT count(*) FROM batch_pipeline.batch") == [(0,)]


def test_configure_with_a_dict_as_path_is_refused(ten_files: Database) -> None:
    settings: Any = {"inventory_conn": "postgresql://me:secret@db/ops"}
    with pytest.raises(InvalidValueError, match=r"dot_env is 'dict'.*settings=") as caught:
        client.configure(settings)
    assert "secret" not in str(caught.value)
    _check_nothing_is_lost(ten_files)


def test_fractional_weight_is_rounded_down(ten_files: Database) -> None:
    assert acquired(batch_weight=25.5).count == 2


def test_unsuitable_table_is_refused(ten_files: Database) -> None:
    run(ten_files, UNSUITABLE_TABLES)
    for table, columns, expected, message in UNSUITABLE * 2:
        with pytest.raises(expected, match=message):
            acquire_batch("job", table, columns)
    _check_nothing_is_lost(ten_files)
