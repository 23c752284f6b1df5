"""The library in several processes: lazy imports, forks and kills."""

import signal
import sys
from pathlib import Path

import pytest

from batch_pipeline import client
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import SettingError
from batch_pipeline_tests.acceptance.sandbox import program_output
from batch_pipeline_tests.client.client_tables import (
    acquire_or_none,
    acquired,
    delivered_ids,
    files,
    fill_evenly,
)
from batch_pipeline_tests.concurrency import eventually, next_line, python, run_python
from batch_pipeline_tests.seeds import query, statuses

PROJECT = Path(__file__).parents[2]
CONFIGURED = """
import os, sys
from batch_pipeline import configure
from batch_pipeline_tests.client.client_tables import acquire_or_none, acquired
configure(settings={"inventory_conn": sys.argv[1]})
"""
ACQUIRE_AND_RELEASE = (
    CONFIGURED
    + """
batch = acquired(batch_count=5)
batch.items
batch.succeeded()
"""
)
FORK = (
    CONFIGURED
    + """
held = acquired(batch_count=1)
held.items
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        try:
            held.succeeded()
        except Exception as error:
            assert "belongs to process" in str(error), error
        else:
            sys.exit("a child has released the batch of its parent")
        while (batch := acquire_or_none(batch_count=3)) is not None:
            batch.items
            batch.succeeded()
        sys.exit(0)
    children.append(child)
while (batch := acquire_or_none(batch_count=3)) is not None:
    batch.items
    batch.succeeded()
for child in children:
    assert os.waitpid(child, 0)[1] == 0
assert not held.lost
held.succeeded()
"""
)
FORK_AND_KILL_PARENT = (
    CONFIGURED
    + """
held = acquired(batch_count=1)
print(held.id_range, flush=True)
sys.stdin.readline()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), 9)
"""
)
EMBEDDED = """
import os, sys
from batch_pipeline import client, configure
configure(settings={"home": sys.argv[1]})
database = client.SESSIONS.current()._pipeline.database
if os.fork() == 0:
    sys.exit(0)
os.wait()
assert database.location
with database.engine.begin() as connection:
    connection.exec_driver_sql("SELECT 1")
"""
COUNT_LIVENESS_LOCKS = """
SELECT count(*) FROM pg_locks JOIN batch_pipeline.attempt ON locktype = 'advisory'
   AND objsubid = 1 AND classid::bigint << 32 | objid::bigint = liveness_key
"""


@pytest.fixture
def thirty_files(meta_table: Database) -> Database:
    """Thirty files of 10 MiB."""
    fill_evenly(meta_table.engine, 30)
    return meta_table


def test_imports_are_lazy() -> None:
    """The library imports neither Dagster nor Spark nor pyarrow."""
    names = ("batch_pipeline.client", "dagster", "pyspark", "sqlalchemy", "pyarrow", "pandas")
    script = f"""
import sys
import batch_pipeline
print(*[name for name in {names} if name in sys.modules])
from batch_pipeline import acquire_batch, acquire_batches, configure, Batch
print(*[name for name in {names} if name in sys.modules])
"""
    imported = program_output(sys.executable, "-c", script, cwd=PROJECT)
    assert imported.splitlines() == ["", "batch_pipeline.client sqlalchemy"]
    with pytest.raises(AttributeError, match="no attribute 'acquire'"):
        _ = sys.modules["batch_pipeline"].acquire


@pytest.mark.parametrize(
    ("point", "items", "attempt"),
    [
        ("succeed.before_commit", files(1, 5), 2),
        ("succeed.after_commit", files(6, 10), 1),
    ],
)
def test_unreleased_batch_of_a_killed_process_is_acquired_again_at_once(
    thirty_files: Database, database_url: str, point: str, items: list[str], attempt: int
) -> None:
    """The next acquire does not wait for the lease to expire."""
    exit_code = run_python(ACQUIRE_AND_RELEASE, database_url, failpoints=f"{point}=kill")
    assert exit_code == -signal.SIGKILL
    eventually(lambda: query(thirty_files, COUNT_LIVENESS_LOCKS) == [(0,)])
    batch = acquired(batch_count=5)
    assert (batch.items, batch.attempt) == (items, attempt)


def test_forked_children_and_parent_deliver_each_item_once(
    thirty_files: Database, database_url: str
) -> None:
    """A child cannot release the parent's batch and does not close its sessions."""
    with python(FORK, database_url) as child:  # `run_python` would skip exit handlers
        assert child.wait() == 0
    assert delivered_ids(thirty_files) == list(range(1, 31))
    assert set(statuses(thirty_files)) == {"succeeded"}


def test_batch_is_free_only_when_its_process_is_killed_even_if_a_child_lives(
    thirty_files: Database, database_url: str
) -> None:
    with python(FORK_AND_KILL_PARENT, database_url) as parent:
        assert next_line(parent) == "1..1"
        rest = acquired()
        assert rest.items == files(2, 30)
        assert acquire_or_none() is None
        assert parent.stdin is not None
        parent.stdin.write("\n")
        parent.stdin.flush()
        eventually(lambda: query(thirty_files, COUNT_LIVENESS_LOCKS) == [(1,)])
        again = acquired(batch_count=1)
        assert (again.items, again.attempt) == (["file-1"], 2)


def test_embedded_server_survives_the_exit_of_a_forked_child(tmp_path: Path) -> None:
    with python(EMBEDDED, str(tmp_path / "home")) as child:  # as above
        assert child.wait() == 0


def test_configure_again_replaces_the_connections(
    thirty_files: Database, empty_database_url: str, database_url: str
) -> None:
    held = acquired(batch_count=5)
    assert held.items == files(1, 5)
    client.configure(settings={"INVENTORY_CONN": database_url})
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    eventually(lambda: query(thirty_files, sessions) == [(1,)])
    assert acquired(batch_count=5).items == files(1, 5)


def test_configuration_sources_have_a_precedence(
    thirty_files: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`settings`, the environment, `dot_env`, then the file in `BATCH_PIPELINE_ENV_FILE`."""
    unreachable = "postgresql://nobody@127.0.0.1:1/nothing"
    right, wrong = tmp_path / "right.env", tmp_path / "wrong.env"
    right.write_text(f"BATCH_PIPELINE_INVENTORY_CONN={database_url}\n")
    wrong.write_text(f"BATCH_PIPELINE_INVENTORY_CONN={unreachable}\n")
    monkeypatch.setenv("BATCH_PIPELINE_ENV_FILE", str(wrong))
    client.configure(dot_env=right)
    assert acquired(batch_count=1).items == ["file-1"]
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", database_url)
    client.configure(dot_env=str(wrong))
    assert acquired(batch_count=1).attempt == 2
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", unreachable)
    client.configure(settings={"inventory_conn": database_url})
    assert acquired(batch_count=1).attempt == 3
    monkeypatch.delenv("BATCH_PIPELINE_INVENTORY_CONN")
    monkeypatch.setenv("BATCH_PIPELINE_ENV_FILE", str(right))
    client.close()
    assert acquire_or_none() is not None


def test_invalid_configuration_keeps_the_present_one(thirty_files: Database) -> None:
    with pytest.raises(SettingError, match="did you mean inventory_conn"):
        client.configure(settings={"inventory_con": "postgresql://x/y"})
    assert acquired(batch_count=1).items == ["file-1"]
