"""Batches made once more through Dagster's backfills: all, some, failed ones, twice at a time."""

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
NONSENSE = "00000007"
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
class Story:
    """How the backfills ended, and what is left of them."""

    statuses: dict[str, str]
    failed: set[str]
    generations: dict[str, dict[str, list[int]]]
    attempts: dict[str, dict[str, list[tuple[str, str | None]]]]
    shown: dict[str, dict[str, set[str]]]
    messages: str
    records: dict[str, list[int]]


@pytest.fixture(scope="module")
def story(warm_spark: str) -> Iterator[Story]:
    """Publish three streams, launch all backfills at once, and then what failed once more."""
    with new_sandbox() as sandbox:
        warm = sandbox.with_variables(BATCH_PIPELINE_SPARK_REMOTE=warm_spark)
        slow = warm.with_variables(BATCH_PIPELINE_FAILPOINTS="encode.before_publish=sleep:1")
        for name in ("some", "twice", "whole"):
            warm.write_stream(name, batch={"max_count": 1}, dagster={"partitions_per_run": 3})
            warm.land(name, FILES)
        warm.output_of("run")
        warm.land("whole", {"2.csv": b'id\n"2\n'})
        with live_dev(slow) as dev:
            yield _told(dev, warm)


def _told(dev: LiveDev, sandbox: Sandbox) -> Story:
    [entry] = ask(dev.port, WORKSPACE, {})["workspaceOrError"]["locationEntries"]
    [repository] = entry["locationOrLoadError"]["repositories"]
    selector = {"repositoryName": repository["name"], "repositoryLocationName": entry["name"]}
    added = ask(dev.port, ADD, {"selector": selector, "set": "some.batches", "key": NONSENSE})
    assert added["addDynamicPartition"]["__typename"] == "AddDynamicPartitionSuccess", added
    launched = {
        "whole": dev.launch("whole"),
        "some": dev.launch("some", [*KEYS[:2], NONSENSE]),
        "twice": dev.launch("twice", KEYS),
        "at the same time": dev.launch("twice", KEYS),
    }
    wait_until(lambda: bool(dev.run_processes("whole")), "a batch is encoded", pause_seconds=0.5)
    ask(dev.port, RELOAD, {"name": entry["name"]})
    statuses = {what: dev.status_of(backfill) for what, backfill in launched.items()}
    dev.wait_until_idle()
    failed = dev.partitions("whole")["failed"]
    sandbox.land("whole", {"2.csv": FILES["2.csv"]})
    again = ask(dev.port, RETRY, {"id": launched["whole"]})["reexecutePartitionBackfill"]
    assert again["__typename"] == "LaunchBackfillSuccess", again
    statuses["what failed"] = dev.status_of(again["backfillId"])
    dev.wait_until_idle()
    names = ("some", "twice", "whole")
    return Story(
        statuses=statuses,
        failed=failed,
        generations={name: dev.generations(name) for name in names},
        attempts={name: dev.attempts(name) for name in names},
        shown={name: dev.partitions(name) for name in names},
        messages=_messages(dev),
        records={name: sorted(int(one["id"]) for one in _records(sandbox, name)) for name in names},
    )


def _messages(dev: LiveDev) -> str:
    """Return what the failed runs say."""
    failed = [run["runId"] for run in dev.runs() if run["status"] == "FAILURE"]
    return str([ask(dev.port, RUN, {"id": run_id}) for run_id in failed])


def _records(sandbox: Sandbox, name: str) -> list[dict[str, Any]]:
    return list(json_records(sandbox.storage(name)))


def test_bad_batch_fails_alone(story: Story) -> None:
    assert story.statuses["whole"] == "COMPLETED_FAILED"
    assert story.failed == {BAD}


def test_retry_of_what_failed_takes_nothing_else(story: Story) -> None:
    assert story.statuses["what failed"] == "COMPLETED_SUCCESS"
    assert story.generations["whole"] == {key: [1, 2] for key in KEYS}
    tries = {key: len(attempts) for key, attempts in story.attempts["whole"].items()}
    assert tries == {**dict.fromkeys(KEYS, 2), BAD: 3}
    assert story.shown["whole"]["materialized"] == {*KEYS}
    assert story.records["whole"] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_selection_takes_nothing_else(story: Story) -> None:
    again = {key for key, made in story.generations["some"].items() if made == [1, 2]}
    once = {key for key, made in story.generations["some"].items() if made == [1]}
    assert (again, once) == ({*KEYS[:2]}, {*KEYS[2:]})


def test_key_typed_by_hand_fails_alone(story: Story) -> None:
    assert story.statuses["some"] == "COMPLETED_FAILED"
    assert f"'{NONSENSE}' is not a planned batch" in story.messages
    assert story.shown["some"]["materialized"] == {*KEYS}
    assert NONSENSE in story.shown["some"]["failed"]


def test_two_backfills_at_the_same_time_do_no_damage(story: Story) -> None:
    """Each batch is encoded by one or both; a refusal names the attempt in its way."""
    for key, generations in story.generations["twice"].items():
        assert generations in ([1, 2], [1, 2, 3]), key
    statuses = {story.statuses["twice"], story.statuses["at the same time"]}
    assert statuses <= {"COMPLETED_SUCCESS", "COMPLETED_FAILED"}
    assert ("COMPLETED_FAILED" in statuses) == ("is running (run" in story.messages)
    assert story.shown["twice"]["materialized"] == {*KEYS}
