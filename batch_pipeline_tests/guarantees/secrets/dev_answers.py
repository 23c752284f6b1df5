"""What `dev` says of a place with secrets: every question that Dagster's pages ask of it."""

import psutil
import psycopg

from batch_pipeline_tests.acceptance.graphql import ask
from batch_pipeline_tests.acceptance.live_dev import FINISHED, LiveDev, live_dev
from batch_pipeline_tests.acceptance.sandbox import wait_until
from batch_pipeline_tests.guarantees.secrets.installation import Scene
from batch_pipeline_tests.guarantees.secrets.watcher import look

_VARIABLE = "BATCH_PIPELINE_SPARK_REMOTE"
QUESTIONS = (
    """
{ instance { info hasInfo daemonHealth { allDaemonStatuses { daemonType healthy } } } }
""",
    """
{ runsOrError { ... on Runs { results { runId runConfigYaml tags { key value } eventConnection {
  events { __typename
    ... on MessageEvent { message }
    ... on ExecutionStepFailureEvent { error { message stack } }
    ... on MaterializationEvent { metadataEntries { label description } }
  }
} } } } }
""",
    """
{ workspaceOrError { ... on Workspace { locationEntries {
  name displayMetadata { key value }
  locationOrLoadError { ... on PythonError { message stack } }
} } } }
""",
    """
{ repositoriesOrError { ... on RepositoryConnection { nodes {
  name
  allTopLevelResourceDetails { name description configuredValues { key value } }
  assetNodes { id description metadataEntries { label description }
    assetMaterializations(limit: 100) { metadataEntries { label description } }
  }
  sensors { name sensorState { ticks { status cursor skipReason error { message stack } } } }
} } } }
""",
)
LEFT = """
SELECT (SELECT count(*) FROM batch_pipeline.item WHERE location ~ '/orders/[de]\\.csv$'),
       (SELECT count(*) FROM batch_pipeline.batch_state s
          JOIN batch_pipeline.job j ON j.id = s.job_id
         WHERE j.name = 'orders' AND s.state IN ('planned', 'running'))
"""
LOGS = """
query Logs($key: [String!]!) {
  capturedLogs(logKey: $key) { stdout stderr }
}
"""
STEPS = "{ runsOrError { ... on Runs { results { runId stepKeysToExecute } } } }"


def look_at_dev(scene: Scene) -> None:
    """Bring everything up, let it fail and load, and look into each of its answers."""
    with live_dev(scene.sandbox) as dev:
        token = _token(dev)
        scene.canaries = scene.search.canaries = scene.canaries.also("token of dev", token)
        scene.sandbox.land("orders", {"d.csv": b"id\n6\n", "e.csv": b'id\n"7\n'})
        wait_until(lambda: _is_settled(dev, scene.url), "dev has done its work", pause_seconds=1)
        look(scene.seen, scene.canaries, scene.sandbox.home, scene.temporary)
        for number, question in enumerate(QUESTIONS):
            scene.search.text(f"answer {number} of Dagster", str(ask(dev.port, question, {})))
        for run in dev.runs():
            for step in ("compute_logs", *_steps(dev, run["runId"])):
                key = [run["runId"], "compute_logs", step]
                told = ask(dev.port, LOGS, {"key": key})["capturedLogs"]
                scene.search.text(f"log of {step}", f"{told['stdout']}{told['stderr']}")
    scene.search.text("what `dev` says", scene.sandbox.output.read_text())


def _is_settled(dev: LiveDev, url: str) -> bool:
    """Return whether the new files were taken, tried, and every run has ended."""
    with psycopg.connect(url) as connection:
        row = connection.execute(LEFT).fetchone()
    return row == (2, 0) and {run["status"] for run in dev.runs()} <= FINISHED


def _steps(dev: LiveDev, run_id: str) -> list[str]:
    for run in ask(dev.port, STEPS, {})["runsOrError"]["results"]:
        if run["runId"] == run_id:
            return list(run["stepKeysToExecute"] or ())
    return []


def _token(dev: LiveDev) -> str:
    """Read the token of the Spark Connect server where only its user can."""
    webserver = dev.find_processes("dagster_webserver")[0]
    remote = psutil.Process(webserver.pid).environ()[_VARIABLE]
    return remote.partition("token=")[2]
