"""A user of pybatchintory 0.0.8, who runs the package as it comes from PyPI, with its own Python.

It needs none of the packages that it says it needs and never imports.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batch_pipeline_tests.acceptance.real_targets import installed

REQUIREMENTS = (
    "--no-deps",
    "pybatchintory==0.0.8",
    "pydantic==1.10.26",
    "sqlalchemy==2.0.48",
    "typing-extensions==4.15.0",
    "psycopg2-binary==2.9.11",
)
# One line of JSON an order: what to acquire, and how to release it.
_PROGRAM = """
import json, logging, sys, threading
import sqlalchemy as sa
from pybatchintory import acquire_batch, configure, sql

logging.disable(logging.CRITICAL)
url, schema = sys.argv[1], sys.argv[2] or None
configure(settings={"INVENTORY_CONN": url, "INVENTORY_CONN_SCHEMA": schema, "META_CONN": url})
sql.db.initialize_metadata_backend()
COLUMNS = {"uid": "id", "item": "file_location", "weight": "size_in_bytes"}


def acquired(asked):
    outcome = asked.pop("outcome", "succeeded")
    batch = acquire_batch(meta_table_cols=COLUMNS, **asked)
    if batch is None:
        return None
    if outcome == "succeeded":
        batch.succeeded(result={"rows": len(batch.items), "mark": chr(0)}, logging="fine")
    elif outcome == "failed":
        batch.failed(ValueError("bad file"))
    return [batch.id_range.id_min, batch.id_range.id_max, batch.items]


def together(some):
    # Both have read the bookmark before either writes its row: what two workers come to meet.
    barrier, found = threading.Barrier(len(some)), [None] * len(some)

    def wait(connection, cursor, statement, *rest):
        if statement.startswith("INSERT"):
            barrier.wait(60)

    def run(at):
        found[at] = acquired(some[at])

    sa.event.listen(sql.db.engine_inventory, "before_cursor_execute", wait)
    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(some))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sa.event.remove(sql.db.engine_inventory, "before_cursor_execute", wait)
    return found


for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, str):
        with sql.db.engine_meta.begin() as connection:
            connection.execute(sa.text(asked))
        continue
    print(json.dumps(together(asked) if isinstance(asked, list) else acquired(asked)))
"""
Order = dict[str, Any]
Orders = Sequence[Order | Sequence[Order] | str]


def python_of(cache: Path) -> Path:
    """Return the Python that has the package."""
    return installed(cache, REQUIREMENTS) / "python"


def asked(job: str, outcome: str = "succeeded", **limits: Any) -> Order:
    """Return the order to acquire a batch of a job and to release it; `running` leaves it."""
    return {"job": job, "meta_table_name": "ops.files", "outcome": outcome, **limits}


def work(python: Path, url: str, orders: Orders, *, schema: str = "old") -> list[Any]:
    """Carry out orders one after the other, lists of them at once, and statements of SQL.

    Gives first id, last id and items of each batch.
    """
    lines = "".join(json.dumps(order) + "\n" for order in orders)
    ended = subprocess.run(
        [str(python), "-c", _PROGRAM, url, schema],
        input=lines,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]
