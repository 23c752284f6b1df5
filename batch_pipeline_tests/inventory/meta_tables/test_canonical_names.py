"""Names and texts that people and programs give: found by any spelling, refused if unusable."""

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

UNSTORABLE = ["a\0b", "a\ud800b"]
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
def known(meta_table: Database) -> Database:
    """A job `known` that has acquired a batch of `meta_table`."""
    fill_evenly(meta_table.engine, 4)
    acquired("known", batch_count=1).succeeded()
    return meta_table


@pytest.mark.parametrize("text", UNSTORABLE)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.usefixtures("known")
def test_text_that_cannot_be_stored_is_refused_at_the_entry(call: str, text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        CALLS[call](text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("spelled", ["meta_table", "public.meta_table", 'PUBLIC."meta_table"'])
def test_job_is_found_by_any_spelling_of_its_table(known: Database, spelled: str) -> None:
    pause_job("known", "by the library", spelled)
    resume_job("known", spelled)
    url = known.engine.url.render_as_string(hide_password=False)
    environment = {"BATCH_PIPELINE_INVENTORY_CONN": url}
    for command in ("pause", "list", "resume", "retry", "cancel"):
        words = ["jobs", command, "known", "--meta-table", spelled]
        done = CliRunner().invoke(cli, words, env=environment)
        assert done.exit_code == 0, done.output


def test_job_on_a_table_that_does_not_exist_is_unknown(known: Database) -> None:
    with pytest.raises(UnknownJobError, match="jobs: known"):
        pause_job("known", meta_table_name="public.others")
    assert query(known, "SELECT paused_at FROM batch_pipeline.job") == [(None,)]


@pytest.mark.parametrize(("uid", "rows"), [("high", 1), (1.5, 3)])
def test_id_of_sqlite_that_is_no_integer_is_refused_by_name(
    sqlite: sa.Engine, uid: Any, rows: int
) -> None:
    execute(sqlite, "CREATE TABLE odd (uid BIGINT NOT NULL UNIQUE, item TEXT, weight BIGINT)")
    for one in (uid, *range(1, rows)):
        execute(sqlite, "INSERT INTO odd VALUES (:uid, 'file', 1)", uid=one)
    with pytest.raises(MetaTableError, match=f"the id {uid!r} is not an integer"):
        ReflectedMetaTable.open(sqlite, "odd", MetaColumns()).next_cut(None, 10, limits())
