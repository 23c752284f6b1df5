"""Queries for Dagster's webserver."""

import json
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

LAUNCH = """
mutation Launch($parameters: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $parameters) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
BACKFILL = """
query Backfill($id: String!) {
  partitionBackfillOrError(backfillId: $id) {
    __typename
    ... on PartitionBackfill { status }
  }
}
"""
WORKSPACE = """
query Workspace {
  workspaceOrError {
    ... on Workspace {
      locationEntries { name locationOrLoadError {
        __typename
        ... on RepositoryLocation { repositories { name assetNodes { assetKey { path } } } }
        ... on PythonError { message }
      } }
    }
  }
}
"""
START = """
mutation Start($parameters: ExecutionParams!) {
  launchRun(executionParams: $parameters) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
TERMINATE = """
mutation Terminate($id: String!) {
  terminateRun(runId: $id) { __typename ... on PythonError { message } }
}
"""
RUN = """
query Run($id: ID!) {
  runOrError(runId: $id) {
    ... on Run { status tags { key value } eventConnection { events {
      ... on MessageEvent { message }
      ... on ExecutionStepFailureEvent { error { message } }
    } } }
  }
}
"""
RUNS_OF_JOB = """
query RunsOfJob($job: String!) {
  runsOrError(filter: {pipelineName: $job}) {
    ... on Runs { results { runId status tags { key value } } }
  }
}
"""
PARTITIONS = """
query Partitions($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) { ... on AssetNode {
    assetPartitionStatuses { ... on DefaultPartitionStatuses {
      materializedPartitions failedPartitions unmaterializedPartitions
    } }
    assetObservations(limit: 20) { metadataEntries {
      label
      ... on IntMetadataEntry { intValue }
      ... on TextMetadataEntry { text }
    } }
  } }
}
"""


def ask(port: int, query: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Send a query to the server on a port and return its data."""
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:  # noqa: S310 - http on the loopback interface
        result = json.load(response)
    assert "errors" not in result, result
    data: dict[str, Any] = result["data"]
    return data


def answers(port: int) -> bool:
    """Return whether a server is up on a port."""
    with suppress(urllib.error.URLError, OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5).close()
        return True
    return False
