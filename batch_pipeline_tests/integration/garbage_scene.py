"""Attempts with real files in a storage root, made old: the stage on which garbage is collected."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from batch_pipeline.domain.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.domain.load import Loaded
from batch_pipeline.domain.location import to_uri
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.stream import Storage, Stream
from batch_pipeline.domain.target import PostgresTarget
from batch_pipeline.files.storage import FolderStorage
from batch_pipeline.inventory.database import Database
from batch_pipeline.steps.collect_garbage import Collected, StoredFiles, collect_garbage
from batch_pipeline_tests.factories import encoded, part_file, stream
from batch_pipeline_tests.integration.seeds import LEASE, claimed, execute, planned

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageScene:
    """The stream `orders` with planned batches, and the folder that is its storage root."""

    database: Database
    root: Path
    batches: Sequence[Batch]
    stream: Stream
    others: Sequence[Stream] = field(default=())

    @property
    def storage(self) -> FolderStorage:
        """The storage of the stream."""
        return FolderStorage(self.stream.storage)

    def keeping(self, keep: timedelta | None) -> "GarbageScene":
        """The same with another `storage.keep_superseded`."""
        storage = replace(self.stream.storage, keep_superseded=keep)
        return replace(self, stream=replace(self.stream, storage=storage))

    def loading_into(self, *targets: str, **storage: Any) -> "GarbageScene":
        """The same with targets, and with other values in `storage`."""
        described = tuple(PostgresTarget(name=name, conn="$DW") for name in targets)
        kept = replace(self.stream.storage, **storage)
        return replace(self, stream=replace(self.stream, targets=described, storage=kept))

    def loaded(self, target: str) -> None:
        """Let a target have everything that it lacks."""
        loads = self.database.loads
        due = list(loads.due(self.stream, target))
        with loads.claim("orders", target, due, run_id="load-1", lease=LEASE) as claim:
            assert claim is not None
            load = claim.load
            for following in (*claim.loadings[1:], None):
                load = loads.succeed(load, Loaded(records=1), following) or load

    def failed(self, one: Batch | None = None) -> list[str]:
        """Let an attempt fail that leaves a file of each kind; gives their paths."""
        with claimed(self.database, one or self.batches[0]) as attempt:
            left = self.write(attempt)
            self.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
        return left

    def published(self, one: Batch | None = None) -> Manifest:
        """Publish a batch with a part file and a quarantine file, and point to it."""
        with claimed(self.database, one or self.batches[0]) as attempt:
            manifest = self.publish(attempt)
        self.database.attempts.pointed(manifest, self.storage.point_to(manifest))
        return manifest

    def publish(self, attempt: Attempt) -> Manifest:
        """Publish an attempt with a part file and a quarantine file."""
        name = f"{attempt.stem}-00000000-abcdef01.jsonl.gz"
        names = (name, f"quarantine/{name}")
        parts = [part_file(uri=to_uri(self.put(name))) for name in names]
        what = encoded(part_files=(parts[0],), quarantine_files=(parts[1],))
        return self.database.attempts.publish(attempt, what, self.stream)

    def write(self, attempt: Attempt) -> list[str]:
        """Write what an attempt may leave: part files, an unfinished one and a stop mark."""
        part = f"{attempt.stem}-00000000-abcdef01.jsonl.gz"
        mark = f".{attempt.stem}-abcdef01.stop"
        names = [part, f".{part}.tmp", mark, f"quarantine/{part}"]
        for name in names:
            self.put(name)
        return names

    def put(self, name: str, content: bytes = b"ten bytes.") -> Path:
        """Write a file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def age(self, by: timedelta = 30 * DAY) -> None:
        """Make all that is there so much older: ended attempts, ended loads and files."""
        for ended in ("attempt", "load"):
            statement = f"UPDATE batch_pipeline.{ended} SET finished_at = finished_at - :by"  # noqa: S608 - a name from the line above
            execute(self.database, statement, by=by)
        for path in self.root.rglob("*"):
            if path.is_file():
                at = (datetime.fromtimestamp(path.stat().st_mtime, UTC) - by).timestamp()
                os.utime(path, (at, at))

    def there(self) -> list[str]:
        """List all files below the root."""
        paths = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.root)) for path in paths)

    def collect(
        self,
        *,
        dry_run: bool = False,
        with_unknown: bool = False,
        storage: StoredFiles | None = None,
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


def open_garbage_scene(database: Database, root: Path, *, batches: int = 2) -> GarbageScene:
    """Plan batches of `orders` and make the storage root."""
    one = stream(storage=Storage(root=to_uri(root)))
    FolderStorage(one.storage).prepare()
    found = planned(database, batches)
    return GarbageScene(database=database, root=root, batches=found, stream=one)


def paths(collected: Collected) -> list[str]:
    """The paths of garbage, in the order of deletion."""
    return [one.file.path for one in collected.garbage]
