"""A temporary Postgres server for a benchmark, with its default flushing."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from batch_pipeline.inventory import embedded_server
from batch_pipeline_tests.benchmarks.wide_records import CHECKED
from batch_pipeline_tests.benchmarks.workload import Facts


@contextmanager
def server(**settings: str) -> Iterator[str]:
    """Start an embedded server with some settings and yield its URL."""
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    data = folder / "postgres"
    url = embedded_server.ensure_running(data)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for name, value in settings.items():
                connection.execute(f"ALTER SYSTEM SET {name} = {value}")
            connection.execute("SELECT pg_reload_conf()")
        yield url
    finally:
        embedded_server.release(data)
        shutil.rmtree(folder)


@contextmanager
def database(server_url: str) -> Iterator[str]:
    """Create an empty database after a checkpoint and yield its URL."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE warehouse")
        connection.execute("CHECKPOINT")
    try:
        yield server_url.replace("/postgres?", "/warehouse?")
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute("DROP DATABASE warehouse WITH (FORCE)")


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
