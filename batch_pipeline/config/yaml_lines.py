"""YAML with the line of every key and value.

Knows YAML only: what keys mean is not known here. Only the safe loader's types are built.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_MOST_VALUES = 100_000  # of a document, those that aliases repeat counted each time


class Problem(NamedTuple):
    """Something wrong in the text, at a line counted from 1 (None: the whole file)."""

    line: int | None
    text: str


class YamlProblemError(Exception):
    """The text is not a usable YAML document; `problem` says where and why."""

    def __init__(self, line: int | None, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(line, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed document: its value, its nodes if it is from a text, and keys given twice."""

    value: Any
    root: yaml.Node | None = None
    duplicates: tuple[Problem, ...] = ()

    def line(self, path: Sequence[Hashable], *, of_key: bool = False) -> int:
        """Return the line of a value (or its key), or of its nearest ancestor in the text."""
        node, key_line = self.root, 1
        for key in path:
            key_node, node = _child(node, key)
            if key_node is None:
                return key_line
            key_line = _line(key_node)
        return key_line if of_key or node is None else _line(node)


def parse_yaml(raw: bytes, *, number: int | None = None) -> Document:
    """Parse one UTF-8 document; with a `number`, that one of several, counted from 0.

    Raises:
        YamlProblemError: it is not UTF-8 or YAML, is empty, or holds several documents and
            no `number`.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise YamlProblemError(line, "not UTF-8 text") from error
    try:
        return _parse(text, number)
    except yaml.MarkedYAMLError as error:
        raise _syntax_problem(error) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlProblemError(line, "a control character is not allowed in YAML") from error
    except ValueError as error:  # a scalar that looks like a date or number but is none
        raise YamlProblemError(None, f"a value cannot be read ({error})") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        problem = "a value does not match its tag, such as `!!int` in front of a word"
        raise YamlProblemError(None, problem) from error
    except RecursionError as error:
        raise YamlProblemError(None, "the values are nested too deeply") from error


def _parse(text: str, number: int | None) -> Document:
    loader = yaml.SafeLoader(text)
    for _ in range(number or 0):
        if loader.check_node():
            loader.get_node()
    if number is None:
        root = loader.get_single_node()
    else:
        root = loader.get_node() if loader.check_node() else None
    if root is None:
        raise YamlProblemError(None, "the file is empty")
    duplicates: list[Problem] = []
    _check(root, set(), {}, duplicates)
    return Document(value=loader.construct_document(root), root=root, duplicates=tuple(duplicates))


def _check(
    node: yaml.Node, around: set[int], sizes: dict[int, int], duplicates: list[Problem]
) -> int:
    """Return the number of values in a node, those of aliases counted each time.

    Refuses a value that contains itself, and a few lines whose aliases make very many values:
    code that walks over such a value, if only to print it, would never end.
    """
    line = _line(node)
    if id(node) in sizes:
        return sizes[id(node)]
    if id(node) in around:
        raise YamlProblemError(line, "a value contains itself through an alias")
    if isinstance(node, yaml.ScalarNode) and _UNSTORABLE.search(node.value):
        problem = "a text has a NUL or half of a surrogate pair, which PostgreSQL cannot store"
        raise YamlProblemError(line, problem)
    around.add(id(node))
    size = 1 + sum(_check(child, around, sizes, duplicates) for child in _children(node))
    around.discard(id(node))
    if size > _MOST_VALUES:
        raise YamlProblemError(line, f"aliases make more than {_MOST_VALUES} values of this one")
    sizes[id(node)] = size
    duplicates += _duplicates(node)
    return size


def _duplicates(node: yaml.Node) -> Iterator[Problem]:
    """Yield the keys that are given twice. The later one counts, as it does in the value."""
    first_lines: dict[str, int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name, line = str(key.value), _line(key)
        if name in first_lines:
            yield Problem(line, f"`{name}` is given twice (first on line {first_lines[name]})")
        first_lines.setdefault(name, line)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _child(node: yaml.Node | None, key: Hashable) -> tuple[yaml.Node | None, yaml.Node | None]:
    """Return the key and the value of an entry; of a list, the entry itself twice."""
    if isinstance(node, yaml.MappingNode):
        pairs = (pair for pair in reversed(node.value) if pair[0].value == str(key))
        return next(pairs, (None, None))
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
        return node.value[key], node.value[key]
    return None, None


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _syntax_problem(error: yaml.MarkedYAMLError) -> YamlProblemError:
    mark = error.problem_mark or error.context_mark
    text = " ".join(part for part in (error.context, error.problem) if part)
    if error.context == "while scanning an alias" or "alias" in (error.problem or ""):
        text += " (write patterns that start with * in quotes)"
    elif "'\\t'" in text:
        text += " (indent with spaces, not tabs)"
    text = f"not valid YAML: {text}"
    if "single document" in text:
        text = "a second document starts here; the file may contain only one"
    return YamlProblemError(mark.line + 1 if mark else None, text)
