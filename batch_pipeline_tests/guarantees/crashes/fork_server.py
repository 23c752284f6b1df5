"""A server process that forks a child for each action, and its client.

The server imports what the actions need, but opens no connection and starts no thread, so a child
starts within milliseconds in the state of a new process.
"""

import gc
import importlib
import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.failpoint import VARIABLE

UNEXPECTED_ERROR = 70  # exit code
_PROJECT = Path(__file__).parents[3]
_TIMEOUT_SECONDS = 300.0  # longer than any action takes on any machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process that performs an action."""

    pid: int
    descriptor: int
    action: str
    result_file: Path
    output_file: Path

    @property
    def result(self) -> Any:
        """The return value of the action; None if it did not return."""
        return json.loads(self.result_file.read_text()) if self.result_file.exists() else None

    @property
    def output(self) -> str:
        """The output of the action so far."""
        return self.output_file.read_text()

    def is_stopped(self) -> bool:
        """Return whether the process was stopped by a signal."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def has_ended(self, *, within_seconds: float) -> bool:
        """Wait for the end of the process, and return whether it ended in time."""
        return bool(select.select([self.descriptor], [], [], within_seconds)[0])


class ForkServer:
    """The client of a server for one module of actions. Children write their files to `folder`."""

    def __init__(self, actions: str, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._count = folder, 0
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, actions],
                cwd=_PROJECT,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def fork(self, action: str, *, failpoints: str = "", **arguments: Any) -> Child:
        self._count += 1
        files = {
            f"{name}_file": self._folder / f"{self._count}.{name}" for name in ("result", "output")
        }
        request = {"action": action, "arguments": arguments, "failpoints": failpoints}
        pid = self._request(request | {name: str(path) for name, path in files.items()})
        return Child(pid=pid, descriptor=os.pidfd_open(pid), action=action, **files)

    def exit_code(self, child: Child) -> int:
        """Wait for the end of a child, and return its exit code, negative for a signal."""
        has_ended = child.has_ended(within_seconds=_TIMEOUT_SECONDS)
        assert has_ended, f"{child.action} hangs: {child.output_file}"
        os.close(child.descriptor)
        return self._request({"ended": child.pid})

    def run(self, action: str, **arguments: Any) -> Any:
        """Run an action that must succeed, and return its result."""
        child = self.fork(action, **arguments)
        code = self.exit_code(child)
        assert code == 0, f"{action} {arguments} ended with {code}: {child.output}"
        return child.result

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _request(self, request: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the fork server has ended: {(self._folder / 'log').read_text()}"
        return int(answer)


def _serve(actions: Mapping[str, Any]) -> None:
    """Answer each line of standard input with the pid of a new child or a child's exit code."""
    gc.freeze()  # the garbage collector of a child skips imported objects
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                _perform(actions, request)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _perform(actions: Mapping[str, Any], request: Mapping[str, Any]) -> NoReturn:
    code = UNEXPECTED_ERROR
    try:
        output = os.open(request["output_file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(descriptor, number)
        os.environ[VARIABLE] = request["failpoints"]
        result = actions[request["action"]](**request["arguments"])
        Path(request["result_file"]).write_text(json.dumps(result))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except PipelineError as error:
        code = 1
        sys.stderr.write(f"{error}\n")
    except BaseException:  # noqa: BLE001 - the child ends here in any case
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(importlib.import_module(sys.argv[1]).ACTIONS)
