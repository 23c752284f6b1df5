"""Trimming Dagster's history: what goes of old runs, and that no partition changes its colour."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from batch_pipeline.defs.build import build_definitions
from batch_pipeline.defs.instance.history import trim_history
from batch_pipeline.defs.instance.home import open_instance
from batch_pipeline.domain.failpoint import VARIABLE, FailpointError
from batch_pipeline.domain.location import to_uri
from batch_pipeline.domain.stream import Storage
from batch_pipeline.inventory.database import Database
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.integration.seeds import execute, query

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
KEYS = dg.StaticPartitionsDefinition(["a", "b", "c", "d"])
TYPES = "SELECT coalesce(dagster_event_type, 'log') FROM event_logs WHERE run_id = :run"


@dg.asset(partitions_def=KEYS, config_schema={"fail": dg.Field(bool, default_value=False)})
def made(context: dg.AssetExecutionContext) -> None:
    """Make a partition, or fail."""
    context.log.info("making %s", context.partition_key)
    if context.op_execution_context.op_config["fail"]:
        raise dg.Failure("as asked")


@dg.op
def look_after(context: dg.OpExecutionContext) -> None:
    """Make nothing."""
    context.log.info("looking")


@dg.job(name="reconcile")
def upkeep() -> None:
    """Look after things."""
    look_after()


@pytest.fixture
def pipeline(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pipeline]:
    """A pipeline that keeps logs for 90 days; Dagster's instance is in the inventory's database."""
    assert database.location
    monkeypatch.setenv("BATCH_PIPELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BATCH_PIPELINE_INVENTORY_CONN", database_url)
    monkeypatch.setenv("BATCH_PIPELINE_KEEP_LOGS", "90d")
    with closing(Pipeline.from_environment()) as opened:
        yield opened


@pytest.fixture
def instance(pipeline: Pipeline) -> Iterator[dg.DagsterInstance]:
    """Dagster's instance of the home."""
    with open_instance(pipeline.home) as opened:
        yield opened


def make(instance: dg.DagsterInstance, key: str, *, fail: bool = False) -> str:
    """Materialize a partition, or fail to; gives the run."""
    run_config = {"ops": {"made": {"config": {"fail": fail}}}}
    result = dg.materialize(
        [made],
        partition_key=key,
        instance=instance,
        run_config=run_config,
        raise_on_error=False,
    )
    assert result.success is not fail
    return result.run_id


def age(database: Database, *runs: str, days: int = 100) -> None:
    """Let runs have ended so long ago."""
    seconds = timedelta(days=days).total_seconds()
    statement = "UPDATE runs SET end_time = end_time - :seconds WHERE run_id = ANY(:runs)"
    execute(database, statement, seconds=seconds, runs=list(runs))


def colours(instance: dg.DagsterInstance) -> Mapping[str, Any]:
    """Read the status of each partition anew, as Dagster's pages draw it."""
    if instance.has_asset_key(made.key):
        instance.event_log_storage.wipe_asset_cached_status(made.key)
    found = instance.get_status_by_partition(made.key, KEYS.get_partition_keys(), KEYS)
    assert found is not None
    return {key: None if status is None else status.value for key, status in found.items()}


def types_of(database: Database, run: str) -> list[str]:
    """Read the types of a run's events, without repetitions."""
    return sorted({kind for (kind,) in query(database, TYPES, run=run)})


@pytest.fixture
def runs(instance: dg.DagsterInstance, database: Database) -> list[str]:
    """Old runs: `a` was made, `b` failed, `c` failed and was made, and `d` was never tried."""
    found = [
        make(instance, "a"),
        make(instance, "b", fail=True),
        make(instance, "c", fail=True),
        make(instance, "c"),
    ]
    age(database, *found)
    return found


def test_trimming_changes_no_partition(
    pipeline: Pipeline, instance: dg.DagsterInstance, database: Database, runs: list[str]
) -> None:
    """Expect logs and steps of old runs to go, and all that statuses, failures and data rest on to
    stay.
    """
    before = colours(instance)
    assert before == {"a": "MATERIALIZED", "b": "FAILED", "c": "MATERIALIZED", "d": None}
    record = instance.get_latest_materialization_event(made.key)
    done = trim_history(pipeline, instance, dry_run=False)
    assert done is not None
    assert (done.runs, done.deleted_runs) == (4, 0)
    assert colours(instance) == before
    assert instance.get_latest_materialization_event(made.key) == record
    assert types_of(database, runs[0]) == [
        "ASSET_MATERIALIZATION",
        "PIPELINE_START",
        "PIPELINE_SUCCESS",
    ]
    assert types_of(database, runs[1]) == [
        "ASSET_MATERIALIZATION_PLANNED",
        "PIPELINE_FAILURE",
        "PIPELINE_START",
        "STEP_FAILURE",
    ]
    assert [run.status.value for run in instance.get_runs()].count("SUCCESS") == 2
    again = trim_history(pipeline, instance, dry_run=False)
    assert again is not None
    assert (again.runs, again.events) == (0, 0)


def test_trimming_deletes_runs_that_made_nothing(
    pipeline: Pipeline, instance: dg.DagsterInstance, database: Database
) -> None:
    """Expect old runs of `reconcile` to go with what they printed, younger ones to stay."""
    old, young = (upkeep.execute_in_process(instance=instance).run_id for _ in range(2))
    printed = pipeline.home.dagster / "storage" / old / "compute_logs"
    assert list(printed.iterdir())
    age(database, old)
    age(database, young, days=80)
    kept = types_of(database, young)
    done = trim_history(pipeline, instance, dry_run=False)
    assert done is not None
    assert (done.runs, done.deleted_runs) == (0, 1)
    assert [run.run_id for run in instance.get_runs()] == [young]
    assert (types_of(database, old), types_of(database, young)) == ([], kept)
    assert not printed.parent.exists()
    assert query(database, "SELECT count(*) FROM run_tags WHERE run_id = :run", run=old) == [(0,)]


@pytest.mark.usefixtures("runs")
def test_dry_run_tells_what_trimming_does(
    pipeline: Pipeline, instance: dg.DagsterInstance, database: Database
) -> None:
    """Expect the same numbers, and no row less before."""
    count = "SELECT count(*) FROM event_logs"
    before = query(database, count)
    told = trim_history(pipeline, instance, dry_run=True)
    assert query(database, count) == before
    assert trim_history(pipeline, instance, dry_run=False) == told
    assert told is not None
    assert query(database, count) == [(before[0][0] - told.events,)]


@pytest.mark.usefixtures("runs")
def test_trimming_that_was_stopped_goes_on(
    pipeline: Pipeline, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect nothing to be half done, and the next one to do all of it."""
    told = trim_history(pipeline, instance, dry_run=True)
    monkeypatch.setenv(VARIABLE, "trim.logs_gone=raise")
    with pytest.raises(FailpointError):
        trim_history(pipeline, instance, dry_run=False)
    monkeypatch.delenv(VARIABLE)
    assert trim_history(pipeline, instance, dry_run=False) == told


def test_everything_is_kept_by_default(
    instance: dg.DagsterInstance, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect nothing to be looked for without the setting."""
    monkeypatch.delenv("BATCH_PIPELINE_KEEP_LOGS")
    with closing(Pipeline.from_environment()) as pipeline:
        assert trim_history(pipeline, instance, dry_run=False) is None
    assert len(instance.get_runs()) == len(runs)


def test_running_and_young_runs_are_left_alone(
    pipeline: Pipeline, instance: dg.DagsterInstance, database: Database
) -> None:
    """Expect runs that ended lately, or have not ended, to keep every event."""
    young = make(instance, "a")
    running = instance.create_run_for_job(upkeep, status=dg.DagsterRunStatus.STARTED).run_id
    instance.report_engine_event("looking", instance.get_run_by_id(running))
    kept = [types_of(database, run) for run in (young, running)]
    done = trim_history(pipeline, instance, dry_run=False)
    assert done is not None
    assert done.events == 0
    assert [types_of(database, run) for run in (young, running)] == kept


def test_nightly_job_trims_and_its_dry_run_does_not(
    instance: dg.DagsterInstance, database: Database, runs: list[str], tmp_path: Path
) -> None:
    """Expect one `dry_run` to hold for files and history alike."""
    one = stream(storage=Storage(root=to_uri(tmp_path / "batches")))
    job = build_definitions([one]).resolve_job_def("collect_garbage")
    config = {"ops": {"collect_of_streams": {"config": {"dry_run": True}}}}
    assert job.execute_in_process(instance=instance, run_config=config).success
    assert "log" in types_of(database, runs[0])
    assert job.execute_in_process(instance=instance).success
    assert "log" not in types_of(database, runs[0])
