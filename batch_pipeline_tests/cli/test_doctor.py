"""The command `doctor`: what it finds well, what it warns of, and what fails."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import Result

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline_tests.cli.commands import Run, runs, write_stream
from batch_pipeline_tests.inventory.logins import Logins
from batch_pipeline_tests.inventory.meta_tables.user_tables import CREATE_FILES, execute
from batch_pipeline_tests.seeds import planned, publish

FILES_TABLE = ("--uid", "id", "--item", "file_location", "--weight", "size_in_bytes")
OF_MACHINES = {"settings", "versions", "java", "home", "disk", "ports"}
ANYWHERE = {"roots": ["/"]}
OF_KIND = '[{"column": "kind", "operator": "=", "value": "rare"}]'
FILL = (
    "INSERT INTO ops.files (file_location, size_in_bytes, kind) SELECT 'f', 1, "
    "CASE n % 1000 WHEN 0 THEN 'rare' END FROM generate_series(1, 5000) n"
)


@pytest.fixture
def run(database_url: str, postgres: sa.Engine, tmp_path: Path) -> Run:
    """The command with a stream of its own files, and the meta tables of another database."""
    write_stream(tmp_path, "orders")
    (tmp_path / "landing").mkdir()
    url = postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return runs(tmp_path, database_url, "doctor", BATCH_PIPELINE_META_CONN=url)


def told(ended: Result) -> list[tuple[str, str, str]]:
    """Read the findings of `--json`."""
    report = json.loads(ended.stdout)
    assert report["ok"] == (ended.exit_code == 0)
    return [(one["level"], one["subject"], one["text"]) for one in report["findings"]]


def test_doctor_of_a_healthy_pipeline_has_one_line_a_finding(run: Run, tmp_path: Path) -> None:
    """Expect machine, server, schema, rights and streams to be well, and exit code 0."""
    ended = run()
    assert (ended.exit_code, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    batches = tmp_path / "streams/orders/batches"
    start = next(number for number, line in enumerate(lines) if "inventory: PostgreSQL " in line)
    assert {line.partition(":")[0].split()[1] for line in lines[:start]} >= OF_MACHINES
    rest = [line for line in lines[start + 1 :] if not line.startswith("warn server: ")]
    assert rest == [
        "ok   inventory: its schema is that of this release.",
        "ok   rights: this login may read.",
        "ok   rights: this login may plan and acquire.",
        "ok   rights: this login may work on batches.",
        "ok   dagster: was never started on this database.",
        f"ok   orders: {batches} does not exist yet; the first batch creates it (storage.root).",
        "ok   orders: its files are registered here, with ids in commit order.",
    ]
    assert len(told(run("--json"))) == len(lines)


def test_doctor_names_the_rights_that_a_login_lacks(logins: Logins, tmp_path: Path) -> None:
    """Expect readers to be warned that they may neither plan nor work, and nobody to be refused."""
    lacking = {}
    for name in ("olga", "paul", "wanda", "rita", "lib"):
        url = logins.of(name).engine.url.render_as_string(hide_password=False)
        findings = told(runs(tmp_path, url, "doctor")("--json"))
        others = [one for one in findings if one[1] not in {*OF_MACHINES, "memory", "server"}]
        lacking[name] = [text for level, _, text in others if level != "ok"]
    no_streams = "There is no stream file"
    assert [len(texts) for texts in lacking.values()] == [1, 2, 2, 3, 1]
    assert all(texts[-1].startswith(no_streams) for texts in lacking.values())
    assert (
        "may not work on batches: it lacks INSERT on batch_pipeline.attempt" in lacking["paul"][0]
    )
    assert "may not plan and acquire: it lacks INSERT on" in lacking["wanda"][0]
    assert lacking["rita"][0].endswith(
        "member of bp_planner (inventory/roles.sql); run the file after a migration."
    )


def test_doctor_fails_without_a_server_and_looks_no_further(tmp_path: Path) -> None:
    """Expect the reason, and exit code 1."""
    ended = runs(tmp_path, "postgresql://me:secret@127.0.0.1:1/none", "doctor")("--json")
    assert ended.exit_code == 1
    assert "secret" not in ended.output
    *_, failed, skipped = told(ended)
    assert failed[:2] == ("fail", "inventory")
    assert "cannot be reached" in failed[2]
    assert skipped == ("warn", "meta tables", "not checked: correct the inventory first.")


def test_doctor_fails_on_an_inventory_that_was_not_migrated(
    empty_database_url: str, tmp_path: Path
) -> None:
    """Expect the command that helps to be named."""
    ended = runs(tmp_path, empty_database_url, "doctor")()
    assert ended.exit_code == 1
    assert "fail inventory: " in ended.stdout
    assert "Run `batch-pipeline migrate`" in ended.stdout


def test_doctor_tells_ceiling_and_filter_cost_of_a_stream(
    run: Run, postgres: sa.Engine, tmp_path: Path
) -> None:
    """Expect the choice, its reason, and an index that ends the scan."""
    execute(postgres, CREATE_FILES, "ALTER TABLE ops.files ADD kind text", FILL)
    columns = {"uid": "id", "item": "file_location", "weight": "size_in_bytes"}
    table = {"table": "ops.files", **columns, "where": json.loads(OF_KIND), **ANYWHERE}
    write_stream(tmp_path, "rare", {"meta_table": table})
    found = [one for one in told(run("--json")) if one[1] == "rare"][1:]  # after its storage
    assert found[:2] == [
        (
            "ok",
            "rare",
            "ops.files can be read; high watermark 5000 (locks); nothing holds it back.",
        ),
        ("ok", "rare", "its ceiling is 'locks': ids come from one sequence with CACHE 1."),
    ]
    [(level, _, text)] = found[2:]
    assert level == "warn"
    assert "rows that its filter reads: 5000, kept of those that come next: 5" in text
    proposal = text.partition("An index would help: ")[2]
    execute(postgres, proposal.replace(" CONCURRENTLY", ""))
    assert [level for level, about, _ in told(run("--json")) if about == "rare"] == ["ok"] * 4


def test_doctor_tells_every_stream_whose_table_cannot_be_read(
    run: Run, postgres: sa.Engine, tmp_path: Path
) -> None:
    """Expect one line for each, the others to be looked at, and exit code 1."""
    write_stream(tmp_path, "missing", {"meta_table": {"table": "ops.nothing", **ANYWHERE}})
    unset = {"table": "ops.files", "conn": "$NO_SUCH_URL", **ANYWHERE}
    write_stream(tmp_path, "unset", {"meta_table": unset})
    ended = run()
    assert ended.exit_code == 1
    failed = [line for line in ended.stdout.splitlines() if line.startswith("fail")]
    assert [line.split(":")[0] for line in failed] == ["fail missing", "fail unset"]
    assert "ok   orders: " in ended.stdout


def test_doctor_fails_on_a_stream_file_that_is_wrong(run: Run, tmp_path: Path) -> None:
    """Expect file and line, and a look at the other streams."""
    write_stream(tmp_path, "wrong", {"uri": str(tmp_path / "landing"), "inclued": ["*"]})
    ended = run()
    assert ended.exit_code == 1
    assert "fail streams: " in ended.stdout
    assert "ok   orders: its files are registered here" in ended.stdout
    assert "inclued" in ended.stdout


def test_doctor_looks_at_a_table_as_the_library_reads_it(run: Run, postgres: sa.Engine) -> None:
    """Expect a view to be warned of, and what `settle` needs to be asked for."""
    execute(postgres, CREATE_FILES, "CREATE VIEW ops.some AS SELECT * FROM ops.files")
    refused = run("--meta-table", "ops.some", *FILES_TABLE)
    assert refused.exit_code == 1
    assert (
        "fail ops.some: ops.some: the high watermark cannot be read with strategy 'settle'"
        in refused.stdout
    )
    settled = run("--meta-table", "ops.some", *FILES_TABLE, "--settle-by", "imported", "--json")
    assert settled.exit_code == 0
    levels = [level for level, about, _ in told(settled) if about == "ops.some"]
    assert levels == ["ok", "ok", "warn", "warn"]
    plain = run("--meta-table", "ops.files", *FILES_TABLE[:4], "--weight", "none", "--json")
    assert [level for level, about, _ in told(plain) if about == "ops.files"] == ["ok", "ok"]


def test_doctor_looks_at_chained_jobs(run: Run, database: Database) -> None:
    """Expect the ceiling of the job that is read, and one that names none to fail."""
    [one] = planned(database)
    publish(database, one)
    where = '[{"column": "job", "operator": "=", "value": "orders"}]'
    found = told(run("--meta-table", "inventory", "--where", where, "--job", "down", "--json"))
    assert found[-3] == (
        "ok",
        "batch_pipeline.published",
        (
            "batch_pipeline.published can be read; high watermark 1 (registrar); "
            "nothing holds it back."
        ),
    )
    unclear = run("--meta-table", "inventory")
    assert unclear.exit_code == 1
    assert "Name exactly one" in unclear.stdout


def test_doctor_refuses_options_that_cannot_be_meant(run: Run) -> None:
    """Expect the option to be named."""
    assert "--uid needs --meta-table" in run("--uid", "id").output
    with pytest.raises(InvalidValueError, match="--where is"):
        raise run("--meta-table", "ops.files", "--where", "kind = 'a'").exception or AssertionError
