"""Code of the pages fits the code of the project: commands, options, imports."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import click
import pytest

from batch_pipeline.cli import cli
from batch_pipeline_tests.benchmarks.__main__ import KNOWN
from batch_pipeline_tests.benchmarks.test_smallest_forms import SMALLEST
from batch_pipeline_tests.docs.pages import Found, blocks, code_in_lines

NAME = "batch-pipeline"
_LINE = re.compile(rf"(?:\$ )?(?:uv run )?({NAME} .+)")
_ANY = {"…", "COMMAND"}  # stand for a command in general


def _in_blocks() -> Iterator[Found]:
    """Give the commands of blocks; a line that ends with a backslash goes on in the next one."""
    for block in blocks("console", "sh", "bash", ""):
        for line in block.text.replace("\\\n", " ").splitlines():
            match = _LINE.fullmatch(line.strip())
            if match is not None:
                yield Found(block.page, block.line, match[1])


def _in_text() -> Iterator[Found]:
    """Give the commands within lines, which may leave their arguments out."""
    for code in code_in_lines():
        match = _LINE.fullmatch(code.text)
        if match is not None and _ANY.isdisjoint(code.text.split()):
            yield Found(code.page, code.line, match[1])


def _problem(command: str) -> click.UsageError | None:
    """Parse a command as the command line does; nothing of it is run."""
    name, *given = _words(command)
    try:
        with click.Context(cli, info_name=NAME, **cli.context_settings) as context:
            if name.startswith("-"):
                cli.make_context(NAME, [name, *given])
                return None
            found = cli.get_command(context, name)
            if found is None:
                return click.UsageError(f"no such command {name!r}")
            if isinstance(found, click.Group) and given[:1] and given[0] in found.commands:
                found = found.commands[given.pop(0)]
            found.make_context(name, given, parent=context)
    except click.MissingParameter as error:
        is_in_environment = error.param is not None and error.param.envvar is not None
        return None if is_in_environment else error
    except click.UsageError as error:
        return error
    except click.exceptions.Exit:  # of --help and --version
        return None
    return None


def _words(command: str) -> list[str]:
    """Split as a shell does, up to the end of the command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("();<>|&"):
            break
        words.append(word)
    return words[1:]


def test_commands_of_blocks_are_accepted() -> None:
    """Expect each to name a command of ours, its options and arguments, none of them missing."""
    commands = list(_in_blocks())
    assert len(commands) > 40
    problems = [(str(one), _problem(one.text)) for one in commands]
    assert [
        f"{one}: {found.format_message()}" for one, found in problems if found is not None
    ] == []


def test_commands_within_text_are_accepted() -> None:
    """Expect each to name a command of ours and its options; arguments may be left out."""
    commands = list(_in_text())
    assert len(commands) > 20
    problems = [(str(one), _problem(one.text)) for one in commands]
    wrong = [
        f"{one}: {found.format_message()}"
        for one, found in problems
        if found is not None and not isinstance(found, click.MissingParameter)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("batch-pipeline rnu", "no such command"),
        ("batch-pipeline plan orders --dryrun", "No such option"),
        ("batch-pipeline plan orders --max-count many", "not a valid"),
        ("batch-pipeline jobs pause orders sales", "unexpected extra argument"),
    ],
)
def test_command_that_is_not_ours_is_noticed(command: str, told: str) -> None:
    """Expect what the command line would answer."""
    problem = _problem(command)
    assert problem is not None
    assert told in problem.format_message()


def test_python_of_pages_imports_what_is_there() -> None:
    """Expect each block to compile, and each name that it imports of ours to exist."""
    found = list(blocks("python"))
    assert len(found) > 10
    missing = [str(replace(one, text=name)) for one in found for name in _missing(one.text)]
    assert missing == []


def _missing(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("batch_pipeline"):
            module = import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("batch_pipeline") and find_spec(alias.name) is None:
                    yield alias.name


def test_benchmarks_of_pages_exist_and_have_a_smallest_form() -> None:
    words = re.compile(r"\bbenchmarks((?: [a-z_]+)+)")
    code = [*code_in_lines(), *blocks("console", "sh", "bash", "")]
    named = {name for one in code for match in words.findall(one.text) for name in match.split()}
    assert named == set(KNOWN) == SMALLEST.keys()
