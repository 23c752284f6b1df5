"""A warm process that forks a child for each deed, and the test's end of the line to it.

It imports all that deeds need, and opens no connection and starts no thread, so that a child begins
as a process that was started a moment ago, in a few milliseconds. What deeds do is not known here.
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
from types import TracebackType
from typing import Any, NoReturn, Self

from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.failpoint import VARIABLE

SURPRISED = 70
_PROJECT = Path(__file__).parents[3]
_PATIENCE_SECONDS = 300.0  # longer than any deed takes on any machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process at a deed. `told` is the file with what it gives; `printed` is what it prints."""

    pid: int
    descriptor: int
    deed: str
    told: Path
    printed: Path

    def gave(self) -> Any:
        """Read what the deed gave; None where it did not get so far."""
        return json.loads(self.told.read_text()) if self.told.exists() else None

    def is_stopped(self) -> bool:
        """Return whether it was stopped by a signal."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Warm:
    """The warm process of a module with deeds, as a context manager; files go to a folder."""

    def __init__(self, deeds: str, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._count = folder, 0
        self._log = (folder / "log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, deeds],
            cwd=_PROJECT,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def fork(self, deed: str, *, failpoints: str = "", **given: Any) -> Child:
        """Let a child do a deed."""
        self._count += 1
        told, printed = (self._folder / f"{self._count}.{name}" for name in ("told", "printed"))
        asked = {"deed": deed, "given": given, "failpoints": failpoints}
        pid = self._ask(asked | {"told": str(told), "printed": str(printed)})
        return Child(pid=pid, descriptor=os.pidfd_open(pid), deed=deed, told=told, printed=printed)

    def has_ended(self, child: Child, seconds: float) -> bool:
        """Wait for the end of a child for some seconds, and tell whether it came."""
        return bool(select.select([child.descriptor], [], [], seconds)[0])

    def ended(self, child: Child) -> int:
        """Wait for the end of a child; gives its exit code, negative for a signal."""
        assert self.has_ended(child, _PATIENCE_SECONDS), f"{child.deed} hangs: {child.printed}"
        os.close(child.descriptor)
        return self._ask({"ended": child.pid})

    def done(self, deed: str, **given: Any) -> Any:
        """Let a child do a deed to its end, and give what it gave."""
        child = self.fork(deed, **given)
        code = self.ended(child)
        assert code == 0, f"{deed} {given} ended with {code}: {child.printed.read_text()}"
        return child.gave()

    def _ask(self, asked: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the warm process has ended: {(self._folder / 'log').read_text()}"
        return int(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()


def serve(deeds: Mapping[str, Any]) -> None:
    """Fork a child for each line of standard input that asks for a deed, and tell its number; wait
    for the end of the child that a line names, and tell how it ended.
    """
    gc.freeze()  # children need not look through what was imported
    for line in sys.stdin:
        asked = json.loads(line)
        if "ended" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["ended"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                _do(deeds, asked)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _do(deeds: Mapping[str, Any], asked: Mapping[str, Any]) -> NoReturn:
    code = SURPRISED
    try:
        printed = os.open(asked["printed"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), printed, printed)):
            os.dup2(descriptor, number)
        os.environ[VARIABLE] = asked["failpoints"]
        gave = deeds[asked["deed"]](**asked["given"])
        Path(asked["told"]).write_text(json.dumps(gave))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except PipelineError as error:
        code = 1
        sys.stderr.write(f"{error}\n")
    except BaseException:  # noqa: BLE001 - whatever it is, this is where the child ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(importlib.import_module(sys.argv[1]).DEEDS)
