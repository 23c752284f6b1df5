"""The rows of one load: those of the generation before go, the new ones are copied, or merged.

Calls belong to a transaction that holds the table's lock; nothing is committed here.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import psycopg
from psycopg import sql

from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.load import Loading
from batch_pipeline.domain.record_rules import LineageColumn
from batch_pipeline.domain.target import WriteMode
from batch_pipeline.postgres.errors import copied_line, first_line
from batch_pipeline.postgres.layout import BATCH, ITEM, ORDER, POSITION, Layout, added_values
from batch_pipeline.postgres.parts import UnusablePartError, blocks
from batch_pipeline.postgres.rows import (
    HEADER,
    TRAILER,
    BadCellError,
    Rows,
    RowWriter,
    staging_types,
    written,
)
from batch_pipeline.postgres.tables import KEPT_WHOLE, Table, UnfitTableError

_STAGING = sql.Identifier("pg_temp", "batch_pipeline_staging")
_NOTHING = memoryview(b"")
_NO_ITEM = "SELECT EXISTS (SELECT FROM {} WHERE {} IS NULL)"
# Few keys are there twice: looking for these takes far less than sorting all records.
_KEEP_LAST = """
DELETE FROM {staging} AS older USING (
    SELECT {keys}, max({position}) AS {position} FROM {staging}
    GROUP BY {keys} HAVING count(*) > 1
) AS twice
WHERE {same} AND older.{position} < twice.{position}
"""
_MERGE = """
INSERT INTO {table} AS there ({names}) SELECT {names} FROM {staging}
ON CONFLICT ({keys}) DO UPDATE SET {changes}
WHERE there.{order} IS NULL OR there.{order} <= excluded.{order}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """One load. `brought` are the columns that batches before it have brought into the table."""

    table: Table
    layout: Layout
    loading: Loading
    mode: WriteMode
    brought: frozenset[str]

    def write(self) -> None:
        """Bring the rows in.

        Raises:
            BadCellError: a record has a value that the table cannot hold.
            UnfitTableError: the table does not fit, or has rows that nobody knows the item of.
            UnusablePartError: a part file is gone or is not what was published.
        """
        is_merged = self.mode is WriteMode.UPSERT
        writer = RowWriter(
            layout=self.layout,
            types=self.table.types(self.layout),
            constants=added_values(self.layout, self.loading, datetime.now(UTC)),
            positions=is_merged,
        )
        self._delete()
        if not is_merged:
            self._copy(self.table.identifier, writer)
        else:
            self._make_staging(writer)
            self._copy(_STAGING, writer)
            self._merge(writer)
        failpoint("warehouse.before_commit")

    def _delete(self) -> None:
        """Take the rows away whose place the new ones take."""
        self._execute("DELETE FROM {} WHERE {} = %s", sql.Identifier(BATCH), [self.loading.label])
        if not self.loading.item_ids:
            return
        item = sql.Identifier(ITEM)
        [(is_unclear,)] = self._execute(_NO_ITEM, item, []).fetchall()
        if is_unclear:
            raise UnfitTableError(
                f"it has rows without {ITEM}, so nobody can tell which of them this batch "
                f"replaces; materialize and load the batches that brought them again"
            )
        self._execute("DELETE FROM {} WHERE {} = ANY(%s)", item, [list(self.loading.item_ids)])

    def _execute(
        self, statement: str, column: sql.Identifier, values: Sequence[object]
    ) -> "psycopg.Cursor[tuple[object, ...]]":
        composed = sql.SQL(statement).format(self.table.identifier, column)
        return self.table.connection.execute(composed, values)

    def _copy(self, into: sql.Identifier, writer: RowWriter) -> None:
        copy_in = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
            into, _list(writer.names)
        )
        sent: list[Rows] = []
        try:
            with (
                self.table.connection.cursor() as cursor,
                closing(blocks(self.loading.manifest)) as found,
                closing(written(found, writer)) as all_rows,
                cursor.copy(copy_in) as copy,
            ):
                copy.write(HEADER)
                for rows in all_rows:
                    sent.append(replace(rows, octets=_NOTHING))
                    copy.write(rows.octets)
                    failpoint("warehouse.in_copy")
                copy.write(TRAILER)
        except psycopg.DataError as error:
            raise _located(error, sent) or error from error
        self._check_counts(sent)

    def _check_counts(self, sent: Sequence[Rows]) -> None:
        for part in self.loading.manifest.part_files:
            found = sum(rows.count for rows in sent if rows.location == part.uri)
            if found != part.records:
                raise UnusablePartError(
                    f"{part.uri} holds other records: {found}, published: {part.records}"
                )

    def _make_staging(self, writer: RowWriter) -> None:
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind.value))
            for name, kind in staging_types(writer).items()
        ]
        create = sql.SQL("CREATE TEMPORARY TABLE {} ({}) {} ON COMMIT DROP").format(
            _STAGING, sql.SQL(", ").join(columns), KEPT_WHOLE
        )
        self.table.connection.execute(create)

    def _merge(self, writer: RowWriter) -> None:
        same = [
            sql.SQL("older.{0} = twice.{0}").format(key)
            for key in map(sql.Identifier, self.layout.keys)
        ]
        keep_last = sql.SQL(_KEEP_LAST).format(
            staging=_STAGING,
            keys=_list(self.layout.keys),
            position=sql.Identifier(POSITION),
            same=sql.SQL(" AND ").join(same),
        )
        self.table.connection.execute(keep_last)
        names = [name for name in writer.names if name != POSITION]
        changes = [
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
            for name in names
            if name not in self.layout.keys
        ]
        merge = sql.SQL(_MERGE).format(
            table=self.table.identifier,
            names=_list(names),
            keys=_list(self.layout.keys),
            staging=_STAGING,
            changes=sql.SQL(", ").join([*changes, *self._emptied()]),
            order=sql.Identifier(ORDER),
        )
        self.table.connection.execute(merge)

    def _emptied(self) -> list[sql.Composed]:
        """Clear what is an older record's: what this batch lacks, and the mark of a soft delete."""
        marks = {LineageColumn.DELETED_AT.value, LineageColumn.TABLE_VERSION.value}
        lacking = (self.brought & self.table.columns().keys()) - self.layout.columns.keys()
        names = sorted(lacking | (marks & self.layout.added.keys()))
        return [sql.SQL("{} = NULL").format(sql.Identifier(name)) for name in names]


def _list(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _located(error: psycopg.DataError, sent: Sequence[Rows]) -> BadCellError | None:
    """Find the record of the row that the server complains about."""
    found = copied_line(error)
    if found is None:
        return None
    line, column = found
    for rows in sent:
        if line <= rows.count:
            record = rows.first + line - 1
            return BadCellError(rows.location, record, column, first_line(error))
        line -= rows.count
    return None
