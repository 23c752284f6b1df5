"""Help texts and the reference page of commands: complete, consistent, and examples that parse."""

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import batch_pipeline
from batch_pipeline.cli import COMMANDS, SECTIONS, cli, console
from batch_pipeline.cli.jobs import jobs
from batch_pipeline.cli.options import VARIABLE
from batch_pipeline_tests.cli.commands import invoke, run_json
from batch_pipeline_tests.defs.checks_fixture import publish
from batch_pipeline_tests.defs.defs_fixture import DefsHarness

# Servers, an interactive demo, and commands whose output is JSON lines already.
WITHOUT_JSON = {"demo", "dev", "messages", "metrics"}
MAX_SUMMARY_LENGTH = 54  # beside the longest name, on a terminal of 80 columns


def command(name: str) -> click.Command:
    """Return a command by its name; a command of a group is `group name`."""
    first, *subcommand = name.split()
    result = cli.get_command(click.Context(cli), first)
    assert result is not None
    if subcommand:
        assert isinstance(result, click.Group)
        return result.commands[subcommand[0]]
    return result


NAMES = [
    *(name for name in COMMANDS if name != "jobs"),
    *(f"jobs {name}" for name in jobs.commands),
]


def options(name: str) -> list[click.Option]:
    """Return the options of a command, without `--help`."""
    return [option for option in command(name).params if isinstance(option, click.Option)]


def help_of(*words: str) -> str:
    """Return the help of a command as printed on a terminal of 80 columns."""
    result = invoke(*words, "-h", terminal_width=80)
    assert result.exit_code == 0, result.output
    return result.output


def test_command_list_shows_each_summary_on_one_line() -> None:
    printed = help_of()
    for section, commands in SECTIONS.items():
        for name, summary in commands.items():
            assert len(summary) <= MAX_SUMMARY_LENGTH, name
            assert re.search(rf"^  {name} +{re.escape(summary)}$", printed, re.MULTILINE), name
            assert printed.index(f"{section}:") < printed.index(f"\n  {name} ")


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_is_complete(name: str) -> None:
    """It has a description, an example that parses, and a text for each option; --json is last."""
    printed = help_of(*name.split())
    assert printed.startswith(f"Usage: cli {name} ")
    assert len(re.findall(r"\n\n  \S", printed)) >= 2, "no paragraph beside the first"
    assert "…\n" not in printed
    [line] = re.findall(r"Example:\n +(batch-pipeline .+)\n", f"{printed}\n")
    assert line.startswith(f"batch-pipeline {name}")
    words = shlex.split(line.removeprefix(f"batch-pipeline {name}"))
    with command(name).make_context(name, words, **cli.context_settings) as context:
        assert context.args == []
    for option in options(name):
        text = option.help or ""
        assert text.endswith("."), option.opts
        assert ("may be repeated" in text) is option.multiple, option.opts
    names = [option.opts[0] for option in options(name)]
    assert names.count("--json") == (name not in WITHOUT_JSON)
    assert names[-1:] == ["--json"] or name in WITHOUT_JSON
    assert names[-2:-1] == ["--dry-run"] or "--dry-run" not in names


def test_help_of_the_jobs_group_has_one_example() -> None:
    assert help_of("jobs").count("Example:") == 1


def test_shared_options_have_the_same_help_in_all_commands() -> None:
    shared = ("--json", "--dry-run", "--meta-table", "--all", "--batch")
    forms = defaultdict(set)
    for name in NAMES:
        for option in options(name):
            if name not in ("doctor", "jobs split") and option.opts[0] in shared:
                forms[option.opts[0]].add((option.help, option.metavar, option.is_flag))
    assert set(forms) == set(shared)
    assert {name: len(texts) for name, texts in forms.items()} == dict.fromkeys(shared, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["completion", "bash"], f'was removed. Add `eval "$({VARIABLE}=bash_source batch-'),
        (["pause", "orders"], "The command 'pause' was removed. Use `batch-pipeline jobs pause`."),
        (["register", "orders"], "Use `batch-pipeline plan`, which registers new files and plans"),
        (["audit"], "Use `batch-pipeline reconcile`, which plans items that appeared late."),
        (["bisect", "orders"], "Use `batch-pipeline jobs split`."),
        (
            ["roll-up", "orders", "--keep", "0"],
            "The command 'roll-up' was removed. Choose larger `batch.max_weight`",
        ),
        (["jobs", "orders"], "Did you mean `batch-pipeline jobs list orders`?"),
        (["jobs", "puase", "orders"], "Did you mean 'pause'?"),
        (["reprocess", "a", "--before", "b"], "The option --before was removed. Use --until."),
        (["reprocess", "a"], "Choose: --batch BATCHES, --all, --since TIME or --until TIME."),
        (["reprocess", "a", "--all", "--batch", "b"], "Choose: --batch BATCHES, --all, --since"),
        (["load", "a", "--reload", "b"], "The option --reload was removed. Use --batch."),
        (["reconcile", "--days", "30"], "--days was removed. Use --since TIME, or --no-audit"),
        (["plan", "a", "--since", "2026-01-01"], "--since needs --backfill NAME"),
        (["plan", "a", "--since", ""], "--since needs --backfill NAME"),
        (["plan", "a", "--item", "5"], "--item needs --backfill NAME"),
        (["plan", "a", "--first-id", "0"], "--first-id needs --backfill NAME"),
        (["plan", "a", "--accept-changed", "--dry-run"], "cannot be used with --dry-run"),
        (["plan", "a", "--accept-changed", "--backfill", "b"], "cannot be used with --backfill"),
        (["reconcile", "a", "--no-audit", "--all"], "Choose one of --since TIME, --all and"),
    ],
)
def test_usage_error_suggests_the_correct_usage(words: list[str], message: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


PAGE = Path(batch_pipeline.__file__).parent / "docs/reference/command_line.md"
# Commands are compared with these keys, of which `files` and `pack` have none.
GOLDEN = Path(__file__).parents[1] / "regression/data/json_keys.json"
NOT_GOLDEN = {"files", "pack"}


def table(heading: str) -> Iterator[list[str]]:
    """Return the rows of the first table below a heading, by cells."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    rows = re.search(r"^\|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert rows is not None
    for line in rows[0].strip().splitlines()[2:]:
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code(cell: str) -> list[str]:
    """Return the code spans of a cell, without the names of settings."""
    return [span for span in re.findall(r"`([^`]+)`", cell) if not span.isupper()]


def test_exit_codes_table_is_complete() -> None:
    """2 is click's code for wrong usage, 141 the code for a closed pipe."""
    own_codes = {value for name, value in vars(console).items() if name.startswith("EXIT_")}
    assert {int(row[0]) for row in table("Exit codes")} == {0, 2, 141, *own_codes}


def test_json_table_names_each_command_with_json_output() -> None:
    names = [name.split()[0] for row in table("JSON") for name in code(row[0])]
    assert {*names} == {*COMMANDS} - WITHOUT_JSON


def golden_keys() -> dict[str, set[str]]:
    """Return the paths of keys by command; those of a dry run also belong to the command."""
    keys = defaultdict(set)
    for entry in json.loads(GOLDEN.read_text(encoding="utf-8")):
        command, path = entry.replace(" --backfill", "").split(": ", 1)
        keys[command].add(path)
    return keys


def test_json_table_has_the_keys_of_the_golden_file() -> None:
    golden = golden_keys()
    for names, keys, entries in table("JSON"):
        for name in code(names):
            if name in NOT_GOLDEN:
                continue
            printed = {path for path in golden[name] if "." not in path}
            assert {*code(keys.partition(";")[0])} <= printed, name
            assert printed <= {*code(keys)} or "and more" in keys, name
            list_name, *_ = code(keys)
            in_list = {
                path.removeprefix(f"{list_name}[].")
                for path in golden[name]
                if path.startswith(f"{list_name}[].") and path.count(".") == 1
            }
            documented = {*code(entries.partition(";")[0])}
            assert in_list == documented, name


def test_files_json_has_the_documented_keys(project: DefsHarness) -> None:
    publish(project, project.database.batches.statuses("orders")[0].batch)
    [(_, keys, entries)] = [row for row in table("JSON") if row[0] == "`files`"]
    output = run_json(invoke, "files", "orders")
    assert {*output} == {*code(keys)}
    assert {*output["files"][0]} == {*code(entries)}
