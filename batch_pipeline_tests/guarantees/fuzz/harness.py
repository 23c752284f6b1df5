"""Fuzzing targets, and the processes that run their inputs.

An input may crash or hang the process that reads it. Therefore a child process runs the inputs, and
sends each one to its parent first. The next child continues after the input that ended the last.

`python -m ….harness TARGET FILE` runs a stored input again.
"""

import faulthandler
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from importlib import import_module
from itertools import count, islice
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import batch_pipeline
from batch_pipeline_tests.guarantees.fuzz.damage import Batch

TARGETS_MODULE = "batch_pipeline_tests.guarantees.fuzz.targets"
_MAX_FINDINGS = 40  # of one target
_START_SECONDS = 300.0  # until the first input of a share: imports on a busy machine
_ADDRESS_SPACE = 12 * 2**30  # so that no input takes all memory of the machine
_SHOWN_CHARACTERS = 4_000
_SHOWN_LINES = 30
_PEAK = re.compile(rb"VmHWM:\s*([0-9]+)")
_PACKAGE = f"{Path(batch_pipeline.__file__).parent}{os.sep}"
_SPAWN = multiprocessing.get_context("spawn")

Check = Callable[[bytes], "Outcome"]


class Outcome(StrEnum):
    """The valid outcomes of an input. Everything else is a finding."""

    READ = "read"  # with the same result as the oracle, if any
    REFUSED = "refused"


class ChangedError(AssertionError):
    """The output differs from the input."""


class _MemoryGrowthError(Exception):
    pass


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
class Task:
    """The work of a process: inputs of some targets, drawn from one seed.

    A share is a target and the numbers of its inputs.
    """

    seed: str
    shares: Sequence[tuple[str, range]]
    folder: Path  # for logs, stored inputs and files that checks write
    max_bytes: int  # of memory growth by one input
    targets: str = TARGETS_MODULE

    def store(self, target: str, number: int, data: bytes) -> str:
        """Store an input and return its path."""
        path = self.folder / f"{target} {number}".replace(" ", "-")
        path.write_bytes(data)
        return str(path)


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


@dataclass(slots=True)
class _Position:
    """An input that a child is about to run, and the outcomes of earlier inputs of the share.

    `data` is None at the end of the share.
    """

    share: int
    number: int = 0
    data: bytes | None = None
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    slowest_seconds: float = 0.0


@dataclass(slots=True)
class Result:
    """Outcomes of all inputs by target, and the findings."""

    read: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    slowest_seconds: float = 0.0

    def add(self, target: str, position: _Position) -> None:
        """Add the outcomes of inputs before a position."""
        self.read[target] += position.outcomes[Outcome.READ]
        self.refused[target] += position.outcomes[Outcome.REFUSED]
        self.slowest_seconds = max(self.slowest_seconds, position.slowest_seconds)

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
    total = Result()
    with ThreadPoolExecutor(len(tasks)) as threads:
        for result in threads.map(partial(_watch, hang_seconds=hang_seconds), tasks):
            total.read += result.read
            total.refused += result.refused
            total.findings += result.findings
            total.slowest_seconds = max(total.slowest_seconds, result.slowest_seconds)
    return total


def _watch(task: Task, *, hang_seconds: float) -> Result:
    """Run children one after the other, until all shares of the task are complete."""
    result, log = Result(), task.folder / "log"
    task.folder.mkdir(parents=True, exist_ok=True)
    while True:
        receiver, sender = _SPAWN.Pipe(duplex=False)
        child = _SPAWN.Process(target=_run, args=(task, sender, str(log)))
        child.start()
        sender.close()
        last, is_hanging = None, False
        with receiver, suppress(EOFError):
            while True:
                is_starting = last is None or last.data is None
                if not receiver.poll(_START_SECONDS if is_starting else hang_seconds):
                    is_hanging = True
                    os.kill(child.pid or 0, signal.SIGABRT)  # the child writes its stack
                received = receiver.recv()
                if isinstance(received, Finding):
                    result.findings.append(received)
                    continue
                last = received
                if last.data is None:
                    result.add(task.shares[last.share][0], last)
        child.join()
        if child.exitcode == 0:
            return result
        trace = log.read_text(errors="replace")
        # Otherwise a defect in the tests ended it.
        assert last is not None, trace
        assert last.data is not None, trace
        assert (child.exitcode or 0) < 0, trace
        (target, numbers), *rest = task.shares[last.share :]
        lines = [line for line in trace.splitlines() if "File" in line or "Fatal" in line]
        shown = [*reversed(lines[:_SHOWN_LINES])]
        result.add(target, last)
        result.findings.append(
            Finding(
                target=target,
                number=last.number,
                kind="hang" if is_hanging else "crash",
                trace="\n".join(shown if is_hanging else [*shown, str(child.exitcode)]),
                path=task.store(target, last.number, last.data),
            )
        )
        if sum(finding.target == target for finding in result.findings) < _MAX_FINDINGS:
            rest = [(target, range(last.number + 1, numbers.stop)), *rest]
        task = replace(task, shares=rest)


def _run(task: Task, parent: Connection, log: str) -> None:
    """Run the inputs of a task in this process, which may crash."""
    with open(log, "wb") as file:  # noqa: PTH123 - its descriptors
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    targets: dict[str, Target] = import_module(task.targets).TARGETS
    for index, (name, numbers) in enumerate(task.shares):
        position, findings = _Position(index), 0
        with TemporaryDirectory(dir=task.folder) as scratch:
            check = targets[name].open_check(Path(scratch))
            inputs = enumerate(islice(targets[name].inputs(task.seed), numbers.stop))
            for number, data in islice(inputs, numbers.start, None):
                position.number, position.data = number, data
                parent.send(position)
                outcome, errors, seconds = _try(check, data, task.max_bytes)
                if outcome:
                    position.outcomes[outcome] += 1
                position.slowest_seconds = max(position.slowest_seconds, seconds)
                for error in errors:
                    path = task.store(name, number, data)
                    parent.send(_finding(name, number, path, error))
                findings += len(errors)
                if findings >= _MAX_FINDINGS:
                    break
        position.data = None
        parent.send(position)


def _try(
    check: Check, data: bytes, max_bytes: int
) -> tuple[Outcome | None, list[Exception], float]:
    """Check an input, and return the outcome, the errors, and the seconds that it took."""
    before, started = _peak_bytes(), time.process_time()
    outcome, errors = None, list[Exception]()
    try:
        outcome = check(data)
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        errors.append(error)
    seconds = time.process_time() - started
    if (grown := _peak_bytes() - before) > max_bytes:
        errors.append(_MemoryGrowthError(f"took {grown >> 20} MiB more"))
    return outcome, errors, seconds


def _finding(target: str, number: int, path: str, error: Exception) -> Finding:
    kind = "memory" if isinstance(error, _MemoryGrowthError) else "exception"
    location: object = _location_of(error.__traceback__)
    if isinstance(error, ChangedError):
        kind, location = "changed", next(iter(error.args), location)
    trace = "".join(traceback.format_exception(error))[-_SHOWN_CHARACTERS:]
    trace += f"\n{type(error).__name__} {location!s:.100}"
    return Finding(target=target, number=number, kind=kind, trace=trace, path=path)


def _location_of(trace: TracebackType | None) -> str:
    """Return the innermost line of the product in a traceback."""
    location = "in the test"
    for frame in traceback.extract_tb(trace):
        if frame.filename.startswith(_PACKAGE):
            location = f"at {os.path.relpath(frame.filename, _PACKAGE)}:{frame.lineno}"
    return location


def _peak_bytes() -> int:
    """Return the peak memory of this process, without that of its parents."""
    match = _PEAK.search(Path("/proc/self/status").read_bytes())
    return int(match[1]) * 1024 if match else 0


def main() -> None:
    """Run the stored input of the command line."""
    name, file = sys.argv[1:]
    with TemporaryDirectory() as folder:
        check = import_module(TARGETS_MODULE).TARGETS[name].open_check(Path(folder))
        sys.stdout.write(f"{check(Path(file).read_bytes())}\n")


if __name__ == "__main__":
    main()
