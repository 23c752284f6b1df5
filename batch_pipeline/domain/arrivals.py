"""How what arrives in a bucket is noticed: by listing its keys, or by the events that it sends."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from batch_pipeline.domain.errors import InvalidValueError

RELIST = timedelta(hours=1)


class KeyOrder(StrEnum):
    """Whether later objects have higher keys."""

    ANY = "any"
    ASCENDING = "ascending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How a look at a landing finds new files.

    With `ascending` keys it asks for those behind the highest one that is known, with a `queue`,
    the URL of one of SQS, for the events in it; everything is listed once in `relist` (None: the
    default). Without either every look lists everything.

    Raises:
        InvalidValueError: values do not go together.
    """

    order: KeyOrder = KeyOrder.ANY
    queue: str | None = None
    relist: timedelta | None = None

    def __post_init__(self) -> None:
        key = "source.listing.relist"
        if self.relist is not None and self._lists_always:
            expected = "none without `order: ascending` or `source.events`: every look lists all"
            raise InvalidValueError(key, str(self.relist), expected)
        if self.relist is not None and self.relist <= timedelta(0):
            raise InvalidValueError(key, str(self.relist), "more than 0 s")
        if self.queue is not None and self.order is KeyOrder.ASCENDING:
            expected = "none beside `source.events`, which tell of new files by themselves"
            raise InvalidValueError("source.listing.order", self.order, expected)

    @property
    def relist_every(self) -> timedelta | None:
        """How often everything is listed; None where every look does."""
        return None if self._lists_always else self.relist or RELIST

    @property
    def _lists_always(self) -> bool:
        return self.order is KeyOrder.ANY and self.queue is None
