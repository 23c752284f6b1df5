"""Sensors, jobs and commands refuse streams whose inventory is older than the storage (G13)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from batch_pipeline.cli import cli
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.defs.defs_fixture import DefsHarness, open_defs_harness
from batch_pipeline_tests.guarantees.restorable_stream import RestorableStream, open_stream
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import query

pytestmark = [
    pytest.mark.guarantee("G13"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
UNKNOWN_MANIFEST = "orders-00000091-00000092.g1.json"
TARGETS = {"warehouse": {"command": ["target-that-never-runs"]}}
Run = Callable[..., Result]


@pytest.fixture
def harness(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsHarness]:
    """Four planned batches, and an unknown manifest in the storage."""
    with open_defs_harness(
        database, database_url, tmp_path, monkeypatch, targets=TARGETS
    ) as harness:
        path = Path(to_path(harness.stream.storage.root), "manifests", UNKNOWN_MANIFEST)
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        yield harness


@pytest.fixture
def restored(tmp_path: Path, server_url: str, database_url: str) -> Iterator[RestorableStream]:
    """A stream with two published batches, restored from a backup that has one of them."""
    with open_stream(tmp_path, server_url, database_url, str(tmp_path / "batches")) as stream:
        stream.land(1, 2)
        stream.publish()
        backup = stream.back_up()
        stream.land(3, 4)
        stream.publish()
        stream.restore(backup)
        yield stream


@pytest.fixture
def run(restored: RestorableStream) -> Run:
    """The command line, with the settings of the restored stream."""
    return lambda *words: CliRunner().invoke(cli, words, env=restored.environment)


def count_batches_and_attempts(harness: DefsHarness) -> int:
    statement = (
        "SELECT (SELECT count(*) FROM batch_pipeline.batch) "
        "+ (SELECT count(*) FROM batch_pipeline.attempt)"
    )
    [(count,)] = query(harness.database, statement)
    return int(count)


@pytest.mark.parametrize("name", ["orders_new_files", "orders_backfill", "orders_load"])
def test_sensors_skip_stream_with_older_inventory(
    harness: DefsHarness, name: str, figures: Figures
) -> None:
    """Each sensor skips with the reason, even if it ticks first."""
    sensor = harness.definitions.resolve_sensor_def(name)
    resources = {"batch_pipeline": PipelineResource()}
    for _ in range(2):
        with dg.build_sensor_context(instance=harness.instance, resources=resources) as context:
            skipped = sensor(context)
        assert isinstance(skipped, dg.SkipReason)
        assert f"manifests unknown to it: 1, {UNKNOWN_MANIFEST} first" in str(skipped.skip_message)
    assert count_batches_and_attempts(harness) == 4
    assert harness.database.jobs.paused("orders") is not None
    figures(entry_points=1)


@pytest.mark.parametrize(
    ("job", "op"),
    [
        ("batch_pipeline_reconcile", "reconcile_streams"),
        ("batch_pipeline_collect_garbage", "collect_of_streams"),
    ],
)
def test_jobs_fail_with_reason_for_stream_with_older_inventory(
    harness: DefsHarness, job: str, op: str, figures: Figures
) -> None:
    result = harness.definitions.resolve_job_def(job).execute_in_process(
        instance=harness.instance, raise_on_error=False
    )
    assert not result.success
    [failed] = [event for event in result.all_events if event.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None
    assert "--discard" in str(failure.description)
    assert failed.step_key == op
    figures(entry_points=1)


@pytest.mark.parametrize(
    "words", [("plan", "orders"), ("reconcile", "orders")], ids=lambda words: words[0]
)
def test_commands_fail_with_next_step_for_stream_with_older_inventory(
    restored: RestorableStream, run: Run, words: tuple[str, ...], figures: Figures
) -> None:
    before = restored.rows()
    result = run(*words)
    assert result.exit_code == 1, result.output
    message = result.stderr if words[0] == "reconcile" else str(result.exception)
    assert "`batch-pipeline reconcile orders --discard`" in message
    assert restored.rows() == before
    figures(entry_points=1)


def test_gc_skips_stream_with_older_inventory(restored: RestorableStream, run: Run) -> None:
    restored.write_stream("clicks")
    result = run("gc", "orders", "clicks")
    assert result.exit_code == 1
    assert "`batch-pipeline reconcile orders --discard`" in result.stderr
    assert result.stdout.splitlines() == ["clicks", "  Nothing to delete."]


def test_reconcile_discard_prints_counts(restored: RestorableStream, run: Run) -> None:
    result = run("reconcile", "orders", "--discard", "--no-audit")
    assert result.exit_code == 0, result.output
    head, moved, sent_again, attempts_closed = result.stdout.splitlines()
    folder = moved.removeprefix("  manifests moved below ").removesuffix(": 1")
    assert (head, sent_again, attempts_closed) == (
        "orders",
        "    records that may be in targets, which receive them again: 2",
        "  attempts closed: 0, manifest files written: 0",
    )
    assert [path.name for path in Path(to_path(folder), "manifests").iterdir()] == [
        "orders-00000003-00000004.g1.json"
    ]


def test_reconcile_discard_replaces_foreign_manifest_file(
    restored: RestorableStream, run: Run
) -> None:

    Path(restored.root, "manifests", "orders-00000003-00000004.g1.json").unlink()
    [first] = Path(restored.root, "manifests").glob("*.json")
    text = first.read_text()
    first.write_text("{}")
    with restored.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_pipeline.attempt SET pointer_uri = NULL")
    result = run("reconcile", "orders")
    assert (result.exit_code, first.read_text()) == (1, "{}")
    assert "`batch-pipeline reconcile STREAM --discard`" in result.stderr
    result = run("reconcile", "orders", "--discard")
    assert (result.exit_code, first.read_text()) == (0, text)


def test_reconcile_dry_run_without_discard_is_usage_error(run: Run) -> None:
    assert run("reconcile", "--dry-run").exit_code == 2


def test_reconcile_adopt_names_its_replacement(run: Run) -> None:
    result = run("reconcile", "orders", "--adopt")
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert (
        "The option --adopt was removed. Restore the inventory to a later point in time" in message
    )
    assert "--discard" in message
