"""What is left when all processes are gone: rows of the inventory, manifest files, part files.

Read with statements and readers of its own. Nothing of the product is imported here, so that a
mistake there is none here as well.
"""

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pyarrow.parquet as pq
from psycopg import sql
from psycopg.rows import class_row

Names = Sequence[str]
Connection = psycopg.Connection[Any]
_OWN_ITEMS = "SELECT stream, id, location FROM batch_pipeline.item ORDER BY stream, id"
_LIVE = """
SELECT j.stream, j.name AS job, j.kind, b.id AS batch_id, b.first_id, b.last_id,
       (SELECT a.id FROM batch_pipeline.attempt a
         WHERE a.batch_id = b.id AND a.status = 'succeeded'
         ORDER BY a.generation DESC LIMIT 1) AS attempt_id
  FROM batch_pipeline.batch b JOIN batch_pipeline.job j ON j.id = b.job_id
 WHERE b.superseded_at IS NULL AND j.stream IS NOT NULL ORDER BY j.id, b.first_id
"""
_ATTEMPTS = """
SELECT a.id, a.batch_id, a.number, a.token::text AS token, a.status, a.generation, a.pointer_uri,
       j.name AS job
  FROM batch_pipeline.attempt a
  JOIN batch_pipeline.batch b ON b.id = a.batch_id
  JOIN batch_pipeline.job j ON j.id = b.job_id ORDER BY a.id
"""
_PARTS = """
SELECT attempt_id, quarantine, uri, records, size_bytes, sha256
  FROM batch_pipeline.part_file ORDER BY attempt_id, quarantine, position
"""
_LINEAGE = "SELECT attempt_id, item_id FROM batch_pipeline.attempt_item ORDER BY 1, 2"
_OPEN_LOADS = "SELECT stream, target, number FROM batch_pipeline.load WHERE status = 'running'"


class UnreadableError(Exception):
    """A file is not there, or not what it should be; the text says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A table of a user's own that lists the items of a stream, with its columns."""

    stream: str
    table: Names
    uid: str = "id"
    item: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBatch:
    """A live batch, and the attempt that published it last, if any."""

    stream: str
    job: str
    kind: str
    batch_id: int
    first_id: int
    last_id: int
    attempt_id: int | None

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.job} {self.first_id}..{self.last_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A row of the attempts."""

    id: int
    batch_id: int
    number: int
    token: str
    status: str
    generation: int | None
    pointer_uri: str | None
    job: str

    @property
    def name(self) -> str:
        """What people call it."""
        return f"attempt {self.number} on batch {self.batch_id} of {self.job}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file that a published attempt names."""

    attempt_id: int
    quarantine: bool
    uri: str
    records: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Rows at one moment: items by stream and id; parts and items of attempts by their ids."""

    items: dict[str, dict[int, str]]
    batches: list[LiveBatch]
    attempts: dict[int, Try]
    parts: dict[int, list[Part]]
    lineage: dict[int, list[int]]
    open_loads: list[str]


def read_evidence(connection: Connection, tables: Sequence[Listed] = ()) -> Evidence:
    """Read all rows at one moment; `tables` list the items of streams that have their own."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    items: dict[str, dict[int, str]] = defaultdict(dict)
    for stream, uid, location in connection.execute(_OWN_ITEMS):
        items[stream][uid] = location
    for listed in tables:
        names = map(sql.Identifier, (listed.uid, listed.item))
        query = sql.SQL("SELECT {}, {} FROM {}").format(*names, sql.Identifier(*listed.table))
        items[listed.stream] = {int(row[0]): str(row[1]) for row in connection.execute(query)}
    parts: dict[int, list[Part]] = defaultdict(list)
    for part in connection.cursor(row_factory=class_row(Part)).execute(_PARTS):
        parts[part.attempt_id].append(part)
    lineage: dict[int, list[int]] = defaultdict(list)
    for attempt_id, item_id in connection.execute(_LINEAGE):
        lineage[attempt_id].append(item_id)
    attempts = connection.cursor(row_factory=class_row(Try)).execute(_ATTEMPTS)
    batches = connection.cursor(row_factory=class_row(LiveBatch)).execute(_LIVE)
    evidence = Evidence(
        items=dict(items),
        batches=batches.fetchall(),
        attempts={one.id: one for one in attempts},
        parts=parts,
        lineage=lineage,
        open_loads=[" ".join(map(str, row)) for row in connection.execute(_OPEN_LOADS)],
    )
    connection.execute("ROLLBACK")
    return evidence


def place_of(location: str) -> Path:
    """Return the path of a location: a path, or a file URI."""
    return Path(unquote(urlsplit(location).path) if location.startswith("file:") else location)


def octets_of(location: str) -> bytes:
    """Read a file.

    Raises:
        UnreadableError: it is not there.
    """
    try:
        return place_of(location).read_bytes()
    except OSError as error:
        raise UnreadableError(f"{location}: {error.strerror}") from error


def part_octets(part: Part) -> bytes:
    """Read a part file whose size and digest are what its row says.

    Raises:
        UnreadableError: it is not there, or is another file.
    """
    octets = octets_of(part.uri)
    if len(octets) != part.size_bytes:
        raise UnreadableError(f"{part.uri} has {len(octets)} bytes, told were {part.size_bytes}")
    if hashlib.sha256(octets).hexdigest() != part.sha256:
        raise UnreadableError(f"{part.uri} has another SHA-256 than was told")
    return octets


def ids_in(octets: bytes, name: str, *, torn: str = "") -> Counter[int]:
    """Count the values of `id` in csv or in JSON lines, gzipped or not, or in parquet.

    Lines that hold the mark `torn` are no records.

    Raises:
        UnreadableError: it is no such file, or one that was cut off.
    """
    try:
        if octets[:2] == b"\x1f\x8b" or name.endswith(".gz"):
            octets = gzip.decompress(octets)
        if octets[:4] == b"PAR1":
            return Counter(pq.read_table(io.BytesIO(octets), columns=["id"])["id"].to_pylist())
        text = octets.decode()
        if torn:
            text = "".join(line for line in text.splitlines(keepends=True) if torn not in line)
        if ".csv" in Path(name).name:
            return Counter(int(row["id"]) for row in csv.DictReader(io.StringIO(text)))
        return Counter(json.loads(line)["id"] for line in text.splitlines())
    except (OSError, EOFError, zlib.error, ValueError, KeyError) as error:
        raise UnreadableError(f"{name} cannot be read: {error}") from error
