"""What a caller of the library asks for, checked under the caller's own names.

Nothing is opened or read here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.filter import parse_filter
from batch_pipeline.domain.id_range import MAX_ID, MIN_ID, IdRange
from batch_pipeline.domain.job import JobTerms, check_storable
from batch_pipeline.domain.planning import Limits
from batch_pipeline.inventory.meta.ceilings.ceiling import Strategy
from batch_pipeline.inventory.meta.ceilings.settle import SettleBy
from batch_pipeline.inventory.meta.column_roles import MetaColumns
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.meta.meta_sources import SourceTerms
from batch_pipeline.inventory.meta.published import PUBLISHED_COLUMNS, is_published
from batch_pipeline.inventory.work.acquire import Wish

LEASE = timedelta(minutes=5)
_ROLES = ("uid", "item", "weight")
_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arguments of `acquire_batch`, as given.

    Raises:
        InvalidValueError: from `source_terms`, `limits` and `window`; names the argument.
    """

    job: str
    meta_table_name: str
    meta_table_cols: Mapping[str, str | None] | None = None
    job_identifier: str | None = None
    batch_id_min: int | None = None
    batch_id_max: int | None = None
    batch_weight: float | None = None
    batch_count: int | None = None
    where: object = None
    max_attempts: int = 3
    bisect: bool = False
    ceiling: str | None = None
    settle_by: str | tuple[str, timedelta] | None = None
    on_bad_weight: int | None = None
    lease: timedelta = LEASE

    def source_terms(self) -> SourceTerms:
        """Say which table is read, and how."""
        if not isinstance(self.meta_table_name, str):
            raise InvalidValueError("meta_table_name", self.meta_table_name, "the name of a table")
        chained = is_published(self.meta_table_name)
        columns = _columns(self.meta_table_cols, PUBLISHED_COLUMNS if chained else MetaColumns())
        if self.batch_weight is not None and columns.weight is None:
            expected = "None where meta_table_cols names no weight"
            raise InvalidValueError("batch_weight", self.batch_weight, expected)
        return SourceTerms(
            name=self.meta_table_name,
            columns=columns,
            where=None if self.where is None else parse_filter(self.where),
            on_bad_weight=_whole("on_bad_weight", self.on_bad_weight, least=0),
            ceiling=None if self.ceiling is None else _one_of(Strategy, "ceiling", self.ceiling),
            settle_by=_settle_by(self.settle_by),
            reader=self.checked_job() if chained else None,
        )

    def wish(self, source: MetaSource) -> Wish:
        """Say what is to be acquired of an open table."""
        return Wish(
            terms=self.terms(source),
            limits=self.limits(),
            config=self.config(source),
            window=self.window(),
            run_id=self.identifier(),
            lease=self.checked_lease(),
        )

    def terms(self, source: MetaSource) -> JobTerms:
        """Say which job is meant, and how it goes about its work."""
        return JobTerms(
            name=self.checked_job(),
            meta_table=source.table.canonical_name,
            where=source.table.where,
            identity=source.table.identity,
            max_attempts=self.checked_attempts(),
            bisect=self.bisect,
        )

    def checked_attempts(self) -> int:
        """Give how often a batch is tried."""
        return _whole("max_attempts", self.max_attempts, least=1) or 1

    def checked_job(self) -> str:
        """Give the name of the job."""
        if not isinstance(self.job, str):
            raise InvalidValueError("job", self.job, "text")
        return self.job

    def limits(self) -> Limits:
        """Give the limits; without one, everything up to the ceiling is one batch."""
        weight = self.batch_weight
        if isinstance(weight, float) and math.isfinite(weight):
            weight = math.floor(weight)  # weights are whole, so nothing fits in between
        max_weight = _whole("batch_weight", weight, least=1)
        max_count = _whole("batch_count", self.batch_count, least=1)
        return Limits(max_weight=max_weight or MAX_ID, max_count=max_count or MAX_ID)

    def window(self) -> IdRange:
        """Give the ids to look at."""
        first_id = _whole("batch_id_min", self.batch_id_min, least=MIN_ID)
        last_id = _whole("batch_id_max", self.batch_id_max, least=MIN_ID)
        first_id = MIN_ID if first_id is None else first_id
        last_id = MAX_ID if last_id is None else last_id
        if last_id < first_id:
            expected = f"at least batch_id_min, which is {first_id}"
            raise InvalidValueError("batch_id_max", last_id, expected)
        return IdRange(first_id=first_id, last_id=last_id)

    def identifier(self) -> str:
        """Give what the attempt is known by; empty where nothing was said."""
        given = "" if self.job_identifier is None else str(self.job_identifier)
        return check_storable("job_identifier", given)

    def checked_lease(self) -> timedelta:
        """Give the time after which a batch is handed out again when its process is silent."""
        if not isinstance(self.lease, timedelta) or self.lease < timedelta(seconds=1):
            raise InvalidValueError("lease", self.lease, "a timedelta of at least 1 s")
        return self.lease

    def config(self, source: MetaSource) -> dict[str, Any]:
        """Give what is kept with the batch: what was asked, and how the ceiling was found."""
        table = source.table
        roles = table.columns
        return {
            "meta_table": {
                "name": table.canonical_name,
                "cols": {"uid": roles.uid, "item": roles.item, "weight": roles.weight},
            },
            "job": self.job,
            "job_identifier": self.identifier() or None,
            "batch_id_min": self.batch_id_min,
            "batch_id_max": self.batch_id_max,
            "batch_weight": self.batch_weight,
            "batch_count": self.batch_count,
            "where": None if table.where is None else table.where.to_json(),
            "on_bad_weight": self.on_bad_weight,
            "ceiling": source.choice.strategy.value,
        }


def _columns(given: Mapping[str, str | None] | None, usual: MetaColumns) -> MetaColumns:
    if given is None:
        return usual
    if not isinstance(given, Mapping):
        raise InvalidValueError("meta_table_cols", given, "a dict of uid, item and weight")
    names: dict[str, Any] = {}
    for role, name in given.items():
        if role not in _ROLES:
            raise InvalidValueError("key of meta_table_cols", role, f"one of {', '.join(_ROLES)}")
        if not isinstance(name, str) and not (name is None and role == "weight"):
            raise InvalidValueError(f"meta_table_cols[{role!r}]", name, "the name of a column")
        names[role] = name
    return replace(usual, **names)


def _whole(name: str, value: object, *, least: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_ID:
        raise InvalidValueError(name, value, f"a whole number from {least} to 2^63 - 1")
    return value


def _one_of(choices: type[_Choice], name: str, value: str) -> _Choice:
    try:
        return choices(value)
    except ValueError as error:
        known = ", ".join(one.value for one in choices)
        raise InvalidValueError(name, value, f"one of {known}") from error


def _settle_by(given: str | tuple[str, timedelta] | None) -> SettleBy | None:
    if given is None:
        return None
    if isinstance(given, str):
        return SettleBy(given)
    match given:
        case (str(column), timedelta() as delay):
            return SettleBy(column, delay)
    raise InvalidValueError("settle_by", given, "a column, or a pair of column and timedelta")
