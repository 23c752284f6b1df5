"""Chained jobs: one job reads the published rows of another, each exactly once."""

import logging
from importlib.resources import files as files_of
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline import Batch, acquire_batch, client, inventory
from batch_pipeline.client.session import SESSIONS
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.chained_table import PUBLISHED_COLUMNS, PublishedSources
from batch_pipeline.inventory.meta_tables.sources import SourceTerms
from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    JobChangedError,
    MetaTableError,
    MetaTableRestartedError,
)
from batch_pipeline.model.filter import parse_filter
from batch_pipeline_tests.client.client_tables import acquire_or_none, acquired, fill_evenly
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.logins import Logins
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    items_of,
    record_statements,
    rows_scanned_by_table,
)
from batch_pipeline_tests.seeds import execute, planned, publish, query

FUNCTION = (files_of(inventory) / "acquire_in_server.sql").read_text(encoding="utf-8")


def equals(column: str, value: object) -> dict[str, object]:
    """Return an equality condition of a filter."""
    return {"column": column, "operator": "=", "value": value}


def read(job: str, upstream: str, *conditions: dict[str, object], **options: Any) -> Batch | None:
    """Acquire a batch of the published rows of an upstream job."""
    where: list[object] = [equals("job", upstream), *conditions]
    return acquire_batch(job, options.pop("table", "inventory"), where=where, **options)


def read_all(
    job: str, upstream: str, *conditions: dict[str, object], **options: Any
) -> list[list[Any]]:
    """Acquire and release batches until none is left; return the items of each."""
    batches = []
    while (batch := read(job, upstream, *conditions, **options)) is not None:
        batches.append(batch.items)
        batch.succeeded()
    return batches


PLANNED_UP_TO = """
SELECT max(last_id) FROM batch_pipeline.bookmark JOIN batch_pipeline.job ON id = job_id
 WHERE name = 'down'
"""


def test_downstream_reads_results_in_publish_order(ten_files: Database) -> None:
    """Not in the order of acquisition."""
    first, second, third = (acquired("up", batch_count=2) for _ in range(3))
    for batch in (second, third, first):
        batch.succeeded(result={"first": batch.id_range.first_id})
    assert read_all("down", "up", batch_count=2) == [[{"first": 3}, {"first": 5}], [{"first": 1}]]


def test_any_name_of_published_table_continues_same_job(ten_files: Database) -> None:
    names = ("inventory", "INVENTORY", "batch_pipeline.inventory", '"batch_pipeline"."published"')
    for number, table in enumerate(names, start=1):
        acquired("up", batch_count=1).succeeded(result=number)
        batch = read("down", "up", table=table)
        assert batch is not None
        assert (batch.id_range, batch.items) == (
            IdRange(first_id=number, last_id=number),
            [number],
        )
        batch.succeeded()


def test_running_and_failed_batches_are_not_delivered(ten_files: Database) -> None:
    running, failed, done = (acquired("up", batch_count=2, max_attempts=5) for _ in range(3))
    failed.failed("no")
    done.succeeded(result="third")
    assert read_all("down", "up") == [["third"]]
    again = acquired("up", batch_id_max=4, max_attempts=5)
    again.succeeded(result="second")
    assert read_all("down", "up") == [["second"]]
    running.failed("no")
    assert read("down", "up") is None


def test_upstream_weights_and_counts_limit_chained_batches(ten_files: Database) -> None:
    for count in (1, 2, 3, 4):
        acquired("up", batch_count=count).succeeded(result=count)
    assert read_all("down", "up", batch_weight=35) == [[1, 2], [3], [4]]
    columns = {"item": "batch_count", "weight": None}
    assert read_all("counted", "up", batch_count=3, meta_table_cols=columns) == [[1, 2, 3], [4]]


@pytest.mark.usefixtures("configured")
def test_republished_batch_is_delivered_as_new_row(database: Database) -> None:
    """The items are the part file URIs of each generation."""
    batches = planned(database, batches=2)
    manifests = [publish(database, batch) for batch in batches]
    expected = [[part.uri for part in manifest.part_files] for manifest in manifests]
    assert read_all("down", "orders") == [expected]
    again = publish(database, batches[0])
    assert again.generation == 2
    assert read_all("down", "orders") == [[[part.uri for part in again.part_files]]]
    second = [equals("generation", 2)]
    assert read_all("second generations", "orders", *second) == [
        [[part.uri for part in again.part_files]]
    ]


def test_batch_without_result_is_delivered_as_empty_list(ten_files: Database) -> None:
    results: tuple[Any, ...] = (None, [], {"a": None}, "text", 2**60)
    for result in results:
        acquired("up", batch_count=1).succeeded(result=result)
    assert read_all("down", "up") == [[[], [], {"a": None}, "text", 2**60]]


def test_chained_batch_is_acquired_in_server(ten_files: Database) -> None:
    """From the second batch on, one function call replaces all writes of the client."""
    for number in range(4):
        acquired("up", batch_count=1).succeeded(result=number)
    first = read("down", "up", batch_count=1)
    assert first is not None
    engine = SESSIONS.current().database.engine
    with record_statements(engine) as statements:
        second = read("down", "up", batch_count=1)
    assert second is not None
    assert second.items == [1]
    sent = " ".join(statement for statement, _ in statements)
    assert "pg_temp.batch_pipeline_acquire(" in sent
    assert "INSERT INTO batch_pipeline.attempt" not in sent.replace(FUNCTION, "")


def test_publishes_of_other_jobs_do_not_move_bookmark(ten_files: Database) -> None:
    for _ in range(5):
        acquired("busy", batch_count=1).succeeded()
    acquired("up", batch_count=1).succeeded(result=1)
    assert read_all("down", "up") == [[1]]
    acquired("up", batch_count=1).succeeded(result=2)
    for other in ("busy", "elsewhere"):  # the latter does not exist
        with pytest.raises(JobChangedError):
            read("down", other)
    assert read_all("down", "up") == [[2]]


def test_concurrent_publish_and_acquire_delivers_each_batch_once(meta_table: Database) -> None:
    fill_evenly(meta_table.engine, 120)
    published: list[int] = []
    received: list[int] = []

    def upstream() -> None:
        while (batch := acquire_or_none("up", batch_count=3)) is not None:
            batch.succeeded(result=batch.id_range.first_id)
            published.append(batch.id_range.first_id)

    def downstream() -> None:
        while query(meta_table, PLANNED_UP_TO) != [(40,)]:
            batch = read("down", "up", batch_count=3)
            if batch is not None:
                received.extend(batch.items)
                batch.succeeded()

    assert together(*[upstream] * 8, *[downstream] * 2) == [None] * 10
    assert sorted(published) == list(range(1, 121, 3))
    assert sorted(received) == sorted(published)


def test_job_may_read_job_of_same_name_on_another_table(ten_files: Database) -> None:
    acquired("same", batch_count=1).succeeded(result="of the table")
    with pytest.raises(ConfigurationError, match=r"on public\.meta_table, batch_pipeline\.p"):
        read("same", "same")
    condition = equals("meta_table", "public.meta_table")
    assert read_all("same", "same", condition) == [["of the table"]]


def test_cycle_is_rejected_and_named(ten_files: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The job that would close the cycle is rejected; the others continue."""
    with caplog.at_level(logging.WARNING, "batch_pipeline"):
        assert read("a", "b") is None
    assert caplog.messages == ["a: there is no job b yet to read from (jobs: none)"]
    assert read("b", "c") is None
    with pytest.raises(ConfigurationError, match="Jobs would read their own output") as caught:
        read("c", "a")
    assert "'c' reads 'a' reads 'b' reads 'c'." in str(caught.value)
    acquired("c", batch_count=1).succeeded(result="c is another job")
    assert read_all("b", "c") == [["c is another job"]]
    assert read_all("a", "b") == [[[]]]
    for conditions in ([], [equals("meta_table", "batch_pipeline.published")]):
        with pytest.raises(ConfigurationError, match="'down' reads 'down'"):
            read("down", "down", *conditions)
    assert query(ten_files, "SELECT FROM batch_pipeline.job WHERE name = 'down'") == []


def test_filter_must_name_exactly_one_job(ten_files: Database) -> None:
    for where in (None, [equals("batch_count", 1)], [equals("job", "a"), equals("job", "b")]):
        with pytest.raises(ConfigurationError, match="Name exactly one"):
            acquire_batch("down", "inventory", where=where)
    any_of = {"any": [equals("job", "a"), equals("job", "b")]}
    with pytest.raises(ConfigurationError, match="does not say of which job"):
        acquire_batch("down", "inventory", where=any_of)


def test_ambiguous_upstream_name_is_rejected(ten_files: Database) -> None:
    """A job that started before the name became ambiguous continues."""
    acquired("up", batch_count=1).succeeded(result="first table")
    assert read_all("early", "up") == [["first table"]]
    execute(ten_files, "CREATE TABLE other (uid bigint PRIMARY KEY, item text)")
    execute(ten_files, "INSERT INTO other VALUES (1, 'x')")
    columns = {"weight": None}
    other = acquire_batch("up", "other", columns, ceiling="registrar")
    assert other is not None
    other.succeeded(result="second table")
    with pytest.raises(ConfigurationError, match="there are jobs of this name on") as caught:
        read("down", "up")
    assert "of this name on public.meta_table, public.other." in str(caught.value)
    assert read_all("down", "up", equals("meta_table", "public.other")) == [["second table"]]
    acquired("up", batch_count=1).succeeded(result="more")
    assert read_all("early", "up") == [["more"]]


def test_other_ids_watermarks_and_columns_are_rejected(ten_files: Database) -> None:
    with pytest.raises(InvalidValueError, match="'publish_number'"):
        read("down", "up", meta_table_cols={"uid": "id"})
    with pytest.raises(MetaTableError, match="commit order"):
        read("down", "up", ceiling="locks")
    with pytest.raises(MetaTableError, match="Omit `ceiling` and `settle_by`"):
        read("down", "up", settle_by="published_at")
    with pytest.raises(MetaTableError, match="job_result_item"):
        read("down", "up", equals("status", "running"))


@pytest.mark.usefixtures("configured")
def test_deleted_upstream_is_reported_as_restart(database: Database) -> None:
    """Its publish numbers start again."""
    [batch] = planned(database)
    publish(database, batch)
    publish(database, batch)
    assert len(read_all("down", "orders")[0]) == 2
    database.delete_stream("orders")
    [batch] = planned(database)
    publish(database, batch)
    with pytest.raises(MetaTableRestartedError, match=r"planned its ids up to 2.* will be 2"):
        read("down", "orders")


def test_chain_works_with_meta_tables_in_another_database(
    ten_files: Database, database_url: str, tmp_path: Path
) -> None:
    acquired("up", batch_count=1).succeeded(result="from the inventory")
    settings = {"inventory_conn": database_url, "meta_conn": f"sqlite:///{tmp_path}/meta.db"}
    client.configure(settings=settings)
    assert read_all("down", "up") == [["from the inventory"]]


def test_planner_and_worker_roles_can_read_published_batches(logins: Logins) -> None:
    [batch] = planned(logins.of("lib"))
    publish(logins.of("lib"), batch)
    url = logins.of("lib").engine.url.render_as_string(hide_password=False)
    client.configure(settings={"inventory_conn": url})
    assert len(read_all("down", "orders")[0]) == 1
    client.close()


FILL = """
WITH jobs AS (
    INSERT INTO batch_pipeline.job (name, meta_table, publish_count)
    VALUES ('up', 'public.files', 20000), ('other', 'public.files', 100) RETURNING *
), batches AS (
    INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
    SELECT jobs.id, n, n, 10, 1, '{}' FROM jobs, generate_series(1, publish_count) n RETURNING *
)
INSERT INTO batch_pipeline.attempt (batch_id, number, token, liveness_key, status, run_id,
                                    lease_until, finished_at, generation, publish_number, result)
SELECT id, 1, gen_random_uuid(), 1, 'succeeded', '', now(), now(), 1, first_id, '["a"]'
  FROM batches
"""


def test_chained_batch_reads_only_its_rows_and_one_more(database: Database) -> None:
    """If a second job has the same publish numbers, the same number of its rows is read."""
    execute(database, FILL)
    terms = SourceTerms(
        name="inventory",
        columns=PUBLISHED_COLUMNS,
        where=parse_filter([equals("job", "up")]),
        reader="down",
    )
    table = PublishedSources(database.engine, database.engine).table(terms)
    for command, (after_id, jobs) in product(
        ("SELECT 1", "ANALYZE"), ((0, 2), (10_000, 1), (19_900, 1))
    ):
        execute(database, command)
        with record_statements(database.engine) as cutting:
            cut = table.next_cut(after_id, 20_000, limits(max_weight=10**9, max_count=60))
        assert cut is not None
        assert cut.id_range == IdRange(first_id=after_id + 1, last_id=after_id + 60)
        with record_statements(database.engine) as reading:
            assert len(items_of(table, cut.id_range)) == 60
        for statements, rows in ((cutting, 61), (reading, 60)):
            read = rows_scanned_by_table(database.engine, statements)
            assert read["batch"] == read["attempt"]
            assert rows * jobs - 1 <= read["batch"] <= rows * jobs
