"""Stream files for commands, and their invocation in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from batch_pipeline.cli import cli

Run = Callable[..., Result]


def write_stream(
    folder: Path, name: str, source: dict[str, Any] | None = None, **more: Any
) -> Path:
    """Write a stream file below `streams`; files land in `landing` unless a source is given."""
    path = folder / "streams" / name / "defs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    source = source or {"uri": str(folder / "landing")}
    attributes = {"stream": name, "source": source, **more}
    path.write_text(
        yaml.safe_dump({"type": "batch_pipeline.BatchStream", "attributes": attributes})
    )
    return path


def runs(folder: Path, inventory: str, *command: str, **environment: str) -> Run:
    """Return a function that runs commands, or one command, on a home and its streams."""
    variables = {
        "BATCH_PIPELINE_HOME": str(folder / "home"),
        "BATCH_PIPELINE_STREAMS": str(folder / "streams"),
        "BATCH_PIPELINE_INVENTORY_CONN": inventory,
        **environment,
    }
    return lambda *words, **more: CliRunner().invoke(cli, [*command, *words], env=variables | more)


def told(run: Run, *words: str) -> Any:
    """Run with `--json`, expect exit code 0, and read what was printed."""
    ended = run(*words, "--json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)
