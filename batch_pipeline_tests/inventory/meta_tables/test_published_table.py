"""Chained jobs: what one job has published is the meta table of another, each row exactly once."""

import logging
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from batch_pipeline import Batch, acquire_batch, client, inventory
from batch_pipeline.client.session import SESSIONS
from batch_pipeline.inventory.database import Database
from batch_pipeline.inventory.meta_tables.chained_table import PUBLISHED_COLUMNS, PublishedSources
from batch_pipeline.inventory.meta_tables.sources import SourceTerms
from batch_pipeline.model.errors import (
    ConfigurationError,
    InvalidValueError,
    JobChangedError,
    MetaTableError,
    MetaTableRestartedError,
)
from batch_pipeline.model.filter import parse_filter
from batch_pipeline.model.id_range import IdRange
from batch_pipeline_tests.client.client_tables import acquired, files, fill_evenly
from batch_pipeline_tests.concurrency import together
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.inventory.logins import Logins
from batch_pipeline_tests.inventory.meta_tables.user_tables import recorded
from batch_pipeline_tests.seeds import execute, planned, publish, query

FUNCTION = (files_of(inventory) / "acquire_in_server.sql").read_text(encoding="utf-8")


def equals(column: str, value: object) -> dict[str, object]:
    """A condition of a filter."""
    return {"column": column, "operator": "=", "value": value}


def read(job: str, upstream: str, *conditions: dict[str, object], **asked: Any) -> Batch | None:
    """Acquire a batch of what a job has published."""
    where: list[object] = [equals("job", upstream), *conditions]
    return acquire_batch(job, asked.pop("table", "inventory"), where=where, **asked)


def taken(job: str, upstream: str, *conditions: dict[str, object], **asked: Any) -> list[list[Any]]:
    """Acquire and release batch after batch; give the items of each."""
    batches = []
    while (batch := read(job, upstream, *conditions, **asked)) is not None:
        batches.append(batch.items)
        batch.succeeded()
    return batches


@pytest.fixture
def ten(meta_table: Database) -> Database:
    """Ten files in the meta table, none of them acquired."""
    fill_evenly(meta_table.engine, 10)
    return meta_table


def test_downstream_gets_results_in_publish_order(ten: Database) -> None:
    """Expect the order in which batches were released, not the one in which they were acquired."""
    first, second, third = (acquired("up", batch_count=2) for _ in range(3))
    for batch in (second, third, first):
        batch.succeeded(result={"first": batch.id_range.first_id})
    assert taken("down", "up", batch_count=2) == [[{"first": 3}, {"first": 5}], [{"first": 1}]]


@pytest.mark.parametrize(
    "table",
    ["inventory", "INVENTORY", "batch_pipeline.inventory", '"batch_pipeline"."published"'],
)
def test_every_name_of_the_inventory_is_the_same_job(ten: Database, table: str) -> None:
    """Expect a job to go on under another name of the table."""
    for _ in range(2):
        acquired("up", batch_count=1).succeeded(result="done")
    first = read("down", "up", batch_count=1)
    assert first is not None
    first.succeeded()
    second = read("down", "up", batch_count=1, table=table)
    assert second is not None
    assert (second.id_range, second.items) == (IdRange(first_id=2, last_id=2), ["done"])


def test_running_and_failed_batches_are_never_delivered(ten: Database) -> None:
    """Expect one row for the batch that succeeded, one more when the failed one does later."""
    running, failed, done = (acquired("up", batch_count=2, max_attempts=5) for _ in range(3))
    failed.failed("no")
    done.succeeded(result="third")
    assert taken("down", "up") == [["third"]]
    again = acquired("up", batch_id_max=4, max_attempts=5)
    again.succeeded(result="second")
    assert taken("down", "up") == [["second"]]
    running.failed("no")
    assert read("down", "up") is None


def test_weights_and_counts_bound_chained_batches(ten: Database) -> None:
    """Expect the weight of an upstream batch to be what the downstream one is limited by."""
    for count in (1, 2, 3, 4):
        acquired("up", batch_count=count).succeeded(result=count)
    assert taken("down", "up", batch_weight=35) == [[1, 2], [3], [4]]
    columns = {"item": "batch_count", "weight": None}
    assert taken("counted", "up", batch_count=3, meta_table_cols=columns) == [[1, 2, 3], [4]]


def test_batch_published_once_more_is_delivered_as_a_new_row(database: Database) -> None:
    """Expect part file URIs of a stream's batches, and those of a new generation once more."""
    client.configure(settings={"inventory_conn": str(database.engine.url.render_as_string(False))})
    one, two = planned(database, batches=2)
    manifests = [publish(database, batch) for batch in (one, two)]
    expected = [[part.uri for part in manifest.part_files] for manifest in manifests]
    assert taken("down", "orders") == [expected]
    again = publish(database, one)
    assert again.generation == 2
    assert taken("down", "orders") == [[[part.uri for part in again.part_files]]]
    second = [equals("generation", 2)]
    assert taken("second generations", "orders", *second) == [
        [[part.uri for part in again.part_files]]
    ]
    client.close()


def test_batch_without_a_result_is_delivered_as_an_empty_list(ten: Database) -> None:
    """Expect a row for every published batch, whatever its result."""
    results: tuple[Any, ...] = (None, [], {"a": None}, "text", 2**60)
    for result in results:
        acquired("up", batch_count=1).succeeded(result=result)
    assert taken("down", "up") == [[[], [], {"a": None}, "text", 2**60]]


def test_chained_batch_takes_the_short_way_in_the_server(ten: Database) -> None:
    """Expect one function call and no statement that writes, from the second batch on."""
    for number in range(4):
        acquired("up", batch_count=1).succeeded(result=number)
    first = read("down", "up", batch_count=1)
    assert first is not None
    engine = SESSIONS.current().database.engine
    with recorded(engine) as statements:
        second = read("down", "up", batch_count=1)
    assert second is not None
    assert second.items == [1]
    sent = " ".join(statement for statement, _ in statements)
    assert "pg_temp.batch_pipeline_acquire(" in sent
    assert "INSERT INTO batch_pipeline.attempt" not in sent.replace(FUNCTION, "")


def test_jobs_that_publish_more_do_not_move_the_bookmark(ten: Database) -> None:
    """Expect the ceiling to be that of the job that is read, whatever others have published."""
    for _ in range(5):
        acquired("busy", batch_count=1).succeeded()
    acquired("up", batch_count=1).succeeded(result=1)
    assert taken("down", "up") == [[1]]
    acquired("up", batch_count=1).succeeded(result=2)
    assert taken("down", "up") == [[2]]


def test_three_jobs_in_a_chain_pass_everything_on(ten: Database) -> None:
    """Expect the last of three to see what the first began with."""
    while acquired_one := acquire_up():
        acquired_one.process(lambda items: items)
    while batch := read("middle", "up", batch_count=2):
        batch.process(lambda results: [one.upper() for result in results for one in result])
    assert taken("last", "middle", batch_count=10) == [
        [
            [name.upper() for name in files(1, 6)],
            [name.upper() for name in files(7, 10)],
        ]
    ]


def acquire_up() -> Batch | None:
    """Acquire three files."""
    columns = {"uid": "id", "item": "file", "weight": "size_in_mib"}
    return acquire_batch("up", "meta_table", columns, batch_count=3)


def test_published_by_eight_threads_while_acquired_nothing_is_lost_or_doubled(
    meta_table: Database,
) -> None:
    """Expect every upstream batch once, over the short way in the server and the long one."""
    fill_evenly(meta_table.engine, 240)

    def upstream() -> list[Any]:
        done = []
        while batch := acquire_up():
            batch.succeeded(result=batch.id_range.first_id)
            done.append(batch.id_range.first_id)
        return done

    def downstream() -> list[Any]:
        got: list[Any] = []
        while len(got) < 80:
            batch = read("down", "up", batch_count=3)
            if batch is None:
                if finished(meta_table, "up") and nothing_waits(meta_table):
                    break
                continue
            got += batch.items
            batch.succeeded()
        return got

    results = together(*[upstream] * 8, *[downstream] * 2)
    assert not [one for one in results if isinstance(one, Exception)]
    produced, received = (
        sorted(item for one in part for item in one)  # type: ignore[union-attr] # no error, above
        for part in (results[:8], results[8:])
    )
    assert produced == list(range(1, 241, 3))
    assert received == produced


def finished(database: Database, job: str) -> bool:
    """Tell whether all 80 batches of a job are published."""
    counted = "SELECT publish_count FROM batch_pipeline.job WHERE name = :job"
    return query(database, counted, job=job) == [(80,)]


def nothing_waits(database: Database) -> bool:
    """Tell whether the downstream job is planned up to the end."""
    planned_up_to = (
        "SELECT max(last_id) FROM batch_pipeline.bookmark JOIN batch_pipeline.job ON id = job_id "
        "WHERE name = 'down'"
    )
    return query(database, planned_up_to) == [(80,)]


def test_job_that_reads_itself_is_refused(ten: Database) -> None:
    """Expect no job to be made, with the meta table told or not."""
    for conditions in ([], [equals("meta_table", "batch_pipeline.published")]):
        with pytest.raises(ConfigurationError, match="'down' reads 'down'"):
            read("down", "down", *conditions)
    assert query(ten, "SELECT FROM batch_pipeline.job") == []


def test_job_may_read_the_one_of_its_name_on_another_table(ten: Database) -> None:
    """Expect the meta table to tell them apart, and to be asked for."""
    acquired("same", batch_count=1).succeeded(result="of the table")
    with pytest.raises(ConfigurationError, match=r"on public\.meta_table, batch_pipeline\.p"):
        read("same", "same")
    told = equals("meta_table", "public.meta_table")
    assert taken("same", "same", told) == [["of the table"]]


def test_cycles_are_refused_by_name(ten: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Expect the job that would close a circle of three to be refused, and the others to go on."""
    with caplog.at_level(logging.WARNING, "batch_pipeline"):
        assert read("a", "b") is None
    assert caplog.messages == ["a: there is no job b yet to read from (jobs: none)"]
    assert read("b", "c") is None
    with pytest.raises(ConfigurationError, match="Jobs would read their own output") as caught:
        read("c", "a")
    assert "'c' reads 'a' reads 'b' reads 'c'." in str(caught.value)
    acquired("c", batch_count=1).succeeded(result="c is another job")
    assert taken("b", "c") == [["c is another job"]]
    assert taken("a", "b") == [[[]]]


def test_filter_that_names_no_single_job_is_refused(ten: Database) -> None:
    """Expect the message to show the filter that is missing."""
    for where in (None, [equals("batch_count", 1)], [equals("job", "a"), equals("job", "b")]):
        with pytest.raises(ConfigurationError, match="Name exactly one"):
            acquire_batch("down", "inventory", where=where)
    any_of = {"any": [equals("job", "a"), equals("job", "b")]}
    with pytest.raises(ConfigurationError, match="does not say of which job"):
        acquire_batch("down", "inventory", where=any_of)


def test_jobs_of_one_name_on_two_tables_must_be_told_apart(ten: Database) -> None:
    """Expect the first call to be refused, and a job that was there before to go on."""
    acquired("up", batch_count=1).succeeded(result="first table")
    assert taken("early", "up") == [["first table"]]
    execute(ten, "CREATE TABLE other (uid bigint PRIMARY KEY, item text)")
    execute(ten, "INSERT INTO other VALUES (1, 'x')")
    columns = {"weight": None}
    other = acquire_batch("up", "other", columns, ceiling="registrar")
    assert other is not None
    other.succeeded(result="second table")
    with pytest.raises(ConfigurationError, match="there are jobs of this name on") as caught:
        read("down", "up")
    assert "of this name on public.meta_table, public.other." in str(caught.value)
    assert taken("down", "up", equals("meta_table", "public.other")) == [["second table"]]
    acquired("up", batch_count=1).succeeded(result="more")
    assert taken("early", "up") == [["more"]]


def test_reader_of_another_job_cannot_change_its_mind(ten: Database) -> None:
    """Expect a bookmark to belong to the job that it was made for."""
    acquired("up", batch_count=1).succeeded()
    assert taken("down", "up") == [[[]]]
    with pytest.raises(JobChangedError):
        read("down", "elsewhere")


def test_other_ids_ceilings_and_columns_are_refused(ten: Database) -> None:
    """Expect what would lose rows to be told, and what is not there to be listed."""
    with pytest.raises(InvalidValueError, match="'publish_number'"):
        read("down", "up", meta_table_cols={"uid": "id"})
    with pytest.raises(MetaTableError, match="commit order"):
        read("down", "up", ceiling="locks")
    with pytest.raises(MetaTableError, match="commit order"):
        read("down", "up", settle_by="published_at")
    with pytest.raises(MetaTableError, match="job_result_item"):
        read("down", "up", equals("status", "running"))


def test_forgotten_upstream_is_reported(database: Database) -> None:
    """Expect publish numbers that start again to be an error, not silence."""
    client.configure(settings={"inventory_conn": str(database.engine.url.render_as_string(False))})
    [one] = planned(database)
    publish(database, one)
    publish(database, one)
    assert len(taken("down", "orders")[0]) == 2
    database.delete_stream("orders")
    [one] = planned(database)
    publish(database, one)
    with pytest.raises(MetaTableRestartedError, match=r"planned its ids up to 2.* given is 2"):
        read("down", "orders")
    client.close()


def test_chain_works_beside_meta_tables_of_another_database(
    ten: Database, database_url: str, tmp_path: Path
) -> None:
    """Expect the inventory to be read where it is, though meta tables are in SQLite."""
    acquired("up", batch_count=1).succeeded(result="from the inventory")
    settings = {"inventory_conn": database_url, "meta_conn": f"sqlite:///{tmp_path}/meta.db"}
    client.configure(settings=settings)
    assert taken("down", "up") == [["from the inventory"]]


def test_planner_and_worker_may_read_what_is_published(logins: Logins) -> None:
    """Expect the rights that acquiring takes to be enough for a chained job."""
    [one] = planned(logins.of("lib"))
    publish(logins.of("lib"), one)
    url = logins.of("lib").engine.url.render_as_string(hide_password=False)
    client.configure(settings={"inventory_conn": url})
    assert len(taken("down", "orders")[0]) == 1
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


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize(("after_id", "jobs"), [(0, 2), (10_000, 1), (19_900, 1)])
def test_chained_batch_reads_its_rows_and_one(
    database: Database, after_id: int, jobs: int, *, analyzed: bool
) -> None:
    """Expect a job's 61 and 60 rows to be read, and as many of a job that has equal numbers."""
    execute(database, FILL)
    execute(database, "ANALYZE" if analyzed else "SELECT 1")
    terms = SourceTerms(
        name="inventory",
        columns=PUBLISHED_COLUMNS,
        where=parse_filter([equals("job", "up")]),
        reader="down",
    )
    table = PublishedSources(database.engine, database.engine).table(terms)
    with recorded(database.engine) as cutting:
        cut = table.next_cut(after_id, 20_000, limits(max_weight=10**9, max_count=60))
    assert cut is not None
    assert cut.id_range == IdRange(first_id=after_id + 1, last_id=after_id + 60)
    with recorded(database.engine) as reading:
        assert len(table.items(cut.id_range)) == 60
    for statements, rows in ((cutting, 61), (reading, 60)):
        read = rows_read(database.engine, statements)
        assert read["batch"] == read["attempt"]
        assert rows * jobs - 1 <= read["batch"] <= rows * jobs


def rows_read(engine: sa.Engine, statements: Sequence[tuple[str, Any]]) -> Counter[str]:
    """Explain a statement and count the rows that were read of each table."""
    [(statement, parameters)] = statements
    with engine.connect() as connection:
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
        [plan] = connection.exec_driver_sql(explain, parameters).scalar_one()
    return scanned(plan["Plan"])


def scanned(node: dict[str, Any]) -> Counter[str]:
    """Add up what the scans of a plan met."""
    count: Counter[str] = Counter()
    for inner in node.get("Plans", ()):
        count += scanned(inner)
    if "Relation Name" in node:
        met = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        count[node["Relation Name"]] += round(met * node["Actual Loops"])
    return count
