"""If a stream or its file fails, the other streams are processed and the exit code is an error."""

import json
import re
import stat

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.acceptance.sandbox import Sandbox, manifests
from batch_pipeline_tests.seeds import execute

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


@pytest.mark.long
def test_failing_stream_does_not_stop_others(sandbox: Sandbox, database: Database) -> None:
    """An unexpected exception, whose traceback is in a log, and a configuration error."""
    with database.engine.begin() as connection:
        connection.exec_driver_sql(REFUSE_JOB)
    broken = _error_of_broken(sandbox, 3)
    assert "broken: " in broken
    assert "not this one" in broken
    log = sandbox.home / "logs" / "errors.log"
    assert str(log) in broken
    assert "Traceback" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600

    execute(database, "DROP TRIGGER refuse ON batch_pipeline.job")
    execute(database, JOB_OF_ANOTHER_TABLE)
    broken = _error_of_broken(sandbox, 1)
    assert broken.startswith("Job 'broken' on batch_pipeline.item exists")


def _error_of_broken(sandbox: Sandbox, exit_code: int) -> str:
    """Run both streams and return the error of `broken`, which must be the only one."""
    result = sandbox.run("run", "--json")
    assert result.returncode == exit_code, result.stderr
    [broken, fine] = json.loads(result.stdout)["streams"]
    assert (fine["stream"], fine["error"]) == ("fine", None)
    assert broken["error"] in result.stderr
    assert "Traceback" not in result.stderr
    return str(broken["error"])


def test_invalid_stream_files_are_reported_and_other_streams_are_processed(
    sandbox: Sandbox, warm_spark: str
) -> None:
    """They are errors of commands for all streams, and notes if another stream is named."""
    sandbox.land("fine", {"1.csv": b"id\n1\n"})
    sandbox.write_stream("broken", batch={"max_cuont": 1}, encoding={"format": "xml"})
    sandbox.write_stream("worse", batch={"max_weight": "heavy"})
    sandbox.write_stream("unreadable").write_text("type: [")
    sandbox = sandbox.in_process(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)

    _, _, broken = sandbox.run("run", "broken").stderr.partition("Error: ")
    assert "unknown key `max_cuont`" in broken
    assert "`batch.max_weight`" not in broken

    named = sandbox.run("run", "fine")
    assert named.returncode == 0, named.stderr
    assert "Error: " not in named.stderr
    assert named.stderr.count("Note: ") == 3
    for words in FAULTS:
        assert words in named.stderr

    status = sandbox.run("status", "--json")
    assert status.returncode == 1
    assert [report["stream"] for report in json.loads(status.stdout)["streams"]] == ["fine"]
    assert "Error: Invalid stream files: 3" in status.stderr

    collected = sandbox.run("gc")  # the invalid streams may share the storage root
    assert (collected.returncode, collected.stdout) == (1, "")
    assert collected.stderr.startswith("Error: Invalid stream files: 3")

    sandbox.land("fine", {"2.csv": b"id\n2\n"})
    result = sandbox.run("run")
    assert result.returncode == 1, result.stderr
    assert len(manifests(sandbox.storage("fine"))) == 2
    assert "Error: Invalid stream files: 3" in result.stderr
    for words in FAULTS:
        assert words in result.stderr
    for name in ("broken", "worse", "unreadable"):
        assert re.search(rf"/{name}/defs\.yaml:\d+: ", result.stderr)
    assert "Traceback" not in result.stderr
