"""Attempts with real files in a storage root that can be aged, for tests of garbage collection."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import Any

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.model.garbage import StoredFile
from batch_pipeline.model.load import Loaded, PostgresTarget
from batch_pipeline.model.location import join_uri, to_uri
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Storage, Stream
from batch_pipeline.pipeline.collect_garbage import Collected, collect_garbage
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.factories import encoded, part_file, stream
from batch_pipeline_tests.seeds import LEASE, claimed, execute, planned

DAY = timedelta(days=1)
# The generations whose files are marked as removed.
MARKS = "SELECT generation FROM batch_pipeline.attempt WHERE facts ? 'files_removed_at' ORDER BY id"


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageHarness:
    """The stream `orders` with planned batches and a folder as its storage root."""

    database: Database
    root: Path
    batches: Sequence[Batch]
    stream: Stream
    others: Sequence[Stream] = field(default=())

    @property
    def storage(self) -> "PartFileStorage | AgedStorage":
        """The storage of the stream."""
        return PartFileStorage(self.stream.storage)

    def keeping(self, keep: timedelta | None) -> "GarbageHarness":
        """Return a copy with another `storage.keep_superseded`."""
        return self.loading_into(keep_superseded=keep)

    def loading_into(self, *targets: str, **storage: Any) -> "GarbageHarness":
        """Return a copy with these targets and other values in `storage`."""
        stream = replace(
            self.stream,
            targets=tuple(PostgresTarget(name=name, conn="$DW") for name in targets),
            storage=replace(self.stream.storage, **storage),
        )
        return replace(self, stream=stream)

    def load_all(self, target: str) -> None:
        """Record all pending loads into a target as succeeded."""
        loads = self.database.loads
        due = list(loads.due(self.stream, target))
        with loads.claim("orders", target, due, run_id="load-1", lease=LEASE) as claim:
            assert claim is not None
            load = claim.load
            for following in (*claim.loadings[1:], None):
                load = loads.succeed(load, Loaded(records=1), following) or load

    def failed(self, batch: Batch | None = None) -> list[str]:
        """Fail an attempt that leaves a file of each kind, and return their paths."""
        with claimed(self.database, batch or self.batches[0]) as attempt:
            files = self.write(attempt)
            self.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
        return files

    def published(self, batch: Batch | None = None) -> Manifest:
        """Publish a batch with a part file and a quarantine file, and write its manifest file."""
        with claimed(self.database, batch or self.batches[0]) as attempt:
            manifest = self.publish(attempt)
        self.database.attempts.record_pointer(manifest, self.storage.point_to(manifest))
        return manifest

    def publish(self, attempt: Attempt) -> Manifest:
        """Publish an attempt with a part file and a quarantine file."""
        name = f"{attempt.stem}-00000000-abcdef01.jsonl.gz"
        names = (name, f"quarantine/{name}")
        for name in names:
            self.put(name)
        parts = [part_file(uri=join_uri(self.stream.storage.root, name)) for name in names]
        result = encoded(part_files=(parts[0],), quarantine_files=(parts[1],))
        return self.database.attempts.publish(attempt, result, self.stream)

    def write(self, attempt: Attempt) -> list[str]:
        """Write all kinds of files of an attempt and return their paths."""
        part = f"{attempt.stem}-00000000-abcdef01.jsonl.gz"
        mark = f".{attempt.stem}-abcdef01.stop"
        names = [part, f".{part}.tmp", mark, f"quarantine/{part}"]
        for name in names:
            self.put(name)
        return names

    def put(self, name: str, content: bytes = b"ten bytes.") -> PurePath:
        """Write a file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def age(self, by: timedelta = 30 * DAY) -> None:
        """Make ended attempts, ended loads and all files older."""
        self.age_rows(by)
        for path in self.root.rglob("*"):
            if path.is_file():
                at = (datetime.fromtimestamp(path.stat().st_mtime, UTC) - by).timestamp()
                os.utime(path, (at, at))

    def age_rows(self, by: timedelta) -> None:
        """Make ended attempts and ended loads older."""
        for table in ("attempt", "load"):
            statement = f"UPDATE batch_pipeline.{table} SET finished_at = finished_at - :by"  # noqa: S608 - a name from the line above
            execute(self.database, statement, by=by)

    def there(self) -> list[str]:
        """List all files below the root."""
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.root)) for path in paths)

    def collect(
        self,
        *,
        dry_run: bool = False,
        with_unknown: bool = False,
        storage: PartFileStorage | None = None,
    ) -> Collected:
        """Collect the garbage of the stream."""
        return collect_garbage(
            self.stream,
            self.others,
            self.database.stored_attempts,
            storage or self.storage,
            with_unknown=with_unknown,
            dry_run=dry_run,
        )


def open_garbage_harness(database: Database, root: Path, *, batches: int = 2) -> GarbageHarness:
    """Plan batches of `orders` and create the storage root."""
    orders = stream(storage=Storage(root=to_uri(root)))
    PartFileStorage(orders.storage).prepare()
    plan = planned(database, batches)
    return GarbageHarness(database=database, root=root, batches=plan, stream=orders)


@dataclass(frozen=True, kw_only=True)
class AgedStorage(PartFileStorage):
    """A storage in a bucket that adds to the ages of files, by path."""

    ages: dict[str, timedelta]

    def files(self) -> Iterator[StoredFile]:
        """List the files."""
        for file in super().files():
            age = self.ages.get(file.path, timedelta(0))
            yield replace(file, modified_at=file.modified_at - age)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketHarness(GarbageHarness):
    """The stream `orders` with planned batches and a storage root in a bucket."""

    ages: dict[str, timedelta] = field(default_factory=dict)

    @property
    def storage(self) -> AgedStorage:
        """The storage of the stream."""
        return AgedStorage(storage=self.stream.storage, ages=self.ages)

    def put(self, name: str, content: bytes = b"ten bytes.") -> PurePath:
        """Write an object below the root."""
        S3.put(join_uri(self.stream.storage.root, name), content)
        return PurePath(name)

    def age(self, by: timedelta = 30 * DAY) -> None:
        """Make ended attempts, ended loads, all files and open uploads older."""
        self.age_rows(by)
        stored = (file.path for file in PartFileStorage(self.stream.storage).files())
        for name in {*self.there(), *stored}:
            self.ages[name] = self.ages.get(name, timedelta(0)) + by

    def there(self) -> list[str]:
        """List all objects below the root."""
        return names_below(self.stream.storage.root)


def names_below(root: str) -> list[str]:
    """List all objects below a root in a bucket."""
    return sorted(file.name for file in S3.list(f"{root}/"))


def open_bucket_harness(database: Database, root: str, *, batches: int = 2) -> BucketHarness:
    """Plan batches of `orders` with a storage root in a bucket."""
    orders = stream(storage=Storage(root=root))
    PartFileStorage(orders.storage).prepare()
    plan = planned(database, batches)
    return BucketHarness(database=database, root=Path(), batches=plan, stream=orders)


def paths(collected: Collected) -> list[str]:
    """Return the paths of garbage in the order of deletion."""
    return [garbage.file.path for garbage in collected.garbage]
