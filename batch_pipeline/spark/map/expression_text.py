"""Parses the text of a stream map's expression and finds out what it reads; evaluates nothing."""

import ast
import importlib.util
import warnings
from dataclasses import dataclass

import simpleeval

from batch_pipeline.domain.errors import InvalidValueError

RECORD_NAMES = frozenset({"_", "record"})
FUNCTION_NAMES = frozenset(
    {
        *("md5", "sha256", "datetime", "json", "bool"),
        *("int", "float", "str", "rand", "randint"),
        *("list", "tuple", "dict", "set"),
    }
)
_CHANGING = frozenset(  # methods that change a list, an object or a set in place
    {
        *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
        *("popitem", "setdefault", "update", "add", "discard", "difference_update"),
        *("intersection_update", "symmetric_difference_update"),
    }
)
_EVALUATED = (
    *(ast.Expr, ast.Name, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.keyword, ast.Subscript, ast.Attribute, ast.Slice, ast.JoinedStr, ast.FormattedValue),
    *(ast.Constant, ast.Dict, ast.Tuple, ast.List, ast.Set, ast.ListComp, ast.GeneratorExp),
    *(ast.DictComp, ast.comprehension, ast.Starred, ast.expr_context),
    *(ast.boolop, ast.cmpop, ast.operator, ast.unaryop),
)
_EXPECTED = "one expression of the kind that the Singer SDK's stream maps know"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionText:
    """A parsed expression.

    `reads` are the columns that it may name; with `whole` it may read any. `changes` tells that it
    calls methods that could change a value in place.
    """

    text: str
    node: ast.Expr
    reads: frozenset[str]
    whole: bool
    changes: bool
    key: str


def parse(text: object, key: str) -> ExpressionText:
    """Parse an expression; `key` is where the stream file has it.

    Raises:
        InvalidValueError: it is no expression, has parts that are never evaluated, or calls a
            function that there is not.
    """
    if not isinstance(text, str):
        raise InvalidValueError(key, text, "an expression as text, or null")
    node = _expression_node(text, key)
    for part in ast.walk(node):
        problem = _problem(part)
        if problem is not None:
            raise InvalidValueError(key, text, f"{_EXPECTED} ({problem})")
    reads = _Reads()
    reads.visit(node)
    return ExpressionText(
        text=text,
        node=node,
        reads=frozenset(reads.names),
        whole=reads.whole or reads.changes,
        changes=reads.changes,
        key=key,
    )


def _expression_node(text: str, key: str) -> ast.Expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in the user's text
            body = ast.parse(text).body
    except SyntaxError as error:
        raise InvalidValueError(key, text, f"{_EXPECTED} ({error.msg})") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidValueError(key, text, f"{_EXPECTED} (Python cannot parse this)") from error
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        raise InvalidValueError(key, text, f"{_EXPECTED} (this is none, or more than one)")
    return body[0]


def _problem(part: ast.AST) -> str | None:
    if not isinstance(part, _EVALUATED) or isinstance(part, ast.MatMult):
        return f"{type(part).__name__} is not available"
    if isinstance(part, ast.Attribute):
        return _attribute_problem(part)
    if isinstance(part, ast.Call):
        return _call_problem(part)
    return None


def _attribute_problem(part: ast.Attribute) -> str | None:
    is_hidden = part.attr.startswith(tuple(simpleeval.DISALLOW_PREFIXES))
    if is_hidden or part.attr in simpleeval.DISALLOW_METHODS:
        return f"`.{part.attr}` is not available"
    is_fake = isinstance(part.value, ast.Name) and part.value.id == "fake"
    if is_fake and importlib.util.find_spec("faker") is None:
        return "`fake` needs the package Faker, which is not installed"
    return None


def _call_problem(part: ast.Call) -> str | None:
    if isinstance(part.func, ast.Attribute):
        return None
    if not isinstance(part.func, ast.Name):
        return "only functions and methods can be called"
    if part.func.id in FUNCTION_NAMES:
        return None
    return f"there is no function {part.func.id!r}; there are {', '.join(sorted(FUNCTION_NAMES))}"


class _Reads(ast.NodeVisitor):
    """Finds the columns that an expression may name."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.whole = False
        self.changes = False

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in RECORD_NAMES:
            self.whole = True
        self.names.add(node.id)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        column = column_of_record(node)
        if column is None:
            self.generic_visit(node)
        else:
            self.names.add(column)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.changes = self.changes or node.attr in _CHANGING
        column = column_of_record(node)
        if column is None:
            self.generic_visit(node)
        else:
            self.names.add(column)

    def visit_Call(self, node: ast.Call) -> None:
        column = column_asked_for(node)
        if column is None:
            self.generic_visit(node)
            return
        self.names.add(column)
        for argument in node.args[1:]:
            self.visit(argument)


def column_of_record(node: ast.AST) -> str | None:
    """Give the column of `record["x"]` or `record.x`, `_` being short for `record`."""
    if not isinstance(node, ast.Subscript | ast.Attribute) or not _is_record(node.value):
        return None
    if isinstance(node, ast.Attribute):
        return None if hasattr(dict, node.attr) else node.attr
    key = node.slice
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def column_asked_for(node: ast.Call) -> str | None:
    """Give the column of `record.get("x")` or `record.get("x", …)`."""
    function = node.func
    if not isinstance(function, ast.Attribute) or not _is_record(function.value):
        return None
    if function.attr != "get" or not 1 <= len(node.args) <= 2 or node.keywords:
        return None
    key = node.args[0]
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None


def _is_record(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in RECORD_NAMES
