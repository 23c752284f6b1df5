"""The result of `run` for a stream, and the check for remaining work.

The check needs neither Dagster nor Spark, whose imports take longer than the rest of a `run`
without new files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from batch_pipeline.inventory.meta_tables.own_table import OwnMetaTable
from batch_pipeline.model.batch import BatchState, BatchStatus
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.job import JobKind
from batch_pipeline.pipeline.reconcile import ensure_inventory_current

if TYPE_CHECKING:
    from batch_pipeline.inventory.database import Database
    from batch_pipeline.inventory.meta_tables.sources import UserMetaTable
    from batch_pipeline.model.stream import Stream
    from batch_pipeline.storage.landing import SourceLanding

_CHUNK_FILES = 5_000
_SETTLED = {BatchState.PUBLISHED, BatchState.CANCELLED}


@dataclass(slots=True, kw_only=True)
class RunResult:
    """Result of processing one stream.

    `tried` are the ids of batches that were attempted, `statuses` their statuses afterwards.
    `error` ended processing early, or prevented the processing of some files. `files_found` is None
    if the files were not listed.
    """

    stream: str
    files_found: int | None = None
    items_registered: int = 0
    files_changed: int = 0
    batches_planned: int = 0
    tried: set[int] = field(default_factory=set)
    statuses: list[BatchStatus] = field(default_factory=list)
    error: PipelineError | None = None

    @property
    def published(self) -> list[BatchStatus]:
        """Attempted batches that are published now."""
        return [status for status in self.statuses if status.state is BatchState.PUBLISHED]

    @property
    def failed(self) -> list[BatchStatus]:
        """Attempted batches that are not published."""
        others = {BatchState.PUBLISHED, BatchState.PLANNED}
        return [status for status in self.statuses if status.state not in others]


class Work(Enum):
    """Remaining work of `run` for a stream."""

    NONE = "nothing"
    REPORTS = "nothing to encode, but Dagster may lack events, or the stream is paused"
    BATCHES = "new files, or batches that are not published"


def find_work(
    database: "Database",
    stream: "Stream",
    table: "OwnMetaTable | UserMetaTable",
    landing: "SourceLanding | None",
    reported: Mapping[int, int],
) -> tuple[Work, RunResult]:
    """Return the remaining work for a stream, and the result of a `run` if there is none.

    `landing` is None for a user's meta table; `reported` are the publish counts of the stream's
    jobs up to which Dagster has all events. Changes nothing.

    Raises:
        PipelineError: the landing, the storage or the user's table cannot be read.
    """
    result = RunResult(stream=stream.name)
    if database.jobs.paused(stream.name) is not None or database.backfills.paused(stream.name):
        return Work.REPORTS, result
    if not _SETTLED.issuperset(database.stream_statuses.states(stream.name, tuple(JobKind))):
        return Work.BATCHES, result
    ensure_inventory_current(database, stream)
    files_found, has_troubles = 0, False
    if landing is not None and isinstance(table, OwnMetaTable):
        found = landing.found_files()
        while files := list(islice(found, _CHUNK_FILES)):
            if not table.has(files):
                return Work.BATCHES, result
            files_found += len(files)
        has_troubles = bool(landing.troubles)
    if database.stream_statuses.status(stream.name, table).items_not_planned:
        return Work.BATCHES, result
    if has_troubles or not reported or database.change_feed.publish_counts(stream.name) != reported:
        return Work.REPORTS, result
    result.files_found = files_found
    return Work.NONE, result
