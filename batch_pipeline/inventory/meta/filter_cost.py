"""What a job's filter costs: rows that are read against rows that are kept, and what would help.

Reads a bounded sample; nothing here changes the database, an index is proposed as text.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from batch_pipeline.domain.filter import AllOf, Condition, Filter, Operator
from batch_pipeline.domain.id_range import MAX_ID, MIN_ID
from batch_pipeline.inventory.meta.catalogue import find_table
from batch_pipeline.inventory.meta.filters import clause
from batch_pipeline.inventory.meta.meta_engine import reading, reading_once
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

_SAMPLE_ROWS = 100_000
_FEW_ROWS = 1_000  # scanning so few takes less than a millisecond, however many are kept
_WORTH_AN_INDEX = 50
_PREFIX_CHARACTERS = 100  # of a text column, which MariaDB indexes in part only


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterCost:
    """Rows that cutting batches scans in the sample, rows of it that the filter keeps.

    `proposal` is a statement that makes an index that fits the filter, when the filter scans more
    than 50 times what it keeps; it is text for a person to judge and to run.
    """

    scanned: int
    kept: int
    proposal: str | None = None


def filter_cost(table: ReflectedMetaTable, after_id: int | None, ceiling: int) -> FilterCost:
    """Weigh the filter on the first 100,000 rows above `after_id` (None: of all), up to a ceiling.

    Without a filter nothing is read. An index that fits already is seen: what it skips does not
    count as scanned. A view gets no proposal, since an index belongs to the tables below it.

    Raises:
        PipelineError: as from reading the meta table.
    """
    if table.where is None:
        return FilterCost(scanned=0, kept=0)
    first_id = MIN_ID if after_id is None else after_id + 1
    seen, kept, last_id = _sample(table, table.where, first_id, ceiling)
    if seen == 0:
        return FilterCost(scanned=0, kept=0)
    if table.engine.dialect.name == "postgresql":
        scanned = _scanned_by_cutting(table, first_id, last_id)
    else:
        scanned = kept if _has_index(table, _leading_columns(table, table.where)) else seen
    costly = scanned >= _FEW_ROWS and scanned > _WORTH_AN_INDEX * kept
    proposal = _proposal(table, table.where) if costly and not table.is_view else None
    return FilterCost(scanned=scanned, kept=kept, proposal=proposal)


def _sample(
    table: ReflectedMetaTable, where: Filter, first_id: int, ceiling: int
) -> tuple[int, int, int]:
    fits = sa.case((clause(table.table, where, table.engine.dialect), 1)).label("fits")
    bounds = (
        table.uid >= sa.literal(first_id, sa.BigInteger),
        table.uid <= sa.literal(ceiling, sa.BigInteger),
    )
    rows = sa.select(table.uid.label("uid"), fits).where(*bounds).order_by(table.uid)
    row = rows.limit(_SAMPLE_ROWS).subquery().c
    query = sa.select(sa.func.count(), sa.func.count(row.fits), sa.func.max(row.uid))
    with reading_once(table.engine) as connection:
        seen, kept, last_id = connection.execute(query).one()
    return seen, kept, last_id


class _Explained(sa.Executable, sa.ClauseElement):
    """A statement that Postgres runs to tell what it did."""

    inherit_cache = False

    def __init__(self, statement: sa.Select[Any]) -> None:
        self.statement = statement


@compiles(_Explained)
def _explain(element: _Explained, compiler: SQLCompiler, **options: Any) -> str:
    statement = compiler.process(element.statement, **options)
    return f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}"


def _scanned_by_cutting(table: ReflectedMetaTable, first_id: int, last_id: int) -> int:
    """Count the rows that one batch of everything from one id to another would read."""
    everything = {"max_weight": MAX_ID, "max_count": MAX_ID}
    values = {"first_id": first_id, "last_id": last_id, **everything}
    with reading_once(table.engine) as connection:
        found = connection.execute(_Explained(table.queries.cut), values).scalar_one()
    plan = json.loads(found) if isinstance(found, str) else found
    return sum(
        int(node["Actual Loops"] * sum(node.get(counted, 0) for counted in _SCANNED))
        for node in _scans(plan[0]["Plan"])
    )


_SCANNED = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")


def _scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the nodes of a plan that read rows of tables."""
    if "Relation Name" in node:
        yield node
    for inner in node.get("Plans", ()):
        yield from _scans(inner)


def _has_index(table: ReflectedMetaTable, leading: list[str]) -> bool:
    with reading(table.engine) as connection:
        found = sa.inspect(connection).get_indexes(table.table.name, schema=table.table.schema)
    return any(index["column_names"][: len(leading)] == leading for index in found)


def _leading_columns(table: ReflectedMetaTable, where: Filter) -> list[str]:
    """Give columns whose index lists the rows that fit: in the order of ids, where it can."""
    parts = where.parts if isinstance(where, AllOf) else (where,)
    one_value = (Operator.EQUAL, Operator.IS_NULL)
    fixed = [
        part.column for part in parts if isinstance(part, Condition) and part.operator in one_value
    ]
    named = dict.fromkeys(fixed or where.columns)
    return [*(name for name in named if name != table.columns.uid), table.columns.uid]


def _proposal(table: ReflectedMetaTable, where: Filter) -> str:
    dialect = table.engine.dialect
    copied = table.table.to_metadata(sa.MetaData())
    options: dict[str, Any] = {}
    leading = [table.columns.uid]
    if dialect.name == "postgresql":
        if table.columns.weight not in {None, table.columns.uid}:
            options["postgresql_include"] = [table.columns.weight]
        options["postgresql_where"] = clause(copied, where, dialect)
        # Builds beside those who write; of a partitioned table Postgres cannot build it so.
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
    # What goes through these drivers has every percent sign twice; a person's statement has not.
    return text.replace("%%", "%") if dialect.paramstyle in {"format", "pyformat"} else text


def _index_name(table: ReflectedMetaTable, where: Filter) -> str:
    """Name the index after the table, differently for each filter, in less than 63 bytes."""
    stem = table.table.name.encode()[:40].decode(errors="ignore")
    written = json.dumps(where.to_json(), sort_keys=True).encode()
    return f"{stem}_batches_{hashlib.sha256(written).hexdigest()[:8]}"
