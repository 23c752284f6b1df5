"""What people write to ask for a backfill of a stream, read into the request. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from batch_pipeline.config.units import parse_bytes, parse_time
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillForm:
    """The words of one request; None and empty ones are those that nobody wrote."""

    first_id: int | None = None
    last_id: int | None = None
    since: str | None = None
    until: str | None = None
    items: Sequence[int] = ()
    failed_only: bool = False
    max_weight: str | None = None
    max_count: int | None = None


def backfill_request(stream: Stream, name: str, asked: BackfillForm) -> Backfill:
    """Read a request; limits that are not stated are those of the stream.

    Raises:
        InvalidValueError: a word is no id, time or limit, or they do not go together.
    """
    selection = Selection(
        ids=IdRange(
            first_id=MIN_ID if asked.first_id is None else asked.first_id,
            last_id=MAX_ID if asked.last_id is None else asked.last_id,
        ),
        since=_time(asked.since, "since"),
        until=_time(asked.until, "until"),
        item_ids=tuple(asked.items) or None,
        failed_only=asked.failed_only,
    )
    weight, count, usual = asked.max_weight, asked.max_count, stream.limits
    limits = Limits(
        max_weight=usual.max_weight if weight is None else parse_bytes(weight, name="max_weight"),
        max_count=usual.max_count if count is None else count,
    )
    return Backfill.of_stream(stream.name, name, selection, limits)


def _time(text: str | None, name: str) -> datetime | None:
    return None if text is None else parse_time(text, name=name)
