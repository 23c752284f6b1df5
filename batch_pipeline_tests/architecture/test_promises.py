"""Every promise has tests and a paragraph on its page."""

import re
from pathlib import Path

from batch_pipeline_tests.proofs import PROMISES
from batch_pipeline_tests.regression.promises import marked_tests

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "batch_pipeline/docs/explanation/guarantees.md"


def test_every_promise_has_a_test_and_every_mark_a_promise() -> None:
    assert marked_tests().keys() == PROMISES.keys()


def test_page_has_a_paragraph_with_figures_per_promise() -> None:
    paragraphs = re.findall(r"^\*\*([A-Z]\d+)\.\*\*(.+?)\n\n", PAGE.read_text("utf-8"), re.M | re.S)
    assert sorted(number for number, _ in paragraphs) == sorted(PROMISES)
    for number, text in paragraphs:
        assert re.search(r"\*Proof.*\b\d+\b", text, re.DOTALL), number


def test_page_names_existing_modules() -> None:
    named = re.findall(r"\b((?:[a-z_]+/)+test_\w+\.py)", PAGE.read_text())
    assert len(named) > 8
    assert [name for name in named if not (PROJECT / "batch_pipeline_tests" / name).exists()] == []
