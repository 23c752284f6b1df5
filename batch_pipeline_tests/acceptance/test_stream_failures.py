"""If a stream or its file fails, the other streams are processed and the exit code is an error."""

import json
import re
import stat

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.acceptance.sandbox import Sandbox, manifests

REFUSE_JOB = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON batch_pipeline.job
        FOR EACH ROW WHEN (NEW.name = 'broken') EXECUTE FUNCTION refuse()
"""

JOB_OF_ANOTHER_TABLE = (
    "INSERT INTO batch_pipeline.job (name, meta_table) VALUES ('broken', 'batch_pipeline.item')"
)

FAULTS = (
    "unknown key `max_cuont`",
    "`encoding.format` is 'xml'",
    "`batch.max_weight`",
    "not valid YAML",
)


@pytest.fixture
def sandbox(sandbox: Sandbox, database_url: str) -> Sandbox:
    """The streams `broken`, with a landed file, and `fine`, in this order."""
    for name, files in (("broken", {"1.csv": b"id\n1\n"}), ("fine", {})):
        sandbox.write_stream(name)
        sandbox.land(name, files)
    return sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=database_url)


def test_unexpected_exception_in_a_stream_does_not_stop_others(
    sandbox: Sandbox, database: Database
) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(REFUSE_JOB)
    result = sandbox.run("run", "--json")
    assert result.returncode == 3, result.stderr
    [broken, fine] = json.loads(result.stdout)["streams"]
    assert (fine["stream"], fine["error"]) == ("fine", None)
    assert "broken: " in broken["error"]
    assert "not this one" in broken["error"]
    assert broken["error"] in result.stderr
    assert "Traceback" not in result.stderr
    log = sandbox.home / "logs" / "errors.log"
    assert str(log) in broken["error"]
    assert "Traceback" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_configuration_error_in_a_stream_does_not_stop_others(
    sandbox: Sandbox, database: Database
) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(JOB_OF_ANOTHER_TABLE)
    result = sandbox.run("run", "--json")
    assert result.returncode == 1, result.stderr
    [broken, fine] = json.loads(result.stdout)["streams"]
    assert broken["error"].startswith("Job 'broken' on batch_pipeline.item exists")
    assert (fine["stream"], fine["error"]) == ("fine", None)


@pytest.fixture
def faulty_sandbox(sandbox: Sandbox, warm_spark: str) -> Sandbox:
    """A stream `fine` with a file to encode, and three invalid stream files."""
    sandbox.land("fine", {"1.csv": b"id\n1\n"})
    sandbox.write_stream("broken", batch={"max_cuont": 1}, encoding={"format": "xml"})
    sandbox.write_stream("worse", batch={"max_weight": "heavy"})
    (sandbox.write_stream("unreadable")).write_text("type: [")
    return sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)


def test_run_reports_all_invalid_stream_files_and_runs_others(
    faulty_sandbox: Sandbox,
) -> None:
    result = faulty_sandbox.run("run")
    assert result.returncode == 1, result.stderr
    assert len(manifests(faulty_sandbox.storage("fine"))) == 1
    assert "Error: Invalid stream files: 3" in result.stderr
    for words in FAULTS:
        assert words in result.stderr
    for name in ("broken", "worse", "unreadable"):
        assert re.search(rf"/{name}/defs\.yaml:\d+: ", result.stderr)
    assert "Traceback" not in result.stderr


def test_run_by_name_reports_other_invalid_files_as_notes(
    faulty_sandbox: Sandbox,
) -> None:
    result = faulty_sandbox.run("run", "fine")
    assert result.returncode == 0, result.stderr
    assert len(manifests(faulty_sandbox.storage("fine"))) == 1
    assert "Error: " not in result.stderr
    assert result.stderr.count("Note: ") == 3
    for words in FAULTS:
        assert words in result.stderr


def test_run_by_name_of_an_invalid_stream_reports_its_file(faulty_sandbox: Sandbox) -> None:
    result = faulty_sandbox.run("run", "broken")
    assert result.returncode == 1
    assert "unknown key `max_cuont`" in result.stderr.split("Error: ")[1]
    assert "`batch.max_weight`" not in result.stderr.split("Error: ")[1]
    assert manifests(faulty_sandbox.storage("fine")) == []


def test_status_with_invalid_stream_files_shows_others(
    faulty_sandbox: Sandbox,
) -> None:
    result = faulty_sandbox.run("status", "--json")
    assert result.returncode == 1
    assert [report["stream"] for report in json.loads(result.stdout)["streams"]] == ["fine"]
    assert "Error: Invalid stream files: 3" in result.stderr


def test_gc_with_invalid_stream_files_deletes_nothing(faulty_sandbox: Sandbox) -> None:
    """Their streams may share the storage root."""
    result = faulty_sandbox.run("gc")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("Invalid stream files: 3") == 1
