"""Fuzzing targets, and the parent of the processes that run their inputs.

An input may crash or hang the process that reads it. Therefore `child` runs inputs in a separate
process, and writes each of them into a file first. `watch` starts such processes and records
crashes and hangs. The next process continues after the input that caused it.
"""

import json
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from batch_pipeline_tests.guarantees.fuzz.damage import Batch

TARGETS_MODULE = "batch_pipeline_tests.guarantees.fuzz.targets"
CHILD = "batch_pipeline_tests.guarantees.fuzz.child"
TASK, POSITION, NOTES, STORED = "task", "position", "notes", "stored"  # in the folder of a task
MAX_FINDINGS = 40  # of one target
_POLL_SECONDS = 0.2
_START_SECONDS = 300.0  # until the first input: imports on a busy machine
_SHOWN_LINES = 30
_POSITION = struct.Struct("<QQQQQ")

Check = Callable[[bytes], "Outcome"]


class Outcome(StrEnum):
    """The valid outcomes of an input. Everything else is a finding."""

    READ = "read"  # with the same result as the oracle, if any
    REFUSED = "refused"


class ChangedError(AssertionError):
    """The output differs from the input."""


def expect(is_right: bool, *details: object) -> None:
    """Raise an error that makes the input a finding, unless a condition is true."""
    if not is_right:
        raise ChangedError(*details)


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input: a strategy for batches of inputs, and a check that reads an input.

    `open_check` creates the check for a folder. `short` and `long` are the numbers of inputs of the
    two forms.
    """

    name: str
    batches: st.SearchStrategy[Batch]
    open_check: Callable[[Path], Check]
    short: int
    long: int

    def inputs(self, number: str) -> Iterator[bytes]:
        """Yield inputs endlessly, the same ones for the same seed."""
        for batch in count():
            # The first example of a run is always the simplest. The second is followed by copies of
            # it with small changes, most of whose inputs would be equal.
            [_, example] = drawn(self.batches, 2, f"{number} {self.name} {batch}")
            tried: set[bytes] = set()  # some damages change nothing
            for data in example:
                if data not in tried:
                    tried.add(data)
                    yield data


def drawn(strategy: st.SearchStrategy[Any], max_examples: int, number: str) -> list[Any]:
    """Return at most `max_examples` examples of a strategy, the same ones for the same seed."""
    examples: list[Any] = []

    @seed(number)
    @settings(
        max_examples=max_examples,
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
    """Inputs of one target, numbered from `first` up to, but excluding, `stop`."""

    target: str
    first: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The work of a child: a sequence of shares, whose inputs are drawn from one seed."""

    seed: str
    shares: tuple[Share, ...]
    folder: str  # for notes and stored inputs
    scratch: str  # for files that checks write
    max_bytes: int  # of memory growth by one input
    targets: str = TARGETS_MODULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An input that was neither read nor refused."""

    target: str
    number: int
    kind: str  # changed, exception, memory, hang or crash
    trace: str  # the last line is a summary
    path: str  # of the input

    @property
    def cause(self) -> str:
        """The common part of findings with the same cause."""
        return f"{self.target}: {self.kind}: {self.trace.splitlines()[-1] if self.trace else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The outcomes of inputs of one target, and the seconds of the slowest input."""

    target: str
    read: int
    refused: int
    slowest_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The input that a child is running, and the outcomes of earlier inputs of the share.

    `data` is None before the first input. The position is in a file, which survives the child.
    """

    share: int = 0
    number: int = 0
    read: int = 0
    refused: int = 0
    data: bytes | None = None

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        size = 0 if self.data is None else len(self.data) + 1
        head = _POSITION.pack(self.share, self.number, self.read, self.refused, size)
        return head + (self.data or b"")

    @classmethod
    def from_bytes(cls, content: bytes) -> "Position":
        """Parse the content of the file, which may end with parts of earlier inputs."""
        share, number, read, refused, size = _POSITION.unpack_from(content)
        data = content[_POSITION.size :][: size - 1] if size else None
        return cls(share=share, number=number, read=read, refused=refused, data=data)


class ChildError(Exception):
    """A child failed before its first input because of a defect in the tests."""


@dataclass(slots=True, kw_only=True)
class Result:
    """Outcomes of all inputs by target, and the findings."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    slowest_seconds: float = 0.0

    def add(self, note: Finding | Counts) -> None:
        """Add a note of a child."""
        if isinstance(note, Finding):
            self.findings.append(note)
            return
        self.read[note.target] += note.read
        self.refused[note.target] += note.refused
        self.slowest_seconds = max(self.slowest_seconds, note.slowest_seconds)

    def inputs(self, target: str) -> int:
        """Return the number of inputs of a target that have an outcome or are findings."""
        # An input that took too much memory has an outcome as well.
        others = [each for each in self.findings if each.target == target and each.kind != "memory"]
        return self.read[target] + self.refused[target] + len(others)

    def count(self, kind: str) -> int:
        return sum(finding.kind == kind for finding in self.findings)

    def report(self) -> str:
        """Return the findings: each cause with its number and one of its inputs."""
        first = {finding.cause: finding for finding in reversed(self.findings)}
        times = Counter(finding.cause for finding in self.findings)
        return "\n\n".join(
            f"{times[cause]} x {cause}\ninput: {finding.path}\n{finding.trace}"
            for cause, finding in first.items()
        )


def watch(tasks: Sequence[Task], *, hang_seconds: float) -> Result:
    """Run tasks in parallel, and return the outcomes of all inputs."""
    result = Result()
    with ThreadPoolExecutor(len(tasks)) as threads:
        for notes in threads.map(partial(_run, hang_seconds=hang_seconds), tasks):
            for note in notes:
                result.add(note)
    return result


def _run(task: Task, *, hang_seconds: float) -> list[Finding | Counts]:
    """Run children one after the other, until all shares of the task are complete."""
    folder, notes = Path(task.folder), list[Finding | Counts]()
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        (folder / POSITION).write_bytes(Position().to_bytes())
        (folder / TASK).write_text(json.dumps(asdict(task)))
        (folder / NOTES).write_text("")
        command = [sys.executable, "-m", CHILD, str(folder / TASK)]
        with (
            (folder / "stderr").open("wb") as stderr,
            subprocess.Popen(command, stdout=stderr, stderr=stderr) as child,
        ):
            is_hanging = _wait(child, folder / POSITION, hang_seconds)
        notes += _notes_in((folder / NOTES).read_text())
        if child.returncode == 0:
            return notes
        trace = (folder / "stderr").read_text(errors="replace")
        position = Position.from_bytes((folder / POSITION).read_bytes())
        if child.returncode > 0 or position.data is None:
            raise ChildError(trace)
        current, *rest = task.shares[position.share :]
        target = current.target
        path = folder / STORED / f"{target}-{position.number}-{child.returncode}".replace(" ", "-")
        path.write_bytes(position.data)
        lines = [line for line in trace.splitlines() if "File" in line or "Fatal" in line]
        shown = [*reversed(lines[:_SHOWN_LINES])]
        notes.append(
            Finding(
                target=target,
                number=position.number,
                kind="hang" if is_hanging else "crash",
                trace="\n".join(shown if is_hanging else [*shown, str(child.returncode)]),
                path=str(path),
            )
        )
        notes.append(Counts(target=target, read=position.read, refused=position.refused))
        if (
            sum(isinstance(note, Finding) and note.target == target for note in notes)
            < MAX_FINDINGS
        ):
            rest = [replace(current, first=position.number + 1), *rest]
        task = replace(task, shares=tuple(rest))


def _wait(child: "subprocess.Popen[bytes]", position_file: Path, hang_seconds: float) -> bool:
    """Wait for the end of a child, and return whether it hung and was aborted."""
    last, moved_at, is_hanging = Position(), time.monotonic(), False
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
            return is_hanging
        position = Position.from_bytes(position_file.read_bytes())
        if (position.share, position.number) != (last.share, last.number) or last.data is None:
            last, moved_at = position, time.monotonic()
        limit = _START_SECONDS if position.data is None else hang_seconds
        if not is_hanging and time.monotonic() - moved_at > limit:
            is_hanging = True
            child.send_signal(signal.SIGABRT)  # the child writes its stack


def _notes_in(text: str) -> Iterator[Finding | Counts]:
    """Yield the notes of a child, without an incomplete last one."""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            fields = json.loads(line)
            yield Finding(**fields) if "kind" in fields else Counts(**fields)
