"""Open users' meta tables with their high watermarks, and cut batches from them."""

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

import sqlalchemy as sa

from batch_pipeline.inventory.acquire_in_server import is_same_database
from batch_pipeline.inventory.connection import transaction
from batch_pipeline.inventory.meta_tables.catalogue import MetaColumns, find_table
from batch_pipeline.inventory.meta_tables.connection import database_label
from batch_pipeline.inventory.meta_tables.identity import database_identity
from batch_pipeline.inventory.meta_tables.next_id import check_not_restarted
from batch_pipeline.inventory.meta_tables.reflected_table import CutStatements, ReflectedMetaTable
from batch_pipeline.inventory.meta_tables.watermark_choice import (
    StoredCandidates,
    WatermarkChoice,
    choose_watermark,
)
from batch_pipeline.inventory.meta_tables.watermarks import SettleBy, WatermarkReading
from batch_pipeline.inventory.splitting import halve_items
from batch_pipeline.model.batch import Batch, SplitRange
from batch_pipeline.model.errors import MetaTableChangedError
from batch_pipeline.model.filter import Filter
from batch_pipeline.model.id_range import IdRuns
from batch_pipeline.model.planning import Cut, Limits
from batch_pipeline.model.stream import Strategy

log = logging.getLogger(__name__)

_WATERMARK_SECONDS = 1.0
_TABLE_SECONDS = 60.0
_Result = TypeVar("_Result")
_MAY_CUT = sa.text("""
SELECT has_table_privilege(
           format('%I.%I', CAST(:schema AS text), CAST(:table AS text)), 'SELECT')
   AND has_database_privilege(current_database(), 'TEMPORARY')
   AND NOT EXISTS (
       SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid
                  = to_regclass(format('%I.%I', CAST(:schema AS text), CAST(:table AS text)))
          AND a.attname = ANY (:columns)
          AND t.typnamespace <> CAST('pg_catalog' AS regnamespace))
""")


@dataclass(slots=True, kw_only=True)
class MetaSource:
    """A meta table with its high watermark, from which batches are cut.

    A high watermark stays valid, so it is read again only if a batch would end there, or after one
    second, since the table may have been truncated.
    """

    table: ReflectedMetaTable
    choice: WatermarkChoice
    _known: int | None = field(default=None, init=False)
    _known_until: float = field(default=0.0, init=False)
    _texts: CutStatements | None = field(default=None, init=False)
    _texts_known: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return self.table.canonical_name

    def read_high_watermark(self) -> WatermarkReading:
        """Read the high watermark from the database."""
        reading = self.choice.watermark.read()
        self._known, self._known_until = reading.value, monotonic() + _WATERMARK_SECONDS
        return reading

    def known_high_watermark(self) -> int | None:
        """Return the high watermark, read at most one second ago."""
        return self._known if monotonic() < self._known_until else self.read_high_watermark().value

    def cut_statements(self, inventory: sa.Engine) -> CutStatements | None:
        """Return the statements that cut a batch, to be executed on the inventory's connection.

        None if the table is in another database or the inventory's role may not read it, or if a
        column has a user-defined type, whose operators depend on the search path.
        """
        if not self._texts_known:
            self._texts = self._readable_cut_statements(inventory)
            self._texts_known = True
        return self._texts

    def _readable_cut_statements(self, inventory: sa.Engine) -> CutStatements | None:
        if not is_same_database(inventory, self.table.engine):
            return None
        sa_table = self.table.table
        roles, where = self.table.columns, self.table.where
        columns = [roles.uid, roles.weight or roles.uid, *(where.columns if where else ())]
        names = {"schema": sa_table.schema, "table": sa_table.name, "columns": columns}
        with transaction(inventory) as connection:
            is_readable = connection.execute(_MAY_CUT, names).scalar_one()
        return self.table.cut_statements() if is_readable else None

    def next_cut(self, after_id: int | None, last_id: int, limits: Limits) -> Cut | None:
        """Cut the next batch above an id (None: from the first row on) up to `last_id`.

        A batch ends at the high watermark at the latest; None if there is no item up to it.
        """
        known = self._known
        if known is not None and monotonic() < self._known_until:
            cut = self.table.next_cut(after_id, min(known, last_id), limits)
            if cut is not None and (cut.closed or known >= last_id):
                return cut
        high_watermark = self.read_high_watermark().value
        if high_watermark is None:
            return None
        return self.table.next_cut(after_id, min(high_watermark, last_id), limits)

    def halves(self, batch: Batch, planned: IdRuns | None) -> tuple[SplitRange, SplitRange] | None:
        """Split a batch in the middle of its items; None if less than two are left.

        `planned` are the ids that the range was planned with, None for all of its ids.
        """
        return halve_items(self.table, batch, planned)

    def check_not_restarted(self, job: str, planned_up_to: int) -> None:
        """Check that new rows still get ids above those already planned.

        Raises:
            MetaTableRestartedError: the ids start again.
        """
        check_not_restarted(self.table, job, planned_up_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTerms:
    """The options for reading a meta table.

    `strategy` is the requested way to find the high watermark. `reader` is the job that reads; only
    the view of published batches depends on it.
    """

    name: str
    columns: MetaColumns
    where: Filter | None = None
    on_bad_weight: int | None = None
    strategy: Strategy | None = None
    settle_by: SettleBy | None = None
    reader: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """The cache key of the terms. It has the filter as text, since 1 equals True in Python."""
        where = None if self.where is None else json.dumps(self.where.to_json())
        others = (self.on_bad_weight, self.strategy, self.settle_by, self.reader)
        return (self.name, self.columns, where, *others)


class MetaSources:
    """Opens meta tables and caches them for a minute. Thread-safe.

    The candidates of their high watermarks are stored in the inventory, shared by all processes.
    """

    def __init__(self, engine: sa.Engine, inventory: sa.Engine) -> None:
        self._engine = engine
        self._inventory = inventory
        self._store = StoredCandidates(inventory, f"{engine.dialect.name} {database_label(engine)}")
        self._opening = threading.Lock()
        self._opened: dict[tuple[object, ...], tuple[float, MetaSource]] = {}
        self._warned: set[str] = set()

    def use(self, terms: SourceTerms, work: Callable[[MetaSource], _Result]) -> _Result:
        """Call a function with an open meta table; reopen and repeat once if the table changed.

        Raises:
            ConfigurationError: the table cannot be opened.
            MetaUnreachableError: its database does not answer.
        """
        try:
            return work(self._source(terms))
        except MetaTableChangedError:
            self._forget(terms)
        return work(self._source(terms))

    def table(self, terms: SourceTerms) -> ReflectedMetaTable:
        """Open a meta table without its high watermark.

        Raises:
            ConfigurationError: the table cannot be opened.
            MetaUnreachableError: its database does not answer.
        """
        return ReflectedMetaTable.open(
            self._engine,
            terms.name,
            terms.columns,
            terms.where,
            terms.on_bad_weight,
            database=database_identity(self._engine, self._inventory),
        )

    def canonical_name(self, name: str) -> str:
        """Return the canonical name of a table, which jobs store.

        Raises:
            UnknownMetaTableError: there is no such table.
            MetaUnreachableError: its database does not answer.
        """
        return find_table(self._engine, name).canonical_name

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _forget(self, terms: SourceTerms) -> None:
        with self._opening:
            self._opened.pop(terms.key, None)
        self._engine.dispose()  # its connections have statements prepared for the old table

    def _source(self, terms: SourceTerms) -> MetaSource:
        with self._opening:
            opened_at, source = self._opened.get(terms.key, (0.0, None))
            if source is None or monotonic() - opened_at > _TABLE_SECONDS:
                source = self._open(terms)
                self._drop_old()
                self._opened[terms.key] = (monotonic(), source)
            return source

    def _drop_old(self) -> None:
        oldest = monotonic() - _TABLE_SECONDS
        self._opened = {key: entry for key, entry in self._opened.items() if entry[0] > oldest}

    def _open(self, terms: SourceTerms) -> MetaSource:
        table = self.table(terms)
        choice = choose_watermark(
            table, terms.strategy, settle_by=terms.settle_by, store=self._store
        )
        self._warn(*table.notes, *choice.warnings)
        return MetaSource(table=table, choice=choice)

    def _warn(self, *notes: str) -> None:
        """Log each note once per process."""
        for note in notes:
            if note not in self._warned:
                self._warned.add(note)
                log.warning("%s", note)
