"""One stream fails, or its file does: the other streams go on, and the exit code says so."""

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

JOB_OF_ANOTHER = (
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
    """The streams `broken` and `fine`, in this order; a file for the first one has landed."""
    for name, files in (("broken", {"1.csv": b"id\n1\n"}), ("fine", {})):
        sandbox.write_stream(name)
        sandbox.land(name, files)
    return sandbox.with_variables(BATCH_PIPELINE_INVENTORY_CONN=database_url)


def test_run_with_an_unexpected_exception_in_one_stream_processes_the_others(
    sandbox: Sandbox, database: Database
) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(REFUSE_JOB)
    ended = sandbox.run("run", "--json")
    assert ended.returncode == 3, ended.stderr
    [broken, fine] = json.loads(ended.stdout)["streams"]
    assert (fine["stream"], fine["error"]) == ("fine", None)
    assert "broken: " in broken["error"]
    assert "not this one" in broken["error"]
    assert broken["error"] in ended.stderr
    assert "Traceback" not in ended.stderr
    log = sandbox.home / "logs" / "errors.log"
    assert str(log) in broken["error"]
    assert "Traceback" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_run_with_a_configuration_error_in_one_stream_processes_the_others(
    sandbox: Sandbox, database: Database
) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql(JOB_OF_ANOTHER)
    ended = sandbox.run("run", "--json")
    assert ended.returncode == 1, ended.stderr
    [broken, fine] = json.loads(ended.stdout)["streams"]
    assert broken["error"].startswith("Job 'broken' on batch_pipeline.item exists")
    assert (fine["stream"], fine["error"]) == ("fine", None)


@pytest.fixture
def half_faulty(sandbox: Sandbox, warm_spark: str) -> Sandbox:
    """A stream `fine` with a file to encode, beside three stream files that cannot be used."""
    sandbox.land("fine", {"1.csv": b"id\n1\n"})
    sandbox.write_stream("broken", batch={"max_cuont": 1}, encoding={"format": "xml"})
    sandbox.write_stream("worse", batch={"max_weight": "heavy"})
    (sandbox.write_stream("unreadable")).write_text("type: [")
    return sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)


def test_run_with_faulty_stream_files_runs_the_others_and_reports_every_fault(
    half_faulty: Sandbox,
) -> None:
    ended = half_faulty.run("run")
    assert ended.returncode == 1, ended.stderr
    assert len(manifests(half_faulty.storage("fine"))) == 1
    assert "Error: Invalid stream files: 3" in ended.stderr
    for words in FAULTS:
        assert words in ended.stderr
    for name in ("broken", "worse", "unreadable"):
        assert re.search(rf"/{name}/defs\.yaml:\d+: ", ended.stderr)
    assert "Traceback" not in ended.stderr


def test_run_of_a_stream_by_name_mentions_other_faulty_files_as_notes(
    half_faulty: Sandbox,
) -> None:
    ended = half_faulty.run("run", "fine")
    assert ended.returncode == 0, ended.stderr
    assert len(manifests(half_faulty.storage("fine"))) == 1
    assert "Error: " not in ended.stderr
    assert ended.stderr.count("Note: ") == 3
    for words in FAULTS:
        assert words in ended.stderr


def test_run_of_a_faulty_stream_by_name_reports_its_own_file(half_faulty: Sandbox) -> None:
    ended = half_faulty.run("run", "broken")
    assert ended.returncode == 1
    assert "unknown key `max_cuont`" in ended.stderr.split("Error: ")[1]
    assert "`batch.max_weight`" not in ended.stderr.split("Error: ")[1]
    assert manifests(half_faulty.storage("fine")) == []


def test_status_with_faulty_stream_files_shows_the_others_and_exits_1(
    half_faulty: Sandbox,
) -> None:
    ended = half_faulty.run("status", "--json")
    assert ended.returncode == 1
    assert [one["stream"] for one in json.loads(ended.stdout)["streams"]] == ["fine"]
    assert "Error: Invalid stream files: 3" in ended.stderr


def test_gc_with_faulty_stream_files_deletes_nothing(half_faulty: Sandbox) -> None:
    """Their streams may share the storage, so what they own is unknown."""
    ended = half_faulty.run("gc")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.count("Invalid stream files: 3") == 1
