"""Every promise has its proofs, and its place on the page that tells of it."""

import re
from collections import defaultdict
from pathlib import Path

from batch_pipeline_tests.proofs import PROMISES

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "batch_pipeline/docs/explanation/guarantees.md"


def marked() -> dict[str, list[str]]:
    """Give the modules with proofs of each promise, as their source says."""
    found = defaultdict(list)
    for path in sorted((PROJECT / "batch_pipeline_tests").rglob("test_*.py")):
        for arguments in re.findall(r"mark\.guarantee\(([^)]*)\)", path.read_text("utf-8")):
            for number in re.findall(r'"(\w+)"', arguments):
                found[number].append(path.name)
    return found


def test_every_promise_has_a_proof() -> None:
    """Expect no promise without a test, and no test of a promise that nobody made."""
    assert marked().keys() == PROMISES.keys()


def test_every_promise_is_on_the_page_in_words_and_in_figures() -> None:
    """Expect a paragraph for each, with figures behind the word "Proof"."""
    paragraphs = re.findall(r"^\*\*([A-Z]\d+)\.\*\*(.+?)\n\n", PAGE.read_text("utf-8"), re.M | re.S)
    assert sorted(number for number, _ in paragraphs) == sorted(PROMISES)
    for number, text in paragraphs:
        assert re.search(r"\*Proof.*\b\d+\b", text, re.DOTALL), number


def test_page_names_modules_that_exist() -> None:
    """Expect every module of proofs that the page names to be there."""
    named = re.findall(r"\b((?:[a-z_]+/)+test_\w+\.py)", PAGE.read_text())
    assert len(named) > 8
    assert [one for one in named if not (PROJECT / "batch_pipeline_tests" / one).exists()] == []
