"""Runs pybatchintory 0.0.8 from PyPI in a separate environment.

Declared dependencies that it never imports are not installed.
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
# Each input line is a request in JSON: what to acquire, and how to release it.
_PROGRAM = """
import json, logging, sys, threading
import sqlalchemy as sa
from pybatchintory import acquire_batch, configure, sql

logging.disable(logging.CRITICAL)
url, schema = sys.argv[1], sys.argv[2] or None
configure(settings={"INVENTORY_CONN": url, "INVENTORY_CONN_SCHEMA": schema, "META_CONN": url})
sql.db.initialize_metadata_backend()
COLUMNS = {"uid": "id", "item": "file_location", "weight": "size_in_bytes"}


def acquire(request):
    outcome = request.pop("outcome", "succeeded")
    batch = acquire_batch(meta_table_cols=COLUMNS, **request)
    if batch is None:
        return None
    if outcome == "succeeded":
        batch.succeeded(result={"rows": len(batch.items), "mark": chr(0)}, logging="fine")
    elif outcome == "failed":
        batch.failed(ValueError("bad file"))
    return [batch.id_range.id_min, batch.id_range.id_max, batch.items]


def acquire_concurrently(requests):
    # All read the bookmark before one writes its row, as concurrent workers may.
    barrier, results = threading.Barrier(len(requests)), [None] * len(requests)

    def wait(connection, cursor, statement, *_):
        if statement.startswith("INSERT"):
            barrier.wait(60)

    def run(at):
        results[at] = acquire(requests[at])

    sa.event.listen(sql.db.engine_inventory, "before_cursor_execute", wait)
    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sa.event.remove(sql.db.engine_inventory, "before_cursor_execute", wait)
    return results


for line in sys.stdin:
    request = json.loads(line)
    if isinstance(request, str):
        with sql.db.engine_meta.begin() as connection:
            connection.execute(sa.text(request))
        continue
    concurrent = isinstance(request, list)
    print(json.dumps(acquire_concurrently(request) if concurrent else acquire(request)))
"""
Request = dict[str, Any]
Requests = Sequence[Request | Sequence[Request] | str]


def python_of(cache: Path) -> Path:
    """Return the path of a Python that has the package."""
    return installed(cache, REQUIREMENTS) / "python"


def acquire_request(job: str, outcome: str = "succeeded", **limits: Any) -> Request:
    """Return a request to acquire a batch and to release it unless it stays `running`."""
    return {"job": job, "meta_table_name": "ops.files", "outcome": outcome, **limits}


def run_requests(python: Path, url: str, requests: Requests, *, schema: str = "old") -> list[Any]:
    """Run requests in order, lists of them concurrently, and SQL statements.

    Return first id, last id and items of each batch.
    """
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    result = subprocess.run(
        [str(python), "-c", _PROGRAM, url, schema],
        input=lines,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]
