"""The run launcher of a deployment: runs are processes of a code location on another machine.

The server of the code location knows which runs are alive. It must be `dagster api grpc`, because a
reload of `dagster code-server` replaces that server. Loaded by name from `dagster.yaml`.
"""

import json

import dagster as dg
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult
from dagster._serdes import deserialize_value

from batch_pipeline.defs.instance.launcher import LocalRunLauncher

_GONE = (
    "its code location does not know the run: it was restarted, and the run ended with it. "
    "What it had published stays published; what it left open is closed and encoded by another run"
)
_ANSWER_SECONDS = 15


class ServedRunLauncher(LocalRunLauncher):
    """Launches runs on the code location's server, and asks that server whether they are alive."""

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return whether the process of a run lives; assumed if no server answers."""
        server = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
        if "port" not in server:
            return super().check_run_worker_health(run)
        client = DagsterGrpcClient(
            host=server.get("host"),
            port=server["port"],
            use_ssl=bool(server.get("use_ssl", False)),
        )
        request = CanCancelExecutionRequest(run_id=run.run_id)
        try:
            response = client.can_cancel_execution(request, timeout=_ANSWER_SECONDS)
        except DagsterUserCodeUnreachableError:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        if deserialize_value(response, CanCancelExecutionResult).can_cancel:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, _GONE)
