"""Every block of commands and code on the pages has a language, and a test that runs it."""

import re
import shlex
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from batch_pipeline_tests.acceptance.sandbox import program_output
from batch_pipeline_tests.docs.pages import DOCS, PROJECT, blocks

TESTS = PROJECT / "batch_pipeline_tests"
# YAML is read by test_yaml_blocks.py.
LANGUAGES = ("console", "bash", "python", "sql")
RUN_BY = {
    "README": "acceptance/test_readme.py",
    "tutorials/build_on_batches": "acceptance/test_build_on_batches.py",
    "tutorials/first_batches": "acceptance/test_init.py",
    "how_to/back_up_and_restore": "docs/test_operating_pages.py",
    "how_to/change_the_schema": "acceptance/test_how_to.py",
    "how_to/cut_again": "acceptance/test_how_to.py",
    "how_to/fix_a_bad_file": "acceptance/test_how_to.py",
    "how_to/handle_failures": "acceptance/test_how_to.py",
    "how_to/load_by_a_singer_target": "acceptance/test_how_to.py",
    "how_to/monitor": "docs/test_operating_pages.py",
    "how_to/move_from_pybatchintory": "acceptance/test_from_pybatchintory.py",
    "how_to/move_to_a_cluster": "acceptance/test_how_to.py",
    "how_to/move_to_s3": "acceptance/test_how_to.py",
    "how_to/read_batches": "defs/test_batch_reader.py",
    "how_to/reprocess_history": "acceptance/test_how_to.py",
    "how_to/transform_with_pyspark": "spark/test_transform.py",
    "how_to/upgrade": "acceptance/test_how_to.py",
    "reference/command_line": "acceptance/test_how_to.py",
    "reference/dagster": "defs/test_streams_folder.py",
    "reference/library": "client/test_docs.py",
    "reference/meta_tables": "acceptance/test_user_tables.py",
    "reference/metrics": "metrics/test_server.py",
    "reference/retention": "acceptance/test_how_to.py",
    "reference/settings": "inventory/test_roles_sql.py",
    "reference/singer": "acceptance/test_taps_land.py",
    "explanation/guarantees": "docs/test_run_blocks.py",
    "explanation/performance": "benchmarks/test_smallest_forms.py",
}


def test_each_block_has_a_language() -> None:
    assert [str(block) for block in blocks("")] == []


def test_each_page_with_commands_or_code_is_run_by_a_test() -> None:
    found = defaultdict(list)
    for block in blocks(*LANGUAGES):
        root = DOCS if block.page.is_relative_to(DOCS) else PROJECT
        page = block.page.relative_to(root).with_suffix("")
        if page.parts[0] != "decisions":
            found[str(page)].append(block)
    assert sorted(found) == sorted(RUN_BY)
    assert [test for test in RUN_BY.values() if not (TESTS / test).is_file()] == []


@pytest.mark.long
def test_commands_of_the_guarantees_select_proofs(tmp_path: Path) -> None:
    """The proofs are only collected, because a run of them would include this test."""
    [block] = [block for block in blocks("console") if block.page.stem == "guarantees"]
    for line in re.findall(r"^\$ uv run pytest (.+)$", block.text, re.MULTILINE):
        words = shlex.split(line.replace("--table=", f"--table={tmp_path}/"))
        command = [sys.executable, "-m", "pytest", *words, "--collect-only", "-q"]
        assert "test_crashes.py" in program_output(*command, cwd=PROJECT)
    assert "--table=" in block.text
