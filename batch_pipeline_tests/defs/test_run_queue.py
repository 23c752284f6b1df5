"""Whose run comes next: the package's dagster.yaml, asked through Dagster's own queue."""

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
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import (
    QueuedRunCoordinatorDaemon,
)

from batch_pipeline.config.home import Home
from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.dagster_home import open_instance, prepare_dagster_home
from batch_pipeline.defs.instance.launcher import LocalRunLauncher
from batch_pipeline.defs.names import (
    MAX_RETRIES_TAG,
    RANGE_END_TAG,
    RANGE_START_TAG,
    STREAM_TAG,
)
from batch_pipeline.defs.partitions import KeyOrder, PartitionedAsset, backfills_of, batches_of
from batch_pipeline.defs.sensors import LaunchCursor, plan_launches
from batch_pipeline.model.batch import BatchState, BatchStatus
from batch_pipeline.model.errors import SettingError
from batch_pipeline.model.job import JobKind
from batch_pipeline.model.stream import DagsterRules, Stream
from batch_pipeline_tests.factories import batch, stream

REPOSITORY = RemoteRepositoryOrigin(
    GrpcServerCodeLocationOrigin(host="localhost", socket="code.sock"), "__repository__"
)
KEYS = [f"{number:08}-{number:08}" for number in range(1, 6)]
RULES = DagsterRules(partitions_per_run=1, backfills=True)
A, B, C = (stream(name=name, dagster=RULES) for name in "abc")


@pytest.fixture
def home(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose Dagster keeps its runs in a database of the test's own."""
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", database_url)
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path))
    return Home(path=tmp_path)


@dataclass(frozen=True, slots=True)
class Queue:
    """The runs that sensors and people have put into the queue of an instance."""

    instance: dg.DagsterInstance
    definitions: dg.Definitions

    def launch(self, asset: PartitionedAsset, one: Stream, batches: int) -> Sequence[dg.RunRequest]:
        """Let a sensor launch planned batches of one item each, at most ten runs."""
        job = one.name if JobKind.INCREMENTAL in asset.kinds else f"{one.name}.2023"
        statuses = [
            BatchStatus(batch=batch(number, number, job=job), state=BatchState.PLANNED, attempts=0)
            for number in range(1, batches + 1)
        ]
        order = [asset.key_of(status.batch) for status in statuses]
        self.instance.add_dynamic_partitions(asset.set_name, order)
        return plan_launches(
            self.instance, one, asset, statuses, KeyOrder(lambda: order), LaunchCursor()
        ).requests

    def queue(self, requests: Sequence[dg.RunRequest]) -> None:
        """Put what was asked for into the queue."""
        for request in requests:
            assert request.job_name is not None
            self.add(request.job_name, dict(request.tags))

    def add(self, job_name: str, tags: dict[str, str]) -> None:
        """Put one run into the queue."""
        job = self.definitions.resolve_job_def(job_name)
        self.instance.create_run_for_job(
            job_def=job,
            tags=tags,
            status=dg.DagsterRunStatus.QUEUED,
            remote_job_origin=RemoteJobOrigin(REPOSITORY, job_name),
        )

    def next_ones(self) -> list[str]:
        """Start what the queue lets go, and name the streams."""
        daemon = QueuedRunCoordinatorDaemon(interval_seconds=1)
        config = self.instance.get_concurrency_config()
        runs = daemon._get_runs_to_dequeue(self.instance, config, None)
        for run in runs:
            self._report(run, "PIPELINE_START")
        return [run.tags[STREAM_TAG] for run in runs]

    def end(self, name: str) -> None:
        """Let the oldest running run of a stream end."""
        going = dg.RunsFilter(tags={STREAM_TAG: name}, statuses=[dg.DagsterRunStatus.STARTED])
        run = self.instance.get_runs(going)[-1]
        self._report(run, "PIPELINE_SUCCESS")

    def _report(self, run: dg.DagsterRun, kind: str) -> None:
        event = dg.DagsterEvent(event_type_value=kind, job_name=run.job_name)
        self.instance.report_dagster_event(event, run_id=run.run_id)


@pytest.fixture
def queue(home: Home) -> Iterator[Queue]:
    """An empty queue for three streams, two batches of which never share a run."""
    with open_instance(home) as instance:
        opened = Queue(instance, build_definitions([A, B, C]))
        # Dagster gives a pool its limit after the look at the queue that sees it first.
        opened.queue(opened.launch(batches_of(A), A, 1))
        assert opened.next_ones() == ["a"]
        opened.end("a")
        yield opened


def test_new_files_do_not_wait_for_the_backlog_of_another_stream(queue: Queue) -> None:
    """Expect two runs of a backlog at most, the third free for the others, and turns after that."""
    queue.queue(queue.launch(batches_of(A), A, 500))
    assert queue.next_ones() == ["a", "a"]
    assert queue.next_ones() == []
    queue.queue(queue.launch(batches_of(B), B, 1))
    assert queue.next_ones() == ["b"]
    queue.queue(queue.launch(batches_of(C), C, 2))
    assert queue.next_ones() == []
    queue.end("a")
    assert queue.next_ones() == ["c"]
    queue.end("b")
    assert queue.next_ones() == ["c"]
    queue.end("c")
    assert queue.next_ones() == ["a"]


def test_batches_that_come_while_a_run_waits_share_the_next_one(queue: Queue) -> None:
    """Expect no second run in the queue that is not full, and one for all once the first is off."""
    many = replace(A, dagster=DagsterRules(partitions_per_run=3))
    queue.queue(queue.launch(batches_of(A), many, 1))
    assert queue.launch(batches_of(A), many, 2) == []
    [full] = queue.launch(batches_of(A), many, 5)
    assert full.tags[RANGE_END_TAG] == KEYS[3]
    assert queue.next_ones() == ["a"]
    [rest] = queue.launch(batches_of(A), many, 3)
    assert (rest.tags[RANGE_START_TAG], rest.tags[RANGE_END_TAG]) == (KEYS[1], KEYS[2])


def test_new_files_come_before_backfills_also_of_other_streams(queue: Queue) -> None:
    """Expect the order: new files, what a person launched, backfills that were planned."""
    queue.queue(queue.launch(backfills_of(A), A, 5))
    queue.add("b_encode", {STREAM_TAG: "b"})
    queue.queue(queue.launch(batches_of(C), C, 1))
    assert queue.next_ones() == ["c", "b", "a"]


def test_runs_of_sensors_are_not_repeated_by_dagster(queue: Queue) -> None:
    """Expect the tag that leaves it to the sensor to launch what is left of a run that died."""
    requests = queue.launch(batches_of(A), A, 3)
    assert {request.tags[MAX_RETRIES_TAG] for request in requests} == {"0"}


def test_streams_of_one_pool_share_its_limit(home: Home) -> None:
    """Expect both streams together to have two runs, which leaves the third to others."""
    shared = DagsterRules(partitions_per_run=1, pool="nightly")
    one, other = (stream(name=name, dagster=shared) for name in ("one", "other"))
    with open_instance(home) as instance:
        queue = Queue(instance, build_definitions([one, other, C]))
        queue.queue(queue.launch(batches_of(one), one, 3))
        queue.queue(queue.launch(batches_of(other), other, 3))
        queue.queue(queue.launch(batches_of(C), C, 1))
        assert sorted(queue.next_ones()) == ["c", "one", "other"]
        queue.end("one")
        assert queue.next_ones() in (["one"], ["other"])
        assert queue.next_ones() == []


def test_settings_of_the_package_are_read(home: Home) -> None:
    """Expect Dagster to have understood every section."""
    with open_instance(home) as instance:
        concurrency = instance.get_concurrency_config()
        assert isinstance(instance.run_launcher, LocalRunLauncher)
        assert instance.run_launcher.supports_check_run_worker_health
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_resume_run_attempts == 0
        assert instance.run_monitoring_start_timeout_seconds == 180
        assert instance.run_monitoring_cancel_timeout_seconds == 60
        assert instance.run_retries_enabled
        assert instance.run_retries_max_retries == 2
        assert not instance.run_retries_retry_on_asset_or_op_failure
        assert concurrency.run_queue_config is not None
        assert concurrency.run_queue_config.max_concurrent_runs == 3
        assert concurrency.run_queue_config.max_user_code_failure_retries == 10
        assert concurrency.pool_config.default_pool_limit == 2
        assert not instance.telemetry_enabled


def test_settings_in_the_home_are_laid_over_those_of_the_package(home: Home) -> None:
    """Expect a key that is given to win, also within a section, and the others to stay."""
    (home.path / "dagster.yaml").write_text("concurrency: {runs: {max_concurrent_runs: 8}}\n")
    with open_instance(home) as instance:
        concurrency = instance.get_concurrency_config()
        assert concurrency.run_queue_config is not None
        assert concurrency.run_queue_config.max_concurrent_runs == 8
        assert concurrency.pool_config.default_pool_limit == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [("- runs\n", "not a mapping of settings"), ("runs: [\n", "no YAML: while parsing")],
)
def test_settings_in_the_home_that_are_none_are_refused(
    home: Home, text: str, problem: str
) -> None:
    """Expect a message that names the file and says what to write there."""
    (home.path / "dagster.yaml").write_text(text)
    with pytest.raises(SettingError) as caught:
        prepare_dagster_home(home)
    assert problem in str(caught.value)
    assert str(home.path / "dagster.yaml") in str(caught.value)
