"""Estimate the cost of a job's filter from a sample, and propose an index as text.

Nothing here changes the database.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from batch_pipeline.inventory.meta_tables.catalogue import find_table
from batch_pipeline.inventory.meta_tables.connection import read_one_statement, read_transaction
from batch_pipeline.inventory.meta_tables.filters import filter_expression
from batch_pipeline.inventory.meta_tables.reflected_table import ReflectedMetaTable
from batch_pipeline.model.filter import AllOf, Condition, Filter, Operator
from batch_pipeline.model.id_range import MAX_ID, MIN_ID

_SAMPLE_ROWS = 100_000
_CHEAP_ROWS = 1_000  # scanning these takes less than a millisecond
_INDEX_RATIO = 50
_PREFIX_CHARACTERS = 100  # of a text column, of which MariaDB indexes a prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterCost:
    """The number of sampled rows that cutting scans, and of those that the filter keeps.

    `proposal` is a `CREATE INDEX` statement for the operator to review. It is set if the filter
    scans more than 50 times the rows that it keeps.
    """

    scanned: int
    kept: int
    proposal: str | None = None


def filter_cost(table: ReflectedMetaTable, after_id: int | None, high_watermark: int) -> FilterCost:
    """Return the filter's cost on the first 100,000 rows above `after_id` (None: from the start).

    Without a filter nothing is read. Rows that an existing index skips do not count as scanned. A
    view gets no proposal, since an index belongs to the tables that it reads.

    Raises:
        PipelineError: as from reading the meta table.
    """
    if table.where is None:
        return FilterCost(scanned=0, kept=0)
    first_id = MIN_ID if after_id is None else after_id + 1
    sampled, kept, last_id = _sample(table, table.where, first_id, high_watermark)
    if sampled == 0:
        return FilterCost(scanned=0, kept=0)
    if table.engine.dialect.name == "postgresql":
        scanned = _rows_scanned_by_cut(table, first_id, last_id)
    else:
        scanned = kept if _has_index(table, _leading_columns(table, table.where)) else sampled
    costly = scanned >= _CHEAP_ROWS and scanned > _INDEX_RATIO * kept
    proposal = _propose_index(table, table.where) if costly and not table.is_view else None
    return FilterCost(scanned=scanned, kept=kept, proposal=proposal)


def _sample(
    table: ReflectedMetaTable, where: Filter, first_id: int, high_watermark: int
) -> tuple[int, int, int]:
    matches = sa.case((filter_expression(table.table, where, table.engine.dialect), 1)).label(
        "fits"
    )
    bounds = (
        table.uid >= sa.literal(first_id, sa.BigInteger),
        table.uid <= sa.literal(high_watermark, sa.BigInteger),
    )
    rows = sa.select(table.uid.label("uid"), matches).where(*bounds).order_by(table.uid)
    row = rows.limit(_SAMPLE_ROWS).subquery().c
    query = sa.select(sa.func.count(), sa.func.count(row.fits), sa.func.max(row.uid))
    with read_one_statement(table.engine) as connection:
        sampled, kept, last_id = connection.execute(query).one()
    return sampled, kept, last_id


class _Explained(sa.Executable, sa.ClauseElement):
    """`EXPLAIN ANALYZE` of a statement, as JSON."""

    inherit_cache = False

    def __init__(self, statement: sa.Select[Any]) -> None:
        self.statement = statement


@compiles(_Explained)
def _explain(element: _Explained, compiler: SQLCompiler, **options: Any) -> str:
    statement = compiler.process(element.statement, **options)
    return f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}"


def _rows_scanned_by_cut(table: ReflectedMetaTable, first_id: int, last_id: int) -> int:
    """Return the number of rows that cutting one batch of the whole range reads."""
    everything = {"max_weight": MAX_ID, "max_count": MAX_ID}
    values = {"first_id": first_id, "last_id": last_id, **everything}
    with read_one_statement(table.engine) as connection:
        explained = connection.execute(_Explained(table.queries.cut), values).scalar_one()
    plan = json.loads(explained) if isinstance(explained, str) else explained
    return sum(
        int(node["Actual Loops"] * sum(node.get(counted, 0) for counted in _SCANNED))
        for node in _scan_nodes(plan[0]["Plan"])
    )


_SCANNED = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")


def _scan_nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan that read rows of tables."""
    if "Relation Name" in node:
        yield node
    for inner in node.get("Plans", ()):
        yield from _scan_nodes(inner)


def _has_index(table: ReflectedMetaTable, leading: list[str]) -> bool:
    with read_transaction(table.engine) as connection:
        indexes = sa.inspect(connection).get_indexes(table.table.name, schema=table.table.schema)
    return any(index["column_names"][: len(leading)] == leading for index in indexes)


def _leading_columns(table: ReflectedMetaTable, where: Filter) -> list[str]:
    """Return the columns of an index on the filter's columns and, last, the id."""
    parts = where.parts if isinstance(where, AllOf) else (where,)
    one_value = (Operator.EQUAL, Operator.IS_NULL)
    fixed = [
        part.column for part in parts if isinstance(part, Condition) and part.operator in one_value
    ]
    names = dict.fromkeys(fixed or where.columns)
    return [*(name for name in names if name != table.columns.uid), table.columns.uid]


def _propose_index(table: ReflectedMetaTable, where: Filter) -> str:
    dialect = table.engine.dialect
    copied = table.table.to_metadata(sa.MetaData())
    options: dict[str, Any] = {}
    leading = [table.columns.uid]
    if dialect.name == "postgresql":
        if table.columns.weight not in {None, table.columns.uid}:
            options["postgresql_include"] = [table.columns.weight]
        options["postgresql_where"] = filter_expression(copied, where, dialect)
        # Does not block writers. Postgres does not support it for partitioned tables.
        partitioned = find_table(table.engine, table.canonical_name).is_partitioned
        options["postgresql_concurrently"] = not partitioned
    else:
        leading = _leading_columns(table, where)
        texts = [name for name in leading if isinstance(copied.c[name].type, sa.Text)]
        if dialect.name in {"mysql", "mariadb"}:
            options[f"{dialect.name}_length"] = dict.fromkeys(texts, _PREFIX_CHARACTERS)
    columns = [copied.c[name] for name in leading]
    index = sa.Index(_index_name(table, where), *columns, **options)
    text = str(sa.schema.CreateIndex(index).compile(dialect=dialect))
    # Statements for these drivers have each percent sign doubled.
    return text.replace("%%", "%") if dialect.paramstyle in {"format", "pyformat"} else text


def _index_name(table: ReflectedMetaTable, where: Filter) -> str:
    """Return a name from the table and a hash of the filter, shorter than 63 bytes."""
    stem = table.table.name.encode()[:40].decode(errors="ignore")
    written = json.dumps(where.to_json(), sort_keys=True).encode()
    return f"{stem}_batches_{hashlib.sha256(written).hexdigest()[:8]}"
