"""The commands of the README, run in their order."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from batch_pipeline_tests.acceptance.sandbox import Sandbox

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")

# `dev` is run by test_dev.py, `uv add` by test_installation.py; `pytest` runs this test.
RUN_BY_OTHER_TESTS = {
    "uv run batch-pipeline dev",
    "uv run pytest",
    "uv add \"batch-pipeline ; python_version >= '3.11'\"",
}


def test_readme_commands_print_what_it_shows(sandbox: Sandbox) -> None:
    folder = sandbox.folder
    (folder / "exports").mkdir()
    (folder / "exports/orders-1.csv").write_text("order_id,amount\n1,9.90\n")
    commands = re.findall(r"^\$ (.+)$", README, re.MULTILINE)
    outputs = {
        command: _output(command, folder)
        for command in commands
        if command not in RUN_BY_OTHER_TESTS
    }
    demo = outputs["uv run batch-pipeline demo"]
    [shown] = re.findall(r"```text\n(.+?)```", README, re.DOTALL)
    for line in shown.splitlines():
        assert line.strip() == "…" or _start(line) in demo, line
    assert "orders" in outputs["uv run batch-pipeline init shop --from exports"]


def test_readme_definitions_load_in_dagster(sandbox: Sandbox) -> None:
    [code] = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    (sandbox.folder / "definitions.py").write_text(code)
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-f", "definitions.py"]
    result = subprocess.run(
        command, cwd=sandbox.folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_readme_is_short() -> None:
    assert len(README.split()) <= 600


def _start(line: str) -> str:
    """Return a line without its machine-dependent end."""
    return re.sub(r"(in \.batch_pipeline.*|[\d.]+ KiB)$", "", line).rstrip()


def test_readme_names_the_two_main_commands() -> None:
    assert "$ uv run batch-pipeline demo" in README
    assert "$ uv run pytest" in README


def _output(command: str, folder: Path) -> str:
    words = shlex.split(command)
    assert words[:3] == ["uv", "run", "batch-pipeline"], command
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BATCH_PIPELINE_", "DAGSTER_"))
    }
    result = subprocess.run(
        [sys.executable, "-m", "batch_pipeline", *words[3:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout
