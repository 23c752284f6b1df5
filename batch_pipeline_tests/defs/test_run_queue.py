"""The order of queued runs under the package's dagster.yaml, in Dagster's own queue."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from batch_pipeline.config.home import Home
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.dagster_home import open_instance
from batch_pipeline.defs.instance.launcher import LocalRunLauncher
from batch_pipeline.defs.names import MAX_RETRIES_TAG, STREAM_TAG
from batch_pipeline.defs.partitions import KeyOrder, PartitionedAsset, backfills_of, batches_of
from batch_pipeline.defs.runs import ended_runs
from batch_pipeline.defs.sensors import LaunchCursor, plan_launches
from batch_pipeline.inventory.connection import normalize_url
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import BatchState, BatchStatus
from batch_pipeline.model.errors import SettingError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.stream import DagsterRules
from batch_pipeline_tests.defs.defs_fixture import ranges, start_run
from batch_pipeline_tests.factories import batch, stream
from batch_pipeline_tests.seeds import execute, query

REPOSITORY = RemoteRepositoryOrigin(
    GrpcServerCodeLocationOrigin(host="localhost", socket="code.sock"), "__repository__"
)
KEYS = [f"{number:08}-{number:08}" for number in range(1, 6)]
RULES = DagsterRules(partitions_per_run=1, backfills=True)
A, B, C = (stream(name=name, dagster=RULES) for name in "abc")


@pytest.fixture
def home(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose Dagster stores its runs in the test database."""
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", database_url)
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path))
    return Home(path=tmp_path)


@dataclass(frozen=True, slots=True)
class Queue:
    """The run queue of an instance."""

    instance: dg.DagsterInstance
    definitions: dg.Definitions

    def launch(self, asset: PartitionedAsset, batches: int) -> Sequence[dg.RunRequest]:
        """Return the run requests of a sensor for planned batches of one item each."""
        stream = asset.stream.name
        job = stream if JobKind.INCREMENTAL in asset.kinds else f"{stream}.2023"
        planned = [batch(number, number, job=job) for number in range(1, batches + 1)]
        statuses = [
            BatchStatus(batch=one, key=asset.key_of(one), state=BatchState.PLANNED, attempts=0)
            for one in planned
        ]
        order = [status.key for status in statuses]
        self.instance.add_dynamic_partitions(asset.set_name, order)
        return plan_launches(
            self.instance, asset, statuses, KeyOrder(lambda: order), LaunchCursor()
        ).requests

    def enqueue(self, requests: Sequence[dg.RunRequest]) -> None:
        """Enqueue a run for each request."""
        for request in requests:
            job_name = str(request.job_name)
            self.instance.create_run_for_job(
                job_def=self.definitions.resolve_job_def(job_name),
                tags=dict(request.tags),
                status=dg.DagsterRunStatus.QUEUED,
                remote_job_origin=RemoteJobOrigin(REPOSITORY, job_name),
            )

    def dequeue(self) -> list[str]:
        """Start the runs that the queue releases and return their streams."""
        daemon = QueuedRunCoordinatorDaemon(interval_seconds=1)
        config = self.instance.get_concurrency_config()
        runs = daemon._get_runs_to_dequeue(self.instance, config, None)
        for run in runs:
            self._report(run, "PIPELINE_START")
        return [run.tags[STREAM_TAG] for run in runs]

    def end(self, name: str) -> None:
        """End the oldest started run of a stream."""
        started = dg.RunsFilter(tags={STREAM_TAG: name}, statuses=[dg.DagsterRunStatus.STARTED])
        run = self.instance.get_runs(started)[-1]
        self._report(run, "PIPELINE_SUCCESS")

    def _report(self, run: dg.DagsterRun, kind: str) -> None:
        event = dg.DagsterEvent(event_type_value=kind, job_name=run.job_name)
        self.instance.report_dagster_event(event, run_id=run.run_id)


@pytest.fixture
def queue(home: Home) -> Iterator[Queue]:
    """An empty queue for three streams with one batch per run."""
    with open_instance(home) as instance:
        opened = Queue(instance, build_definitions([A, B, C]))
        # Dagster sets the limit of a pool after the first evaluation of the queue that sees it.
        opened.enqueue(opened.launch(batches_of(A), 1))
        assert opened.dequeue() == ["a"]
        opened.end("a")
        yield opened


def test_backlog_of_a_stream_does_not_block_other_streams(queue: Queue) -> None:
    """It gets at most two of three runs. The sensor, not Dagster, retries those that die."""
    requests = queue.launch(batches_of(A), 500)
    assert {request.tags[MAX_RETRIES_TAG] for request in requests} == {"0"}
    queue.enqueue(requests)
    assert queue.dequeue() == ["a", "a"]
    assert queue.dequeue() == []
    queue.enqueue(queue.launch(batches_of(B), 1))
    assert queue.dequeue() == ["b"]
    queue.enqueue(queue.launch(batches_of(C), 2))
    assert queue.dequeue() == []
    queue.end("a")
    assert queue.dequeue() == ["c"]
    queue.end("b")
    assert queue.dequeue() == ["c"]
    queue.end("c")
    assert queue.dequeue() == ["a"]


def test_batches_planned_while_a_run_is_queued_share_the_next_run(queue: Queue) -> None:
    """A second run is only requested if it is full or once the first has started."""
    many = replace(A, dagster=DagsterRules(partitions_per_run=3))
    queue.enqueue(queue.launch(batches_of(many), 1))
    assert queue.launch(batches_of(many), 2) == []
    [full] = queue.launch(batches_of(many), 5)
    assert ranges([full]) == [(KEYS[1], KEYS[3])]
    assert queue.dequeue() == ["a"]
    assert ranges(queue.launch(batches_of(many), 3)) == [(KEYS[1], KEYS[2])]


def test_new_files_precede_manual_runs_and_backfills(queue: Queue) -> None:
    queue.enqueue(queue.launch(backfills_of(A), 5))
    queue.enqueue([dg.RunRequest(job_name="b_encode", tags={STREAM_TAG: "b"})])
    queue.enqueue(queue.launch(batches_of(C), 1))
    assert queue.dequeue() == ["c", "b", "a"]


def test_streams_of_one_pool_share_its_limit(home: Home) -> None:
    shared = DagsterRules(partitions_per_run=1, pool="nightly")
    first, second = (stream(name=name, dagster=shared) for name in ("first", "second"))
    with open_instance(home) as instance:
        queue = Queue(instance, build_definitions([first, second, C]))
        queue.enqueue(queue.launch(batches_of(first), 3))
        queue.enqueue(queue.launch(batches_of(second), 3))
        queue.enqueue(queue.launch(batches_of(C), 1))
        assert sorted(queue.dequeue()) == ["c", "first", "second"]
        queue.end("first")
        assert queue.dequeue() in (["first"], ["second"])
        assert queue.dequeue() == []


def test_dagster_reads_the_settings_of_the_package(home: Home) -> None:
    with open_instance(home) as instance:
        concurrency = instance.get_concurrency_config()
        assert isinstance(instance.run_launcher, LocalRunLauncher)
        assert instance.run_launcher.supports_check_run_worker_health
        expected = {
            "run_monitoring_enabled": True,
            "run_monitoring_max_resume_run_attempts": 0,
            "run_monitoring_start_timeout_seconds": 180,
            "run_monitoring_cancel_timeout_seconds": 60,
            "run_retries_enabled": True,
            "run_retries_max_retries": 2,
            "run_retries_retry_on_asset_or_op_failure": False,
            "telemetry_enabled": False,
        }
        assert {name: getattr(instance, name) for name in expected} == expected
        assert concurrency.run_queue_config is not None
        assert concurrency.run_queue_config.max_concurrent_runs == 3
        assert concurrency.run_queue_config.max_user_code_failure_retries == 10
        assert concurrency.pool_config.default_pool_limit == 2


def test_settings_of_the_home_override_those_of_the_package(home: Home) -> None:
    """Nested keys are merged."""
    (home.path / "dagster.yaml").write_text("concurrency: {runs: {max_concurrent_runs: 8}}\n")
    with open_instance(home) as instance:
        concurrency = instance.get_concurrency_config()
    assert concurrency.run_queue_config is not None
    assert concurrency.run_queue_config.max_concurrent_runs == 8
    assert concurrency.pool_config.default_pool_limit == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- runs\n", "not a mapping of settings"),
        ("runs: [\n", "not valid YAML: while parsing"),
        ("# \xfc\n", "not valid YAML: 'utf-8' codec"),
        ("a: 2024-13-45\n", "not valid YAML: month must be"),
        ("run_monitoring: {poll_interval_seconds: often}\n", "at path root:run_monitoring:poll"),
        ("run_coordinator: {module: a, class: B}\n", "incompatible with"),
    ],
)
def test_invalid_settings_of_the_home_are_rejected(home: Home, text: str, problem: str) -> None:
    (home.path / "dagster.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(SettingError, match=problem) as caught:
        open_instance(home)
    assert str(home.path / "dagster.yaml") in str(caught.value)


def test_sections_of_the_home_that_select_a_class_replace_those_of_the_package(home: Home) -> None:
    folder = home.path / "runs"
    text = f"storage: {{sqlite: {{base_dir: {folder}}}}}\n"
    (home.path / "dagster.yaml").write_text(text)
    with open_instance(home) as instance:
        assert instance.get_runs() == []
    assert folder.exists()


DAGSTERS_STORAGE = """\
storage:
  custom:
    module: dagster_postgres
    class: DagsterPostgresStorage
    config: {{postgres_url: "{url}"}}
"""


@pytest.mark.parametrize("is_own", [True, False])
def test_ended_runs_are_found_on_a_server_with_another_time_zone(
    home: Home, database: Database, database_url: str, is_own: bool
) -> None:
    """Dagster stores local times of the session, and reads them as UTC."""
    if not is_own:
        url = normalize_url(database_url, driver="psycopg2")
        (home.path / "dagster.yaml").write_text(DAGSTERS_STORAGE.format(url=url))
    [(name,)] = query(database, "SELECT current_database()")
    execute(database, f"ALTER DATABASE \"{name}\" SET timezone = 'America/New_York'")
    cancelled = dg.DagsterRunStatus.CANCELED
    with open_instance(home) as instance:
        run = start_run(instance, build_definitions([A]).resolve_job_def("a_encode"), {})
        instance.report_run_canceled(run)
        [record] = instance.get_run_records()
        assert [one.run_id for one in ended_runs(instance, time.time(), cancelled)] == [run.run_id]
        assert ended_runs(instance, time.time() + 3600, cancelled) == []
    late_seconds = time.time() - record.update_timestamp.timestamp()
    assert (late_seconds < 60) is is_own
