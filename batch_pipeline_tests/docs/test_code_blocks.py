"""Commands, options and imports on the pages exist in the code."""

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
from batch_pipeline_tests.docs.pages import PageText, blocks, inline_code

NAME = "batch-pipeline"
_LINE = re.compile(rf"(?:\$ )?(?:uv run )?({NAME} .+)")
_ANY = {"…", "COMMAND"}  # placeholders


def _commands_in_blocks() -> Iterator[PageText]:
    """Yield the commands of blocks; a backslash at the end continues a line."""
    for block in blocks("console", "sh", "bash", ""):
        for line in block.text.replace("\\\n", " ").splitlines():
            match = _LINE.fullmatch(line.strip())
            if match is not None:
                yield PageText(block.page, block.line, match[1])


def _commands_in_text() -> Iterator[PageText]:
    """Yield the commands in inline code, which may omit their arguments."""
    for code in inline_code():
        match = _LINE.fullmatch(code.text)
        if match is not None and _ANY.isdisjoint(code.text.split()):
            yield PageText(code.page, code.line, match[1])


def _problem(command: str) -> click.UsageError | None:
    """Parse a command as the command line does, without running it."""
    name, *arguments = _words(command)
    try:
        with click.Context(cli, info_name=NAME, **cli.context_settings) as context:
            if name.startswith("-"):
                cli.make_context(NAME, [name, *arguments])
                return None
            parsed = cli.get_command(context, name)
            if parsed is None:
                return click.UsageError(f"no such command {name!r}")
            if (
                isinstance(parsed, click.Group)
                and arguments[:1]
                and arguments[0] in parsed.commands
            ):
                parsed = parsed.commands[arguments.pop(0)]
            parsed.make_context(name, arguments, parent=context)
    except click.MissingParameter as error:
        is_in_environment = error.param is not None and error.param.envvar is not None
        return None if is_in_environment else error
    except click.UsageError as error:
        return error
    except click.exceptions.Exit:  # of --help and --version
        return None
    return None


def _words(command: str) -> list[str]:
    """Split a line as a shell does, up to the end of the command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if set(word) <= set("();<>|&"):
            break
        words.append(word)
    return words[1:]


def test_commands_are_valid() -> None:
    """In text, their arguments may be omitted."""
    in_blocks, in_text = list(_commands_in_blocks()), list(_commands_in_text())
    assert (len(in_blocks) > 40, len(in_text) > 20) == (True, True)
    problems = [(command, _problem(command.text)) for command in (*in_blocks, *in_text)]
    assert [
        f"{command}: {problem.format_message()}"
        for command, problem in problems
        if problem is not None
        and not (command in in_text and isinstance(problem, click.MissingParameter))
    ] == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("batch-pipeline rnu", "no such command"),
        ("batch-pipeline plan orders --dryrun", "No such option"),
        ("batch-pipeline plan orders --max-count many", "not a valid"),
        ("batch-pipeline jobs pause orders sales", "unexpected extra argument"),
    ],
)
def test_invalid_commands_are_detected(command: str, message: str) -> None:
    problem = _problem(command)
    assert problem is not None
    assert message in problem.format_message()


def test_python_blocks_compile_and_import_existing_names() -> None:
    code = list(blocks("python"))
    assert len(code) > 10
    missing = [str(replace(block, text=name)) for block in code for name in _missing(block.text)]
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


def test_benchmarks_on_pages_exist_and_have_a_smallest_form() -> None:
    words = re.compile(r"\bbenchmarks((?: [a-z_]+)+)")
    code = [*inline_code(), *blocks("console", "sh", "bash", "")]
    named = {name for text in code for match in words.findall(text.text) for name in match.split()}
    assert named == set(KNOWN) == SMALLEST.keys()
