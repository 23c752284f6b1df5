"""Published batches for all tests of the folder."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from batch_pipeline_tests.conformance.published_home import PublishedHome, published_home


@pytest.fixture(scope="session")
def home(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PublishedHome]:
    """A home with published batches, which tests only read."""
    name = sql.Identifier(f"home_{uuid4().hex}")
    with psycopg.connect(server_url, autocommit=True) as connection:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(create.format(name, sql.Identifier(template)))
        url = server_url.replace("/postgres?", f"/{name.as_string()[1:-1]}?")
        with published_home(tmp_path_factory.mktemp("home"), url) as made:
            yield made
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
