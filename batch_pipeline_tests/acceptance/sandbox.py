"""The real command in separate processes, and the files that it writes."""

import copy
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from click.testing import CliRunner

from batch_pipeline.cli import cli
from batch_pipeline.cli.console import exit_code
from batch_pipeline.inventory import embedded_server
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.location import to_path

LONGEST_SECONDS = 600
PROGRAM = (sys.executable, "-m", "batch_pipeline")
_PREFIXES = ("BATCH_PIPELINE_", "DAGSTER_", "SPARK_", "PYSPARK_", "PYTHON")
_STREAM: dict[str, Any] = {
    "source": {"include": ["*.csv*"], "format": "csv"},
    "batch": {"max_weight": "64MiB", "max_count": 100},
    "encoding": {"format": "jsonl", "compression": "gzip"},
}

CompletedCommand = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A temporary folder with a home and streams, and the command that works there.

    `variables` are added to an environment without variables of the product; None removes one.
    `program` starts the command; without one, it runs in this process, which is much faster.
    """

    folder: Path
    variables: Mapping[str, str | None] = field(default_factory=dict)
    program: tuple[str, ...] | None = PROGRAM
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """The home folder."""
        return self.folder / "home"

    @property
    def streams(self) -> Path:
        """The folder of the stream files."""
        return self.folder / "streams"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the command."""
        clean = {name: text for name, text in os.environ.items() if not name.startswith(_PREFIXES)}
        own_variables = {"BATCH_PIPELINE_HOME": str(self.home)}
        if self.streams.exists():
            own_variables["BATCH_PIPELINE_STREAMS"] = str(self.streams)
        merged = {**clean, **own_variables, **self.variables}
        return {name: text for name, text in merged.items() if text is not None}

    def with_variables(self, **variables: str | None) -> "Sandbox":
        """Return the same sandbox with additional variables."""
        return replace(self, variables={**self.variables, **variables})

    def in_process(self, **variables: str | None) -> "Sandbox":
        """Return the same sandbox, with additional variables, for commands in this process."""
        return replace(self.with_variables(**variables), program=None)

    def run(self, *arguments: str, **options: Any) -> CompletedCommand:
        """Run the command; `options` are passed to `subprocess.run`."""
        settings: dict[str, Any] = {"cwd": self.folder, "env": self.environment, **options}
        if self.program is None:
            return _run_here(arguments, **settings)
        return run_program(*self.program, *arguments, **settings)

    def output_of(self, *arguments: str) -> str:
        """Run the command, assert exit code 0, and return its output."""
        result = self.run(*arguments)
        assert result.returncode == 0, f"{arguments}: {result.returncode}\n{result.stderr}"
        return result.stdout

    def json_of(self, *arguments: str) -> Any:
        """Run the command with `--json`, assert exit code 0, and return the parsed output."""
        return json.loads(self.output_of(*arguments, "--json"))

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start the command as the leader of a process group; its output goes to `output`."""
        return self.start_program([*(self.program or PROGRAM), *arguments], self.folder)

    def start_program(self, words: list[str], folder: Path) -> "subprocess.Popen[str]":
        """Start any program in a folder as `start` does."""
        with self.output.open("w") as output:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    @property
    def output(self) -> Path:
        """The output of the command that was started last."""
        return self.folder / "output.txt"

    def write_stream(self, name: str, **attributes: Any) -> Path:
        """Write a stream file; by default `landing/<name>` is read and `batches/<name>` written.

        Keys of a section are merged into the defaults, other keys replace them. A source with a
        `meta_table` has no folder.
        """
        all_attributes: dict[str, Any] = {"stream": name, **copy.deepcopy(_STREAM)}
        all_attributes["source"]["uri"] = str(self.landing(name))
        all_attributes["storage"] = {"root": str(self.storage(name))}
        for key, value in attributes.items():
            both = isinstance(value, dict) and key in all_attributes
            all_attributes[key] = {**all_attributes[key], **value} if both else value
        if "meta_table" in all_attributes["source"]:
            del all_attributes["source"]["uri"], all_attributes["source"]["include"]
        path = self.streams / name / "defs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"type": "batch_pipeline.BatchStream", "attributes": all_attributes}
        path.write_text(yaml.safe_dump(document, allow_unicode=True, sort_keys=False))
        return path

    def land(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write old files into a stream's landing folder; recent files would not be read yet."""
        landing = self.landing(name)
        landing.mkdir(parents=True, exist_ok=True)
        for file_name, content in files.items():
            path = landing / file_name
            path.write_bytes(content)
            os.utime(path, (1_750_000_000, 1_750_000_000))

    def landing(self, name: str) -> Path:
        """The landing folder of a stream."""
        return self.folder / "landing" / name

    def storage(self, name: str) -> Path:
        """The storage root of a stream."""
        return self.folder / "batches" / name

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this sandbox, regardless of their parent."""
        return [process for process in psutil.process_iter() if _belongs(process, self.home)]

    def release_server(self) -> None:
        """Stop using the embedded server that commands in this process have started or found."""
        embedded_server.release(self.home / "postgres")

    def end_processes(self) -> None:
        """Kill processes that a test left running."""
        remaining = self.processes()
        for process in remaining:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(remaining, timeout=LONGEST_SECONDS)
        for started in self.started:
            started.wait(LONGEST_SECONDS)


@contextmanager
def new_sandbox() -> Iterator[Sandbox]:
    """Yield an empty sandbox; at the end its processes are killed and its folder is deleted."""
    # Not below pytest's own folder, which other pytest sessions make inaccessible to other users:
    # under root, the embedded server runs as another user.
    sandbox = Sandbox(folder=Path(tempfile.mkdtemp(prefix="bp-")).resolve())
    try:
        yield sandbox
    finally:
        sandbox.end_processes()
        shutil.rmtree(sandbox.folder)


def run_program(*words: str | Path, **options: Any) -> CompletedCommand:
    """Run any program and capture its output; `options` are passed to `subprocess.run`."""
    settings: dict[str, Any] = {"timeout": LONGEST_SECONDS, "stdin": subprocess.DEVNULL}
    settings |= {"capture_output": True, "text": True}
    return subprocess.run(words, check=False, **(settings | options))


def _run_here(
    arguments: tuple[str, ...], cwd: Path, env: Mapping[str, str], stderr: int | None = None
) -> CompletedCommand:
    """Run the product's command in this process; print an error as the command itself does."""
    removed = dict.fromkeys(name for name in os.environ if name not in env)
    with chdir(cwd):
        result = CliRunner().invoke(cli, arguments, env={**removed, **env})
    error, code, message = result.exception, result.exit_code, ""
    if isinstance(error, PipelineError):
        code, message = exit_code([error]), f"Error: {error}\n"
    elif error is not None and not isinstance(error, SystemExit):
        raise error
    if stderr == subprocess.STDOUT:
        return CompletedCommand(arguments, code, result.output + message)
    return CompletedCommand(arguments, code, result.stdout, result.stderr + message)


def program_output(*words: str | Path, **options: Any) -> str:
    """Run any program, assert exit code 0, and return its output."""
    result = run_program(*words, **options)
    assert result.returncode == 0, f"{words}\n{result.stdout}{result.stderr[-5_000:]}"
    return result.stdout


def command(*arguments: str) -> list[str]:
    """Return the command line."""
    return [*PROGRAM, *arguments]


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *,
    seconds: float = LONGEST_SECONDS,
    pause_seconds: float = 0.1,
) -> None:
    """Poll until a condition holds; fail after a generous timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s for: {what}")
        time.sleep(pause_seconds)


def manifests(storage: Path) -> list[dict[str, Any]]:
    """Return the manifest files of a storage root, sorted by name."""
    return [json.loads(path.read_text()) for path in sorted(storage.glob("manifests/*.json"))]


def part_files(storage: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the part files of all manifests with their entries."""
    for manifest in manifests(storage):
        for part in manifest["part_files"]:
            yield part, Path(to_path(part["uri"]))


def json_records(storage: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of all part files of the manifests."""
    for _, path in part_files(storage):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_below(*folders: Path) -> dict[str, tuple[int, int]]:
    """Return all files below folders with modification time and size."""
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size)
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


def unaccounted_files(storage: Path) -> list[str]:
    """Return the files of a storage root that are neither manifest files nor listed in one."""
    if not storage.is_dir():
        return []
    named = {path for _, path in part_files(storage)}
    for manifest in manifests(storage):
        named |= {Path(to_path(part["uri"])) for part in manifest["quarantine_files"]}
    named |= set(storage.glob("manifests/*.json"))
    return sorted(str(path) for path in storage.rglob("*") if path.is_file() and path not in named)


def process_names(processes: Iterable[psutil.Process]) -> list[str]:
    """Describe running processes for a message."""
    names = []
    for process in processes:
        with suppress(psutil.Error):
            if command := process.cmdline():
                names.append(f"{process.pid} {' '.join(command)[:200]}")
    return names


def _belongs(process: psutil.Process, home: Path) -> bool:
    # Postgres overwrites its environment with its title, and runs in its data folder.
    with suppress(psutil.Error, OSError):
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if process.environ().get("BATCH_PIPELINE_HOME") == str(home):
            return True
    with suppress(psutil.Error, OSError):
        if Path(process.cwd()).is_relative_to(home):
            return True
    with suppress(psutil.Error, OSError):
        return any(str(home) in word for word in process.cmdline())
    return False
