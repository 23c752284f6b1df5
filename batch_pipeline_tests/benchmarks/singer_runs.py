"""Runs commands as a pipe and tells what each took. What they do is not known here."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

LONGEST_SECONDS = 3_600
_WATCHED = [sys.executable, "-m", "batch_pipeline_tests.benchmarks.watched_command"]
_ENOUGH_LETTERS = 300


class WayFailedError(Exception):
    """A way did not come to its end; the message is short enough for the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one part of a way took; its seconds may be those of the steps beside it, too."""

    name: str
    seconds: float
    processor_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a way took from its start to its end, and the STATE or count that came out of it."""

    seconds: float
    steps: tuple[Step, ...]
    state: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program of a pipe; with `most_bytes` its processes get no more memory than that each."""

    name: str
    words: Sequence[str]
    most_bytes: int = 0


def piped(folder: Path, *commands: Command, environment: Mapping[str, str]) -> Run:
    """Run programs, each reading what the one before it prints; the last one's goes to `said`.

    Raises:
        WayFailedError: one of them failed, or all together took too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as files:
        for command in commands:
            is_last = command is commands[-1]
            said = files.enter_context((folder / "said").open("wb")) if is_last else subprocess.PIPE
            complaints = files.enter_context(_complaints(folder, command).open("wb"))
            before = processes[-1].stdout if processes else subprocess.DEVNULL
            words = [*_WATCHED, str(_report(folder, command)), str(command.most_bytes)]
            processes.append(
                subprocess.Popen(
                    [*words, *command.words],
                    stdin=before,
                    stdout=said,
                    stderr=complaints,
                    cwd=folder,
                    env=environment,
                )
            )
            if processes[1:] and processes[-2].stdout:
                processes[-2].stdout.close()  # so that it hears when its reader has gone
        _wait(processes)
    seconds = time.perf_counter() - started
    for command, process in reversed(list(zip(commands, processes, strict=True))):
        if process.returncode:
            raise WayFailedError(_reason(folder, command, process.returncode))
    return Run(seconds=seconds, steps=tuple(_step(folder, command) for command in commands))


def bookmark(said: Path) -> int | None:
    """Give the bookmark of the only stream in the last STATE of a file."""
    lines = [line for line in said.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        return None
    (stream,) = json.loads(lines[-1])["bookmarks"].values()
    value = stream.get("replication_key_value")
    return None if value is None else int(value)


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    try:
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise WayFailedError(f"did not end within {LONGEST_SECONDS} s") from error
    finally:
        for process in processes:
            if process.poll() is None:
                for one in psutil.Process(process.pid).children(recursive=True):
                    one.kill()
                process.kill()
                process.wait()


def _reason(folder: Path, command: Command, code: int) -> str:
    complaints = _complaints(folder, command).read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    return f"{command.name} ended with {code}: {lines[-1] if lines else ''}"[:_ENOUGH_LETTERS]


def _step(folder: Path, command: Command) -> Step:
    return Step(name=command.name, **json.loads(_report(folder, command).read_text()))


def _report(folder: Path, command: Command) -> Path:
    return folder / f"{command.name}.json"


def _complaints(folder: Path, command: Command) -> Path:
    return folder / f"{command.name}.log"
