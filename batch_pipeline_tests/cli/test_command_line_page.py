"""The command line reference page names every exit code and JSON key."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import batch_pipeline
from batch_pipeline.cli import COMMANDS, console
from batch_pipeline_tests.cli.commands import invoke, run_json
from batch_pipeline_tests.defs.checks_fixture import publish
from batch_pipeline_tests.defs.defs_fixture import DefsHarness

PAGE = Path(batch_pipeline.__file__).parent / "docs/reference/command_line.md"
# Commands are compared with these keys, of which `files` and `pack` have none.
GOLDEN = Path(__file__).parents[1] / "regression/data/json_keys.json"
NOT_GOLDEN = {"files", "pack"}
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
