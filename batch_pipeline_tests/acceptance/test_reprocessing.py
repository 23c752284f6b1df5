"""Batches encoded again through Dagster's backfills: all, some, failed ones, and concurrently."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from batch_pipeline_tests.acceptance.graphql import RUN, WORKSPACE, ask
from batch_pipeline_tests.acceptance.live_dev import LiveDev, live_dev
from batch_pipeline_tests.acceptance.sandbox import (
    Sandbox,
    json_records,
    new_sandbox,
    wait_until,
)

pytestmark = pytest.mark.long

KEYS = [f"{number:08}-{number:08}" for number in range(1, 6)]
FILES = {f"{number}.csv": f"id\n{number}\n".encode() for number in range(1, 6)}
BAD = KEYS[1]
UNKNOWN_KEY = "00000007"
RETRY = """
mutation Retry($id: String!) {
  reexecutePartitionBackfill(reexecutionParams: {parentRunId: $id, strategy: FROM_FAILURE}) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
ADD = """
mutation Add($selector: RepositorySelector!, $set: String!, $key: String!) {
  addDynamicPartition(
    repositorySelector: $selector, partitionsDefName: $set, partitionKey: $key
  ) { __typename ... on PythonError { message } }
}
"""
RELOAD = """
mutation Reload($name: String!) {
  reloadRepositoryLocation(repositoryLocationName: $name) { __typename }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfills:
    """Statuses of all backfills, and the state of the streams after them."""

    statuses: dict[str, str]
    failed: set[str]
    generations: dict[str, dict[str, list[int]]]
    attempts: dict[str, dict[str, list[tuple[str, str | None]]]]
    partitions: dict[str, dict[str, set[str]]]
    messages: str
    records: dict[str, list[int]]


@pytest.fixture(scope="module")
def backfills(warm_spark: str) -> Iterator[Backfills]:
    """Publish three streams, launch all backfills concurrently, then retry the failed batch."""
    with new_sandbox() as sandbox:
        warm = sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
        slow = warm.with_variables(BATCH_PIPELINE_FAILPOINTS="encode.before_publish=sleep:1")
        for name in ("some", "twice", "whole"):
            warm.write_stream(name, batch={"max_count": 1}, dagster={"partitions_per_run": 3})
            warm.land(name, FILES)
        warm.output_of("run")
        warm.land("whole", {"2.csv": b'id\n"2\n'})
        with live_dev(slow) as dev:
            yield _run_backfills(dev, warm)


def _run_backfills(dev: LiveDev, sandbox: Sandbox) -> Backfills:
    [entry] = ask(dev.port, WORKSPACE, {})["workspaceOrError"]["locationEntries"]
    [repository] = entry["locationOrLoadError"]["repositories"]
    selector = {"repositoryName": repository["name"], "repositoryLocationName": entry["name"]}
    added = ask(dev.port, ADD, {"selector": selector, "set": "some.batches", "key": UNKNOWN_KEY})
    assert added["addDynamicPartition"]["__typename"] == "AddDynamicPartitionSuccess", added
    launched = {
        "whole": dev.launch("whole"),
        "some": dev.launch("some", [*KEYS[:2], UNKNOWN_KEY]),
        "twice": dev.launch("twice", KEYS),
        "at the same time": dev.launch("twice", KEYS),
    }
    wait_until(lambda: bool(dev.run_processes("whole")), "a batch is encoded", pause_seconds=0.5)
    ask(dev.port, RELOAD, {"name": entry["name"]})
    statuses = {name: dev.status_of(backfill) for name, backfill in launched.items()}
    dev.wait_until_idle()
    failed = dev.partitions("whole")["failed"]
    sandbox.land("whole", {"2.csv": FILES["2.csv"]})
    retried = ask(dev.port, RETRY, {"id": launched["whole"]})["reexecutePartitionBackfill"]
    assert retried["__typename"] == "LaunchBackfillSuccess", retried
    statuses["what failed"] = dev.status_of(retried["backfillId"])
    dev.wait_until_idle()
    names = ("some", "twice", "whole")
    return Backfills(
        statuses=statuses,
        failed=failed,
        generations={name: dev.generations(name) for name in names},
        attempts={name: dev.attempts(name) for name in names},
        partitions={name: dev.partitions(name) for name in names},
        messages=_messages(dev),
        records={name: sorted(int(it["id"]) for it in _records(sandbox, name)) for name in names},
    )


def _messages(dev: LiveDev) -> str:
    """Return the messages of failed runs."""
    failed = [run["runId"] for run in dev.runs() if run["status"] == "FAILURE"]
    return str([ask(dev.port, RUN, {"id": run_id}) for run_id in failed])


def _records(sandbox: Sandbox, name: str) -> list[dict[str, Any]]:
    return list(json_records(sandbox.storage(name)))


def test_bad_batch_fails_alone(backfills: Backfills) -> None:
    assert backfills.statuses["whole"] == "COMPLETED_FAILED"
    assert backfills.failed == {BAD}


def test_retry_runs_only_failed_batches(backfills: Backfills) -> None:
    assert backfills.statuses["what failed"] == "COMPLETED_SUCCESS"
    assert backfills.generations["whole"] == {key: [1, 2] for key in KEYS}
    attempts = {key: len(attempts) for key, attempts in backfills.attempts["whole"].items()}
    assert attempts == {**dict.fromkeys(KEYS, 2), BAD: 3}
    assert backfills.partitions["whole"]["materialized"] == {*KEYS}
    assert backfills.records["whole"] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_backfill_of_a_selection_encodes_no_other_batch(backfills: Backfills) -> None:
    retried = {
        key for key, generations in backfills.generations["some"].items() if generations == [1, 2]
    }
    once = {key for key, generations in backfills.generations["some"].items() if generations == [1]}
    assert (retried, once) == ({*KEYS[:2]}, {*KEYS[2:]})


def test_unknown_partition_key_fails_alone(backfills: Backfills) -> None:
    assert backfills.statuses["some"] == "COMPLETED_FAILED"
    assert f"'{UNKNOWN_KEY}' is not a planned batch" in backfills.messages
    assert backfills.partitions["some"]["materialized"] == {*KEYS}
    assert UNKNOWN_KEY in backfills.partitions["some"]["failed"]


def test_concurrent_backfills_publish_consistently(backfills: Backfills) -> None:
    """A batch is encoded by one or both backfills; a refusal names the running attempt."""
    for key, generations in backfills.generations["twice"].items():
        assert generations in ([1, 2], [1, 2, 3]), key
    statuses = {backfills.statuses["twice"], backfills.statuses["at the same time"]}
    assert statuses <= {"COMPLETED_SUCCESS", "COMPLETED_FAILED"}
    assert ("COMPLETED_FAILED" in statuses) == ("is running (run" in backfills.messages)
    assert backfills.partitions["twice"]["materialized"] == {*KEYS}
