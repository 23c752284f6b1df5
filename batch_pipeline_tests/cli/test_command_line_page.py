"""The command line reference page names every exit code and JSON key."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import batch_pipeline
from batch_pipeline.cli import COMMANDS, cli, console
from batch_pipeline_tests.defs.checks_fixture import publish
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.load.target_scripts import GOOD, settings_of
from batch_pipeline_tests.seeds import register

PAGE = Path(batch_pipeline.__file__).parent / "docs/reference/command_line.md"
# Ordered so that each command has something to report.
RUN = [
    *("status", "explain 1", "plan orders", "plan orders --dry-run"),
    *("jobs list orders", "jobs pause orders", "jobs resume orders", "verify", "reconcile", "gc"),
    *("jobs split orders --batch 4", "jobs cancel orders", "jobs retry orders", "load orders"),
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
    """Return the code spans of a cell, without the names of settings."""
    return [span for span in re.findall(r"`([^`]+)`", cell) if not span.isupper()]


def test_exit_codes_table_is_complete() -> None:
    """2 is click's code for wrong usage, 141 the code for a closed pipe."""
    own_codes = {value for name, value in vars(console).items() if name.startswith("EXIT_")}
    assert {int(row[0]) for row in table("Exit codes")} == {0, 2, 141, *own_codes}


def test_json_table_names_each_command_with_json_output() -> None:
    names = [name.split()[0] for row in table("JSON") for name in code(row[0])]
    assert {*names} == {*COMMANDS} - WITHOUT_JSON
    assert {words.split()[0] for words in RUN} == {*names} - NOT_RUN


@pytest.fixture
def targets(tmp_path: Path) -> dict[str, Any]:
    """A working target."""
    return {"good": settings_of(tmp_path / "good", GOOD)}


def test_json_output_has_the_documented_keys(project: DefsHarness) -> None:
    """One batch is published, three are planned, and two items are not planned yet."""
    publish(project, project.database.batches.statuses("orders")[0].batch)
    register(project.database, 2, first=13)
    rows = [row for row in table("JSON") if row[0].strip("`").split()[0] not in NOT_RUN]
    documented = {name: (row[1], row[2]) for row in rows for name in code(row[0])}
    for line in RUN:
        words = line.split()
        result = CliRunner().invoke(cli, [*words, "--json"])
        output = json.loads(result.stdout)
        called = " ".join(words[: 2 if words[0] == "jobs" else 1])
        full_name = f"{called} --dry-run" if "--dry-run" in words else called
        name = full_name if full_name in documented else called
        keys, entries = documented[name]
        assert set(output) <= set(code(keys)), line
        assert set(output) >= set(code(keys.partition(";")[0])), line
        check_entries(line, output, code(keys)[0], code(entries.partition(";")[0]))


def check_entries(line: str, output: dict[str, Any], key: str, entries: list[str]) -> None:
    """Assert that all entries of a list have the documented keys."""
    if not entries:
        return
    assert output[key], line
    for entry in output[key]:
        assert set(entry) == set(entries), line
