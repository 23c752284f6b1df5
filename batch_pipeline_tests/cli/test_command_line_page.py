"""The page of the command line names every command, exit code and JSON key, and no other."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import batch_pipeline
from batch_pipeline.cli import COMMANDS, cli, console
from batch_pipeline.inventory.database import Database
from batch_pipeline_tests.defs.checks_fixture import publish
from batch_pipeline_tests.defs.defs_fixture import DefsScene, open_defs_scene
from batch_pipeline_tests.load.target_scripts import GOOD, settings_of
from batch_pipeline_tests.seeds import register

pytestmark = [
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning"),
]
PAGE = Path(batch_pipeline.__file__).parent / "docs/reference/command_line.md"
# In an order in which each finds something to tell.
RUN = [
    *("status", "explain 1", "plan orders", "plan orders --dry-run"),
    *("jobs list orders", "jobs pause orders", "jobs resume orders", "verify", "reconcile", "gc"),
    *(
        "jobs split orders --batch 4",
        "jobs cancel orders",
        "jobs retry orders",
        "load orders",
        "files orders",
    ),
    *("files orders", "doctor", "migrate", "reprocess orders --all --dry-run"),
]
# These need Spark, the whole environment, or a folder of files.
NOT_RUN = {"run", "pack", "init"}
WITHOUT_JSON = {"demo", "dev", "messages", "metrics"}


def table(heading: str) -> Iterator[list[str]]:
    """Return the rows of the first table below a heading, by cells."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    rows = re.search(r"^\|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert rows is not None
    for line in rows[0].strip().splitlines()[2:]:
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code(cell: str) -> list[str]:
    """Return what stands in back quotes, but for settings."""
    return [one for one in re.findall(r"`([^`]+)`", cell) if not one.isupper()]


def test_table_of_commands_names_each_below_what_it_is_for() -> None:
    """Expect the commands of the list, in its order, and no other."""
    found: dict[str, str] = {}
    purpose = ""
    for told, names, _ in table("Commands"):
        purpose = told or purpose
        found |= dict.fromkeys(code(names), purpose)
    assert found == {name: one.section.value.lower() for name, one in COMMANDS.items()}
    assert list(found) == list(COMMANDS)


def test_table_of_exit_codes_names_each() -> None:
    """Expect the codes of the commands, that of wrong usage and that of a reader that is gone."""
    ours = {value for name, value in vars(console).items() if name.startswith("EXIT_")}
    assert {int(row[0]) for row in table("Exit codes")} == {0, 2, 141, *ours}


def test_table_of_json_names_each_command_that_prints_it() -> None:
    """Expect every command with `--json`, and those that this module runs, once."""
    names = [name.split()[0] for row in table("JSON") for name in code(row[0])]
    assert {*names} == {*COMMANDS} - WITHOUT_JSON
    assert {words.split()[0] for words in RUN} == {*names} - NOT_RUN


@pytest.fixture
def scene(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DefsScene]:
    """A stream with a published batch, three planned ones, two items in none, and a target."""
    targets = {"good": settings_of(tmp_path / "good", GOOD)}
    with open_defs_scene(database, database_url, tmp_path, monkeypatch, targets=targets) as opened:
        publish(opened, database.batches.statuses("orders")[0].batch)
        register(database, 2, first=13)
        yield opened


@pytest.mark.usefixtures("scene")
def test_json_has_the_keys_that_the_page_names() -> None:
    """Expect the keys of each command's object, and of each entry of its first list."""
    rows = [row for row in table("JSON") if row[0].strip("`").split()[0] not in NOT_RUN]
    documented = {name: (row[1], row[2]) for row in rows for name in code(row[0])}
    for line in RUN:
        words = line.split()
        ended = CliRunner().invoke(cli, [*words, "--json"])
        told = json.loads(ended.stdout)
        called = " ".join(words[: 2 if words[0] == "jobs" else 1])
        dry = f"{called} --dry-run" if "--dry-run" in words else called
        name = dry if dry in documented else called
        keys, entries = documented[name]
        assert set(told) <= set(code(keys)), line
        assert set(told) >= set(code(keys.partition(";")[0])), line
        check_entries(line, told, code(keys)[0], code(entries.partition(";")[0]))


def check_entries(line: str, told: dict[str, Any], key: str, entries: list[str]) -> None:
    """Hold the entries of a list against the keys that the page names."""
    if not entries:
        return
    assert told[key], line
    for entry in told[key]:
        assert set(entry) == set(entries), line
