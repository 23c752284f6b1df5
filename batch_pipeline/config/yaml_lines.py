"""YAML with the line of every key and value.

Knows YAML only: what keys mean is not known here. Only the safe loader's types are built.
"""

import re
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import yaml

Path = tuple[Hashable, ...]
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_MOST_VALUES = 100_000  # of a document, those that aliases repeat counted each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong in the text, at a line counted from 1 (None: the whole file)."""

    line: int | None
    text: str


class YamlProblemError(Exception):
    """The text is no usable YAML document; `problem` says where and why."""

    def __init__(self, line: int | None, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(line=line, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed document: its value, the lines of keys and values by path, and keys given twice."""

    value: Any
    key_lines: dict[Path, int]
    value_lines: dict[Path, int]
    duplicates: tuple[Problem, ...]

    def line(self, path: Path, *, of_key: bool = False) -> int:
        """Return the line of a value (or its key), or of its nearest ancestor in the text."""
        lines = self.key_lines if of_key else self.value_lines
        while path and path not in lines:
            path = path[:-1]
            is_entry = bool(path) and isinstance(path[-1], int)  # of a list, which has no key
            lines = self.value_lines if is_entry else self.key_lines
        return lines.get(path, 1)


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
        raise YamlProblemError(line, "this is not UTF-8 text") from error
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node() if number is None else _numbered(loader, number)
        if node is None:
            raise YamlProblemError(None, "the file is empty")
        _check_aliases(node)
        return _document(node, loader.construct_document(node))
    except yaml.MarkedYAMLError as error:
        raise _syntax_problem(error) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlProblemError(line, "a control character is not allowed in YAML") from error
    except ValueError as error:  # a scalar that looks like a date or number but is none
        raise YamlProblemError(None, f"a value cannot be read ({error})") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        problem = "a value is not what its tag says, such as `!!int` in front of a word"
        raise YamlProblemError(None, problem) from error
    except RecursionError as error:
        raise YamlProblemError(None, "its values are nested too deeply") from error


def _numbered(loader: yaml.SafeLoader, number: int) -> yaml.Node | None:
    for _ in range(number):
        if loader.check_node():
            loader.get_node()
    return loader.get_node() if loader.check_node() else None


def _check_aliases(root: yaml.Node) -> None:
    """Refuse a value that holds itself, and a few lines whose aliases stand for a world of values.

    Whatever walks over such a value, if only to show it, would never end.
    """
    sizes: dict[int, int] = {}
    around: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        node, is_done = waiting.pop()
        children = _children(node)
        if is_done:
            around.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in children)
        elif id(node) in around:
            raise YamlProblemError(node.start_mark.line + 1, "a value holds itself by an alias")
        elif id(node) not in sizes:
            around.add(id(node))
            waiting += [(node, True), *((child, False) for child in children)]
        if sizes.get(id(node), 0) > _MOST_VALUES:
            problem = f"its aliases make more than {_MOST_VALUES} values of this one"
            raise YamlProblemError(node.start_mark.line + 1, problem)


def _check_text(node: yaml.Node) -> None:
    """Refuse text that the inventory cannot keep: names and keys end up in it."""
    if isinstance(node, yaml.ScalarNode) and _UNSTORABLE.search(node.value):
        problem = "a text holds a NUL or half of a surrogate pair, which PostgreSQL cannot store"
        raise YamlProblemError(node.start_mark.line + 1, problem)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _document(root: yaml.Node, value: Any) -> Document:
    """Walk the nodes once each, however often aliases repeat them.

    Of a key given twice the later one counts, as it does in the value.
    """
    key_lines: dict[Path, int] = {}
    value_lines: dict[Path, int] = {}
    duplicates: list[Problem] = []
    seen: set[int] = set()
    waiting: deque[tuple[Path, yaml.Node]] = deque([((), root)])
    while waiting:
        path, node = waiting.popleft()
        value_lines[path] = node.start_mark.line + 1
        if id(node) in seen:
            continue
        seen.add(id(node))
        _check_text(node)
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(((*path, index), child) for index, child in enumerate(node.value))
        elif isinstance(node, yaml.MappingNode):
            first_lines: dict[str, int] = {}
            for key, child in node.value:
                _check_text(key)
                name, line = str(key.value), key.start_mark.line + 1
                if name in first_lines:
                    text = f"`{name}` is given twice (first on line {first_lines[name]})"
                    duplicates.append(Problem(line=line, text=text))
                first_lines.setdefault(name, line)
                key_lines[*path, name] = line
                waiting.append(((*path, name), child))
    return Document(
        value=value, key_lines=key_lines, value_lines=value_lines, duplicates=tuple(duplicates)
    )


def _syntax_problem(error: yaml.MarkedYAMLError) -> YamlProblemError:
    mark = error.problem_mark or error.context_mark
    text = " ".join(part for part in (error.context, error.problem) if part)
    if error.context == "while scanning an alias" or "alias" in (error.problem or ""):
        text += " (write patterns that start with * in quotes)"
    elif "'\\t'" in text:
        text += " (indent with spaces, not tabs)"
    text = f"this is not YAML: {text}"
    if "single document" in text:
        text = "a second document starts here; the file may hold only one"
    return YamlProblemError(mark.line + 1 if mark else None, text)
