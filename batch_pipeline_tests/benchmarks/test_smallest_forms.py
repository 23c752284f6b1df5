"""Every benchmark runs with minimal sizes and prints its tables.

Collected only with `--long`: `uv run pytest --long batch_pipeline_tests/benchmarks`.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from batch_pipeline_tests.benchmarks.measures import PAGE_HEADER

_PROJECT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 600
PAGE = PAGE_HEADER.partition("\n")[0]
_FEW_RECORDS = "--records 100 --files 2 --rounds 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The options of a benchmark's smallest run, and the tables that it prints.

    `tables` maps headers to numbers of rows; `has_cache` states whether the benchmark caches
    generated files and environments in the folder `--cache`.
    """

    options: str
    tables: dict[str, int]
    has_cache: bool = False


SMALLEST = {
    "acquire": Form(
        options="--sizes 1000",
        tables={"rows items consumed limits | ours rows read | window query rows read | ratio": 8},
    ),
    "dagster": Form(
        options="--files 20 --batches 10 --landing 1 --partitions 2 --repeats 1",
        tables={
            "| batches | what | first s | then s | own CPU s |": 5,
            "| step | median s | p95 s | max s |": 5,
        },
    ),
    "encode": Form(
        options=_FEW_RECORDS,
        tables={"conversion way median s from to CPU s MB/s out MB peak MB ours is": 13, PAGE: 3},
        has_cache=True,
    ),
    "end_to_end": Form(
        options="--rows one-file nothing-new cold-home second-run csv-10 jsonl-1 small-files "
        "--records 100 --small-files 20 --repeat 1",
        tables={"| row | way | wall s | CPU s | peak MB | ours is |": 28, PAGE: 7},
        has_cache=True,
    ),
    "load": Form(
        options=_FEW_RECORDS,
        tables={"way median s from to CPU s peak MB of copy-whole": 6},
        has_cache=True,
    ),
    "singer": Form(
        options=_FEW_RECORDS,
        tables={"way wall s record CPU s peak MB steps": 4},
        has_cache=True,
    ),
    "store": Form(
        options=f"{_FEW_RECORDS} --keys 10",
        tables={
            "| conversion | files | from and to | seconds | MB/s | beside disk |": 4,
            "| what | seconds | requests | new items |": 5,
        },
        has_cache=True,
    ),
}


@pytest.mark.parametrize("name", SMALLEST)
def test_benchmark_with_minimal_sizes_prints_its_tables(
    name: str, request: pytest.FixtureRequest
) -> None:
    form = SMALLEST[name]
    command = [sys.executable, "-m", "batch_pipeline_tests.benchmarks", name, *form.options.split()]
    if form.has_cache:
        assert request.config.cache is not None
        command += ["--cache", str(request.config.cache.mkdir("benchmarks"))]
    result = subprocess.run(
        command,
        cwd=_PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_SECONDS,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert {header: _rows(result.stdout, header) for header in form.tables} == form.tables


def _rows(output: str, header: str) -> int:
    """Count the lines of a table after its header; -1 without a header."""
    lines = iter(" ".join(line.split()) for line in output.splitlines())
    if header not in lines:
        return -1
    rows = 0
    for line in lines:
        if not line:
            break
        rows += not line.startswith("|---")
    return rows
