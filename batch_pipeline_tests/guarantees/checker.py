"""Checks the results of a pipeline: inventory rows, manifest files, part files and loaded tables.

It uses its own statements and readers and imports nothing from the product, so that a defect in the
product cannot hide itself. All work must be complete: anything unpublished counts as lost.
"""

import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pyarrow.parquet as pq
from psycopg import sql
from psycopg.rows import namedtuple_row

_ATTEMPT_FILE = re.compile(r"\.?.+-a[0-9]+-([0-9a-f]{8})-.+")
_TEMPORARY = re.compile(r"\..+\.tmp|\.probe-[0-9a-f]{32}")
_MAX_SHOWN_IDS = 5
_ITEMS = "SELECT stream, id, location FROM batch_pipeline.item ORDER BY stream, id"
_LIVE_BATCHES = """
SELECT j.stream, j.name || ' ' || b.first_id || '..' || b.last_id AS name,
       CASE j.kind WHEN 'backfill' THEN j.name ELSE '' END AS backfill,
       (SELECT a.id FROM batch_pipeline.attempt a
         WHERE a.batch_id = b.id AND a.status = 'succeeded'
         ORDER BY a.generation DESC LIMIT 1) AS attempt_id
  FROM batch_pipeline.batch b JOIN batch_pipeline.job j ON j.id = b.job_id
 WHERE b.superseded_at IS NULL AND j.stream IS NOT NULL ORDER BY j.id, b.first_id
"""
_ATTEMPTS = """
SELECT a.id, a.token::text AS token, a.status, a.generation, a.pointer_uri,
       format('attempt %s on batch %s of %s', a.number, a.batch_id, j.name) AS name
  FROM batch_pipeline.attempt a
  JOIN batch_pipeline.batch b ON b.id = a.batch_id
  JOIN batch_pipeline.job j ON j.id = b.job_id ORDER BY a.id
"""
_PART_FILES = """
SELECT attempt_id, quarantine, uri, records, size_bytes, sha256
  FROM batch_pipeline.part_file ORDER BY attempt_id, quarantine, position
"""
_LINEAGE = "SELECT attempt_id, item_id FROM batch_pipeline.attempt_item ORDER BY 1, 2"
_OPEN_LOADS = "SELECT stream, target, number FROM batch_pipeline.load WHERE status = 'running'"


class Kind(StrEnum):
    """Kinds of faults."""

    LOST = "lost"  # an item, or a record of it, is in no published live batch
    TWICE = "twice"  # an item, or a record of it, is in two of them
    UNREADABLE = "unreadable"  # a published file is missing, truncated or replaced
    ORPHAN = "orphan"  # a file that nothing references and that no ended attempt left behind
    OPEN = "left open"  # an attempt or a load that is still running
    MANIFEST_FILE = "manifest file"  # missing, unreferenced, or with other content
    TARGET_LOST = "rows lost"
    TARGET_TWICE = "rows twice"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, its location, and the number of items, records or rows affected."""

    kind: Kind
    message: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The faults, and the numbers of checked items, records and files.

    `garbage` counts the files of unpublished attempts and killed processes. The garbage collection
    deletes them.
    """

    items: int
    records: int
    files: int
    garbage: int
    faults: tuple[Fault, ...]

    def count(self, kind: Kind) -> int:
        return sum(fault.count for fault in self.faults if fault.kind is kind)

    def __str__(self) -> str:
        """Return the numbers and one line for each fault."""
        counts = f"{self.items} items, {self.records} records, {self.files} files"
        return "\n".join([counts, *(f"{fault.kind}: {fault.message}" for fault in self.faults)])


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTable:
    """A user's meta table that lists the items of a stream."""

    stream: str
    table: Sequence[str]
    item: str  # the column with the locations


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A table with the loaded records of a stream: each record once, or each key (`by_key`)."""

    stream: str
    table: Sequence[str]
    by_key: bool = False


class _UnreadableError(Exception):
    pass


@dataclass(slots=True, kw_only=True)
class _Snapshot:
    """Inventory rows at one moment, and the records of landed files and of each attempt."""

    items: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    batches: list[Any]
    attempts: list[Any]
    parts: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    lineage: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    open_loads: list[Any]
    published: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    landed: dict[tuple[str, int], Counter[int]] = field(
        default_factory=lambda: defaultdict(Counter)
    )


def check(
    url: str,
    storages: Sequence[Path],
    *,
    tables: Sequence[UserTable] = (),
    targets: Sequence[TargetTable] = (),
    ignored_marker: str = "",
) -> CheckResult:
    """Check an inventory, its storage roots and the target tables.

    Lines of landed files that contain `ignored_marker` do not count as records.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        snapshot = _read(connection, tables)
        faults = [*_check_part_files(snapshot), *_check_landed_files(snapshot, ignored_marker)]
        faults += [*_check_items(snapshot), *_check_batches(snapshot)]
        faults += [*_check_manifest_files(snapshot), *_check_open(snapshot)]
        for target in targets:
            faults += _check_target(connection, snapshot, target)
    orphans, garbage, files = _check_storages(snapshot, storages)
    return CheckResult(
        items=sum(len(items) for items in snapshot.items.values()),
        records=sum(counts.total() for counts in snapshot.landed.values()),
        files=files,
        garbage=garbage,
        faults=(*faults, *orphans),
    )


def _read(connection: "psycopg.Connection[Any]", tables: Sequence[UserTable]) -> _Snapshot:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    rows: psycopg.Cursor[Any] = connection.cursor(row_factory=namedtuple_row)
    snapshot = _Snapshot(
        batches=rows.execute(_LIVE_BATCHES).fetchall(),
        attempts=rows.execute(_ATTEMPTS).fetchall(),
        open_loads=rows.execute(_OPEN_LOADS).fetchall(),
    )
    for stream, uid, location in connection.execute(_ITEMS):
        snapshot.items[stream][uid] = location
    for listed in tables:
        names = sql.Identifier(listed.item), sql.Identifier(*listed.table)
        query = sql.SQL("SELECT id, {} FROM {}").format(*names)
        snapshot.items[listed.stream] = dict(connection.execute(query).fetchall())
    for part in rows.execute(_PART_FILES):
        snapshot.parts[part.attempt_id].append(part)
    for attempt_id, item_id in connection.execute(_LINEAGE):
        snapshot.lineage[attempt_id].append(item_id)
    connection.execute("ROLLBACK")
    return snapshot


def _check_part_files(snapshot: _Snapshot) -> Iterator[Fault]:
    """Read every file of every published generation."""
    for attempt_id, parts in snapshot.parts.items():
        for part in parts:
            try:
                ids = _ids_in_part(part)
            except _UnreadableError as error:
                yield Fault(Kind.UNREADABLE, f"{part.uri}: {error}")
                continue
            if not part.quarantine:
                snapshot.published[attempt_id] += ids
                if ids.total() != part.records:
                    counts = f"{ids.total()} records, expected: {part.records}"
                    yield Fault(Kind.UNREADABLE, f"{part.uri}: {counts}")


def _check_landed_files(snapshot: _Snapshot, marker: str) -> Iterator[Fault]:
    for stream, items in snapshot.items.items():
        for uid, location in items.items():
            try:
                data = _read_file(location)
                snapshot.landed[stream, uid] = _ids_in(data, location, ignored_marker=marker)
            except _UnreadableError as error:
                yield Fault(Kind.LOST, f"item {uid} of {stream}: {location}: {error}")


def _check_items(snapshot: _Snapshot) -> Iterator[Fault]:
    """Find items that are in no live batch of their stream, or in two of a stream or a backfill."""
    counts: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for batch in snapshot.batches:
        counts[batch.stream, batch.backfill].update(snapshot.lineage.get(batch.attempt_id, ()))
    for stream, items in snapshot.items.items():
        for uid in sorted(items.keys() - counts[stream, ""].keys()):
            yield Fault(Kind.LOST, f"item {uid} of {stream} is in no published live batch")
    for (stream, backfill), uids in counts.items():
        for uid in sorted(uid for uid, count in uids.items() if count > 1):
            where = f"{uids[uid]} live batches of {backfill or stream}"
            yield Fault(Kind.TWICE, f"item {uid} of {stream} is in {where}")


def _check_batches(snapshot: _Snapshot) -> Iterator[Fault]:
    """Find batches whose part files do not have exactly the records of their items."""
    for batch in snapshot.batches:
        if batch.attempt_id is None:
            yield Fault(Kind.LOST, f"{batch.name} is not published")
            continue
        expected: Counter[int] = Counter()
        for uid in snapshot.lineage.get(batch.attempt_id, ()):
            expected += snapshot.landed.get((batch.stream, uid), Counter())
        published = snapshot.published.get(batch.attempt_id, Counter())
        where = f"part files of {batch.name}"
        yield from _compare(expected, published, where, Kind.LOST, Kind.TWICE)


def _compare(
    expected: Counter[int], actual: Counter[int], where: str, lost: Kind, twice: Kind
) -> Iterator[Fault]:
    for kind, ids in ((lost, expected - actual), (twice, actual - expected)):
        if ids:
            shown = ", ".join(map(str, sorted(ids)[:_MAX_SHOWN_IDS]))
            problem = "lack" if kind is lost else "have duplicates of"
            yield Fault(kind, f"{where} {problem} {ids.total()} records: {shown}", ids.total())


def _check_manifest_files(snapshot: _Snapshot) -> Iterator[Fault]:
    """Find published attempts whose manifest file is missing or differs from the inventory."""
    for attempt in snapshot.attempts:
        if attempt.status != "succeeded":
            continue
        if attempt.pointer_uri is None:
            yield Fault(Kind.MANIFEST_FILE, f"{attempt.name} has no manifest file")
            continue
        try:
            manifest = json.loads(_read_file(attempt.pointer_uri))
        except (_UnreadableError, ValueError) as error:
            yield Fault(Kind.MANIFEST_FILE, f"the manifest file of {attempt.name}: {error}")
            continue
        keys = ("uri", "records", "size_bytes", "sha256")
        files = [*manifest["part_files"], *manifest["quarantine_files"]]
        named = [tuple(part[key] for key in keys) for part in files]
        parts = snapshot.parts.get(attempt.id, ())
        rows = [tuple(getattr(part, key) for key in keys) for part in parts]
        actual = manifest["token"], manifest["generation"], named
        if actual != (attempt.token, attempt.generation, rows):
            yield Fault(Kind.MANIFEST_FILE, f"{attempt.pointer_uri} differs from {attempt.name}")


def _check_open(snapshot: _Snapshot) -> Iterator[Fault]:
    for attempt in snapshot.attempts:
        if attempt.status == "running":
            yield Fault(Kind.OPEN, f"{attempt.name} is running")
    for load in snapshot.open_loads:
        yield Fault(Kind.OPEN, f"load {' '.join(map(str, load))} is running")


def _check_storages(snapshot: _Snapshot, storages: Sequence[Path]) -> tuple[list[Fault], int, int]:
    """Return faults for unexplained files, the number of garbage files, and of all files."""
    uris = [part.uri for parts in snapshot.parts.values() for part in parts]
    uris += [attempt.pointer_uri for attempt in snapshot.attempts if attempt.pointer_uri]
    named = {_path_of(uri) for uri in uris}
    ended = {attempt.token[:8] for attempt in snapshot.attempts if attempt.status != "running"}
    faults, garbage = [], 0
    files = [path for root in storages for path in root.rglob("*") if path.is_file()]
    for path in (path for path in files if path not in named):
        of_attempt = _ATTEMPT_FILE.fullmatch(path.name)
        if (of_attempt and of_attempt[1] in ended) or _TEMPORARY.fullmatch(path.name):
            garbage += 1
            continue
        kind = Kind.MANIFEST_FILE if path.parent.name == "manifests" else Kind.ORPHAN
        faults.append(Fault(kind, f"unreferenced file {path}"))
    return faults, garbage, len(files)


def _check_target(
    connection: "psycopg.Connection[Any]", snapshot: _Snapshot, target: TargetTable
) -> Iterator[Fault]:
    expected: Counter[int] = Counter()
    for (stream, _), ids in snapshot.landed.items():
        if stream == target.stream:
            expected += ids
    if target.by_key:
        expected = Counter(expected.keys())
    name = ".".join(target.table)
    actual: Counter[int] = Counter()
    if connection.execute("SELECT to_regclass(%s)", [name]).fetchone() != (None,):
        query = sql.SQL("SELECT id, count(*) FROM {} GROUP BY id")
        actual.update(dict(connection.execute(query.format(sql.Identifier(*target.table)))))
    yield from _compare(expected, actual, f"rows of {name}", Kind.TARGET_LOST, Kind.TARGET_TWICE)


def _path_of(location: str) -> Path:
    return Path(unquote(urlsplit(location).path) if location.startswith("file:") else location)


def _read_file(location: str) -> bytes:
    try:
        return _path_of(location).read_bytes()
    except OSError as error:
        raise _UnreadableError(error.strerror) from error


def _ids_in_part(part: Any) -> Counter[int]:
    """Count the ids in a part file. A quarantine file has none.

    Raises:
        _UnreadableError: the file is missing or differs from its row.
    """
    data = _read_file(part.uri)
    if len(data) != part.size_bytes:
        raise _UnreadableError(f"{len(data)} bytes, expected: {part.size_bytes}")
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise _UnreadableError("SHA-256 differs")
    return Counter() if part.quarantine else _ids_in(data, part.uri)


def _ids_in(data: bytes, name: str, *, ignored_marker: str = "") -> Counter[int]:
    """Count the values of `id` in csv or in JSON lines, gzipped or not, or in parquet.

    Raises:
        _UnreadableError: the file is truncated or has another format.
    """
    try:
        if data[:2] == b"\x1f\x8b" or name.endswith(".gz"):
            data = gzip.decompress(data)
        if data[:4] == b"PAR1":
            return Counter(pq.read_table(io.BytesIO(data), columns=["id"])["id"].to_pylist())
        lines = data.decode().splitlines(keepends=True)
        good = [line for line in lines if not ignored_marker or ignored_marker not in line]
        if ".csv" in Path(name).name:
            return Counter(int(row["id"]) for row in csv.DictReader(good))
        return Counter(json.loads(line)["id"] for line in good)
    except (OSError, EOFError, zlib.error, ValueError, KeyError) as error:
        raise _UnreadableError(f"cannot be read: {error}") from error
