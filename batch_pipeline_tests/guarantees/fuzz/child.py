"""Run inputs in a process that may die of one of them.

`python -m ….child TASK` runs a task, which `harness.watch` wrote into a file.
`python -m ….child TARGET FILE` runs an input again that was kept.
"""

import faulthandler
import os
import re
import resource
import sys
import time
import traceback
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

import msgspec

import batch_pipeline
from batch_pipeline_tests.guarantees.fuzz.harness import (
    BOARD,
    KEPT,
    MAX_FINDINGS,
    NOTES,
    TARGETS_MODULE,
    Board,
    ChangedError,
    Check,
    Counts,
    Finding,
    Outcome,
    Position,
    Share,
    Target,
    Task,
    line_of,
)

_ADDRESS_SPACE = 12 * 2**30  # so that no input takes all memory of the machine
_SHOWN_CHARACTERS = 4_000
_PEAK = re.compile(rb"VmHWM:\s*([0-9]+)")
_PACKAGE = f"{Path(batch_pipeline.__file__).parent}{os.sep}"


class _Run:
    """One task."""

    def __init__(self, task: Task, targets: dict[str, Target]) -> None:
        self._task = task
        self._targets = targets
        self._folder = Path(task.folder)
        self._board = Board(self._folder / BOARD)
        self._notes = (self._folder / NOTES).open("ab")
        (self._folder / KEPT).mkdir(exist_ok=True)

    def all_shares(self) -> None:
        for at, share in enumerate(self._task.shares):
            target = self._targets[share.target]
            start = Position(share=at, number=share.first, read=0, refused=0, data=b"")
            self._board.write(start)
            with TemporaryDirectory(dir=self._task.scratch) as folder:
                self._write(self._share(at, share, target, target.open_check(Path(folder))))

    def _share(self, at: int, share: Share, target: Target, check: Check) -> Counts:
        counts = dict.fromkeys(Outcome, 0)
        findings = slowest = 0
        slowest_seconds, begun = 0.0, time.process_time()
        inputs = enumerate(islice(target.inputs(self._task.seed), share.stop))
        for number, data in islice(inputs, share.first, None):
            read, refused = counts[Outcome.READ], counts[Outcome.REFUSED]
            position = Position(share=at, number=number, read=read, refused=refused, data=data)
            self._board.write(position)
            before, started = _peak_bytes(), time.process_time()
            try:
                counts[check(data)] += 1
            except Exception as error:  # noqa: BLE001 - any other error is the finding
                findings += self._find(share.target, position, error)
            seconds, grown = time.process_time() - started, _peak_bytes() - before
            if seconds > slowest_seconds:
                slowest, slowest_seconds = number, seconds
            if grown > self._task.max_bytes:
                hunger = MemoryError(f"took {grown >> 20} MiB more")
                findings += self._find(share.target, position, hunger, kind="memory")
            if findings >= MAX_FINDINGS:
                break
        return Counts(
            target=share.target,
            read=counts[Outcome.READ],
            refused=counts[Outcome.REFUSED],
            slowest=slowest,
            slowest_seconds=slowest_seconds,
            seconds=time.process_time() - begun,
        )

    def _find(
        self, target: str, position: Position, error: Exception, *, kind: str | None = None
    ) -> int:
        number = position.number
        path = self._folder / KEPT / f"{target} {number}".replace(" ", "-")
        path.write_bytes(position.data)
        trace = "".join(traceback.format_exception(error))[-_SHOWN_CHARACTERS:]
        is_changed = isinstance(error, ChangedError)
        place = error.args[0] if is_changed and error.args else _place_of(error.__traceback__)
        trace += f"\n{type(error).__name__} {place!s:.100}"
        kind = kind or ("changed" if is_changed else "exception")
        self._write(Finding(target=target, number=number, kind=kind, trace=trace, path=str(path)))
        return 1

    def _write(self, note: Finding | Counts) -> None:
        self._notes.write(line_of(note))
        self._notes.flush()


def _place_of(trace: TracebackType | None) -> str:
    """Return the innermost line of the product in a traceback."""
    place = "in the test"
    for frame in traceback.extract_tb(trace):
        if frame.filename.startswith(_PACKAGE):
            place = f"at {os.path.relpath(frame.filename, _PACKAGE)}:{frame.lineno}"
    return place


def _peak_bytes() -> int:
    """Return the peak memory of this process alone, without that of its parents."""
    with open("/proc/self/status", "rb") as status:  # noqa: PTH123 - read for each input
        match = _PEAK.search(status.read())
    return int(match[1]) * 1024 if match else 0


def main() -> None:
    """Run the task, or the input, of the command line."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    first, *rest = sys.argv[1:]
    if rest:
        target = import_module(TARGETS_MODULE).TARGETS[first]
        with TemporaryDirectory() as folder:
            outcome = target.open_check(Path(folder))(Path(rest[0]).read_bytes())
        sys.stdout.write(f"{outcome}\n")
        return
    task = msgspec.json.decode(Path(first).read_bytes(), type=Task)
    _Run(task, import_module(task.targets).TARGETS).all_shares()


if __name__ == "__main__":
    main()
