"""A stream that works without Spark, whose database can be put back to what a backup has.

A backup is a copy of the database, as a server makes one from a template.
"""

import gzip
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import yaml
from psycopg import sql

from batch_pipeline.app import Pipeline
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.encode import EncodeRequest, EncodeResult
from batch_pipeline.model.item import Item
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import ItemReport, Manifest, PartFile
from batch_pipeline.model.schema import Column, ColumnType, Misfit
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.attempt import EncodeContext, encode
from batch_pipeline.pipeline.restore_check import ensure_inventory_current
from batch_pipeline.singer.bookmarks import Bookmark
from batch_pipeline_tests.seeds import query
from batch_pipeline_tests.storage_roots import Root, content

_ID = Column(name="order_id", type=ColumnType.INTEGER)
_LONG_AGO = 1_700_000_000
_DUE = {"planned", "interrupted", "failed"}
_TABLES = {
    "items": "SELECT id, location, size_bytes, modified_at, etag FROM batch_pipeline.item "
    "WHERE stream = 'orders'",
    "jobs": "SELECT j.name, j.kind, p.name AS parent, j.publish_count, j.config, j.max_attempts "
    "FROM batch_pipeline.job j LEFT JOIN batch_pipeline.job p ON p.id = j.parent_id "
    "WHERE j.stream = 'orders'",
    "bookmarks": "SELECT j.name, k.first_id, k.last_id FROM batch_pipeline.bookmark k "
    "JOIN batch_pipeline.job j ON j.id = k.job_id WHERE j.stream = 'orders'",
    "batches": "SELECT j.name, b.first_id, b.last_id, b.weight, b.item_count, b.oversized, "
    "b.config, b.item_ids, s.state, s.generation, s.attempts FROM batch_pipeline.batch b "
    "JOIN batch_pipeline.batch_state s ON s.batch_id = b.id "
    "JOIN batch_pipeline.job j ON j.id = b.job_id WHERE j.stream = 'orders'",
    "schemas": "SELECT version, columns FROM batch_pipeline.schema_version",
    "attempts": "SELECT number, token, status, run_id, started_at, finished_at, generation, "
    "publish_number, schema_version, encoding, key_properties, facts, seen, pointer_uri, error "
    "FROM batch_pipeline.attempt WHERE status = 'succeeded'",
    "part_files": "SELECT a.token, f.quarantine, f.position, f.uri, f.records, f.size_bytes, "
    "f.sha256 FROM batch_pipeline.part_file f JOIN batch_pipeline.attempt a ON a.id = f.attempt_id",
    "item_counters": "SELECT a.token, i.item_id, i.read, i.written, i.filtered, i.quarantined, "
    "i.bad_file, i.read_etag, i.read_version FROM batch_pipeline.attempt_item i "
    "JOIN batch_pipeline.attempt a ON a.id = i.attempt_id",
}


@dataclass(frozen=True, slots=True)
class LineEncoder:
    """Writes the lines of files into one part file, named as part files are."""

    root: Root
    prefix: str

    def prepare(self) -> None:
        """Do nothing."""

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Write what the items hold, once the schema has its column."""
        lines = {item.id: _lines_of(item) for item in request.items}
        octets = gzip.compress(
            b"".join(b'{"order_id": %d}\n' % one for some in lines.values() for one in some),
            mtime=0,
        )
        name = f"{self.prefix}{request.stem}-00000000-{uuid4().hex[:8]}.jsonl.gz"
        place = request.items[0].file.location
        misfit = Misfit(column=_ID, item_id=request.items[0].id, location=place, line=2)
        is_known = bool(request.schema.columns)
        part = PartFile(
            uri=self.root.put(name, octets) if is_known else "file:///none",
            records=sum(map(len, lines.values())),
            size_bytes=len(octets),
            sha256=hashlib.sha256(octets).hexdigest(),
        )
        return EncodeResult(
            part_files=(part,),
            quarantine_files=(),
            items=tuple(_report(item, len(lines[item.id])) for item in request.items),
            misfits=() if is_known else (misfit,),
            bad_records=(),
            text_source=True,
        )


def _lines_of(item: Item) -> list[int]:
    octets = Path(to_path(item.file.location)).read_bytes()
    part = item.file.range
    wanted = octets if part is None else octets[part.start : part.stop]
    return [int(line) for line in wanted.split() if line.isdigit()]


def _report(item: Item, count: int) -> ItemReport:
    return ItemReport(
        item_id=item.id, location=item.file.location, read=count, written=count, quarantined=0
    )


@dataclass(kw_only=True)
class Site:
    """The stream `orders`: files of a folder, two in a batch, and a storage root."""

    folder: Path
    server_url: str
    database_url: str
    root: str
    targets: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    _pipeline: Pipeline | None = None
    _backups: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.landing.mkdir(parents=True)
        self.environment = {
            **self.environment,
            "BATCH_PIPELINE_HOME": str(self.folder / "home"),
            "BATCH_PIPELINE_STREAMS": str(self.folder / "streams"),
            "BATCH_PIPELINE_INVENTORY_CONN": self.database_url,
        }
        self.describe("orders")

    def describe(self, name: str) -> None:
        """Write the file of a stream."""
        attributes = {
            "stream": name,
            "source": {"uri": str(self.folder / "landing" / name), "format": "csv"},
            "batch": {"max_count": 2},
            "key_properties": ["order_id"],
            "storage": {"root": self.root if "://" in self.root else str(self.root)},
            "targets": self.targets,
        }
        (self.folder / "landing" / name).mkdir(parents=True, exist_ok=True)
        path = self.folder / "streams" / name / "defs.yaml"
        path.parent.mkdir(parents=True)
        document = {"type": "batch_pipeline.BatchStream", "attributes": attributes}
        path.write_text(yaml.safe_dump(document))

    @property
    def landing(self) -> Path:
        """The folder where files of `orders` land."""
        return self.folder / "landing" / "orders"

    @property
    def pipeline(self) -> Pipeline:
        """The open pipeline, as of a process that has just begun."""
        if self._pipeline is None:
            self._pipeline = Pipeline.from_environment(self.environment)
        return self._pipeline

    @property
    def database(self) -> Database:
        """The open inventory."""
        return self.pipeline.database

    @property
    def stream(self) -> Stream:
        """The stream `orders`."""
        return self.pipeline.stream("orders")

    @property
    def storage(self) -> Root:
        """The storage root."""
        return Root(self.stream.storage.root)

    def land(self, first: int, last: int) -> None:
        """Let files land that hold a line each, their number."""
        for number in range(first, last + 1):
            self.land_file(f"{number:04d}.csv", [number])

    def land_file(self, name: str, lines: list[int]) -> None:
        """Let a file land, long ago."""
        path = self.landing / name
        path.write_text("order_id\n" + "".join(f"{line}\n" for line in lines))
        os.utime(path, (_LONG_AGO, _LONG_AGO))

    def work(self, *, most: int | None = None) -> list[Manifest]:
        """Do what a sensor and its runs do: look, register, plan, encode and publish."""
        ensure_inventory_current(self.pipeline.database, self.stream)
        self.plan()
        statuses = self.database.batches.statuses("orders")
        due = [status.batch for status in statuses if status.state in _DUE]
        return [self.encode(one) for one in due[:most]]

    def plan(self) -> None:
        """Register and plan, without asking whether that is right."""
        table = self.database.meta_table("orders")
        table.register(self.pipeline.landing(self.stream, wait=False).found_files())
        self.database.batches.plan(table, self.stream.limits, drain=True)

    def encode(self, one: Any) -> Manifest:
        """Make an attempt on a batch."""
        return encode(self.workshop(), one, run_id="run-1").manifest

    def workshop(self) -> EncodeContext:
        """Return what encoding needs, without Spark."""
        made = self.pipeline.encode_context(self.stream, _no_session)
        return replace(made, encoder=LineEncoder(self.storage, self.stream.storage.prefix))

    def back_up(self) -> str:
        """Copy the database and give the name of the copy."""
        name = f"backup_{uuid4().hex}"
        self._backups.append(name)
        self._copy(self._name, name)
        return name

    def restore(self, backup: str) -> None:
        """Put the database back, with every process ended."""
        self._copy(backup, self._name)

    def close(self) -> None:
        """End the process; the next use is another one."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

    def drop_backups(self) -> None:
        """Delete the copies."""
        self.close()
        for name in self._backups:
            self._on_server(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))

    def said(self) -> dict[str, list[tuple[Any, ...]]]:
        """Read what the inventory says of the stream, all but the numbers of rows."""
        found = {}
        for name, statement in _TABLES.items():
            rows = query(self.database, statement)
            found[name] = sorted(rows, key=lambda row: json.dumps(row, default=str))
        return found

    @property
    def _name(self) -> str:
        return psycopg.conninfo.conninfo_to_dict(self.database_url)["dbname"]  # type: ignore[return-value] # a name it has

    def _copy(self, source: str, target: str) -> None:
        self.close()
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(target))
        self._on_server(drop)
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        self._on_server(create.format(sql.Identifier(target), sql.Identifier(source)))

    def _on_server(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.server_url, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def open_site(
    folder: Path, server_url: str, database_url: str, root: str, **facts: Any
) -> Iterator[Site]:
    """Return a site; its copies of the database end with it."""
    site = Site(folder=folder, server_url=server_url, database_url=database_url, root=root, **facts)
    yield site
    site.drop_backups()


@dataclass
class Consumer:
    """Reads what is published, and goes on behind its bookmark as a target's state lets it."""

    bookmark: Bookmark = field(default_factory=Bookmark)
    received: list[int] = field(default_factory=list)

    def read(self, site: Site) -> None:
        """Read what is new."""
        published = site.database.manifests.published_after(
            "orders", self.bookmark.numbers, last=self.bookmark.last
        )
        for number, manifest in published:
            self.received += lines(manifest)
            self.bookmark = self.bookmark.after(manifest, number)


def tally(received: list[int], last: int) -> dict[str, int]:
    """Count the lines from 1 to a last one that are lost, and those that came once too often."""
    return {
        "lost": len({*range(1, last + 1)} - {*received}),
        "twice": len(received) - len({*received}),
    }


def lines(manifest: Manifest) -> list[int]:
    """Read the lines of a manifest's part files."""
    texts = (gzip.decompress(content(part.uri)) for part in manifest.part_files)
    return [json.loads(line)["order_id"] for text in texts for line in text.splitlines()]


def _no_session() -> Any:
    raise AssertionError("nothing of it needs Spark")
