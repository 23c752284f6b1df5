"""The run launcher of a home: Dagster's own, which can also check whether a run's process lives.

Without the check, a run stays STARTED forever if its process dies together with the code server,
which would have detected it. Loaded by name from `dagster.yaml`.
"""

import json
from contextlib import suppress

import dagster as dg
import psutil
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.storage.tags import GRPC_INFO_TAG

_DIED = (
    "its process exited without reporting. What it published stays published; what it left open "
    "is closed and encoded by another run"
)
_SLACK_SECONDS = 5  # the clock of the database's server may differ from that of the machine


def _process(pid: int, seen_at: float) -> psutil.Process | None:
    """Find a process that was seen at a time; one that is younger has reused the id."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        is_same = process.create_time() <= seen_at + _SLACK_SECONDS
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    return None


class LocalRunLauncher(DefaultRunLauncher):
    """Launches runs on the code server, and checks their processes on this machine."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Return True: run monitoring may check."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return whether the process of a run lives; on another machine, that is assumed."""
        worker = self._worker(run)
        if worker is None or _process(*worker) is not None:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, _DIED)

    def is_alive(self, run: dg.DagsterRun) -> bool:
        """Return whether the process of a run is known and lives on this machine."""
        return self._process_of(run) is not None

    def terminate(self, run_id: str) -> bool:
        """Terminate a run, even if its code server is gone or was replaced."""
        run = self._instance.get_run_by_id(run_id)
        try:
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        except (DagsterUserCodeProcessError, DagsterUserCodeUnreachableError):
            process = None if run is None else self._process_of(run)
            if process is None:
                raise
            process.terminate()
            return True

    def _process_of(self, run: dg.DagsterRun) -> psutil.Process | None:
        worker = self._worker(run)
        return None if worker is None else _process(*worker)

    def _worker(self, run: dg.DagsterRun) -> tuple[int, float] | None:
        """Return the process of a run on this machine, and when it was seen."""
        # The code server that started the run is on this machine if it has a socket.
        if json.loads(run.tags.get(GRPC_INFO_TAG, "{}")).get("socket") is None:
            return None
        for entry in self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
            event = entry.dagster_event
            metadata = {} if event is None else event.engine_event_data.metadata
            if "pid" in metadata:
                return int(str(metadata["pid"].value)), entry.timestamp
        return None
