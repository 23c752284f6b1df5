"""Chained jobs: of which job one reads the results, as its filter says it."""

from collections.abc import Iterator
from dataclasses import dataclass

from batch_pipeline.domain.errors import UpstreamUnclearError
from batch_pipeline.domain.filter import AllOf, Condition, Filter, Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The job whose published batches are items; `meta_table` tells it from others of its name."""

    job: str
    meta_table: str | None = None

    def __str__(self) -> str:
        return self.job if self.meta_table is None else f"{self.job} on {self.meta_table}"


def upstream_of(reader: str, where: Filter | None) -> Upstream:
    """Find the one job that every row of a filter belongs to; other conditions are left alone.

    Raises:
        UpstreamUnclearError: the filter names no job, or several.
    """
    stated = list(_stated(where))
    jobs = {text for column, text in stated if column == "job"}
    tables = {text for column, text in stated if column == "meta_table"}
    if not jobs:
        raise UpstreamUnclearError(reader, "its filter does not say of which job")
    if len(jobs) > 1 or len(tables) > 1:
        raise UpstreamUnclearError(reader, "its filter wants two jobs at once, which no row is of")
    return Upstream(job=jobs.pop(), meta_table=tables.pop() if tables else None)


def _stated(where: Filter | None) -> Iterator[tuple[str, str]]:
    """Give what must hold for every row: columns with the text that they equal."""
    if isinstance(where, AllOf):
        for part in where.parts:
            yield from _stated(part)
    if isinstance(where, Condition) and where.operator is Operator.EQUAL:
        yield where.column, str(where.value)
