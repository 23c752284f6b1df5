"""What the steps ask of the world: the Protocols that files, inventory and spark fulfil.

Values in, values out; nothing here knows a database, a file system or an engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Protocol

from batch_pipeline.model.batch import Attempt, AttemptStatus, Batch
from batch_pipeline.model.encode import Encoded, EncodeRequest, EncodeResult
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.filter import Filter
from batch_pipeline.model.item import Item, LandedFile, Registered
from batch_pipeline.model.job import TableIdentity
from batch_pipeline.model.load import Loaded, Loading
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.model.planning import Cut, Limits, Planned
from batch_pipeline.model.schema import Column, Misfit, RecordSchema
from batch_pipeline.model.stream import Stream


class Landing(Protocol):
    """The folder or bucket where files arrive."""

    @property
    def troubles(self) -> Sequence[PipelineError]:
        """What kept the last listing from some files; told once the others are registered."""
        ...

    def found_files(self) -> Iterable[LandedFile]:
        """List complete files in location order; a file still being written is left out."""
        ...


class AskedLanding(Landing, Protocol):
    """A landing that can be asked for one file."""

    def compare(self, registered: LandedFile) -> str:
        """Say in words how the file of an item stands now."""
        ...

    def why_not(self, file: str) -> str:
        """Say in words why a file is not, or not yet, one that this landing lists."""
        ...


class LandingWatch(Landing, Protocol):
    """A landing that one process looks at again and again; not for two threads at once.

    It lists what it does not know to be registered, and again what is not settled.
    """

    def forget(self) -> None:
        """Let everything be listed once more; a listing that is under way goes on."""
        ...

    def settled(self, registered: Registered) -> Registered:
        """Take note that what was listed is registered; gives all files that are known as found."""
        ...


class MetaTable(Protocol):
    """The table that lists a stream's items."""

    @property
    def stream(self) -> str:
        """The stream that it feeds."""
        ...

    @property
    def name(self) -> str:
        """Its canonical name."""
        ...

    @property
    def where(self) -> Filter | None:
        """The filter that every read keeps to."""
        ...

    @property
    def identity(self) -> TableIdentity | None:
        """The database and the columns that it is read by; None where unknown."""
        ...

    def high_watermark(self) -> int | None:
        """Give the highest id below which no row can still appear; None when nothing is known."""
        ...

    def cuts(self, after_id: int | None, high_watermark: int, limits: Limits) -> Iterator[Cut]:
        """Cut items above an id (None: all) in one pass, as `model.planning` does."""
        ...

    def oldest_age(self, after_id: int | None) -> timedelta | None:
        """Tell how long the oldest item above an id has been there, where that is known."""
        ...

    def backlog(self, after_id: int | None) -> tuple[int, int]:
        """Count the items above an id and their weight."""
        ...

    def check_not_restarted(self, planned_up_to: int) -> None:
        """Check that ids still go on above what is planned.

        Raises:
            MetaTableRestartedError: they start again.
        """
        ...

    def items(self, batch: Batch) -> Sequence[Item]:
        """Read the items of a batch in id order.

        Raises:
            BatchDataError: a row cannot be an item.
        """
        ...


class Cutter(Protocol):
    """What knows where large files can be cut into several items."""

    def is_large(self, file: LandedFile) -> bool:
        """Tell by its size whether a file should be more than one item."""
        ...

    def ranges(self, file: LandedFile) -> Sequence[LandedFile]:
        """Give the ranges of a file in order, which start and end with records.

        The file itself where it cannot be cut; nothing where it is not there any more, or not as
        it was found.
        """
        ...


class Registry(Protocol):
    """A meta table that the product itself writes."""

    def register(
        self,
        files: Iterable[LandedFile],
        *,
        accept_changed: bool,
        cutter: Cutter | None = None,
        all_or_none: bool = False,
    ) -> Registered:
        """Give ids, in commit order, to files that have none; a location is never added twice.

        All ranges that a cutter makes of a file are added together. With `accept_changed`, rows of
        files that changed take the file's present facts; not where a file is cut elsewhere now.
        With `all_or_none` it is one transaction, which does nothing where a file has changed.
        """
        ...


class Batches(Protocol):
    """The planned batches of all jobs. Each call is one transaction."""

    def plan(self, table: MetaTable, limits: Limits, *, drain: bool) -> Planned:
        """Cut all items up to the high watermark; `drain` also cuts a last, small batch."""
        ...

    def batch(self, stream: str, key: str) -> Batch:
        """Find a planned batch by its partition key.

        Raises:
            UnknownBatchError: there is none.
        """
        ...


class Schemas(Protocol):
    """The schema versions of all streams, counted from 1."""

    def latest(self, stream: str) -> tuple[int, RecordSchema]:
        """Read the newest version; `(0, empty)` before the first."""
        ...

    def widen(
        self,
        stream: str,
        seen: Sequence[Column],
        *,
        text_source: bool,
        because: Sequence[Misfit] = (),
    ) -> tuple[int, RecordSchema]:
        """Widen the newest version by what was seen, unless it fits; keep who showed it."""
        ...

    def declare(self, stream: str, declared: RecordSchema) -> tuple[int, RecordSchema]:
        """Widen the newest version by what is declared; the existing one serves if it fits.

        Raises:
            ConfigurationError: the declaration narrows or contradicts what is there.
        """
        ...


class Attempts(Protocol):
    """The tries at encoding batches. Each call is one transaction."""

    def claim(
        self, batch: Batch, *, run_id: str, lease: timedelta
    ) -> AbstractContextManager[Attempt]:
        """Start attempt n+1 and keep its lease alive until the context ends.

        An attempt whose process is gone is closed on the way.

        Raises:
            ConflictError: a live attempt works on the batch.
        """
        ...

    def holds(self, attempt: Attempt) -> bool:
        """Tell whether the attempt is still this process's, as far as is known; asks nobody."""
        ...

    def publish(self, attempt: Attempt, encoded: "Encoded", stream: Stream) -> Manifest:
        """Make the attempt's files the batch's next generation, exactly once.

        Asking again for the same attempt gives the same manifest.

        Raises:
            FencedError: the attempt no longer holds the batch; nothing was changed.
        """
        ...

    def record_pointer(self, manifest: Manifest, uri: str) -> None:
        """Record where the manifest file of a published manifest is."""
        ...

    def fail(
        self, attempt: Attempt, error: str, status: AttemptStatus, *, counts: bool = True
    ) -> bool:
        """Close a running attempt, as a try that counts or not, and tell that it is unpublished."""
        ...


class Encoder(Protocol):
    """The engine that turns items into part files."""

    def prepare(self) -> None:
        """Make ready what `encode` needs; what is not there is told before an attempt begins."""
        ...

    def encode(self, request: EncodeRequest) -> EncodeResult:
        """Encode the items; bad records and files are reported, never raised.

        Raises:
            ConflictError: the request's watch called it off; its files are removed.
            StorageUnavailableError: part files cannot be written.
            SparkUnavailableError: the engine is gone.
        """
        ...


class PartStorage(Protocol):
    """Where part files and manifest files live."""

    def prepare(self) -> None:
        """Create the storage root and check that it can be written.

        Raises:
            StorageUnavailableError: it cannot.
        """
        ...

    def check_written(self, parts: Iterable[PartFile]) -> None:
        """Check that part files are where their tasks say, as far as that can be in doubt.

        Raises:
            ConfigurationError: one is not there, or not of its size.
            StorageUnavailableError: nobody can tell.
        """
        ...

    def remove_attempt(self, stem: str) -> int:
        """Delete every file of one attempt, finished or not, and give their number."""
        ...

    def pointer_uri(self, manifest: Manifest) -> str:
        """Give where the manifest file of a manifest is, or was."""
        ...

    def point_to(self, manifest: Manifest) -> str:
        """Write the manifest file of a published manifest unless it is there; give its URI."""
        ...


class Loader(Protocol):
    """What brings published batches into one target."""

    def load(self, loading: Loading, storage_root: str) -> Loaded:
        """Bring one published generation into the target, exactly once.

        It counts as loaded only when the target has acknowledged it.

        Raises:
            PipelineError: it was not loaded; says what state is left.
        """
        ...

    def close(self) -> None:
        """Give back connections and processes; no more loads after this."""
        ...
