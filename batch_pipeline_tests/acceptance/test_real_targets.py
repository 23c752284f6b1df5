"""Third-party Singer targets from PyPI load all published records correctly."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.location import to_path
from batch_pipeline.model.schema import Column, ColumnType
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.acceptance.real_targets import installed
from batch_pipeline_tests.acceptance.sandbox import Sandbox
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
TOTAL = "SELECT count(*), count(DISTINCT order_id), sum(amount), min(customer) FROM sales.orders"


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
    """A sandbox with the test's inventory and the URL of the warehouse in a variable."""
    return sandbox.with_variables(
        BATCH_PIPELINE_INVENTORY_CONN=database_url,
        WAREHOUSE_URL=warehouse.replace("postgresql://", "postgresql+psycopg://"),
    )


def write_targets(sandbox: Sandbox, **targets: dict[str, Any]) -> None:
    """Write the stream file of `orders` with targets."""
    sandbox.write_stream("orders", key_properties=["order_id"], targets=targets)


def order(number: int) -> str:
    """Return a record of `orders` as JSON."""
    return (
        f'{{"order_id":{number},"amount":{number}.25,"customer":"Zoë \\"{number}\\"",'
        f'"ordered_on":"2026-03-01"}}'
    )


def publish(
    database: Database, folder: Path, *, batches: int, records: int, root: str | None = None
) -> None:
    """Publish batches of consecutive orders, on disk or, with a root, in S3."""
    register(database, batches)
    planned = plan(database, limits(max_count=1))
    database.schemas.widen("orders", COLUMNS, text_source=True)
    _, schema = database.schemas.latest("orders")
    for number, batch in enumerate(planned):
        first = number * records + 1
        part = lines_file(folder / f"{number}.jsonl.gz", map(order, range(first, first + records)))
        if root is not None:
            path = Path(to_path(part.uri))
            part = replace(part, uri=f"{root}/{path.name}")
            S3.put(part.uri, path.read_bytes())
            path.unlink()
        reports = (item_report(batch.id_range.first_id, read=records, written=records),)
        with claimed(database, batch) as attempt:
            output = encoded(attempt.stem, part_files=(part,), items=reports)
            database.attempts.publish(attempt, output, stream())
    assert schema.columns == COLUMNS


def postgres(targets: Path, schema: str, **options: Any) -> dict[str, Any]:
    """Return the configuration of a target for a schema of the warehouse."""
    config = {
        "sqlalchemy_url": "$WAREHOUSE_URL",
        "default_target_schema": schema,
        "use_copy": True,
    }
    return {"command": str(targets / "target-postgres"), "config": config, **options}


def rows(warehouse: str, statement: str) -> list[tuple[Any, ...]]:
    """Query the warehouse."""
    with psycopg.connect(warehouse) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.parametrize("mode", ["auto", "record"])
def test_target_csv_writes_every_record(
    sandbox: Sandbox, database: Database, targets: Path, mode: str
) -> None:
    out = sandbox.folder / "out"
    out.mkdir()
    config = {"output_path": str(out), "file_naming_scheme": "{stream_name}.csv"}
    lake = {"command": str(targets / "target-csv"), "config": config, "messages": mode}
    write_targets(sandbox, lake=lake)
    publish(database, sandbox.folder, batches=2, records=10)
    (report,) = sandbox.json_of("load", "orders")["targets"]
    message_type = "record" if mode == "record" else "batch"
    assert [(batch["records"], batch["messages"]) for batch in report["batches"]] == [
        (10, message_type)
    ] * 2
    with (out / "orders.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [int(row["order_id"]) for row in written] == list(range(1, 21))
    assert {name: written[0][name] for name in ("amount", "customer", "ordered_on")} == {
        "amount": "1.25",
        "customer": 'Zoë "1"',
        "ordered_on": "2026-03-01",
    }
    assert "Nothing to load" in sandbox.output_of("load", "orders")


@pytest.mark.parametrize("place", ["disk", "s3"])
@pytest.mark.parametrize("mode", ["auto", "record"])
def test_target_postgres_loads_every_record_and_a_reload_changes_no_row(
    sandbox: Sandbox,
    database: Database,
    warehouse: str,
    targets: Path,
    request: pytest.FixtureRequest,
    *,
    mode: str,
    place: str,
) -> None:
    """The target itself opens the `s3://` URIs of the BATCH messages."""
    root = f"{request.getfixturevalue('bucket')}/batches" if place == "s3" else None
    write_targets(sandbox, warehouse=postgres(targets, "sales", messages=mode))
    publish(database, sandbox.folder, batches=2, records=100, root=root)
    output = sandbox.output_of("load", "orders")
    message_type = "RECORD" if mode == "record" else "BATCH"
    assert output.count(f"records loaded by {message_type} messages: 100") == 2
    loaded = [(200, 200, 20_150, 'Zoë "1"')]
    assert rows(warehouse, TOTAL) == loaded
    second = "00000002-00000002"
    reloaded = sandbox.json_of("load", "orders", "--batch", second)
    assert [batch["batch_id"] for batch in reloaded["targets"][0]["batches"]] == [second]
    assert rows(warehouse, TOTAL) == loaded
