"""Requests of backfills, from the command line or from Dagster."""

from collections.abc import Sequence
from dataclasses import dataclass

from batch_pipeline.config.units import parse_bytes, parse_time
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillForm:
    """Selection and limits of a backfill as text; None and no items count as not given."""

    first_id: int | None = None
    last_id: int | None = None
    since: str | None = None
    until: str | None = None
    items: Sequence[int] = ()
    failed_only: bool = False
    max_weight: str | None = None
    max_count: int | None = None

    def request(self, stream: Stream, name: str) -> Backfill:
        """Return the backfill of a stream; limits default to those of the stream.

        Raises:
            InvalidValueError: a value is not an id, time or limit, or they contradict each other.
        """
        selection = Selection(
            ids=IdRange(
                first_id=MIN_ID if self.first_id is None else self.first_id,
                last_id=MAX_ID if self.last_id is None else self.last_id,
            ),
            since=None if self.since is None else parse_time(self.since, name="since"),
            until=None if self.until is None else parse_time(self.until, name="until"),
            item_ids=tuple(self.items) or None,
            failed_only=self.failed_only,
        )
        weight, count = stream.limits.max_weight, stream.limits.max_count
        if self.max_weight is not None:
            weight = parse_bytes(self.max_weight, name="max_weight")
        limits = Limits(
            max_weight=weight, max_count=count if self.max_count is None else self.max_count
        )
        return Backfill.of_stream(stream.name, name, selection, limits)
