"""What commands say of themselves: the same thing in the same words, with examples that work."""

import re
import shlex
from collections import defaultdict

import click
import pytest
from click.testing import CliRunner

from batch_pipeline.cli import COMMANDS, cli

# Servers, a walk for people to read, lines that are JSON already, a script.
WITHOUT_JSON = {"demo", "dev", "messages", "metrics"}
LONGEST_SUMMARY = 54  # beside the longest name, on a terminal of 80 columns


def command(name: str) -> click.Command:
    """Return a command by its name, or that of a group by both names."""
    first, *inner = name.split()
    found = cli.get_command(click.Context(cli), first)
    assert found is not None
    if inner:
        assert isinstance(found, click.Group)
        return found.commands[inner[0]]
    return found


NAMES = [
    *(name for name in COMMANDS if name != "jobs"),
    *(f"jobs {name}" for name in ("list", "pause", "resume", "cancel", "retry", "split")),
]


def options(name: str) -> list[click.Option]:
    """Return the options of a command, without `--help`."""
    return [one for one in command(name).params if isinstance(one, click.Option)]


def help_of(*words: str) -> str:
    """Print the help of a command, as on a terminal of 80 columns."""
    ended = CliRunner().invoke(cli, [*words, "-h"], terminal_width=80)
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_list_of_commands_has_every_summary_in_one_line() -> None:
    """Expect each command once, below what it is for, and nothing cut or wrapped."""
    printed = help_of()
    for name, one in COMMANDS.items():
        assert len(one.summary) <= LONGEST_SUMMARY, name
        assert re.search(rf"^  {name} +{re.escape(one.summary)}$", printed, re.MULTILINE), name
        assert printed.index(f"{one.section.value}:") < printed.index(f"\n  {name} ")


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_is_whole(name: str) -> None:
    """Expect a paragraph beyond the first line, help for each option, and none of it cut."""
    printed = help_of(*name.split())
    assert printed.startswith(f"Usage: cli {name} ")
    assert [one.opts[0] for one in options(name) if not one.help] == []
    assert [one.opts[0] for one in options(name) if one.help and one.help[-1] != "."] == []
    assert len(re.findall(r"\n\n  \S", printed)) >= 2, "no paragraph beside the first"
    assert "…\n" not in printed


@pytest.mark.parametrize("name", NAMES)
def test_example_of_a_command_is_one_that_it_takes(name: str) -> None:
    """Expect arguments and options of the example to be read without a mistake of usage."""
    lines = re.findall(r"Example:\n +(batch-pipeline .+)\n", f"{help_of(*name.split())}\n")
    assert len(lines) == 1
    for line in lines:
        assert line.startswith(f"batch-pipeline {name}")
        words = shlex.split(line.removeprefix(f"batch-pipeline {name}"))
        with command(name).make_context(name, words, **cli.context_settings) as context:
            assert context.args == []


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_told_to_programs_as_well(name: str) -> None:
    """Expect `--json` wherever facts are printed, as the last option."""
    names = [one.opts[0] for one in options(name)]
    assert names.count("--json") == (name not in WITHOUT_JSON)
    assert names[-1:] == ["--json"] or name in WITHOUT_JSON


def test_options_of_one_name_are_said_in_the_same_words() -> None:
    """Expect one form and one meaning of each option that does the same thing everywhere."""
    same = ("--json", "--dry-run", "--meta-table", "--all", "--batch")
    told = defaultdict(set)
    for name in NAMES:
        for one in options(name):
            if name not in ("doctor", "jobs split") and one.opts[0] in same:
                told[one.opts[0]].add((one.help, one.metavar, one.is_flag))
    assert set(told) == set(same)
    assert {option: len(forms) for option, forms in told.items()} == dict.fromkeys(same, 1)


def test_dry_run_comes_before_json() -> None:
    """Expect the two that commands share to be the last ones, in one order."""
    names = {name: [one.opts[0] for one in options(name)] for name in NAMES}
    dry = {name: these for name, these in names.items() if "--dry-run" in these}
    assert dry
    assert all(these[-2:] == ["--dry-run", "--json"] for these in dry.values())


def test_repeated_options_say_so() -> None:
    """Expect "may be repeated" of each option that may, and of no other."""
    for name in NAMES:
        for one in options(name):
            assert ("may be repeated" in (one.help or "")) is one.multiple, (name, one.opts)


def test_group_of_jobs_has_the_commands_that_are_tested_here() -> None:
    group = command("jobs")
    assert isinstance(group, click.Group)
    assert [f"jobs {name}" for name in group.commands] == NAMES[-6:]
    assert help_of("jobs").count("Example:") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pause", "orders"], "The command 'pause' was removed. Use `batch-pipeline jobs pause`."),
        (["register", "orders"], "Use `batch-pipeline plan`, which registers new files and plans"),
        (["audit"], "Use `batch-pipeline reconcile`, which plans items that appeared late."),
        (["bisect", "orders"], "Use `batch-pipeline jobs split`."),
        (["jobs", "orders"], "Did you mean `batch-pipeline jobs list orders`?"),
        (["jobs", "puase", "orders"], "Did you mean 'pause'?"),
        (["reprocess", "a", "--before", "b"], "The option --before was removed. Use --until."),
        (["load", "a", "--reload", "b"], "The option --reload was removed. Use --batch."),
        (["reconcile", "--days", "30"], "--days was removed. Use --since TIME, or --no-audit"),
        (["plan", "a", "--since", "2026-01-01"], "--since needs --backfill NAME"),
        (["plan", "a", "--since", ""], "--since needs --backfill NAME"),
        (["plan", "a", "--item", "5"], "--item needs --backfill NAME"),
        (["plan", "a", "--accept-changed", "--dry-run"], "cannot be used with --dry-run"),
        (["plan", "a", "--accept-changed", "--backfill", "b"], "cannot be used with --backfill"),
        (["reconcile", "a", "--no-audit", "--all"], "Choose one of --since TIME, --all and"),
    ],
)
def test_wrong_usage_says_what_to_use_instead(words: list[str], said: str) -> None:
    ended = CliRunner().invoke(cli, words)
    assert ended.exit_code == 2
    assert said in " ".join(ended.stderr.split())
