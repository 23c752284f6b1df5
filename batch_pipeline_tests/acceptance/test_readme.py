"""The README's commands do what it says, in the order in which a reader meets them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from batch_pipeline_tests.acceptance.workplace import Workplace

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")

# `dev` is run by test_dev.py; the other two run this very test.
RUN_ELSEWHERE = {"uv run batch-pipeline dev", "uv run pytest", ".ci/run"}


def test_readme_commands_work_as_written(workplace: Workplace) -> None:
    """Expect every console line to end with exit code 0, and the stream file to be usable."""
    folder = workplace.folder
    commands = re.findall(r"^\$ (.+)$", README, re.MULTILINE)
    [stream_file] = re.findall(r"```yaml\n(.+?)```", README, re.DOTALL)
    (folder / "landing").mkdir()
    (folder / "landing/sales-1.csv").write_text("sale_id,amount\n1,9.90\n2,1.50\n")
    (folder / "exports").mkdir()
    (folder / "exports/orders-1.csv").write_text("order_id,amount\n1,9.90\n")
    outputs = {}
    for command in commands:
        if command in RUN_ELSEWHERE:
            continue
        if command == "uv run batch-pipeline run":
            (folder / "streams/sales").mkdir(parents=True)
            (folder / "streams/sales/defs.yaml").write_text(stream_file)
        outputs[command] = _output(command, folder)
    assert "10 new batches" in outputs["uv run batch-pipeline demo"]
    assert "orders" in outputs["uv run batch-pipeline init shop --from exports"]
    assert "2 records read = 2 written + 0 quarantined" in outputs["uv run batch-pipeline run"]


def test_readme_names_the_two_main_commands() -> None:
    """Expect the main job and the tests to be one command each."""
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
