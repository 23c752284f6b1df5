"""Batches encoded again through Dagster's backfills: all, failed ones, and concurrently."""

import pytest

from batch_pipeline_tests.acceptance.graphql import RUN, WORKSPACE, ask
from batch_pipeline_tests.acceptance.live_dev import LiveDev, live_dev
from batch_pipeline_tests.acceptance.sandbox import Sandbox, json_records, wait_until

pytestmark = pytest.mark.long

KEYS = [f"{number:08}-{number:08}" for number in range(1, 6)]
FILES = {f"{number}.csv": f"id\n{number}\n".encode() for number in range(1, 6)}
BAD = KEYS[1]
RETRY = """
mutation Retry($id: String!) {
  reexecutePartitionBackfill(reexecutionParams: {parentRunId: $id, strategy: FROM_FAILURE}) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
RELOAD = """
mutation Reload($name: String!) {
  reloadRepositoryLocation(repositoryLocationName: $name) { __typename }
}
"""


def test_backfills_fail_and_are_retried_by_batch(sandbox: Sandbox, warm_spark: str) -> None:
    """A backfill of all partitions, and two of the same at once."""
    warm = sandbox.in_process(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
    for name in ("twice", "whole"):
        warm.write_stream(name, batch={"max_count": 1}, dagster={"partitions_per_run": 3})
        warm.land(name, FILES)
    warm.output_of("run")
    warm.land("whole", {"2.csv": b'id\n"2\n'})
    slow = warm.with_variables(BATCH_PIPELINE_FAILPOINTS="encode.before_publish=sleep:1")
    with live_dev(slow) as dev:
        [entry] = ask(dev.port, WORKSPACE, {})["workspaceOrError"]["locationEntries"]
        whole = dev.launch("whole")
        twice = [dev.launch("twice", KEYS) for _ in range(2)]
        wait_until(lambda: bool(dev.run_processes("whole")), "a batch is encoded")
        ask(dev.port, RELOAD, {"name": entry["name"]})
        assert dev.status_of(whole) == "COMPLETED_FAILED"
        statuses = {dev.status_of(backfill) for backfill in twice}
        dev.wait_until_idle()
        assert dev.partitions("whole")["failed"] == {BAD}
        _check_twice(dev, statuses)

        warm.land("whole", {"2.csv": FILES["2.csv"]})
        retried = ask(dev.port, RETRY, {"id": whole})["reexecutePartitionBackfill"]
        assert retried["__typename"] == "LaunchBackfillSuccess", retried
        assert dev.status_of(retried["backfillId"]) == "COMPLETED_SUCCESS"
        dev.wait_until_idle()
        assert dev.generations("whole") == {key: [1, 2] for key in KEYS}
        attempts = {key: len(attempts) for key, attempts in dev.attempts("whole").items()}
        assert attempts == {**dict.fromkeys(KEYS, 2), BAD: 3}
        assert dev.partitions("whole")["materialized"] == {*KEYS}
        ids = sorted(int(record["id"]) for record in json_records(warm.storage("whole")))
        assert ids == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def _check_twice(dev: LiveDev, statuses: set[str]) -> None:
    """A batch is encoded by one or both backfills; a refusal names the running attempt."""
    for key, generations in dev.generations("twice").items():
        assert generations in ([1, 2], [1, 2, 3]), key
    assert statuses <= {"COMPLETED_SUCCESS", "COMPLETED_FAILED"}
    failed = [run["runId"] for run in dev.runs() if run["status"] == "FAILURE"]
    messages = str([ask(dev.port, RUN, {"id": run_id}) for run_id in failed])
    assert ("COMPLETED_FAILED" in statuses) == ("is running (run" in messages)
    assert dev.partitions("twice")["materialized"] == {*KEYS}
