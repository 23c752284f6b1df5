"""Test sessions: skipped tests in CI, and examples of property tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

PROJECT = Path(__file__).parents[2]
FEW = settings(max_examples=20)  # created at import, as in property tests
ONE_SKIPPED = """
import pytest

def test_that_is_run() -> None:
    pass

@pytest.mark.skip(reason="not today")
def test_that_is_not_run() -> None:
    pass
"""


@pytest.mark.parametrize(
    ("processes", "ci", "exit_code"), [("0", "true", 1), ("1", "true", 1), ("0", "", 0)]
)
def test_skipped_test_fails_the_session_only_in_ci(
    tmp_path: Path, processes: str, ci: str, exit_code: int
) -> None:
    """Also if another process skips the test."""
    (tmp_path / "test_some.py").write_text(ONE_SKIPPED)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", processes]
    command += ["-p", "batch_pipeline_tests.session", "-c", os.devnull, "--rootdir", str(tmp_path)]
    environment = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(
        [*command, tmp_path],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed, 1 skipped" in result.stdout
    assert result.returncode == exit_code


def examples() -> list[int]:
    """Run a property test and return the values that it tried."""
    tried: list[int] = []

    @FEW
    @given(st.integers())
    def collect(value: int) -> None:
        tried.append(value)

    collect()
    return tried


def test_property_test_repeats_its_examples_unless_long(long_form: bool) -> None:
    # A profile of the command line, such as `nightly`, uses random examples, too.
    is_random = long_form or settings.get_current_profile_name() not in {"usual", "default"}
    assert (examples() == examples()) is not is_random
