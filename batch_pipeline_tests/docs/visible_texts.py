"""All texts of the product that users see, for a review."""

import ast
from collections.abc import Iterator
from pathlib import Path

from batch_pipeline_tests.docs.pages import PROJECT

_PRODUCT = PROJECT / "batch_pipeline"
_MIN_WORDS = 3
_SQL = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "CREATE", "ALTER", "DROP", "GRANT")


def visible_texts() -> Iterator[str]:
    """Yield `path:line: text` for help texts, messages, descriptions and labels.

    These are the string literals of at least three words that are not SQL, with `{…}` for each
    value in them, and the docstrings of commands, which are their help.
    """
    for path in sorted(_PRODUCT.rglob("*.py")):
        if "migrations" not in path.parts:
            yield from _texts(path)


def _texts(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {id(text) for text in _docstrings(tree, is_command="cli" in path.parts)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            hidden |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in hidden or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        text = " ".join(_as_text(node).split())
        if len(text.split()) >= _MIN_WORDS and text.split()[0] not in _SQL:
            yield f"{path.relative_to(PROJECT)}:{node.lineno}: {text}"


def _docstrings(tree: ast.Module, *, is_command: bool) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) or not node.body:
            continue
        first = node.body[0]
        is_help = is_command and isinstance(node, ast.FunctionDef) and node.decorator_list
        if isinstance(first, ast.Expr) and not is_help:
            yield first.value


def _as_text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    parts = (part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    return "".join(map(str, parts))
