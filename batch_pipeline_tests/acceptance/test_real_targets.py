"""Singer targets of others, as they come from PyPI, get what is published: all of it, and right."""

import csv
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.location import to_path
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.acceptance.sandbox import Sandbox
from batch_pipeline_tests.concurrency import eventually
from batch_pipeline_tests.factories import encoded, item_report, limits, stream
from batch_pipeline_tests.load.target_scripts import lines_file
from batch_pipeline_tests.seeds import claimed, plan, register

pytestmark = pytest.mark.long

COLUMNS = (
    Column(name="order_id", type=ColumnType.INTEGER),
    Column(name="amount", type=ColumnType.DECIMAL, precision=12, scale=2),
    Column(name="customer", type=ColumnType.STRING),
    Column(name="ordered_on", type=ColumnType.DATE),
)
TOTAL = "SELECT count(*), count(DISTINCT order_id), sum(amount), min(customer) FROM {}.orders"


@pytest.fixture(scope="session")
def targets(request: pytest.FixtureRequest) -> Path:
    """The folder of the targets' commands."""
    return installed(request.config.cache.mkdir("singer-targets"))


@pytest.fixture
def warehouse(empty_database_url: str) -> str:
    """URL of an empty database."""
    return empty_database_url


@pytest.fixture
def sandbox(sandbox: Sandbox, database_url: str, warehouse: str) -> Sandbox:
    """A sandbox whose inventory is the test's, with the warehouse's URL in a variable."""
    return sandbox.with_variables(
        BATCH_PIPELINE_INVENTORY_CONN=database_url,
        WAREHOUSE_URL=warehouse.replace("postgresql://", "postgresql+psycopg://"),
    )


def describe(sandbox: Sandbox, **targets: dict[str, Any]) -> None:
    """Write the stream file of `orders` with targets."""
    sandbox.write_stream("orders", key_properties=["order_id"], targets=targets)


def order(number: int) -> str:
    """One record of `orders`."""
    return (
        f'{{"order_id":{number},"amount":{number}.25,"customer":"Zoë \\"{number}\\"",'
        f'"ordered_on":"2026-03-01"}}'
    )


def publish(
    database: Database, folder: Path, *, batches: int, records: int, root: str | None = None
) -> None:
    """Publish batches of so many orders each, numbered on from 1; with a root, in S3."""
    register(database, batches)
    planned = plan(database, limits(max_count=1))
    database.schemas.widen("orders", COLUMNS, text_source=True)
    _, schema = database.schemas.latest("orders")
    for number, one in enumerate(planned):
        first = number * records + 1
        part = lines_file(folder / f"{number}.jsonl.gz", map(order, range(first, first + records)))
        if root is not None:
            path = Path(to_path(part.uri))
            part = replace(part, uri=f"{root}/{path.name}")
            S3.put(part.uri, path.read_bytes())
            path.unlink()
        reports = (item_report(one.id_range.first_id, read=records, written=records),)
        with claimed(database, one) as attempt:
            what = encoded(attempt.stem, part_files=(part,), items=reports)
            database.attempts.publish(attempt, what, stream())
    assert schema.columns == COLUMNS


def postgres(targets: Path, schema: str, **options: Any) -> dict[str, Any]:
    """The target of a schema in the warehouse."""
    config = {
        "sqlalchemy_url": "$WAREHOUSE_URL",
        "default_target_schema": schema,
        "use_copy": True,
    }
    return {"command": str(targets / "target-postgres"), "config": config, **options}


def rows(warehouse: str, statement: str) -> list[tuple[Any, ...]]:
    """Read from the warehouse."""
    with psycopg.connect(warehouse) as connection:
        return connection.execute(statement).fetchall()


def has(warehouse: str, count: int) -> Callable[[], bool]:
    """Return whether the table of the schema `sales` has at least so many rows."""

    def ask() -> bool:
        there = "SELECT to_regclass('sales.orders') IS NOT NULL"
        if rows(warehouse, there) == [(False,)]:
            return False
        return bool(rows(warehouse, "SELECT count(*) FROM sales.orders")[0][0] >= count)

    return ask


def target_of(pid: int) -> psutil.Process:
    """Find the target that a load has started."""
    found: list[psutil.Process] = []

    def ask() -> bool:
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):  # one that has just ended
                if "--config" in child.cmdline():
                    found.append(child)
        return bool(found)

    eventually(ask)
    return found[0]


@pytest.mark.parametrize("mode", ["auto", "record"])
def test_target_csv_gets_every_record(
    sandbox: Sandbox, database: Database, targets: Path, mode: str
) -> None:
    out = sandbox.folder / "out"
    out.mkdir()
    config = {"output_path": str(out), "file_naming_scheme": "{stream_name}.csv"}
    lake = {"command": str(targets / "target-csv"), "config": config, "messages": mode}
    describe(sandbox, lake=lake)
    publish(database, sandbox.folder, batches=2, records=10)
    (report,) = sandbox.json_of("load", "orders")["targets"]
    used = "record" if mode == "record" else "batch"
    assert [(one["records"], one["messages"]) for one in report["batches"]] == [(10, used)] * 2
    with (out / "orders.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [int(row["order_id"]) for row in written] == list(range(1, 21))
    assert {name: written[0][name] for name in ("amount", "customer", "ordered_on")} == {
        "amount": "1.25",
        "customer": 'Zoë "1"',
        "ordered_on": "2026-03-01",
    }
    assert "Nothing to load" in sandbox.output_of("load", "orders")


@pytest.mark.parametrize("mode", ["auto", "record"])
def test_target_postgres_gets_every_record(
    sandbox: Sandbox, database: Database, warehouse: str, targets: Path, mode: str
) -> None:
    describe(sandbox, warehouse=postgres(targets, "sales", messages=mode))
    publish(database, sandbox.folder, batches=2, records=100)
    said = sandbox.output_of("load", "orders")
    used = "RECORD" if mode == "record" else "BATCH"
    assert said.count(f"records loaded by {used} messages: 100") == 2
    assert rows(warehouse, TOTAL.format("sales")) == [(200, 200, 20_150, 'Zoë "1"')]
    (stream,) = sandbox.json_of("status", "orders")["streams"]
    (standing,) = stream["targets"]
    assert (standing["loaded"], standing["due"], standing["failed"]) == (2, 0, 0)
    assert "9 load      warehouse: records: 100, loaded" in sandbox.output_of("explain", "1")


@pytest.mark.parametrize("mode", ["auto", "record"])
def test_target_postgres_reads_files_in_s3(
    sandbox: Sandbox, database: Database, warehouse: str, targets: Path, bucket: str, mode: str
) -> None:
    """The target opens the `s3://` URIs of the BATCH messages itself."""
    describe(sandbox, warehouse=postgres(targets, "sales", messages=mode))
    publish(database, sandbox.folder, batches=2, records=100, root=f"{bucket}/batches")
    said = sandbox.output_of("load", "orders")
    used = "RECORD" if mode == "record" else "BATCH"
    assert said.count(f"records loaded by {used} messages: 100") == 2
    assert rows(warehouse, TOTAL.format("sales")) == [(200, 200, 20_150, 'Zoë "1"')]


def test_batch_that_is_loaded_again_changes_no_row(
    sandbox: Sandbox, database: Database, warehouse: str, targets: Path
) -> None:
    describe(sandbox, warehouse=postgres(targets, "sales"))
    publish(database, sandbox.folder, batches=2, records=100)
    sandbox.output_of("load", "orders")
    again = sandbox.json_of("load", "orders", "--batch", "00000002-00000002")
    assert [one["batch_id"] for one in again["targets"][0]["batches"]] == ["00000002-00000002"]
    assert rows(warehouse, TOTAL.format("sales")) == [(200, 200, 20_150, 'Zoë "1"')]
    refused = sandbox.run("load", "orders", "--batch", "00000009-00000009")
    assert refused.returncode == 1
    assert "no published batch '00000009-00000009'" in refused.stderr


def test_target_killed_half_way_ends_with_the_right_rows(
    sandbox: Sandbox, database: Database, warehouse: str, targets: Path
) -> None:
    """The target is killed after the first batch, within one load."""
    describe(sandbox, warehouse=postgres(targets, "sales"))
    publish(database, sandbox.folder, batches=3, records=20_000)
    load = sandbox.start("load", "orders")
    eventually(has(warehouse, 20_000))  # the target that was only asked what it reads is gone
    target = target_of(load.pid)
    target.kill()
    assert load.wait() == 0, sandbox.output.read_text()
    assert rows(warehouse, TOTAL.format("sales")) == [(60_000, 60_000, 1_800_045_000, 'Zoë "1"')]
    statuses = "SELECT status, exit_code FROM batch_pipeline.load ORDER BY id"
    with psycopg.connect(sandbox.environment["BATCH_PIPELINE_INVENTORY_CONN"]) as connection:
        found = connection.execute(statuses).fetchall()
    assert found == [("failed", -9), *[("succeeded", 0)] * 3]


def test_load_killed_half_way_is_resumed_with_the_right_rows(
    sandbox: Sandbox, database: Database, warehouse: str, targets: Path
) -> None:
    describe(sandbox, warehouse=postgres(targets, "sales"))
    publish(database, sandbox.folder, batches=3, records=20_000)
    load = sandbox.start("load", "orders")
    eventually(has(warehouse, 20_000))  # the target that was only asked what it reads is gone
    target = target_of(load.pid)
    os.kill(load.pid, signal.SIGKILL)
    load.wait()
    target.kill()
    sandbox.output_of("load", "orders")
    assert rows(warehouse, TOTAL.format("sales")) == [(60_000, 60_000, 1_800_045_000, 'Zoë "1"')]
    (standing,) = sandbox.json_of("status", "orders")["streams"][0]["targets"]
    assert (standing["loaded"], standing["due"]) == (3, 0)
