"""Sensors, jobs and commands refuse a stream whose inventory is older than its storage (G13)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from batch_pipeline.cli import cli
from batch_pipeline.defs.resources import PipelineResource
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.defs.defs_fixture import DefsScene, open_defs_scene
from batch_pipeline_tests.guarantees.restorable_stream import RestorableStream, open_stream
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import query

pytestmark = [
    pytest.mark.guarantee("G13"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
STRANGER = "orders-00000091-00000092.g1.json"
TARGETS = {"warehouse": {"command": ["target-that-never-runs"]}}
Run = Callable[..., Result]


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """Four planned batches, and an unknown manifest in the storage."""
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=TARGETS) as opened:
        path = Path(to_path(opened.stream.storage.root), "manifests", STRANGER)
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        yield opened


@pytest.fixture
def restored(tmp_path: Path, server_url: str, database_url: str) -> Iterator[RestorableStream]:
    """Two published batches, after the restore of a backup that has one of them."""
    with open_stream(tmp_path, server_url, database_url, str(tmp_path / "batches")) as opened:
        opened.land(1, 2)
        opened.publish()
        backup = opened.back_up()
        opened.land(3, 4)
        opened.publish()
        opened.restore(backup)
        yield opened


@pytest.fixture
def run(restored: RestorableStream) -> Run:
    """The command on the restored."""
    return lambda *words: CliRunner().invoke(cli, words, env=restored.environment)


def planned_rows(scene: DefsScene) -> int:
    """Count what is planned and tried."""
    statement = (
        "SELECT (SELECT count(*) FROM batch_pipeline.batch) "
        "+ (SELECT count(*) FROM batch_pipeline.attempt)"
    )
    [(count,)] = query(scene.database, statement)
    return int(count)


@pytest.mark.parametrize("name", ["orders_new_files", "orders_backfill", "orders_load"])
def test_sensors_of_a_stream_that_is_older_ask_for_nothing(
    scene: DefsScene, name: str, figures: Figures
) -> None:
    """Each sensor skips with the reason, whichever ticks first."""
    sensor = scene.definitions.resolve_sensor_def(name)
    resources = {"batch_pipeline": PipelineResource()}
    for _ in range(2):
        with dg.build_sensor_context(instance=scene.instance, resources=resources) as context:
            skipped = sensor(context)
        assert isinstance(skipped, dg.SkipReason)
        assert f"manifests unknown to it: 1, {STRANGER} first" in str(skipped.skip_message)
    assert planned_rows(scene) == 4
    assert scene.database.jobs.paused("orders") is not None
    figures(doors=1)


@pytest.mark.parametrize(
    ("job", "op"),
    [
        ("batch_pipeline_reconcile", "reconcile_streams"),
        ("batch_pipeline_collect_garbage", "collect_of_streams"),
    ],
)
def test_jobs_of_a_stream_that_is_older_fail_and_say_why(
    scene: DefsScene, job: str, op: str, figures: Figures
) -> None:
    result = scene.definitions.resolve_job_def(job).execute_in_process(
        instance=scene.instance, raise_on_error=False
    )
    assert not result.success
    [failed] = [event for event in result.all_events if event.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None
    assert "--discard" in str(failure.description)
    assert failed.step_key == op
    figures(doors=1)


@pytest.mark.parametrize(
    "words", [("plan", "orders"), ("reconcile", "orders")], ids=lambda words: words[0]
)
def test_commands_on_a_stream_that_is_older_end_with_the_ways_on(
    restored: RestorableStream, run: Run, words: tuple[str, ...], figures: Figures
) -> None:
    before = restored.rows()
    ended = run(*words)
    assert ended.exit_code == 1, ended.output
    message = ended.stderr if words[0] == "reconcile" else str(ended.exception)
    assert "`batch-pipeline reconcile orders --discard`" in message
    assert restored.rows() == before
    figures(doors=1)


def test_garbage_of_a_stream_that_is_older_stays_while_that_of_others_goes(
    restored: RestorableStream, run: Run
) -> None:
    restored.write_stream("clicks")
    ended = run("gc", "orders", "clicks")
    assert ended.exit_code == 1
    assert "`batch-pipeline reconcile orders --discard`" in ended.stderr
    assert ended.stdout.splitlines() == ["clicks", "  Nothing to delete."]


def test_reconcile_command_discards_in_words(restored: RestorableStream, run: Run) -> None:
    done = run("reconcile", "orders", "--discard", "--no-audit")
    assert done.exit_code == 0, done.output
    head, moved, twice, closed = done.stdout.splitlines()
    folder = moved.removeprefix("  manifests moved below ").removesuffix(": 1")
    assert (head, twice, closed) == (
        "orders",
        "    records that may be in targets, which get them again: 2",
        "  attempts closed: 0, manifest files written: 0",
    )
    assert [path.name for path in Path(to_path(folder), "manifests").iterdir()] == [
        "orders-00000003-00000004.g1.json"
    ]


def test_reconcile_command_discards_what_is_in_the_way_of_a_pointer(
    restored: RestorableStream, run: Run
) -> None:
    """A foreign manifest file is replaced by that of the published batch."""
    Path(restored.root, "manifests", "orders-00000003-00000004.g1.json").unlink()
    [first] = Path(restored.root, "manifests").glob("*.json")
    text = first.read_text()
    first.write_text("{}")
    with restored.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_pipeline.attempt SET pointer_uri = NULL")
    ended = run("reconcile", "orders")
    assert (ended.exit_code, first.read_text()) == (1, "{}")
    assert "`batch-pipeline reconcile STREAM --discard`" in ended.stderr
    ended = run("reconcile", "orders", "--discard")
    assert (ended.exit_code, first.read_text()) == (0, text)


def test_reconcile_command_dry_run_without_discard_is_a_usage_error(run: Run) -> None:
    assert run("reconcile", "--dry-run").exit_code == 2


def test_reconcile_command_with_adopt_names_its_replacement(run: Run) -> None:
    ended = run("reconcile", "orders", "--adopt")
    assert ended.exit_code == 2
    message = " ".join(ended.stderr.split())
    assert (
        "The option --adopt was removed. Restore the inventory to a later point in time" in message
    )
    assert "--discard" in message
