"""Compiles common expressions into Python functions that give what the evaluator would give.

Code is made of a closed set of parts only, and the text's names never become names of the code.
What has no place here is left to the evaluator (`expression.py`), and so is every failure.
"""

import ast
import hashlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import simpleeval

from batch_pipeline.spark.map.expression_text import (
    FUNCTION_NAMES,
    RECORD_NAMES,
    ExpressionText,
    column_asked_for,
    column_of_record,
)

Evaluate = Callable[[dict[str, Any]], Any]

_GUARDED = {ast.Add: "_add", ast.Mult: "_multiply", ast.Pow: "_power"}
_OPERATORS = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)
_CALLED = {"md5", "sha256", "int", "float", "str", "bool"}
_CONSTANTS = (str, int, float, type(None))


def md5(text: str) -> str:
    """Hash a text with MD5, as hexadecimal digits."""
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def sha256(text: str) -> str:
    """Hash a text with SHA-256, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


class NotCompiledError(Exception):
    """An expression has parts that only the evaluator knows."""


def compiled(expression: ExpressionText, fixed: Mapping[str, Any], own: str | None) -> Evaluate:
    """Compile an expression; `fixed` are the names of fixed values, `own` is the column `self`.

    The function takes the record's columns by name. Whatever it raises, the evaluator decides.

    Raises:
        NotCompiledError: it must be left to the evaluator.
    """
    if expression.whole:
        raise NotCompiledError
    body = _Translation(fixed, own).of(expression.node.value)
    parameter = ast.arguments([], [ast.arg("row")], None, [], [], None, [])
    tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(parameter, body)))
    scope = {
        "__builtins__": {},
        "_add": simpleeval.safe_add,
        "_multiply": simpleeval.safe_mult,
        "_power": simpleeval.safe_power,
        "_attribute": _attribute,
        "_fixed": dict(fixed),
        "md5": md5,
        "sha256": sha256,
        "int": int,
        "float": float,
        "str": str,
        "bool": bool,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            code = compile(tree, "<stream map>", "eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NotCompiledError from error
    evaluate: Evaluate = eval(code, scope)  # noqa: S307 - made of the parts below only
    return evaluate


class _Translation:
    """Rebuilds an expression's tree with the columns as items of `row`."""

    def __init__(self, fixed: Mapping[str, Any], own: str | None) -> None:
        self._fixed = fixed
        self._own = own

    def of(self, node: ast.expr) -> ast.expr:
        column = column_of_record(node)
        if column is not None:
            return _item("row", column)
        translate = getattr(self, f"_{type(node).__name__.lower()}", None)
        if translate is None:
            raise NotCompiledError
        translated: ast.expr = translate(node)
        return translated

    def _all(self, nodes: list[ast.expr]) -> list[ast.expr]:
        return [self.of(node) for node in nodes]

    def _name(self, node: ast.Name) -> ast.expr:
        if node.id in self._fixed:
            return _item("_fixed", node.id)
        if node.id == "self" and self._own is not None:
            return _item("row", self._own)
        if node.id in RECORD_NAMES or node.id in FUNCTION_NAMES:
            raise NotCompiledError
        return _item("row", node.id)

    def _constant(self, node: ast.Constant) -> ast.expr:
        too_long = isinstance(node.value, str) and len(node.value) > simpleeval.MAX_STRING_LENGTH
        if too_long or not isinstance(node.value, _CONSTANTS):
            raise NotCompiledError
        return ast.Constant(node.value)

    def _binop(self, node: ast.BinOp) -> ast.expr:
        left, right = self.of(node.left), self.of(node.right)
        guarded = _GUARDED.get(type(node.op))
        if guarded is not None:
            return ast.Call(_name(guarded), [left, right], [])
        if not isinstance(node.op, _OPERATORS):
            raise NotCompiledError
        return ast.BinOp(left, node.op, right)

    def _unaryop(self, node: ast.UnaryOp) -> ast.expr:
        return ast.UnaryOp(node.op, self.of(node.operand))

    def _boolop(self, node: ast.BoolOp) -> ast.expr:
        return ast.BoolOp(node.op, self._all(node.values))

    def _compare(self, node: ast.Compare) -> ast.expr:
        return ast.Compare(self.of(node.left), node.ops, self._all(node.comparators))

    def _ifexp(self, node: ast.IfExp) -> ast.expr:
        return ast.IfExp(self.of(node.test), self.of(node.body), self.of(node.orelse))

    def _list(self, node: ast.List) -> ast.expr:
        return ast.List(self._all(node.elts), ast.Load())

    def _tuple(self, node: ast.Tuple) -> ast.expr:
        return ast.Tuple(self._all(node.elts), ast.Load())

    def _subscript(self, node: ast.Subscript) -> ast.expr:
        return ast.Subscript(self.of(node.value), self.of(node.slice), ast.Load())

    def _slice(self, node: ast.Slice) -> ast.expr:
        bounds = (node.lower, node.upper, node.step)
        return ast.Slice(*(None if bound is None else self.of(bound) for bound in bounds))

    def _attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Call(_name("_attribute"), [self.of(node.value), ast.Constant(node.attr)], [])

    def _call(self, node: ast.Call) -> ast.expr:
        asked_for = column_asked_for(node)
        if asked_for is not None:
            function: ast.expr = ast.Attribute(_name("row"), "get", ast.Load())
        elif isinstance(node.func, ast.Name) and node.func.id in _CALLED:
            function = _name(node.func.id)
        elif isinstance(node.func, ast.Attribute):
            function = self._attribute(node.func)
        else:
            raise NotCompiledError
        if any(keyword.arg is None for keyword in node.keywords):
            raise NotCompiledError
        keywords = [ast.keyword(keyword.arg, self.of(keyword.value)) for keyword in node.keywords]
        return ast.Call(function, self._all(node.args), keywords)


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _item(mapping: str, key: str) -> ast.expr:
    return ast.Subscript(_name(mapping), ast.Constant(key), ast.Load())


def _attribute(value: Any, name: str) -> Any:
    """Give an attribute, or the item of that name where there is none, as the evaluator does."""
    try:
        return getattr(value, name)
    except AttributeError:
        return value[name]
