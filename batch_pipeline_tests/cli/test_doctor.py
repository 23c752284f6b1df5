"""The command `doctor`: findings of each level."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import Result

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline_tests.cli.commands import Run, make_runner, write_stream
from batch_pipeline_tests.inventory.logins import Logins
from batch_pipeline_tests.inventory.meta_tables.user_tables import CREATE_FILES, execute
from batch_pipeline_tests.seeds import planned, publish

FILES_TABLE = ("--uid", "id", "--item", "file_location", "--weight", "size_in_bytes")
MACHINE_SUBJECTS = {"settings", "versions", "java", "home", "disk", "ports"}
ANY_ROOT = {"roots": ["/"]}
RARE_ROWS = '[{"column": "kind", "operator": "=", "value": "rare"}]'
FILL = (
    "INSERT INTO ops.files (file_location, size_in_bytes, kind) SELECT 'f', 1, "
    "CASE n % 1000 WHEN 0 THEN 'rare' END FROM generate_series(1, 5000) n"
)


@pytest.fixture
def run(database_url: str, postgres: sa.Engine, tmp_path: Path) -> Run:
    """A runner with a stream of registered files, and meta tables in another database."""
    write_stream(tmp_path, "orders")
    (tmp_path / "landing").mkdir()
    url = postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return make_runner(tmp_path, database_url, "doctor", BATCH_PIPELINE_META_CONN=url)


def findings_of(result: Result) -> list[tuple[str, str, str]]:
    """Return level, subject and text of each finding."""
    report = json.loads(result.stdout)
    assert report["ok"] == (result.exit_code == 0)
    return [
        (finding["level"], finding["subject"], finding["text"]) for finding in report["findings"]
    ]


def test_healthy_pipeline_has_one_line_per_finding(run: Run, tmp_path: Path) -> None:
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    batches = tmp_path / "streams/orders/batches"
    start = next(number for number, line in enumerate(lines) if "inventory: PostgreSQL " in line)
    assert {line.partition(":")[0].split()[1] for line in lines[:start]} >= MACHINE_SUBJECTS
    lines_after_server = [
        line for line in lines[start + 1 :] if not line.startswith("warn server: ")
    ]
    assert lines_after_server == [
        "ok   inventory: its schema is that of this release.",
        "ok   rights: this login may read.",
        "ok   rights: this login may plan.",
        "ok   rights: this login may work on batches.",
        "ok   dagster: was never started on this database.",
        f"ok   orders: {batches} does not exist yet; the first batch creates it (storage.root).",
        "ok   orders: its files are registered here, with ids in commit order.",
    ]
    assert len(findings_of(run("--json"))) == len(lines)


def test_missing_inventory_is_reported_and_not_created(tmp_path: Path) -> None:
    """In an empty folder nothing is created, and no server is started."""
    run = make_runner(tmp_path, "", "doctor")
    text = f"there is none in {tmp_path}/home yet. `batch-pipeline run` creates it."
    [*_, inventory, streams] = findings_of(run("--json"))
    assert inventory == ("warn", "inventory", text)
    assert streams[:2] == ("warn", "streams")
    assert "Run `batch-pipeline init --from FOLDER` to create one" in streams[2]
    assert list(tmp_path.iterdir()) == []
    write_stream(tmp_path, "orders")
    of_stream = [one for one in findings_of(run("--json")) if one[1] == "orders"]
    assert any(f"{tmp_path}/landing does not exist (source.uri)" in text for *_, text in of_stream)
    unchecked = ("warn", "ops.files", "not checked: there is no inventory yet.")
    assert findings_of(run("--json", "--meta-table", "ops.files"))[-1] == unchecked
    assert [path.name for path in tmp_path.iterdir()] == ["streams"]


def test_missing_rights_of_a_login_are_warnings(logins: Logins, tmp_path: Path) -> None:
    warnings = {}
    for name in ("olga", "paul", "wanda", "rita", "lib"):
        url = logins.of(name).engine.url.render_as_string(hide_password=False)
        findings = findings_of(make_runner(tmp_path, url, "doctor")("--json"))
        others = [
            finding
            for finding in findings
            if finding[1] not in {*MACHINE_SUBJECTS, "memory", "server"}
        ]
        warnings[name] = [text for level, _, text in others if level != "ok"]
    no_streams = "There is no stream file"
    assert [len(texts) for texts in warnings.values()] == [1, 2, 2, 3, 1]
    assert all(texts[-1].startswith(no_streams) for texts in warnings.values())
    assert (
        "may not work on batches: it lacks INSERT on batch_pipeline.attempt" in warnings["paul"][0]
    )
    assert "may not plan: it lacks INSERT on" in warnings["wanda"][0]
    assert warnings["rita"][0].endswith(
        "member of bp_planner (inventory/roles.sql); run the file after a migration."
    )


def test_unreachable_server_fails_and_skips_other_checks(tmp_path: Path) -> None:
    result = make_runner(tmp_path, "postgresql://me:secret@127.0.0.1:1/none", "doctor")("--json")
    assert result.exit_code == 1
    assert "secret" not in result.output
    *_, failed, skipped = findings_of(result)
    assert failed[:2] == ("fail", "inventory")
    assert "cannot be reached" in failed[2]
    assert skipped == ("warn", "meta tables", "not checked: correct the inventory first.")


def test_unmigrated_inventory_fails_and_names_migrate(
    empty_database_url: str, tmp_path: Path
) -> None:
    result = make_runner(tmp_path, empty_database_url, "doctor")()
    assert result.exit_code == 1
    assert "fail inventory: " in result.stdout
    assert "Run `batch-pipeline migrate`" in result.stdout


def test_slow_filter_is_a_warning_that_proposes_an_index(
    run: Run, postgres: sa.Engine, tmp_path: Path
) -> None:
    execute(postgres, CREATE_FILES, "ALTER TABLE ops.files ADD kind text", FILL)
    columns = {"uid": "id", "item": "file_location", "weight": "size_in_bytes"}
    table = {"table": "ops.files", **columns, "where": json.loads(RARE_ROWS), **ANY_ROOT}
    write_stream(tmp_path, "rare", {"meta_table": table})
    findings = [finding for finding in findings_of(run("--json")) if finding[1] == "rare"][
        1:
    ]  # without storage
    assert findings[:2] == [
        (
            "ok",
            "rare",
            "ops.files can be read; high watermark 5000 (locks); nothing holds it back.",
        ),
        ("ok", "rare", "high watermark strategy 'locks': ids come from one sequence with CACHE 1."),
    ]
    [(level, _, text)] = findings[2:]
    assert level == "warn"
    assert "rows read to filter the next ones: 5000, kept: 5" in text
    proposal = text.partition("An index would help: ")[2]
    execute(postgres, proposal.replace(" CONCURRENTLY", ""))
    assert [level for level, about, _ in findings_of(run("--json")) if about == "rare"] == [
        "ok"
    ] * 4


def test_each_invalid_stream_fails_in_its_own_line(
    run: Run, postgres: sa.Engine, tmp_path: Path
) -> None:
    """Meta tables cannot be read, or the stream file is not valid; the others are checked."""
    write_stream(tmp_path, "missing", {"meta_table": {"table": "ops.nothing", **ANY_ROOT}})
    unset = {"table": "ops.files", "conn": "$NO_SUCH_URL", **ANY_ROOT}
    write_stream(tmp_path, "unset", {"meta_table": unset})
    write_stream(tmp_path, "wrong", {"uri": str(tmp_path / "landing"), "inclued": ["*"]})
    result = run()
    assert result.exit_code == 1
    failed = [line for line in result.stdout.splitlines() if line.startswith("fail")]
    assert [line.split(":")[0] for line in failed] == ["fail streams", "fail missing", "fail unset"]
    assert "inclued" in result.stdout
    assert "ok   orders: its files are registered here" in result.stdout


def test_meta_table_option_checks_a_table_without_a_stream(run: Run, postgres: sa.Engine) -> None:
    execute(postgres, CREATE_FILES, "CREATE VIEW ops.some AS SELECT * FROM ops.files")
    unsettled = run("--meta-table", "ops.some", *FILES_TABLE)
    assert unsettled.exit_code == 1
    assert (
        "fail ops.some: ops.some: the high watermark cannot be read with strategy 'settle'"
        in unsettled.stdout
    )
    settled = run("--meta-table", "ops.some", *FILES_TABLE, "--settle-by", "imported", "--json")
    assert settled.exit_code == 0
    levels = [level for level, about, _ in findings_of(settled) if about == "ops.some"]
    assert levels == ["ok", "ok", "warn", "warn"]
    plain = run("--meta-table", "ops.files", *FILES_TABLE[:4], "--weight", "none", "--json")
    assert [level for level, about, _ in findings_of(plain) if about == "ops.files"] == ["ok", "ok"]


def test_published_batches_can_be_checked_as_a_meta_table(run: Run, database: Database) -> None:
    [batch] = planned(database)
    publish(database, batch)
    where = '[{"column": "job", "operator": "=", "value": "orders"}]'
    findings = findings_of(
        run("--meta-table", "inventory", "--where", where, "--job", "down", "--json")
    )
    assert findings[-3] == (
        "ok",
        "batch_pipeline.published",
        (
            "batch_pipeline.published can be read; high watermark 1 (registrar); "
            "nothing holds it back."
        ),
    )
    ambiguous = run("--meta-table", "inventory")
    assert ambiguous.exit_code == 1
    assert "Name exactly one" in ambiguous.stdout


def test_invalid_options_are_named(run: Run) -> None:
    assert "--uid needs --meta-table" in run("--uid", "id").output
    with pytest.raises(InvalidValueError, match="--where is"):
        raise run("--meta-table", "ops.files", "--where", "kind = 'a'").exception or AssertionError
