"""Looks at inputs one by one, in a process that may die of one of them: `python -m … TASK`.

TASK is a file with a `Task`. Who started it reads the board and the notes in the folder of that.
"""

import faulthandler
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import msgspec

import batch_pipeline
from batch_pipeline_tests.guarantees.fuzz.harness.notes import (
    Board,
    Find,
    Now,
    Share,
    Tally,
    Task,
    line_of,
)
from batch_pipeline_tests.guarantees.fuzz.harness.targets import (
    ChangedError,
    Check,
    Outcome,
    Target,
)

BOARD = "board"
NOTES = "notes"
KEPT = "kept"
_ADDRESS_SPACE = 12 * 2**30  # so that no input takes the machine with it
_MOST_FINDS = 40  # of one target
_SHOWN = 4_000
_PEAK = re.compile(rb"VmHWM:\s*([0-9]+)")
_PACKAGE = f"{Path(batch_pipeline.__file__).parent}{os.sep}"


class _Looking:
    """One task."""

    def __init__(self, task: Task, targets: dict[str, Target]) -> None:
        self._task = task
        self._targets = targets
        self._folder = Path(task.folder)
        self._board = Board(self._folder / BOARD)
        self._notes = (self._folder / NOTES).open("ab")
        (self._folder / KEPT).mkdir(exist_ok=True)

    def look(self) -> None:
        for at, share in enumerate(self._task.shares):
            target = self._targets[share.target]
            self._board.write(Now(share=at, number=share.first, read=0, refused=0, data=b""))
            corpus = target.corpus(self._task.seed)
            with TemporaryDirectory(dir=self._task.scratch) as place:
                check = target.open_check(Path(place))
                make = partial(_made, target, corpus)
                self._tell(self._look_at_all(at, share, make, check))

    def _look_at_all(
        self, at: int, share: Share, make: Callable[[Random], bytes], check: Check
    ) -> Tally:
        read = refused = finds = slowest = 0
        slowest_seconds, begun = 0.0, time.process_time()
        for number in range(share.first, share.stop, share.step):
            random = Random(self._task.seed << 40 | number)  # noqa: S311 - to be had again
            data = make(random)
            now = Now(share=at, number=number, read=read, refused=refused, data=data)
            self._board.write(now)
            before, started = _peak_bytes(), time.process_time()
            try:
                outcome = check(data)
                read += outcome is Outcome.READ
                refused += outcome is Outcome.REFUSED
            except ChangedError as error:
                finds += self._found(share.target, now, "changed", error)
            except Exception as error:  # noqa: BLE001 - whichever it is, it is the find
                finds += self._found(share.target, now, "exception", error)
            seconds, grown = time.process_time() - started, _peak_bytes() - before
            if seconds > slowest_seconds:
                slowest, slowest_seconds = number, seconds
            if grown > self._task.most_bytes:
                hunger = MemoryError(f"took {grown >> 20} MiB more")
                finds += self._found(share.target, now, "memory", hunger)
            if finds >= _MOST_FINDS:
                break
        return Tally(
            target=share.target,
            read=read,
            refused=refused,
            slowest=slowest,
            slowest_seconds=slowest_seconds,
            seconds=time.process_time() - begun,
        )

    def _found(self, target: str, now: Now, kind: str, error: Exception) -> int:
        path = self._folder / KEPT / f"{target} {now.number}".replace(" ", "-")
        path.write_bytes(now.data)
        told = "".join(traceback.format_exception(error))[-_SHOWN:]
        is_changed = isinstance(error, ChangedError)
        place = error.args[0] if is_changed else _place_of(error.__traceback__)
        told += f"\n{type(error).__name__} {place!s:.100}"
        self._tell(Find(target=target, number=now.number, kind=kind, told=told, path=str(path)))
        return 1

    def _tell(self, note: Find | Tally) -> None:
        self._notes.write(line_of(note))
        self._notes.flush()


def _made(target: Target, corpus: Sequence[Any], random: Random) -> bytes:
    return target.make(random, corpus)


def _place_of(trace: TracebackType | None) -> str:
    """Name the innermost line of the product that an error came through."""
    place = "in the test"
    for frame in traceback.extract_tb(trace):
        if frame.filename.startswith(_PACKAGE):
            place = f"at {os.path.relpath(frame.filename, _PACKAGE)}:{frame.lineno}"
    return place


def _peak_bytes() -> int:
    """Give the most memory held at once, by this process alone and not by its parents."""
    with open("/proc/self/status", "rb") as status:  # noqa: PTH123 - asked of each input
        found = _PEAK.search(status.read())
    return int(found[1]) * 1024 if found else 0


def main() -> None:
    """Do the task of the command line."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    task = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Task)
    _Looking(task, import_module(task.plan).TARGETS).look()


if __name__ == "__main__":
    main()
