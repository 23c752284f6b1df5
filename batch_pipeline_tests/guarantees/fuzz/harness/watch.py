"""Starts children and outlives them: what kills or stops one is a find, and the next goes on."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from batch_pipeline_tests.guarantees.fuzz.harness.child import BOARD, KEPT, NOTES
from batch_pipeline_tests.guarantees.fuzz.harness.notes import (
    Board,
    Find,
    Now,
    Tally,
    Task,
    notes_in,
)

_POLL_SECONDS = 0.2
_CHILD = "batch_pipeline_tests.guarantees.fuzz.harness.child"
_SHOWN_LINES = 30


class ChildError(Exception):
    """A child ended before its first input: there is nothing to blame but the tests."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of all inputs: counts by target, and the finds."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    finds: list[Find] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, tuple[float, int]] = field(default_factory=dict)  # seconds, input

    def add(self, note: Find | Tally) -> None:
        """Take in what a child tells."""
        if isinstance(note, Find):
            self.finds.append(note)
        else:
            self.read[note.target] += note.read
            self.refused[note.target] += note.refused
            self.seconds[note.target] += round(note.seconds)
            slow = note.slowest_seconds, note.slowest
            self.slowest[note.target] = max(self.slowest.get(note.target, slow), slow)

    def inputs(self, target: str) -> int:
        """Inputs of a target that were looked at to the end."""
        ended = self.read[target] + self.refused[target]
        # What took too much memory has come to its end as well.
        mine = [find for find in self.finds if find.target == target and find.kind != "memory"]
        return ended + len(mine)

    def count(self, kind: str) -> int:
        """Finds of a kind."""
        return sum(find.kind == kind for find in self.finds)

    def told(self) -> str:
        """Say what was found, each cause once with an input that shows it."""
        first: dict[str, Find] = {}
        for find in self.finds:
            first.setdefault(find.mark, find)
        times = Counter(find.mark for find in self.finds)
        return "\n\n".join(
            f"{times[mark]} x {mark}\ninput: {find.path}\n{find.told}"
            for mark, find in first.items()
        )


class Watched:
    """Children that do one task, one behind the other, until all of it is done."""

    def __init__(self, task: Task, *, hang_seconds: float) -> None:
        self.result = Result()
        self._task = task
        self._hang_seconds = hang_seconds
        self._folder = Path(task.folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._child: subprocess.Popen[bytes] | None = None
        self._moved_at = 0.0
        self._place = (0, 0)
        self._is_hanging = False
        self._start()

    def is_done(self) -> bool:
        """Look after the child, and tell whether there is nothing left to do."""
        child = self._child
        if child is None:
            return True
        with Board(self._folder / BOARD) as board:
            place = board.place
        if place != self._place:
            self._place, self._moved_at = place, time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
        if child.returncode is not None:
            self._end(child.returncode)
        elif not self._is_hanging and time.monotonic() - self._moved_at > self._hang_seconds:
            self._is_hanging = True
            child.send_signal(signal.SIGABRT)  # it writes down where it is before it dies
        return self._child is None

    def kill(self) -> None:
        """End what is under way."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _start(self) -> None:
        self._is_hanging = False
        Board(self._folder / BOARD).write(Now(share=0, number=0, read=0, refused=0, data=b""))
        task = self._folder / "task"
        task.write_bytes(msgspec.json.encode(self._task))
        (self._folder / NOTES).write_bytes(b"")
        with (self._folder / "stderr").open("wb") as stderr:
            command = [sys.executable, "-m", _CHILD, str(task)]
            self._child = subprocess.Popen(command, stdout=stderr, stderr=stderr)
        self._place, self._moved_at = (0, 0), time.monotonic()

    def _end(self, code: int) -> None:
        self._child = None
        for note in notes_in((self._folder / NOTES).read_bytes()):
            self.result.add(note)
        if code == 0:
            return
        stderr = (self._folder / "stderr").read_text(errors="replace")
        with Board(self._folder / BOARD) as board:
            now = board.now
        if code > 0 or not now.data:
            raise ChildError(stderr)
        self.result.add(self._find(now, code, stderr))
        share = self._task.shares[now.share]
        self.result.add(Tally(target=share.target, read=now.read, refused=now.refused))
        rest = replace(share, first=now.number + share.step)
        self._task = replace(self._task, shares=(rest, *self._task.shares[now.share + 1 :]))
        self._start()

    def _find(self, now: Now, code: int, stderr: str) -> Find:
        target = self._task.shares[now.share].target
        path = self._folder / KEPT / f"{target}-{now.number}-{code}".replace(" ", "-")
        path.write_bytes(now.data)
        kind = "hang" if self._is_hanging else "crash"
        lines = [line for line in stderr.splitlines() if "File" in line or "Fatal" in line]
        told = "\n".join(reversed(lines[:_SHOWN_LINES]))
        if kind == "crash":
            told += f"\n{signal.Signals(-code).name}"
        return Find(target=target, number=now.number, kind=kind, told=told, path=str(path))


def watch(tasks: Sequence[Task], *, hang_seconds: float) -> Result:
    """Do tasks side by side, and give what became of all of their inputs."""
    watched = [Watched(task, hang_seconds=hang_seconds) for task in tasks]
    try:
        left = watched
        while left:
            left = [one for one in left if not one.is_done()]
    finally:
        for one in watched:
            one.kill()
    whole = Result()
    for one in watched:
        whole.read += one.result.read
        whole.refused += one.result.refused
        whole.finds += one.result.finds
        whole.seconds += one.result.seconds
        for target, slow in one.result.slowest.items():
            whole.slowest[target] = max(whole.slowest.get(target, slow), slow)
    return whole
