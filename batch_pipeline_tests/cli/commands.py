"""Stream files for commands, and their invocation in this process."""

import json
import os
import pty
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from batch_pipeline.cli import cli
from batch_pipeline_tests.factories import environment_of

Run = Callable[..., Result]


def write_stream(
    folder: Path, name: str, source: dict[str, Any] | None = None, **extra: Any
) -> Path:
    """Write a stream file below `streams`, by default with the source `landing`."""
    path = folder / "streams" / name / "defs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    source = source or {"uri": str(folder / "landing")}
    attributes = {"stream": name, "source": source, **extra}
    path.write_text(
        yaml.safe_dump({"type": "batch_pipeline.BatchStream", "attributes": attributes})
    )
    return path


def make_runner(folder: Path, inventory: str, *command: str, **environment: str) -> Run:
    """Return a function that runs commands, or one command, on a home and its streams."""
    variables = environment_of(folder, inventory) | environment
    return lambda *arguments, **extra: CliRunner().invoke(
        cli, [*command, *arguments], env=variables | extra
    )


def run_json(run: Run, *arguments: str) -> Any:
    """Run with `--json`, assert exit code 0, and return the parsed output."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def invoke(*words: str, **options: Any) -> Result:
    """Run a command in the environment of this process; `options` are those of Click."""
    return CliRunner().invoke(cli, words, **options)


def on_terminal(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object], *streams: str) -> str:
    """Call a function while streams of `sys` are a terminal, and return its output there."""
    master, slave = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(master, 65_536):
                chunks.append(data)
        except OSError:  # the other end is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(slave, "w") as stream, monkeypatch.context() as patch:
        for name in streams:
            patch.setattr(sys, name, stream)
        run()
    reader.join()
    os.close(master)
    return b"".join(chunks).decode()
