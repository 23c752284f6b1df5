"""The library with a meta table in MariaDB and the inventory in Postgres."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from batch_pipeline import acquire_batches, client
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import MetaUnreachableError
from batch_pipeline_tests.client.client_tables import (
    COLUMNS,
    acquire_or_none,
    acquired,
    delivered_ids,
    files,
    fill_evenly,
)
from batch_pipeline_tests.inventory.meta_tables.user_tables import execute

CREATE = """
CREATE TABLE meta_table (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, file VARCHAR(500), size_in_mib BIGINT
) ENGINE=InnoDB
"""


@pytest.fixture
def table(
    mariadb: sa.Engine, mariadb_url: str, database: Database, database_url: str
) -> Iterator[sa.Engine]:
    """A MariaDB database with ten files of 10 MiB, configured as the meta database."""
    execute(mariadb, CREATE, "CREATE USER app@localhost", "GRANT SELECT ON meta.* TO app@localhost")
    fill_evenly(mariadb, 10)
    # Without a driver name, as users write it.
    url = mariadb_url.replace("/mysql?", "/meta?").replace("mysql+pymysql://root", "mariadb://app")
    client.configure(settings={"inventory_conn": database_url, "meta_conn": url})
    yield mariadb
    client.close()
    execute(mariadb, "DROP USER app@localhost")


def test_mariadb_table_is_batched(table: sa.Engine, database: Database) -> None:
    """Rows of an open transaction are delivered after its commit."""
    batches = acquire_batches("job", "meta_table", COLUMNS, batch_weight=40)
    assert [batch.process(len) for batch in batches] == [4, 4, 2]
    with table.begin() as late:
        late.execute(sa.text("INSERT INTO meta_table (file, size_in_mib) VALUES ('file-11', 1)"))
        fill_evenly(table, 12, first_id=12)
        assert acquire_or_none() is None
    assert acquired().process(list) == files(11, 12)
    assert delivered_ids(database) == list(range(1, 13))


def test_batch_survives_a_refused_mariadb_login(table: sa.Engine, database: Database) -> None:
    batch = acquired(batch_count=4)
    execute(table, "ALTER USER app@localhost ACCOUNT LOCK")
    with table.connect() as root_connection:
        sessions = "SELECT id FROM information_schema.processlist WHERE user = 'app'"
        for (session,) in root_connection.execute(sa.text(sessions)).all():
            root_connection.execute(sa.text(f"KILL {session}"))
    for _ in range(2):
        with pytest.raises(MetaUnreachableError):
            _ = batch.items
        with pytest.raises(MetaUnreachableError):
            acquire_or_none()
    execute(table, "ALTER USER app@localhost ACCOUNT UNLOCK")
    assert batch.items == files(1, 4)
    batch.succeeded()
    assert acquired().process(list) == files(5, 10)
    assert delivered_ids(database) == list(range(1, 11))
