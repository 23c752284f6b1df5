"""The tutorial on the user's own files: its commands create a project from a folder and run it."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import batch_pipeline
from batch_pipeline_tests.acceptance.console_page import Command, steps
from batch_pipeline_tests.acceptance.sandbox import Sandbox, json_records, manifests
from batch_pipeline_tests.acceptance.shop import ExampleProject

PAGE = Path(batch_pipeline.__file__).parent / "docs/tutorials/first_batches.md"
TEXT = PAGE.read_text(encoding="utf-8")
PAGE_FOLDER = "/data"  # the folder of the page
RUN_BY_OTHER_TESTS = {"batch-pipeline dev"}  # test_dev.py
HEADER = "order_id,city,price\n"
ORDERS = [f"{number},Cork,{number}.50\n" for number in range(1, 7)]
CUSTOMERS = '{"id": 1, "name": "Zoë"}\n{"id": 2, "name": "Bo"}\n'


def land_exports(folder: Path) -> None:
    """Write the files of the page, as if they were modified long ago."""
    folder.mkdir()
    first, second, third = (HEADER + "".join(ORDERS[at : at + 2]) for at in (0, 2, 4))
    (folder / "orders-2026-01-01.csv").write_text(first)
    (folder / "orders-2026-01-02.csv").write_text(second)
    (folder / "orders-2026-01-03.csv.gz").write_bytes(gzip.compress(third.encode(), mtime=0))
    (folder / "customers-1.jsonl").write_text(CUSTOMERS)
    pq.write_table(pa.table({"id": [1, 2], "left": [7, 9]}), folder / "stock-1.parquet")
    (folder / "terms.pdf").write_bytes(b"%PDF-1.7\n")
    for path in folder.iterdir():
        os.utime(path, (1_750_000_000, 1_750_000_000))


def test_tutorial_commands_create_and_run_a_project(
    sandbox: Sandbox, database_url: str, warm_spark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_exports(sandbox.folder / "exports")
    sandbox = sandbox.with_variables(
        BATCH_PIPELINE_INVENTORY_CONN=database_url,
        BATCH_PIPELINE_SPARK_REMOTE=warm_spark,
        UV_RUN_RECURSION_DEPTH=None,
    )
    monkeypatch.chdir(sandbox.folder)
    page = ExampleProject(sandbox, {PAGE_FOLDER: str(sandbox.folder)}, s3=None)
    for step in steps(TEXT):
        assert isinstance(step, Command)
        if step.command.startswith("cd "):
            monkeypatch.chdir(step.command.removeprefix("cd "))
        elif step.command not in RUN_BY_OTHER_TESTS:
            code, output = page.run(step.command)
            assert code == 0, output
            assert step.matches(output), f"{step.command}\n{output}"

    project = sandbox.folder / "shop"
    orders = [{"order_id": n, "city": "Cork", "price": n + 0.5} for n in range(1, 7)]
    customers = [json.loads(line) for line in CUSTOMERS.splitlines()]
    stock = [{"id": 1, "left": 7}, {"id": 2, "left": 9}]
    for stream, records in (("orders", orders), ("customers", customers), ("stock", stock)):
        storage = project / "batches" / stream
        assert len(manifests(storage)) == 1
        assert list(json_records(storage)) == records
