"""Names and texts from users: any spelling works, text that cannot be stored is rejected."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from batch_pipeline import acquire_batch, cancel_job, job_status, pause_job, resume_job, retry_job
from batch_pipeline.cli import cli
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.errors import InvalidValueError, MetaTableError, UnknownJobError
from batch_pipeline_tests.client.client_tables import COLUMNS, acquired, fill_evenly
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute
from batch_pipeline_tests.seeds import query

CALLS: dict[str, Callable[[str], object]] = {
    "job_identifier": lambda text: acquire_batch("job", "meta_table", COLUMNS, job_identifier=text),
    "job": lambda text: acquire_batch(text, "meta_table", COLUMNS),
    "job of status": lambda text: job_status(text, "meta_table", COLUMNS),
    "where": lambda text: acquire_batch(
        "job", "meta_table", COLUMNS, where=[{"column": "file", "operator": "=", "value": text}]
    ),
    "reason": lambda text: pause_job("known", text),
    "paused": pause_job,
    "cancelled": cancel_job,
    "retried": retry_job,
}


@pytest.fixture
def known_job(meta_table: Database) -> Database:
    """A job `known` that has acquired a batch of `meta_table`."""
    fill_evenly(meta_table.engine, 4)
    acquired("known", batch_count=1).succeeded()
    return meta_table


@pytest.mark.usefixtures("known_job")
def test_text_that_cannot_be_stored_is_rejected() -> None:
    for call in CALLS.values():
        for text in ("a\0b", "a\ud800b"):
            with pytest.raises(InvalidValueError) as caught:
                call(text)
            assert repr(text) in str(caught.value)


@pytest.mark.parametrize("spelled", ["meta_table", "public.meta_table", 'PUBLIC."meta_table"'])
def test_any_spelling_of_table_name_finds_job(known_job: Database, spelled: str) -> None:
    pause_job("known", "by the library", spelled)
    resume_job("known", spelled)
    url = known_job.engine.url.render_as_string(hide_password=False)
    environment = {"BATCH_PIPELINE_INVENTORY_CONN": url}
    for command in ("pause", "list", "resume", "retry", "cancel"):
        words = ["jobs", command, "known", "--meta-table", spelled]
        done = CliRunner().invoke(cli, words, env=environment)
        assert done.exit_code == 0, done.output


def test_nonexistent_table_raises_unknown_job(known_job: Database) -> None:
    with pytest.raises(UnknownJobError, match="jobs: known"):
        pause_job("known", meta_table_name="public.others")
    assert query(known_job, "SELECT paused_at FROM batch_pipeline.job") == [(None,)]


@pytest.mark.parametrize(("uid", "rows"), [("high", 1), (1.5, 3)])
def test_non_integer_sqlite_id_is_rejected(sqlite: sa.Engine, uid: Any, rows: int) -> None:
    execute(sqlite, "CREATE TABLE odd (uid BIGINT NOT NULL UNIQUE, item TEXT, weight BIGINT)")
    for value in (uid, *range(1, rows)):
        execute(sqlite, "INSERT INTO odd VALUES (:uid, 'file', 1)", uid=value)
    with pytest.raises(MetaTableError, match=f"the id {uid!r} is not an integer"):
        ReflectedMetaTable.open(sqlite, "odd", MetaColumns()).next_cut(None, 10, limits())
