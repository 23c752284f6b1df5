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


def test_commands_fail_with_next_step_until_manifests_are_discarded(
    restored: RestorableStream, run: Run, figures: Figures
) -> None:
    """`gc` skips only the stream whose inventory is older."""
    next_step, before = "`batch-pipeline reconcile orders --discard`", restored.rows()
    planned = run("plan", "orders")
    assert planned.exit_code == 1
    assert next_step in str(planned.exception)
    reconciled = run("reconcile", "orders")
    assert reconciled.exit_code == 1
    assert next_step in reconciled.stderr
    assert restored.rows() == before

    restored.write_stream("clicks")
    collected = run("gc", "orders", "clicks")
    assert collected.exit_code == 1
    assert next_step in collected.stderr
    assert collected.stdout.splitlines() == ["clicks", "  Nothing to delete."]

    discarded = run("reconcile", "orders", "--discard", "--no-audit")
    assert discarded.exit_code == 0, discarded.output
    head, moved, sent_again, attempts_closed = discarded.stdout.splitlines()
    folder = moved.removeprefix("  manifests moved below ").removesuffix(": 1")
    assert (head, sent_again, attempts_closed) == (
        "orders",
        "    records that may be in targets, which receive them again: 2",
        "  attempts closed: 0, manifest files written: 0",
    )
    assert [path.name for path in Path(to_path(folder), "manifests").iterdir()] == [
        "orders-00000003-00000004.g1.json"
    ]
    figures(entry_points=3)


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


def test_reconcile_refuses_options_that_were_removed_or_lack_discard(run: Run) -> None:
    assert run("reconcile", "--dry-run").exit_code == 2
    result = run("reconcile", "orders", "--adopt")
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert (
        "The option --adopt was removed. Restore the inventory to a later point in time" in message
    )
    assert "--discard" in message
