"""The command `doctor`: findings of each level, each problem with a fix."""

import errno
import json
import os
import shutil
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from click.testing import Result

from batch_pipeline.cli.dev import port_problem
from batch_pipeline.cli.doctor import (
    check_configuration,
    check_disks,
    check_home,
    check_java,
    check_places,
    check_port,
    check_versions,
)
from batch_pipeline.config.environment import load_settings
from batch_pipeline.config.home import Home
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.checks import Finding, attempted, compare_clocks, fine
from batch_pipeline.model.errors import (
    InvalidValueError,
    InvariantError,
    SettingError,
    unusable_port,
)
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Source, Storage, Stream
from batch_pipeline_tests.cli.commands import Run, make_runner, write_stream
from batch_pipeline_tests.factories import NOON, stream
from batch_pipeline_tests.inventory.logins import Logins
from batch_pipeline_tests.inventory.meta_tables.user_tables import CREATE_FILES, execute
from batch_pipeline_tests.pipeline.garbage_fixture import names_below
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


def findings_of(result: Result, *subjects: str) -> list[tuple[str, str, str]]:
    """Return level, subject and text of each finding, or of those of some subjects."""
    report = json.loads(result.stdout)
    assert report["ok"] == (result.exit_code == 0)
    findings = [(one["level"], one["subject"], one["text"]) for one in report["findings"]]
    return [one for one in findings if not subjects or one[1] in subjects]


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
    of_stream = findings_of(run("--json"), "orders")
    assert any(f"{tmp_path}/landing does not exist (source.uri)" in text for *_, text in of_stream)
    unchecked = ("warn", "ops.files", "not checked: there is no inventory yet.")
    assert findings_of(run("--json", "--meta-table", "ops.files"))[-1] == unchecked
    assert [path.name for path in tmp_path.iterdir()] == ["streams"]


def test_missing_rights_of_a_login_are_warnings(logins: Logins, tmp_path: Path) -> None:
    warnings = {}
    for name in ("olga", "paul", "wanda", "rita", "lib"):
        url = logins.of(name).engine.url.render_as_string(hide_password=False)
        warnings[name] = [
            text
            for level, subject, text in findings_of(make_runner(tmp_path, url, "doctor")("--json"))
            if level != "ok" and subject not in {*MACHINE_SUBJECTS, "memory", "server"}
        ]
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
    _storage, *readable, (level, _, text) = findings_of(run("--json"), "rare")
    assert [(level, text) for level, _, text in readable] == [
        ("ok", "ops.files can be read; high watermark 5000 (locks); nothing holds it back."),
        ("ok", "high watermark strategy 'locks': ids come from one sequence with CACHE 1."),
    ]
    assert level == "warn"
    assert "rows read to filter the next ones: 5000, kept: 5" in text
    proposal = text.partition("An index would help: ")[2]
    execute(postgres, proposal.replace(" CONCURRENTLY", ""))
    assert [level for level, *_ in findings_of(run("--json"), "rare")] == ["ok"] * 4


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
    levels = [level for level, *_ in findings_of(settled, "ops.some")]
    assert levels == ["ok", "ok", "warn", "warn"]
    plain = run("--meta-table", "ops.files", *FILES_TABLE[:4], "--weight", "none", "--json")
    assert [level for level, *_ in findings_of(plain, "ops.files")] == ["ok", "ok"]


def test_published_batches_can_be_checked_as_a_meta_table(run: Run, database: Database) -> None:
    [batch] = planned(database)
    publish(database, batch)
    where = '[{"column": "job", "operator": "=", "value": "orders"}]'
    findings = findings_of(
        run("--meta-table", "inventory", "--where", where, "--job", "down", "--json")
    )
    table = "batch_pipeline.published"
    text = f"{table} can be read; high watermark 1 (registrar); nothing holds it back."
    assert findings[-3] == ("ok", table, text)
    ambiguous = run("--meta-table", "inventory")
    assert ambiguous.exit_code == 1
    assert "Name exactly one" in ambiguous.stdout


def test_invalid_options_are_named(run: Run) -> None:
    assert "--uid needs --meta-table" in run("--uid", "id").output
    with pytest.raises(InvalidValueError, match="--where is"):
        raise run("--meta-table", "ops.files", "--where", "kind = 'a'").exception or AssertionError


VERSIONS = (
    dict.fromkeys(("dagster", "dagster-webserver", "dagster-graphql"), "1.13.27")
    | dict.fromkeys(("dagster-postgres", "dagster-aws", "dagster-pyspark"), "0.29.27")
    | {"pyspark": "4.3.0", "sqlalchemy": "2.0.1", "psycopg": "3.3.1"}
)


def as_tuples(findings: Iterator[Finding]) -> list[tuple[str, str, str]]:
    """Return level, subject and text of each finding."""
    return [(finding.level.value, finding.subject, finding.text) for finding in findings]


def check_environment(**environment: str) -> list[tuple[str, str, str]]:
    """Check environment variables."""
    settings = load_settings(environment=environment)
    return as_tuples(check_configuration(settings, environment))


def stream_in(folder: Path) -> Stream:
    """Return a stream whose landing and storage are below a folder."""
    source = Source(uri=to_uri(folder / "landing"))
    return stream(source=source, storage=Storage(root=to_uri(folder / "batches")))


def test_variables_are_one_finding_and_each_questionable_one_another() -> None:
    """No value of an unknown variable is shown."""
    known = {"BATCH_PIPELINE_HOME": "/home/me/bp", "BATCH_PIPELINE_JAVA": "auto"}
    [(level, _, text)] = check_environment(**known)
    assert level == "ok"
    assert text.startswith("home /home/me/bp, streams ")
    assert text.endswith("set: BATCH_PIPELINE_HOME, BATCH_PIPELINE_JAVA.")
    findings = check_environment(BATCH_PIPELINE_INVENTORY_CON="postgresql://me:secret@there/db")
    [(level, subject, text), other] = findings
    assert (level, subject, other[0]) == ("warn", "settings", "ok")
    assert "BATCH_PIPELINE_INVENTORY_CON is set, but there is no such setting" in text
    assert "Did you mean 'BATCH_PIPELINE_INVENTORY_CONN'?" in text
    assert "secret" not in str(findings)
    findings = check_environment(BATCH_PIPELINE_FAILPOINTS="publish.before_commit=kill")
    assert findings[0][2].startswith("BATCH_PIPELINE_FAILPOINTS is set, a test setting")


def test_env_file_readable_by_others_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "my own.env"
    path.write_text("BATCH_PIPELINE_META_CONN=postgresql://me:secret@there/db\n")
    path.chmod(0o640)
    (level, _, text), _ = check_environment(BATCH_PIPELINE_ENV_FILE=str(path))
    assert level == "warn"
    assert text.endswith(f"(mode 0640), which may have passwords. Run `chmod 600 '{path}'`.")
    path.chmod(0o600)
    assert len(check_environment(BATCH_PIPELINE_ENV_FILE=str(path))) == 1


def test_missing_or_mismatched_packages_are_reported() -> None:
    [(level, _, text)] = as_tuples(check_versions(VERSIONS.__getitem__))
    assert level == "ok"
    assert text.endswith("Dagster 1.13.27, PySpark 4.3.0.")
    assert [finding.level.value for finding in check_versions()] == ["ok"]  # the installed versions
    mixed = VERSIONS | {"dagster-postgres": "0.28.3", "dagster-webserver": "1.12.3"}
    (level, _, text), _ = as_tuples(check_versions(mixed.__getitem__))
    assert level == "warn"
    assert "does not match dagster-webserver 1.12.3, dagster-postgres 0.28.3" in text
    assert "`uv sync`" in text

    def installed(name: str) -> str:
        if name == "dagster-aws":
            raise PackageNotFoundError(name)
        return VERSIONS[name]

    (level, _, text), other = as_tuples(check_versions(installed))
    assert (level, other[0]) == ("fail", "ok")
    assert "dagster-aws is not installed" in text


def test_java_version_is_read_from_its_release_file(tmp_path: Path) -> None:
    settings = load_settings(environment={})
    new, old = make_java_home(tmp_path, "21"), make_java_home(tmp_path, "11")
    environment = {"JAVA_HOME": str(new), "PATH": ""}
    assert as_tuples(check_java(settings, environment)) == [
        ("ok", "java", f"Java 21, JAVA_HOME={new}.")
    ]
    environment = {"JAVA_HOME": str(old), "PATH": "", "BATCH_PIPELINE_JAVA": "system"}
    [(level, _, text)] = as_tuples(check_java(settings, environment))
    assert level == "fail"
    assert f"tried JAVA_HOME={old} (Java 11). Install one" in text
    remote = load_settings(environment={"BATCH_PIPELINE_SPARK_REMOTE": "sc://there:15002"})
    assert [level for level, _, _ in as_tuples(check_java(remote, environment))] == ["ok"]


def make_java_home(folder: Path, version: str) -> Path:
    """Create a JAVA_HOME of a version."""
    home = folder / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}.0.1"\n')
    return home


def test_home_readable_by_others_is_reported(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "my home")
    home.ensure()
    assert as_tuples(check_home(home)) == [("ok", "home", f"{home.path}; not in use.")]
    home.path.chmod(0o710)
    assert len(as_tuples(check_home(home))) == 1
    home.path.chmod(0o750)
    (level, _, text), _ = as_tuples(check_home(home))
    assert level == "warn"
    assert "(mode 0750)" in text
    assert text.endswith(f"Run `chmod 700 '{home.path}'`.")


def test_home_in_use_is_reported_with_its_holder(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home")
    with home.lock("batch-pipeline dev", since=NOON):
        [(level, _, text)] = as_tuples(check_home(home))
    assert level == "ok"
    assert f"`batch-pipeline dev` (process {os.getpid()}, since " in text


def test_local_folders_are_checked_without_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.access` is patched because root may do everything."""
    stream_ = stream_in(tmp_path)
    storage, source = as_tuples(check_places(stream_, NOON))
    assert (storage[0], source[0]) == ("ok", "warn")
    assert source[2].startswith(f"{tmp_path}/landing does not exist (source.uri), so no files")
    for name in ("landing", "batches"):
        (tmp_path / name).mkdir()
    assert as_tuples(check_places(stream_, NOON)) == []
    assert list((tmp_path / "batches").iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda _path, _mode: False)
        storage, source = as_tuples(check_places(stream_, NOON))
    assert (storage[0], source[0]) == ("fail", "fail")
    assert f"{tmp_path}/batches cannot be written (storage.root). Grant user " in storage[2]
    assert f"{tmp_path}/landing cannot be read (source.uri)." in source[2]
    for name in ("landing", "batches"):
        (tmp_path / name).rmdir()
        (tmp_path / name).write_text("")
    storage, source = as_tuples(check_places(stream_, NOON))
    assert (storage[0], source[0]) == ("fail", "fail")
    assert storage[2].startswith(f"{tmp_path}/batches is not a folder (storage.root).")


def test_bucket_and_its_clock_are_checked_without_writing(bucket: str) -> None:
    def check(root: str, now: datetime) -> list[tuple[str, str, str]]:
        source, storage = Source(uri=f"{root}/landing"), Storage(root=f"{root}/batches")
        return as_tuples(check_places(stream(source=source, storage=storage), now))

    now, soon = datetime.now(UTC), datetime.now(UTC) + timedelta(minutes=10)
    assert check(bucket, now) == []
    findings = check(bucket, soon)
    assert [finding[:2] for finding in findings] == [("warn", "clock")] * 2
    assert f"differs from the store of {bucket}/batches by" in findings[0][2]
    findings = check(f"{bucket}-gone", now)
    assert [level for level, _, _ in findings] == ["fail", "fail"]
    assert findings[0][2].startswith(f"{bucket}-gone/batches cannot be listed (storage.root): ")
    assert "no such bucket" in findings[0][2]
    assert names_below(bucket) == []


@pytest.mark.parametrize(
    ("free", "level"), [(2**30, "ok"), (2**30 - 1, "warn"), (100 * 2**20 - 1, "fail")]
)
def test_low_disk_space_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    usage = SimpleNamespace(total=2**40, used=0, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    findings = as_tuples(check_disks(Home(path=tmp_path / "home"), [stream_in(tmp_path)]))
    [(shown, _, text), *_] = [one for one in findings if one[1] == "disk" and "the home" in one[2]]
    assert shown == level
    assert "files of orders" in text
    assert ("batch-pipeline gc --dry-run" in text) is (level != "ok")


def test_clock_difference_above_a_minute_is_a_warning() -> None:
    minute = timedelta(seconds=60)
    assert as_tuples(compare_clocks("the store", NOON + minute, NOON)) == []
    for other in (NOON + 2 * minute, NOON - 2 * minute):
        [(level, subject, text)] = as_tuples(compare_clocks("the store", other, NOON))
        assert (level, subject) == ("warn", "clock")
        assert text.startswith("this machine's clock differs from the store by 120 seconds.")


def test_port_in_use_is_reported_with_its_process() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        [(level, subject, text)] = as_tuples(check_port(port))
    assert (level, subject) == ("warn", "ports")
    assert f"(process {os.getpid()})" in text
    assert text.endswith(f"run `batch-pipeline dev --port {port + 1}`.")
    assert [level for level, _, _ in as_tuples(check_port(port))] == ["ok"]


class _PrivilegedSocket(socket.socket):
    """A socket of a user who may not use the port, which no test can be for root."""

    def bind(self, address: object, /) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")


def test_port_that_may_not_be_used_has_a_reason_and_another_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", _PrivilegedSocket)
    problem = port_problem(80)
    assert problem == "cannot be used (Permission denied)"
    for port in (80, 65_535):
        text = str(unusable_port(port, problem))
        assert f"Port {port} on 127.0.0.1 cannot be used (Permission denied). Nothing was" in text
        assert "`batch-pipeline dev --port 3001`" in text


def test_failing_check_does_not_hide_others() -> None:
    """An unexpected error is reported as a warning; a bug of ours propagates."""

    def broken(error: Exception) -> Iterator[Finding]:
        yield fine("a", "seen.")
        raise error

    invalid = SettingError("NAME", "here", "is wrong", "Correct it.")
    assert [level for level, _, _ in as_tuples(attempted("a", lambda: broken(invalid)))] == [
        "ok",
        "fail",
    ]
    _, other = as_tuples(attempted("a", lambda: broken(OSError("no such device\nsecond line"))))
    text = "this could not be checked (OSError: no such device). Please report it."
    assert other == ("warn", "a", text)
    with pytest.raises(InvariantError):
        list(attempted("a", lambda: broken(InvariantError())))
