"""Closed ranges of item ids."""

from dataclasses import dataclass

from batch_pipeline.domain.errors import InvalidValueError

MAX_ID = 2**63 - 1
MIN_ID = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class IdRange:
    """The ids `first_id..last_id`, both included.

    Raises:
        InvalidValueError: the range is empty or leaves the 64-bit integers.
    """

    first_id: int
    last_id: int

    def __post_init__(self) -> None:
        if self.last_id < self.first_id:
            raise InvalidValueError("last_id", self.last_id, f"at least first_id {self.first_id}")
        if self.first_id < MIN_ID or self.last_id > MAX_ID:
            raise InvalidValueError("id range", str(self), "64-bit integers")

    def __str__(self) -> str:
        return f"{self.first_id}..{self.last_id}"

    def __contains__(self, item_id: int) -> bool:
        return self.first_id <= item_id <= self.last_id

    def overlaps(self, other: "IdRange") -> bool:
        """Tell whether at least one id lies in both ranges."""
        return self.first_id <= other.last_id and other.first_id <= self.last_id
