"""A naive protocol without leases and fencing tokens, to show that the checker detects faults.

It has a bookmark, a folder per batch, files written in place, and a manifest that lists the folder.
It uses the same tables, without their constraints.
"""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from batch_pipeline.model.failpoint import failpoint

POINTS = ("naive.marked", "naive.half", "naive.written", "naive.named", "naive.committed")
UNFENCED = (
    "ALTER TABLE batch_pipeline.batch DROP CONSTRAINT batch_ranges_do_not_overlap",
    "ALTER TABLE batch_pipeline.part_file DROP CONSTRAINT part_file_uri_key",
    "DROP INDEX batch_pipeline.attempt_one_running_per_batch",
    "INSERT INTO batch_pipeline.job (name, meta_table, stream) VALUES ('orders', 'item', 'orders')",
    "INSERT INTO batch_pipeline.bookmark (job_id, first_id, last_id) VALUES (1, 0, 0)",
)
_MARK = """
SELECT last_id, (SELECT coalesce(max(id), 0) FROM batch_pipeline.item) FROM batch_pipeline.bookmark
"""
_PLAN = """
INSERT INTO batch_pipeline.batch (job_id, first_id, last_id, weight, item_count, config)
VALUES (1, %s, %s, 0, 1, '{}')
"""
_WAITING = """
SELECT b.id, b.first_id, b.last_id FROM batch_pipeline.batch b WHERE NOT EXISTS (
    SELECT FROM batch_pipeline.attempt a WHERE a.batch_id = b.id AND a.status = 'succeeded')
 ORDER BY b.id LIMIT 1
"""
_START = """
INSERT INTO batch_pipeline.attempt
       (batch_id, number, token, liveness_key, status, run_id, lease_until)
SELECT %s, count(*) + 1, %s, 0, 'running', '', now() FROM batch_pipeline.attempt WHERE batch_id = %s
RETURNING id, number
"""
_END = """
UPDATE batch_pipeline.attempt
   SET status = 'succeeded', finished_at = now(), generation = number, publish_number = id,
       pointer_uri = %s
 WHERE id = %s
"""
_ABANDON = """
UPDATE batch_pipeline.attempt SET status = 'abandoned', finished_at = now()
 WHERE status = 'running'
"""
_ITEMS = "SELECT id, location FROM batch_pipeline.item WHERE id BETWEEN %s AND %s ORDER BY id"
_PART = "INSERT INTO batch_pipeline.part_file VALUES (%s, false, %s, %s, %s, %s, %s)"
_LINEAGE = "INSERT INTO batch_pipeline.attempt_item VALUES (%s, %s, 3, 3, 0, 0)"


def plan(url: str) -> None:
    """Move the bookmark, then insert a batch for each new item."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(_MARK).fetchone()
        assert row is not None
        last, newest = row
        for first in range(last + 1, newest + 1):
            connection.execute("UPDATE batch_pipeline.bookmark SET last_id = %s", [first])
            failpoint("naive.marked")
            connection.execute(_PLAN, [first, first])


def encode(url: str, folder: str) -> None:
    """Encode each unfinished batch in place, and publish a listing of its folder."""
    with psycopg.connect(url, autocommit=True) as connection:
        while (batch := connection.execute(_WAITING).fetchone()) is not None:
            _encode(connection, Path(folder), *batch)


def end(url: str) -> None:
    """Close all running attempts."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_ABANDON)


def _encode(
    connection: "psycopg.Connection[Any]", folder: Path, batch_id: int, first: int, last: int
) -> None:
    token = uuid4()
    started = connection.execute(_START, [batch_id, token, batch_id]).fetchone()
    assert started is not None
    attempt_id, number = started
    items = connection.execute(_ITEMS, [first, last]).fetchall()
    content = gzip.compress("".join(_lines(location) for _, location in items).encode(), mtime=0)
    folder_of_batch = folder / f"{first}-{last}"
    folder_of_batch.mkdir(exist_ok=True, parents=True)
    with (folder_of_batch / f"part-{uuid4()}.jsonl.gz").open("wb") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        failpoint("naive.half")
        file.write(content[len(content) // 2 :])
    failpoint("naive.written")
    parts = [_part(path) for path in sorted(folder_of_batch.iterdir())]
    for position, part in enumerate(parts):
        connection.execute(_PART, [attempt_id, position, *part.values()])
    for uid, _ in items:
        connection.execute(_LINEAGE, [attempt_id, uid])
    failpoint("naive.named")
    pointer = folder / "manifests" / f"{first}-{last}.json"
    pointer.parent.mkdir(exist_ok=True)
    manifest = {"token": str(token), "generation": number}
    files = {"part_files": parts, "quarantine_files": []}
    pointer.write_text(json.dumps(manifest | files))
    connection.execute(_END, [str(pointer), attempt_id])
    failpoint("naive.committed")


def _lines(location: str) -> str:
    [_, *rows] = Path(location).read_text().splitlines()
    return "".join(f"{json.dumps({'id': int(row.split(',')[0])})}\n" for row in rows)


def _part(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"uri": str(path), "records": 3, "size_bytes": len(content), "sha256": digest}


ACTIONS = {"plan": plan, "encode": encode, "end": end}
