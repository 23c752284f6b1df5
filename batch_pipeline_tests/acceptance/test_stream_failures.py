"""One stream fails, or its file does: the other streams go on, and the exit code says so."""

import json
import stat

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.acceptance.workplace import Workplace, manifests

REFUSE_JOB = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON batch_pipeline.job
        FOR EACH ROW WHEN (NEW.name = 'broken') EXECUTE FUNCTION refuse()
"""

JOB_OF_ANOTHER = (
    "INSERT INTO batch_pipeline.job (name, meta_table) VALUES ('broken', 'batch_pipeline.item')"
)


@pytest.fixture
def place(workplace: Workplace, database_url: str) -> Workplace:
    """The streams `broken` and `fine`, in this order; a file for the first one has landed."""
    for name, files in (("broken", {"1.csv": b"id\n1\n"}), ("fine", {})):
        workplace.write_stream(name)
        workplace.land(name, files)
    return workplace.given(BATCH_PIPELINE_INVENTORY_CONN=database_url)


def test_run_with_an_unexpected_exception_in_one_stream_processes_the_others(
    place: Workplace, database: Database
) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(REFUSE_JOB)
    ended = place.run("run", "--json")
    assert ended.returncode == 3, ended.stderr
    [broken, fine] = json.loads(ended.stdout)["streams"]
    assert (fine["stream"], fine["error"]) == ("fine", None)
    assert "broken: " in broken["error"]
    assert "not this one" in broken["error"]
    assert broken["error"] in ended.stderr
    assert "Traceback" not in ended.stderr
    log = place.home / "logs" / "errors.log"
    assert str(log) in broken["error"]
    assert "Traceback" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_run_with_a_configuration_error_in_one_stream_processes_the_others(
    place: Workplace, database: Database
) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(JOB_OF_ANOTHER)
    ended = place.run("run", "--json")
    assert ended.returncode == 1, ended.stderr
    [broken, fine] = json.loads(ended.stdout)["streams"]
    assert broken["error"].startswith("Job 'broken' on batch_pipeline.item exists")
    assert (fine["stream"], fine["error"]) == ("fine", None)
