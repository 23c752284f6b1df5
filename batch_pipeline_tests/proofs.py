"""The promises of the product, the tests that prove them, and the table of what was found.

`pytest -m guarantee` runs the proofs in their short form, `pytest -m guarantee --long` in the long
one; both print the table in the end, `--table FILE` also writes it. A proof marks itself with
`pytest.mark.guarantee("G3")` and tells its figures by the fixture `figures`. No proof lives here.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROMISES = {
    "G1": "every item below the ceiling is in exactly one live batch of its job",
    "G2": "no two live batches share an id; the database refuses it",
    "G3": "whatever is killed: nothing lost, nothing twice, nothing half-written",
    "G4": "an attempt that lost its lease publishes nothing",
    "G5": "publishing again changes nothing",
    "G6": "a batch stays within its limits, unless it is one item",
    "G7": "the same input gives the same plan and the same bytes",
    "G8": "items that appear late are found, and encoded once",
    "G9": "an input that changed is noticed, never read silently",
    "G10": "a connection cut at any statement leaves before or after, nothing between",
    "G11": "a commit whose reply was lost is found, not repeated",
    "G12": "a planner makes nobody wait, dead or alive",
    "G13": "an inventory restored from an older backup is noticed before it does harm",
    "G14": "work is bounded by the batch, not by the table",
    "G15": "every record read is written, filtered or in quarantine",
    "S1": "names, filters and locations of others reach nothing but what they name",
    "S2": "no secret is written anywhere",
    "S3": "nothing listens beyond this machine",
    "S4": "bad bytes are refused: no crash, no hang, no silent change",
    "L1": "days of load: backlog, memory, connections, files and threads stay bounded",
}
MARK = "guarantee"
_FIGURES = "figures"

Figures = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let proofs be asked for at length."""
    parser.addoption("--long", action="store_true", help="prove promises in the long form")
    parser.addoption("--table", type=Path, help="where to write the table of promises, too")


@pytest.fixture(scope="session")
def long_form(request: pytest.FixtureRequest) -> bool:
    """Whether the long form was asked for."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Figures:
    """Tell figures of a proof by name: `figures(kills=20, lost=0, workers=64.0)`.

    What was done comes before what was found. In the table, whole numbers of one name are added
    up, over all proofs of a promise; of others, which `float` makes, the largest one is shown.
    """

    def tell(**numbers: float) -> None:
        record_property(_FIGURES, numbers)

    return tell


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table, where proofs were asked for."""
    file: Path | None = config.getoption("--table")
    is_asked = config.getoption("--long") or MARK in (config.getoption("-m") or "")
    if not is_asked and file is None:
        return
    ended = [
        (report, outcome == "passed")
        for outcome in ("passed", "failed", "error", "skipped")
        for report in terminalreporter.stats.get(outcome, ())
        if hasattr(report, "user_properties")
    ]
    lines = list(table(ended))
    terminalreporter.section("promises")
    for line in lines:
        terminalreporter.write_line(line)
    if file is not None:
        file.write_text("\n".join([*lines, ""]), encoding="utf-8")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Write the promises of a test into its report, where all processes can read them."""
    named = dict.fromkeys(number for mark in item.iter_markers(MARK) for number in mark.args)
    numbers = sorted(named)
    if numbers and not any(name == MARK for name, _ in item.user_properties):
        assert set(numbers) <= PROMISES.keys(), f"no such promise: {numbers}"
        item.user_properties.append((MARK, numbers))
    yield


@dataclass
class Found:
    """What all proofs of a promise found."""

    tests: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def add(self, report: pytest.TestReport, *, is_passed: bool) -> None:
        """Take in one more proof."""
        self.tests += 1
        self.seconds += report.duration
        if not is_passed:
            self.failed.append(report.nodeid.rpartition("/")[2])
        for numbers in _properties(report, _FIGURES):
            _add(self.figures, numbers)

    @property
    def holds(self) -> str:
        """The verdict, in words."""
        return ", ".join(self.failed) or ("yes" if self.tests else "not run")


def table(ended: Iterable[tuple[pytest.TestReport, bool]]) -> Iterator[str]:
    """Give the lines of the table, in Markdown."""
    found: dict[str, Found] = defaultdict(Found)
    for report, is_passed in ended:
        for numbers in _properties(report, MARK):
            for number in numbers:
                found[number].add(report, is_passed=is_passed)
    yield "| | promise | tests | seconds | figures | holds |"
    yield "|---|---|---:|---:|---|---|"
    for number, promise in PROMISES.items():
        one = found[number]
        figures = ", ".join(f"{_text(value)} {name}" for name, value in one.figures.items())
        yield (
            f"| {number} | {promise} | {one.tests} | {one.seconds:,.0f} | {figures} | {one.holds} |"
        )


def _properties(report: pytest.TestReport, name: str) -> Iterator[Any]:
    return (value for other, value in report.user_properties if other == name)


def _add(told: dict[str, float], more: dict[str, float]) -> None:
    for name, value in more.items():
        words = name.replace("_", " ")
        is_whole = isinstance(value, int)
        before = told.get(words, 0)
        told[words] = before + value if is_whole else max(before, value)


def _text(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
