"""What the tap asks of the inventory; whoever puts the command together gives it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import Stream
from batch_pipeline.singer.bookmarks import Bookmark


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A stream with the newest schema of its records; without columns before the first batch."""

    stream: Stream
    schema: RecordSchema


class PublishedSource(Protocol):
    """Streams and their published manifests."""

    def offered(self) -> Sequence[Offered]:
        """Give all streams that there are."""
        ...

    def published(
        self, stream: str, bookmark: Bookmark, *, backfills: bool
    ) -> Iterator[tuple[int, Manifest]]:
        """Read publish numbers and manifests of a stream's jobs, job by job in publish order.

        Starts after the number of each job; what was replaced or given up is left out.
        """
        ...
