"""Runs inputs in a process that an input may crash.

`python -m ….child TASK` runs a task, which `harness.watch` wrote into a file.
`python -m ….child TARGET FILE` runs a stored input again.
"""

import faulthandler
import json
import os
import re
import resource
import sys
import time
import traceback
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import batch_pipeline
from batch_pipeline_tests.guarantees.fuzz.harness import (
    MAX_FINDINGS,
    NOTES,
    POSITION,
    STORED,
    TARGETS_MODULE,
    ChangedError,
    Check,
    Counts,
    Finding,
    Outcome,
    Position,
    Target,
)

_ADDRESS_SPACE = 12 * 2**30  # so that no input takes all memory of the machine
_SHOWN_CHARACTERS = 4_000
_PEAK = re.compile(rb"VmHWM:\s*([0-9]+)")
_PACKAGE = f"{Path(batch_pipeline.__file__).parent}{os.sep}"


class _MemoryGrowthError(Exception):
    pass


def _run(task: dict[str, Any]) -> None:
    """Run all shares of a task; write findings and counts into its notes."""
    folder = Path(task["folder"])
    (folder / STORED).mkdir(exist_ok=True)
    targets: dict[str, Target] = import_module(task["targets"]).TARGETS
    with (folder / NOTES).open("a") as notes, (folder / POSITION).open("r+b", 0) as position_file:

        def note(entry: Finding | Counts) -> None:
            notes.write(json.dumps(asdict(entry)) + "\n")
            notes.flush()

        def move(position: Position) -> None:
            os.pwrite(position_file.fileno(), position.to_bytes(), 0)

        for index, share in enumerate(task["shares"]):
            target, counts = targets[share["target"]], dict.fromkeys(Outcome, 0)
            move(Position(share=index, number=share["first"]))
            findings, slowest_seconds = 0, 0.0
            with TemporaryDirectory(dir=task["scratch"]) as scratch:
                check = target.open_check(Path(scratch))
                inputs = enumerate(islice(target.inputs(task["seed"]), share["stop"]))
                for number, data in islice(inputs, share["first"], None):
                    read, refused = counts[Outcome.READ], counts[Outcome.REFUSED]
                    move(
                        Position(share=index, number=number, read=read, refused=refused, data=data)
                    )
                    outcome, errors, seconds = _try(check, data, task["max_bytes"])
                    if outcome:
                        counts[outcome] += 1
                    slowest_seconds = max(slowest_seconds, seconds)
                    for error in errors:
                        path = folder / STORED / f"{target.name} {number}".replace(" ", "-")
                        path.write_bytes(data)
                        note(_finding(target.name, number, path, error))
                    findings += len(errors)
                    if findings >= MAX_FINDINGS:
                        break
            note(
                Counts(
                    target=target.name,
                    read=counts[Outcome.READ],
                    refused=counts[Outcome.REFUSED],
                    slowest_seconds=slowest_seconds,
                )
            )


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


def _finding(target: str, number: int, path: Path, error: Exception) -> Finding:
    kind = "memory" if isinstance(error, _MemoryGrowthError) else "exception"
    location: object = _location_of(error.__traceback__)
    if isinstance(error, ChangedError):
        kind, location = "changed", next(iter(error.args), location)
    trace = "".join(traceback.format_exception(error))[-_SHOWN_CHARACTERS:]
    trace += f"\n{type(error).__name__} {location!s:.100}"
    return Finding(target=target, number=number, kind=kind, trace=trace, path=str(path))


def _location_of(trace: TracebackType | None) -> str:
    """Return the innermost line of the product in a traceback."""
    location = "in the test"
    for frame in traceback.extract_tb(trace):
        if frame.filename.startswith(_PACKAGE):
            location = f"at {os.path.relpath(frame.filename, _PACKAGE)}:{frame.lineno}"
    return location


def _peak_bytes() -> int:
    """Return the peak memory of this process, without that of its parents."""
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
    else:
        _run(json.loads(Path(first).read_bytes()))


if __name__ == "__main__":
    main()
