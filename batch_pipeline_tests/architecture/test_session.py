"""How sessions of tests are run: the number of processes, and what a skipped test means in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batch_pipeline_tests.session import pytest_xdist_auto_num_workers

PROJECT = Path(__file__).parents[2]
ONE_SKIPPED = """
import pytest

def test_that_is_run() -> None:
    pass

@pytest.mark.skip(reason="not today")
def test_that_is_not_run() -> None:
    pass
"""


def test_session_of_single_modules_needs_one_process(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect no other process for what a person runs while writing it, so that `pdb` works."""
    monkeypatch.setattr(pytestconfig, "args", [__file__, f"{__file__}::test_one"])
    assert pytest_xdist_auto_num_workers(pytestconfig) == 0


def test_session_of_a_folder_has_a_process_for_each_core_and_one_more(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect one that is at work while others wait, and four at most."""
    monkeypatch.setattr(pytestconfig, "args", [str(Path(__file__).parent)])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert pytest_xdist_auto_num_workers(pytestconfig) == 3
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert pytest_xdist_auto_num_workers(pytestconfig) == 4


@pytest.mark.parametrize(
    ("processes", "ci", "exit_code"), [("0", "true", 1), ("2", "true", 1), ("2", "", 0)]
)
def test_skipped_test_fails_the_session_in_ci_only(
    tmp_path: Path, processes: str, ci: str, exit_code: int
) -> None:
    """Expect the rule to hold whether tests run in this process or in others."""
    (tmp_path / "test_some.py").write_text(ONE_SKIPPED)
    command = [sys.executable, "-m", "pytest", "-p", "batch_pipeline_tests.session", "-n"]
    command += [processes, "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {**os.environ, "CI": ci}
    ended = subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 passed, 1 skipped" in ended.stdout
    assert ended.returncode == exit_code
