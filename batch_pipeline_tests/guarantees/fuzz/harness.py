"""Targets of fuzzing, and the parent of the processes that run their inputs.

An input may crash or hang the process that reads it. Therefore `child` runs inputs in a process of
its own, and writes each of them into shared memory first. `watch` starts such processes, records
what kills or stops them, and lets the next process go on behind that input.
"""

import mmap
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from batch_pipeline_tests.guarantees.fuzz.damage import Batch

TARGETS_MODULE = "batch_pipeline_tests.guarantees.fuzz.targets"
CHILD = "batch_pipeline_tests.guarantees.fuzz.child"
BOARD = "board"
NOTES = "notes"
KEPT = "kept"
MAX_FINDINGS = 40  # of one target
_POLL_SECONDS = 0.2
_START_SECONDS = 300.0  # until the first input: imports on a busy machine
_SHOWN_LINES = 30
_HEAD = struct.Struct("<QQQQQ")
_DATA_BYTES = 2**22

Check = Callable[[bytes], "Outcome"]


class Outcome(StrEnum):
    """The outcomes of an input that are right; everything else is a finding."""

    READ = "read"  # and an oracle, where there is one, reads the same
    REFUSED = "refused"


class ChangedError(AssertionError):
    """What came out is not what went in."""


def expect(is_right: bool, *details: object) -> None:
    """Raise an error that makes the input a finding, unless a condition holds."""
    if not is_right:
        raise ChangedError(*details)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One kind of input: a strategy for batches of them, and a check that reads one.

    `open_check` makes the check in a folder of its own. `short` and `long` are the numbers of
    inputs of the two forms.
    """

    name: str
    batches: st.SearchStrategy[Batch]
    open_check: Callable[[Path], Check]
    short: int
    long: int

    def inputs(self, number: str) -> Iterator[bytes]:
        """Yield inputs without an end, the same ones for the same seed."""
        for batch in count():
            # Of the examples of one run the first is always the simplest, and after the second come
            # copies of it with small changes, most of whose inputs would be the same.
            [_, example] = drawn(self.batches, 2, f"{number} {self.name} {batch}")
            tried: set[bytes] = set()  # some damages change nothing
            for data in example:
                if data not in tried:
                    tried.add(data)
                    yield data


def drawn(strategy: st.SearchStrategy[Any], most: int, number: str) -> list[Any]:
    """Return examples of a strategy, at most so many, the same ones for the same seed."""
    examples: list[Any] = []

    @seed(number)
    @settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        examples.append(value)

    collect()
    return examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Inputs of one target: the numbers from `first` up to, not including, `stop`."""

    target: str
    first: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a child runs: shares, one after the other, whose inputs are drawn from one seed."""

    seed: str
    shares: tuple[Share, ...]
    folder: str  # for notes and inputs that are kept
    scratch: str  # for files that checks write
    max_bytes: int  # by which the memory may grow with one input
    targets: str = TARGETS_MODULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An input that was neither read nor refused."""

    target: str
    number: int
    kind: str  # changed, exception, memory, hang or crash
    trace: str  # its last line is the shortest description
    path: str  # of the input

    @property
    def cause(self) -> str:
        """What findings with the same cause have in common."""
        return f"{self.target}: {self.kind}: {self.trace.splitlines()[-1] if self.trace else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The outcomes of inputs of one target, and the slowest of these inputs."""

    target: str
    read: int
    refused: int
    slowest: int = 0
    slowest_seconds: float = 0.0
    seconds: float = 0.0  # of all inputs, with drawing them


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The input that a child is running, and the outcomes of those before it in the share."""

    share: int
    number: int
    read: int
    refused: int
    data: bytes


class Board:
    """Memory with the child's position, shared with its parent, that survives the child."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_HEAD.size + _DATA_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @property
    def position(self) -> Position:
        """The position that was written last."""
        share, number, read, refused, size = _HEAD.unpack_from(self._memory)
        data = self._memory[_HEAD.size : _HEAD.size + size]
        return Position(share=share, number=number, read=read, refused=refused, data=data)

    @property
    def number(self) -> tuple[int, int, bool]:
        """The share and the input, and whether the child has begun with it."""
        share, number, _, _, size = _HEAD.unpack_from(self._memory)
        return share, number, size > 0

    def write(self, position: Position) -> None:
        """Write the position of the child."""
        size = min(len(position.data), _DATA_BYTES)
        self._memory[_HEAD.size : _HEAD.size + size] = position.data[:size]
        numbers = position.share, position.number, position.read, position.refused
        _HEAD.pack_into(self._memory, 0, *numbers, size)

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def line_of(note: Finding | Counts) -> bytes:
    """Return a note as one line."""
    return msgspec.json.encode({"note": type(note).__name__, **asdict(note)}) + b"\n"


def _notes_in(lines: bytes) -> list[Finding | Counts]:
    """Parse such lines, without one that a child was writing when it died."""
    notes: list[Finding | Counts] = []
    for line in lines.splitlines(keepends=True):
        if line.endswith(b"\n"):
            fields = msgspec.json.decode(line)
            kind = {"Finding": Finding, "Counts": Counts}[fields.pop("note")]
            notes.append(kind(**fields))
    return notes


class ChildError(Exception):
    """A child failed before its first input, by a defect of the tests."""


@dataclass(slots=True, kw_only=True)
class Result:
    """Outcomes of all inputs by target, and the findings."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    slowest: dict[str, tuple[float, int]] = field(default_factory=dict)  # seconds, input

    def add(self, note: Finding | Counts) -> None:
        """Add a note of a child."""
        if isinstance(note, Finding):
            self.findings.append(note)
            return
        name = note.target
        self.read[name] += note.read
        self.refused[name] += note.refused
        self.seconds[name] = self.seconds.get(name, 0.0) + note.seconds
        slowest = note.slowest_seconds, note.slowest
        self.slowest[name] = max(self.slowest.get(name, slowest), slowest)

    def inputs(self, target: str) -> int:
        """Return how many inputs of a target have an outcome or are findings."""
        # An input that took too much memory has an outcome as well.
        others = [one for one in self.findings if one.target == target and one.kind != "memory"]
        return self.read[target] + self.refused[target] + len(others)

    def count(self, kind: str) -> int:
        """Return the number of findings of a kind."""
        return sum(finding.kind == kind for finding in self.findings)

    def report(self) -> str:
        """Return the findings, each cause once with one of its inputs."""
        first: dict[str, Finding] = {}
        for finding in self.findings:
            first.setdefault(finding.cause, finding)
        times = Counter(finding.cause for finding in self.findings)
        return "\n\n".join(
            f"{times[cause]} x {cause}\ninput: {finding.path}\n{finding.trace}"
            for cause, finding in first.items()
        )


class _Runner:
    """Children that run one task, one after the other, until all of it is done."""

    def __init__(self, task: Task, result: Result, *, hang_seconds: float) -> None:
        self._result = result
        self._task = task
        self._hang_seconds = hang_seconds
        self._folder = Path(task.folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._child: subprocess.Popen[bytes] | None = None
        self._moved_at = 0.0
        self._number = (0, 0, False)
        self._is_hanging = False
        self._start()

    def is_done(self) -> bool:
        """Check the child, and return whether the task is done."""
        child = self._child
        if child is None:
            return True
        with Board(self._folder / BOARD) as board:
            number = board.number
        if number != self._number:
            self._number, self._moved_at = number, time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
        if child.returncode is not None:
            self._end(child.returncode)
        elif not self._is_hanging and self._is_late():
            self._is_hanging = True
            child.send_signal(signal.SIGABRT)  # which makes it write its stack first
        return self._child is None

    def _is_late(self) -> bool:
        *_, has_begun = self._number
        limit = self._hang_seconds if has_begun else _START_SECONDS
        return time.monotonic() - self._moved_at > limit

    def kill(self) -> None:
        """Kill the child, if there is one."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _start(self) -> None:
        self._is_hanging = False
        with Board(self._folder / BOARD) as board:
            board.write(Position(share=0, number=0, read=0, refused=0, data=b""))
        task = self._folder / "task"
        task.write_bytes(msgspec.json.encode(self._task))
        (self._folder / NOTES).write_bytes(b"")
        with (self._folder / "stderr").open("wb") as stderr:
            command = [sys.executable, "-m", CHILD, str(task)]
            self._child = subprocess.Popen(command, stdout=stderr, stderr=stderr)
        self._number, self._moved_at = (0, 0, False), time.monotonic()

    def _end(self, code: int) -> None:
        self._child = None
        for note in _notes_in((self._folder / NOTES).read_bytes()):
            self._result.add(note)
        if code == 0:
            return
        stderr = (self._folder / "stderr").read_text(errors="replace")
        with Board(self._folder / BOARD) as board:
            position = board.position
        if code > 0 or not position.data:
            raise ChildError(stderr)
        finding = self._finding(position, code, stderr)
        self._result.add(finding)
        self._result.add(
            Counts(target=finding.target, read=position.read, refused=position.refused)
        )
        current, *rest = self._task.shares[position.share :]
        if sum(one.target == finding.target for one in self._result.findings) < MAX_FINDINGS:
            rest = [replace(current, first=position.number + 1), *rest]
        self._task = replace(self._task, shares=tuple(rest))
        self._start()

    def _finding(self, position: Position, code: int, stderr: str) -> Finding:
        target = self._task.shares[position.share].target
        path = self._folder / KEPT / f"{target}-{position.number}-{code}".replace(" ", "-")
        path.write_bytes(position.data)
        kind = "hang" if self._is_hanging else "crash"
        lines = [line for line in stderr.splitlines() if "File" in line or "Fatal" in line]
        trace = "\n".join(reversed(lines[:_SHOWN_LINES]))
        if kind == "crash":
            trace += f"\n{signal.Signals(-code).name}"
        return Finding(
            target=target, number=position.number, kind=kind, trace=trace, path=str(path)
        )


def watch(tasks: Sequence[Task], *, hang_seconds: float) -> Result:
    """Run tasks side by side, and return the outcomes of all of their inputs."""
    result = Result()
    runners = [_Runner(task, result, hang_seconds=hang_seconds) for task in tasks]
    try:
        left = runners
        while left:
            left = [runner for runner in left if not runner.is_done()]
    finally:
        for runner in runners:
            runner.kill()
    return result
