"""The run launcher of a home: Dagster's own, which can also check whether a run's process lives.

Without the check, a run stays STARTED forever if its process dies together with the code server,
which would have detected it. Loaded by name from `dagster.yaml`.
"""

import json
from contextlib import suppress
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    pid: int
    seen_at: float

    def process(self) -> psutil.Process | None:
        """Find the process; a process that is younger than the event has reused the id."""
        with suppress(psutil.Error):
            process = psutil.Process(self.pid)
            is_same = process.create_time() <= self.seen_at + _SLACK_SECONDS
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
        if worker is None or worker.process() is not None:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.FAILED, _DIED)

    def terminate(self, run_id: str) -> bool:
        """Terminate a run, even if its code server is gone or was replaced."""
        run = self._instance.get_run_by_id(run_id)
        try:
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        except (DagsterUserCodeProcessError, DagsterUserCodeUnreachableError):
            worker = None if run is None else self._worker(run)
            process = None if worker is None else worker.process()
            if process is None:
                raise
            process.terminate()
            return True

    def _worker(self, run: dg.DagsterRun) -> _Worker | None:
        if not _is_here(run):
            return None
        for entry in self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
            event = entry.dagster_event
            metadata = {} if event is None else event.engine_event_data.metadata
            if "pid" in metadata:
                return _Worker(pid=int(str(metadata["pid"].value)), seen_at=entry.timestamp)
        return None


def _is_here(run: dg.DagsterRun) -> bool:
    """Return whether the code server that started a run is on this machine."""
    return json.loads(run.tags.get(GRPC_INFO_TAG, "{}")).get("socket") is not None
