"""The tutorial on the user's own files: its commands create a project from a folder and run it."""

import gzip
import io
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import batch_pipeline
from batch_pipeline.cli import cli
from batch_pipeline_tests.acceptance.console_page import Command, steps
from batch_pipeline_tests.acceptance.sandbox import Sandbox, json_records, manifests

PAGE = Path(batch_pipeline.__file__).parent / "docs/tutorials/first_batches.md"
TEXT = PAGE.read_text(encoding="utf-8")
PAGE_FOLDER = "/data"  # the folder of the page
RUN_BY_OTHER_TESTS = {"batch-pipeline dev"}  # test_dev.py
HEADER = "order_id,city,price\n"
ORDERS = [f"{number},Cork,{number}.50\n" for number in range(1, 7)]
CUSTOMERS = '{"id": 1, "name": "Zoë"}\n{"id": 2, "name": "Bo"}\n'


def stock_parquet() -> bytes:
    """Return two records as parquet."""
    target = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "left": [7, 9]}), target)
    return target.getvalue()


def exports() -> Mapping[str, bytes]:
    """Return the files of the page."""
    days = [(HEADER + "".join(ORDERS[at : at + 2])).encode() for at in (0, 2, 4)]
    return {
        "orders-2026-01-01.csv": days[0],
        "orders-2026-01-02.csv": days[1],
        "orders-2026-01-03.csv.gz": gzip.compress(days[2], mtime=0),
        "customers-1.jsonl": CUSTOMERS.encode(),
        "stock-1.parquet": stock_parquet(),
        "terms.pdf": b"%PDF-1.7\n",
    }


def land(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files that were modified long ago."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
        os.utime(folder / name, (1_750_000_000, 1_750_000_000))


def test_tutorial_commands_create_and_run_a_project(
    sandbox: Sandbox, database_url: str, warm_spark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(sandbox.folder / "exports", exports())
    sandbox = sandbox.with_variables(
        BATCH_PIPELINE_INVENTORY_CONN=database_url, BATCH_PIPELINE_SPARK_REMOTE=warm_spark
    )
    monkeypatch.chdir(sandbox.folder)
    for step in steps(TEXT):
        assert isinstance(step, Command)
        program, *words = shlex.split(step.command)
        if program == "cd":
            monkeypatch.chdir(words[0])
        elif step.command not in RUN_BY_OTHER_TESTS:
            code, output = _run_init(words) if words[0] == "init" else _run_command(sandbox, words)
            assert code == 0, output
            assert step.matches(output.replace(str(sandbox.folder), PAGE_FOLDER)), (
                f"{step.command}\n{output}"
            )

    project = sandbox.folder / "shop"
    orders = [{"order_id": n, "city": "Cork", "price": n + 0.5} for n in range(1, 7)]
    customers = [json.loads(line) for line in CUSTOMERS.splitlines()]
    stock = [{"id": 1, "left": 7}, {"id": 2, "left": 9}]
    for stream, records in (("orders", orders), ("customers", customers), ("stock", stock)):
        storage = project / "batches" / stream
        assert len(manifests(storage)) == 1
        assert list(json_records(storage)) == records


def _run_init(words: list[str]) -> tuple[int, str]:
    """Run the command in this process, because starting another one is slow."""
    outside_of_uv = {"UV_RUN_RECURSION_DEPTH": None}
    result = CliRunner().invoke(cli, words, env=outside_of_uv, catch_exceptions=False)
    return result.exit_code, result.output


def _run_command(sandbox: Sandbox, words: list[str]) -> tuple[int, str]:
    result = sandbox.run(*words, cwd=Path.cwd())
    return result.returncode, result.stdout or result.stderr
