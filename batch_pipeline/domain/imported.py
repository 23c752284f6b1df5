"""Jobs of pybatchintory and what is said of them here. Values only.

A row of its inventory is one try at a range of ids. Nothing keeps its ranges apart, a failed range
is never tried again, and what appears below its highest id is never looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from batch_pipeline.domain.audit import Noted
from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.errors import ConfigurationError
from batch_pipeline.domain.id_range import IdRange

_SHOWN = 20
NO_ITEMS = Noted()


class Running(StrEnum):
    """What becomes of a try that was never released."""

    FAIL = "fail"
    SUCCEED = "succeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignAttempt:
    """One row of the other inventory.

    `recorded` is its status there; `succeeded` is what it counts as here. `limits` are what was
    asked for: `batch_weight` and `batch_count`, None for no limit.
    """

    id: int
    ids: IdRange
    recorded: str
    succeeded: bool
    count: int
    weight: int
    started_at: datetime
    finished_at: datetime
    job_identifier: str | None = None
    result: Any = None
    logging: str | None = None
    limits: Mapping[str, float | None] = field(default_factory=dict)


class KnownRow(NamedTuple):
    """What a row said when it was imported."""

    status: str
    ids: IdRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignJob:
    """A job of the other inventory with its rows in their order.

    `meta_table` is the canonical name, `written` are those that it was called by, `columns` are the
    names by role in its newest row.
    """

    name: str
    meta_table: str
    written: tuple[str, ...]
    columns: Mapping[str, Any]
    attempts: tuple[ForeignAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedJob:
    """What was imported of a job, or would be; without batches nothing is new since the last time.

    `bookmark` is the highest id that is planned. `doubts` say in words what a person should look
    at.
    """

    name: str
    meta_table: str
    batches: int = 0
    items: int = 0
    weight: int = 0
    attempts: int = 0
    bookmark: int | None = None
    states: Mapping[BatchState, int] = field(default_factory=dict)
    late: Noted = NO_ITEMS
    left: Noted = NO_ITEMS
    doubts: tuple[str, ...] = ()


@dataclass(eq=False)
class NotImportedError(ConfigurationError):
    """Jobs of another inventory cannot be imported as they are."""

    location: str
    problems: tuple[str, ...]

    def sentence(self) -> str:
        shown = [f"  {problem}" for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            shown.append(f"  … and {len(self.problems) - _SHOWN} more (--json lists all)")
        told = "\n".join(shown)
        return f"The inventory at {self.location} was not imported. Nothing was changed.\n{told}"


@dataclass(eq=False)
class ForeignInventoryError(ConfigurationError):
    """The other inventory cannot be read."""

    location: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The inventory of pybatchintory at {self.location} cannot be read ({self.reason}). "
            f"Nothing was imported. Correct --from or --inventory-table, or grant SELECT on the "
            f"table (and USAGE on its schema), then run again."
        )
