"""A stream that is encoded without Spark, and whose database can be restored from a backup.

A backup is a copy of the database, which the server creates from a template.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from psycopg import sql

from batch_pipeline.app import Pipeline
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline.pipeline.reconcile import (
    Discarded,
    discard_unknown_manifests,
    ensure_inventory_current,
)
from batch_pipeline.singer.messages import Bookmark
from batch_pipeline_tests.acceptance.sandbox import Sandbox
from batch_pipeline_tests.factories import NOON
from batch_pipeline_tests.inventory.logins import database_name, run
from batch_pipeline_tests.regression.golden import TaskEncoder, no_session
from batch_pipeline_tests.seeds import query
from batch_pipeline_tests.storage_roots import Root, records

_UNPUBLISHED = {"planned", "interrupted", "failed"}
_TABLES = (
    *("item", "job", "bookmark", "batch", "batch_state", "schema_version"),
    *("attempt", "part_file", "attempt_item"),
)


@dataclass(kw_only=True)
class RestorableStream:
    """The stream `orders`: a landing folder, two files per batch, and a storage root."""

    folder: Path
    server_url: str
    database_url: str
    root: str
    targets: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    _pipeline: Pipeline | None = None
    _backups: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.write_stream("orders")
        variables = {**self.environment, "BATCH_PIPELINE_INVENTORY_CONN": self.database_url}
        self.environment = Sandbox(folder=self.folder, variables=variables).environment

    def write_stream(self, name: str) -> None:
        sandbox = Sandbox(folder=self.folder)
        sandbox.landing(name).mkdir(parents=True, exist_ok=True)
        sandbox.write_stream(
            name,
            batch={"max_count": 2},
            key_properties=["order_id"],
            storage={"root": self.root},
            targets=self.targets,
        )

    @property
    def pipeline(self) -> Pipeline:
        """The open pipeline, as in a process that has just started."""
        if self._pipeline is None:
            self._pipeline = Pipeline.from_environment(self.environment)
        return self._pipeline

    @property
    def database(self) -> Database:
        return self.pipeline.database

    @property
    def stream(self) -> Stream:
        return self.pipeline.stream("orders")

    @property
    def storage(self) -> Root:
        return Root(self.stream.storage.root)

    def land(self, first: int, last: int) -> None:
        """Land files whose only record is their number."""
        numbers = range(first, last + 1)
        files = {f"{number:04d}.csv": b"order_id\n%d\n" % number for number in numbers}
        Sandbox(folder=self.folder).land("orders", files)

    def publish(self) -> list[Manifest]:
        """Register, plan, encode and publish, as a sensor and its runs do."""
        ensure_inventory_current(self.pipeline.database, self.stream)
        self.plan()
        statuses = self.database.batches.statuses("orders")
        return [self.encode(status.batch) for status in statuses if status.state in _UNPUBLISHED]

    def plan(self) -> None:
        """Register and plan, without checking that the inventory is current."""
        table = self.database.meta_table("orders")
        table.register(self.pipeline.landing(self.stream, wait=False).found_files())
        self.database.batches.plan(table, self.stream.limits, drain=True)

    def encode(self, batch: Any) -> Manifest:
        context = self.pipeline.encode_context(self.stream, no_session)
        context = replace(context, encoder=TaskEncoder())
        return encode(context, batch, run_id="run-1").manifest

    def back_up(self) -> str:
        """Copy the database and return the name of the copy."""
        name = f"backup_{uuid4().hex}"
        self._backups.append(name)
        self._copy(database_name(self.database_url), name)
        return name

    def restore(self, backup: str) -> None:
        """End the process and restore the database."""
        self._copy(backup, database_name(self.database_url))

    def discard(self, *, dry_run: bool = False) -> Discarded:
        """Discard the manifests that are unknown to the inventory."""
        return discard_unknown_manifests(self.database, self.stream, now=NOON, dry_run=dry_run)

    def close(self) -> None:
        """End the process. The next use starts another one."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

    def drop_backups(self) -> None:
        self.close()
        for name in self._backups:
            run(self.server_url, sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Read all rows of the inventory, without the pauses of jobs."""
        statement = (
            "SELECT to_jsonb(t) - '{{paused_at,paused_reason}}'::text[] FROM {} t ORDER BY 1"
        )
        return {
            name: query(self.database, statement.format(f"batch_pipeline.{name}"))
            for name in _TABLES
        }

    def publish_numbers(self) -> list[int]:
        """Return the publish numbers of the stream, sorted."""
        statement = "SELECT publish_number FROM batch_pipeline.attempt WHERE status = 'succeeded'"
        return sorted(number for (number,) in query(self.database, statement))

    def _copy(self, source: str, target: str) -> None:
        self.close()
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(target))
        run(self.server_url, drop)
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        run(self.server_url, create.format(sql.Identifier(target), sql.Identifier(source)))


@contextmanager
def open_stream(
    folder: Path, server_url: str, database_url: str, root: str, **facts: Any
) -> Iterator[RestorableStream]:
    """Yield a stream, and delete the backups of its database at the end."""
    stream = RestorableStream(
        folder=folder, server_url=server_url, database_url=database_url, root=root, **facts
    )
    yield stream
    stream.drop_backups()


@dataclass
class Consumer:
    """A consumer of published manifests, which continues after its bookmark."""

    bookmark: Bookmark = field(default_factory=Bookmark)
    received: list[int] = field(default_factory=list)

    def read(self, stream: RestorableStream) -> None:
        published = stream.database.manifests.published_after(
            "orders", self.bookmark.numbers, last=self.bookmark.last
        )
        for number, manifest in published:
            self.received += [record["order_id"] for record in records(manifest.part_files)]
            self.bookmark = self.bookmark.after(manifest, number)

    def lost(self, last: int) -> int:
        """Count the records from 1 to `last` that were not received."""
        return len({*range(1, last + 1)} - {*self.received})
