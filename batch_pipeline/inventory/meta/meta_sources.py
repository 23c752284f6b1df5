"""The open meta tables of one database: each is checked once, and anew when it has changed."""

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

import sqlalchemy as sa

from batch_pipeline.domain.errors import MetaTableChangedError
from batch_pipeline.domain.filter import Filter
from batch_pipeline.inventory.meta.catalogue import find_table
from batch_pipeline.inventory.meta.ceiling_candidates import StoredCandidates
from batch_pipeline.inventory.meta.ceilings.ceiling import Strategy
from batch_pipeline.inventory.meta.ceilings.choose import choose_ceiling
from batch_pipeline.inventory.meta.ceilings.settle import SettleBy
from batch_pipeline.inventory.meta.column_roles import MetaColumns
from batch_pipeline.inventory.meta.database_identity import database_identity
from batch_pipeline.inventory.meta.meta_engine import place
from batch_pipeline.inventory.meta.meta_source import MetaSource
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable

_SECONDS_KEPT = 60.0
_Result = TypeVar("_Result")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTerms:
    """Which meta table is read and how: its columns, rows, bad weights, and its ceiling.

    `reader` is the job that reads, where the table depends on it: what jobs have published.
    """

    name: str
    columns: MetaColumns
    where: Filter | None = None
    on_bad_weight: int | None = None
    ceiling: Strategy | None = None
    settle_by: SettleBy | None = None
    reader: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What differs for different terms; filters by text, since 1 and true are equal here."""
        where = None if self.where is None else json.dumps(self.where.to_json())
        others = (self.on_bad_weight, self.ceiling, self.settle_by, self.reader)
        return (self.name, self.columns, where, *others)


class MetaSources:
    """Opens meta tables and keeps them for a minute. Safe from any number of threads.

    What their ceilings remember is kept in the inventory, so that all processes share it.
    """

    def __init__(self, engine: sa.Engine, inventory: sa.Engine) -> None:
        self._engine = engine
        self._inventory = inventory
        self._store = StoredCandidates(inventory, f"{engine.dialect.name} {place(engine)}")
        self._opening = threading.Lock()
        self._opened: dict[tuple[object, ...], tuple[float, MetaSource]] = {}
        self._warned: set[str] = set()

    def use(self, terms: SourceTerms, work: Callable[[MetaSource], _Result]) -> _Result:
        """Do some work on a meta table; once again when the table turns out to have changed.

        Raises:
            ConfigurationError: the table cannot be opened, or no longer.
            MetaUnreachableError, MetaBusyError: its database does not answer.
        """
        try:
            return work(self._source(terms))
        except MetaTableChangedError:
            self._forget(terms)
        return work(self._source(terms))

    def table(self, terms: SourceTerms) -> ReflectedMetaTable:
        """Open a meta table by itself, without a ceiling.

        Raises:
            ConfigurationError: the table cannot be opened.
            MetaUnreachableError, MetaBusyError: its database does not answer.
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
        """Give the name of a table as jobs know it.

        Raises:
            UnknownMetaTableError: there is no such table.
            MetaUnreachableError: its database does not answer.
        """
        return find_table(self._engine, name).canonical_name

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _forget(self, terms: SourceTerms) -> None:
        with self._opening:
            self._opened.pop(terms.key, None)
        self._engine.dispose()  # its sessions remember statements on the table as it was

    def _source(self, terms: SourceTerms) -> MetaSource:
        with self._opening:
            opened_at, source = self._opened.get(terms.key, (0.0, None))
            if source is None or monotonic() - opened_at > _SECONDS_KEPT:
                source = self._open(terms)
                self._drop_old()
                self._opened[terms.key] = (monotonic(), source)
            return source

    def _drop_old(self) -> None:
        oldest = monotonic() - _SECONDS_KEPT
        self._opened = {key: one for key, one in self._opened.items() if one[0] > oldest}

    def _open(self, terms: SourceTerms) -> MetaSource:
        table = self.table(terms)
        choice = choose_ceiling(table, terms.ceiling, settle_by=terms.settle_by, store=self._store)
        self._warn(*table.notes, *choice.warnings)
        return MetaSource(table=table, choice=choice)

    def _warn(self, *notes: str) -> None:
        """Log what somebody should know, once for each process."""
        for note in notes:
            if note not in self._warned:
                self._warned.add(note)
                log.warning("%s", note)
