"""The tests of each promise are unchanged, and each has a paragraph on its page.

The tests with a `guarantee` mark are found in the source, without importing them.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from batch_pipeline_tests.proofs import PROMISES
from batch_pipeline_tests.regression.snapshots import as_entries, compare

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "batch_pipeline/docs/explanation/guarantees.md"


def test_tests_of_promises_are_unchanged() -> None:
    compare(
        "guarantees.json",
        as_entries(
            f"{promise} {test}" for promise, tests in marked_tests().items() for test in tests
        ),
    )


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
    assert [name for name in named if not (TESTS / name).exists()] == []


def marked_tests() -> dict[str, list[str]]:
    """Return the sorted ids of the tests of each promise.

    An id is that of the function, followed by `[name]` if the mark is on a single parameter of a
    test or fixture. Tests that are collected only on some machines are included.
    """
    ids: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if "mark.guarantee" not in text:
            continue
        module = ast.parse(text)
        for test, promises in _tests(module.body, _module_marks(module)):
            for promise in promises:
                ids[promise].add(f"{path.relative_to(TESTS)}::{test}")
    return {promise: sorted(tests) for promise, tests in ids.items()}


def _tests(body: Iterable[ast.stmt], inherited: set[str]) -> Iterator[tuple[str, set[str]]]:
    for node in body:
        if isinstance(node, ast.If):
            yield from _tests([*node.body, *node.orelse], inherited)
        if isinstance(node, ast.ClassDef):  # `Test…`, or the `TestCase` of a state machine
            of_class = inherited | _plain_marks(node.decorator_list)
            for test, promises in _tests(node.body, of_class):
                yield f"{node.name}::{test}", promises
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test"):
                yield node.name, inherited | _plain_marks(node.decorator_list)
            for parameter, promise in _parameter_marks(node.decorator_list):
                yield f"{node.name}[{parameter}]", {promise}


def _module_marks(module: ast.Module) -> set[str]:
    return {
        promise
        for node in module.body
        if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0])
        for inner in ast.walk(node.value)
        for promise in _promises(inner)
    }


def _plain_marks(decorators: Iterable[ast.expr]) -> set[str]:
    return {promise for decorator in decorators for promise in _promises(decorator)}


def _parameter_marks(decorators: Iterable[ast.expr]) -> Iterator[tuple[str, str]]:
    for node in (node for decorator in decorators for node in ast.walk(decorator)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.param":
            for keyword in node.keywords:
                for promise in _promises(keyword.value):
                    yield "-".join(ast.unparse(value).strip("'") for value in node.args), promise


def _promises(node: ast.AST) -> list[str]:
    is_mark = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.guarantee")
    if not (is_mark and isinstance(node, ast.Call)):
        return []
    return [str(value.value) for value in node.args if isinstance(value, ast.Constant)]
