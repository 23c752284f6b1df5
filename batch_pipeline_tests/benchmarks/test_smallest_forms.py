"""Every benchmark runs with minimal sizes and prints its tables.

Collected only with `--long`: `uv run pytest --long batch_pipeline_tests/benchmarks`.
"""

import sys
from pathlib import Path

import pytest

from batch_pipeline_tests.acceptance.sandbox import program_output
from batch_pipeline_tests.benchmarks.measures import PAGE_HEADER

PAGE = PAGE_HEADER.partition("\n")[0]
_ROWS = "--rows one-file nothing-new cold-home second-run csv-10 jsonl-1 small-files"
_FEW_RECORDS = "--records 100 --files 2 --rounds 1"


# The options of each benchmark's smallest run, and the tables that it prints: numbers of rows by
# header.
SMALLEST: dict[str, tuple[str, dict[str, int]]] = {
    "acquire": (
        "--sizes 1000",
        {"rows items consumed limits | ours | window query | ratio": 8},
    ),
    "dagster": (
        "--files 20 --batches 10 --landing 1 --partitions 2 --repeats 1",
        {"| batches | what | first s | then s |": 5},
    ),
    "encode": (
        _FEW_RECORDS,
        {"conversion way median s out MB peak MB ours is": 13, PAGE: 3},
    ),
    "end_to_end": (
        f"{_ROWS} --records 100 --small-files 20 --repeat 1",
        {PAGE: 7},
    ),
    "load": (_FEW_RECORDS, {"way median s peak MB of copy-whole": 6}),
    "singer": (_FEW_RECORDS, {"way wall s record peak MB steps": 4}),
    "store": (
        f"{_FEW_RECORDS} --keys 10",
        {
            "| conversion | files | from and to | seconds | beside disk |": 4,
            "| what | seconds | new items |": 4,
        },
    ),
}
NOT_CACHED = {"acquire", "dagster"}  # the others cache files and environments below `--cache`


@pytest.mark.parametrize("name", SMALLEST)
def test_benchmark_with_minimal_sizes_prints_its_tables(
    name: str, request: pytest.FixtureRequest
) -> None:
    options, tables = SMALLEST[name]
    command = [sys.executable, "-m", "batch_pipeline_tests.benchmarks", name, *options.split()]
    if name not in NOT_CACHED:
        command += ["--cache", str(request.config.cache.mkdir("benchmarks"))]
    output = program_output(*command, cwd=Path(__file__).parents[2])
    assert {header: _rows(output, header) for header in tables} == tables


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
