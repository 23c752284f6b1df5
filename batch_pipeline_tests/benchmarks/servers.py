"""A temporary Postgres server for a benchmark, with its default flushing."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from batch_pipeline.inventory import embedded_server
from batch_pipeline_tests.benchmarks.wide_records import CHECKED
from batch_pipeline_tests.benchmarks.workload import Facts
from batch_pipeline_tests.inventory.logins import copied_database, new_data_folder, run


@contextmanager
def server(**settings: str) -> Iterator[str]:
    """Start an embedded server with some settings and yield its URL."""
    with new_data_folder() as data:
        url = embedded_server.ensure_running(data)
        for name, value in settings.items():
            run(url, f"ALTER SYSTEM SET {name} = {value}")
        run(url, "SELECT pg_reload_conf()")
        yield url


@contextmanager
def database(server_url: str) -> Iterator[str]:
    """Create an empty database after a checkpoint and yield its URL."""
    with copied_database(server_url) as url:
        run(server_url, "CHECKPOINT")
        yield url


def check_table(url: str, table: str, facts: Facts) -> None:
    """Compare the rows of `schema.table` with the generated records.

    Raises:
        AssertionError: they differ.
    """
    statement = sql.SQL("SELECT count(*), sum(id)::bigint, sum({})::bigint FROM {}").format(
        sql.Identifier(CHECKED), sql.Identifier(*table.split("."))
    )
    with psycopg.connect(url) as connection:
        actual = connection.execute(statement).fetchone()
    expected = (facts.records, facts.sum_of_ids, facts.sum_of_integers)
    assert actual == expected, f"records and sums of {table}: {actual}, not {expected}"
