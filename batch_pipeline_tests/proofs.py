"""The guarantees of the product, and the pytest hooks that print a table of their proofs.

`pytest -m guarantee` runs the short form of the proofs, `pytest -m guarantee --long` the long one.
Both print the table at the end. `--table FILE` also writes it to a file. A proof is a test with
`pytest.mark.guarantee("G3")` that reports figures with the fixture `figures`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROMISES = {
    "G1": "every item below the high watermark is in exactly one live batch of its job",
    "G2": "no two live batches share an id; the database enforces it",
    "G3": "if any process is killed, nothing is lost, duplicated or half-written",
    "G4": "an attempt that lost its lease publishes nothing",
    "G5": "publishing again changes nothing",
    "G6": "a batch stays within its limits, unless it is a single item",
    "G7": "the same input produces the same plan and the same bytes",
    "G8": "items that appear late are found and encoded once",
    "G9": "a changed input is reported, never read silently",
    "G10": "a connection cut at any statement leaves the state before or after it",
    "G11": "a commit whose reply was lost is found, not repeated",
    "G12": "a planner never blocks writers, even if it hangs",
    "G13": "an inventory restored from an older backup is detected before it does harm",
    "G14": "work is bounded by the batch, not by the table",
    "G15": "every record read is written, filtered or quarantined",
    "S1": "hostile names, filters and locations reach nothing but what they name",
    "S2": "no secret is written anywhere",
    "S3": "nothing listens beyond the loopback interface",
    "S4": "malformed input is refused: no crash, no hang, no silent change",
    "L1": "under load, backlog, memory, connections, files and threads stay bounded",
}
MARK = "guarantee"
_FIGURES = "figures"

Figures = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of proofs."""
    parser.addoption("--long", action="store_true", help="run the long form of the proofs")
    parser.addoption("--table", type=Path, help="also write the table of guarantees to this file")


@pytest.fixture(scope="session")
def long_form(request: pytest.FixtureRequest) -> bool:
    """Whether the long form was requested."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Figures:
    """Report figures of a proof by name: `figures(kills=20, lost=0, workers=64.0)`.

    Inputs come before results. For each name, the table shows the sum of integers over all proofs
    of a guarantee, but the maximum of floats.
    """
    return lambda **numbers: record_property(_FIGURES, numbers)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table if proofs were requested."""
    file: Path | None = config.getoption("--table")
    is_requested = config.getoption("--long") or MARK in (config.getoption("-m") or "")
    if not is_requested and file is None:
        return
    ended = [
        (report, outcome == "passed")
        for outcome in ("passed", "failed", "error", "skipped")
        for report in terminalreporter.stats.get(outcome, ())
        if hasattr(report, "user_properties")
    ]
    lines = list(table(ended))
    terminalreporter.section("guarantees")
    for line in lines:
        terminalreporter.write_line(line)
    if file is not None:
        file.write_text("\n".join([*lines, ""]), encoding="utf-8")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the guarantees of a test to its report, which worker processes send to the main one."""
    numbers = sorted({number for mark in item.iter_markers(MARK) for number in mark.args})
    if numbers and not any(name == MARK for name, _ in item.user_properties):
        assert set(numbers) <= PROMISES.keys(), f"unknown guarantees: {numbers}"
        item.user_properties.append((MARK, numbers))
    yield


@dataclass
class ProofResults:
    """The results of all proofs of a guarantee."""

    tests: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def add(self, report: pytest.TestReport, *, is_passed: bool) -> None:
        """Add the report of a proof."""
        self.tests += 1
        self.seconds += report.duration
        if not is_passed:
            self.failed.append(report.nodeid.rpartition("/")[2])
        for numbers in _properties(report, _FIGURES):
            _add(self.figures, numbers)

    @property
    def holds(self) -> str:
        """The failed tests, or `yes`, or `not run`."""
        return ", ".join(self.failed) or ("yes" if self.tests else "not run")


def table(ended: Iterable[tuple[pytest.TestReport, bool]]) -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    results: dict[str, ProofResults] = defaultdict(ProofResults)
    for report, is_passed in ended:
        for numbers in _properties(report, MARK):
            for number in numbers:
                results[number].add(report, is_passed=is_passed)
    yield "| | guarantee | tests | seconds | figures | holds |"
    yield "|---|---|---:|---:|---|---|"
    for number, promise in PROMISES.items():
        result = results[number]
        figures = ", ".join(f"{_text(value)} {name}" for name, value in result.figures.items())
        counts = f"{result.tests} | {result.seconds:,.0f}"
        yield f"| {number} | {promise} | {counts} | {figures} | {result.holds} |"


def _properties(report: pytest.TestReport, name: str) -> Iterator[Any]:
    return (value for other, value in report.user_properties if other == name)


def _add(totals: dict[str, float], more: dict[str, float]) -> None:
    for name, value in more.items():
        words = name.replace("_", " ")
        is_whole = isinstance(value, int)
        before = totals.get(words, 0)
        totals[words] = before + value if is_whole else max(before, value)


def _text(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
