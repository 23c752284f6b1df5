"""A real PostgreSQL server for the whole session, and a separate database for each test."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

from batch_pipeline import client
from batch_pipeline.inventory import embedded_server
from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.batch import Batch
from batch_pipeline.storage import s3_client
from batch_pipeline_tests.client.client_tables import CREATE_META_TABLE, fill_evenly
from batch_pipeline_tests.inventory.logins import (
    Logins,
    copied_database,
    database_name,
    logins_to,
    make_logins,
    new_data_folder,
    run,
)
from batch_pipeline_tests.inventory.meta_tables.user_tables import (
    CREATE_FILES,
    FILES,
    MARIADB,
    execute,
    meta_engine,
)
from batch_pipeline_tests.mariadb_server import mariadb_server
from batch_pipeline_tests.object_store import ObjectStore, open_store
from batch_pipeline_tests.pipeline.attempt_fixture import EncodeHarness, open_harness
from batch_pipeline_tests.proofs import (  # noqa: F401 - where pytest looks for its hooks
    figures,
    long_form,
    pytest_addoption,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)
from batch_pipeline_tests.seeds import planned
from batch_pipeline_tests.session import (  # noqa: F401 - where pytest looks for its hooks
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_sessionfinish,
    pytest_xdist_auto_num_workers,
)
from batch_pipeline_tests.store_faults import Faults, proxy

if TYPE_CHECKING:
    from batch_pipeline_tests.defs.defs_fixture import DefsHarness

collect_ignore = (
    []
    if MARIADB
    else ["client/test_mariadb.py", "inventory/meta_tables/test_watermarks_mariadb.py"]
)

# The duration of an example depends on the machine.
_BASE = settings(deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", _BASE)  # loaded by `--long`, see `session.py`
# For `pytest --hypothesis-profile=nightly`: many more examples.
settings.register_profile(
    "nightly",
    _BASE,
    max_examples=800,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
)
# The examples are the same in each session.
settings.register_profile("usual", _BASE, derandomize=True, database=None)
settings.load_profile("usual")


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """URL of an embedded server that ends with the session."""
    with new_data_folder() as data:
        url = embedded_server.ensure_running(data)
        # Tests kill processes, but never the machine, so nothing has to survive a power failure.
        run(url, "ALTER SYSTEM SET fsync = off")
        run(url, "ALTER SYSTEM SET full_page_writes = off")
        # Autovacuum takes locks and changes plans at any time.
        run(url, "ALTER SYSTEM SET autovacuum = off")
        # The write-ahead log may be in memory.
        run(url, "ALTER SYSTEM SET max_wal_size = '256MB'")
        run(url, "SELECT pg_reload_conf()")
        yield url


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """Name of a migrated database that tests copy."""
    with copied_database(server_url) as url:
        open_database(url, migrated=True).close()
        yield database_name(url)


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """URL of a database without an inventory."""
    with copied_database(server_url) as url:
        yield url


@pytest.fixture
def database_url(server_url: str, template: str) -> Iterator[str]:
    """URL of a fresh, migrated inventory."""
    with copied_database(server_url, template) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A fresh, open inventory."""
    with closing(open_database(database_url, migrated=False)) as opened:
        yield opened


@pytest.fixture
def rival(database_url: str) -> Iterator[Database]:
    """The same inventory, opened by another client."""
    with closing(open_database(database_url, migrated=False)) as opened:
        yield opened


@pytest.fixture(scope="session")
def warm_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Spark Connect server that runs until the session ends."""
    from batch_pipeline.spark.spark_connect import SparkConnectServer

    with SparkConnectServer(tmp_path_factory.mktemp("spark")) as server:
        yield server.remote


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """An S3 server that ends with the session."""
    with open_store() as store:
        yield store


@pytest.fixture
def bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URI of a new bucket that this process and its children can use."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    s3_client.forget()
    yield f"s3://{object_store.new_bucket()}"
    s3_client.forget()


@pytest.fixture
def faults(
    bucket: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Faults]:
    """The store of the bucket behind a proxy that can inject faults."""
    with proxy(object_store.endpoint) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.endpoint)
        s3_client.forget()
        yield between


@pytest.fixture
def targets() -> dict[str, Any]:
    """The targets of the stream of `project`; a module with other ones overrides this."""
    return {}


@pytest.fixture
def project(
    database: Database,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    targets: dict[str, Any],
) -> "Iterator[DefsHarness]":
    """The stream `orders` with twelve items of 10 bytes in four planned batches of three.

    Environment variables name its home, its stream file and its inventory.
    """
    from batch_pipeline_tests.defs.defs_fixture import open_defs_harness  # imports Dagster

    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=targets
    ) as opened:
        yield opened


@pytest.fixture
def one(database: Database) -> Batch:
    """The planned batch 1..3 of the inventory."""
    return planned(database)[0]


@pytest.fixture
def harness(database: Database, tmp_path: Path) -> EncodeHarness:
    """A planned batch of two items, and everything needed to encode it."""
    return open_harness(database, tmp_path / "batches")


@pytest.fixture
def postgres(server_url: str) -> Iterator[sa.Engine]:
    """A user's Postgres database without an inventory, with an empty schema `ops`."""
    with meta_engine(server_url) as engine:
        execute(engine, "CREATE SCHEMA ops")
        yield engine
        execute(engine, "DROP SCHEMA ops CASCADE", "DROP TABLE IF EXISTS public.files, kinds")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[sa.Engine]:
    """A user's SQLite database with an empty table `files`."""
    with meta_engine(f"sqlite:///{tmp_path}/meta.db") as engine:
        execute(
            engine,
            "CREATE TABLE files (id INTEGER PRIMARY KEY AUTOINCREMENT, file_location TEXT, "
            "size_in_bytes BIGINT, imported TIMESTAMP DEFAULT CURRENT_TIMESTAMP)",
        )
        yield engine


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """URL of a MariaDB server that ends with the session."""
    with mariadb_server() as url:
        yield url


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[sa.Engine]:
    """A user's MariaDB database `meta` with an empty table `files`."""
    with meta_engine(mariadb_url) as server:
        execute(server, "CREATE DATABASE meta")
        with meta_engine(mariadb_url.replace("/mysql?", "/meta?")) as engine:
            execute(
                engine,
                "CREATE TABLE files (id BIGINT AUTO_INCREMENT PRIMARY KEY, "
                "file_location VARCHAR(500), size_in_bytes BIGINT, "
                "imported TIMESTAMP(6) NULL DEFAULT CURRENT_TIMESTAMP(6)) ENGINE=InnoDB",
            )
            yield engine
        execute(server, "DROP DATABASE meta")


@pytest.fixture
def files(postgres: sa.Engine) -> ReflectedMetaTable:
    """An empty table `ops.files` of a Postgres database."""
    execute(postgres, CREATE_FILES)
    return ReflectedMetaTable.open(postgres, "ops.files", FILES)


@pytest.fixture
def sqlite_files(sqlite: sa.Engine) -> ReflectedMetaTable:
    """The empty table `files` of a SQLite database."""
    return ReflectedMetaTable.open(sqlite, "files", FILES)


@pytest.fixture
def mariadb_files(mariadb: sa.Engine) -> ReflectedMetaTable:
    """The empty table `files` of a MariaDB database."""
    return ReflectedMetaTable.open(mariadb, "files", FILES)


@pytest.fixture(scope="session")
def granted_template(server_url: str, template: str) -> Iterator[str]:
    """Name of a migrated database with privileges for the group roles."""
    with copied_database(server_url, template) as url:
        make_logins(url)
        yield database_name(url)


@pytest.fixture
def granted_url(server_url: str, granted_template: str) -> Iterator[str]:
    """URL of a fresh inventory with privileges for the group roles."""
    with copied_database(server_url, granted_template) as url:
        yield url


@pytest.fixture
def logins(granted_url: str) -> Iterator[Logins]:
    """The logins of a fresh inventory."""
    with logins_to(granted_url) as opened:
        yield opened


@pytest.fixture
def configured(database_url: str, tmp_path: Path) -> Iterator[None]:
    """Configure the library for a fresh inventory whose database also has the meta tables."""
    client.configure(settings={"inventory_conn": database_url, "home": tmp_path / "home"})
    yield
    client.close()


@pytest.fixture
def meta_table(configured: None, database: Database) -> Database:
    """An empty table `meta_table` in the inventory's own database."""
    execute(database.engine, CREATE_META_TABLE)
    return database


@pytest.fixture
def ten_files(meta_table: Database) -> Database:
    """Ten files of 10 MiB."""
    fill_evenly(meta_table.engine, 10)
    return meta_table


@pytest.fixture
def hundred_files(meta_table: Database) -> Database:
    """A hundred files of 10 MiB."""
    fill_evenly(meta_table.engine, 100)
    return meta_table
