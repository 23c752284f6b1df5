"""A user's meta table with its ceiling: what batches of it are cut from."""

from dataclasses import dataclass, field
from time import monotonic

import sqlalchemy as sa

from batch_pipeline.domain.batch import Batch
from batch_pipeline.domain.halves import Half
from batch_pipeline.domain.id_runs import IdRuns
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.inventory.meta.ceilings.ceiling import CeilingReading
from batch_pipeline.inventory.meta.ceilings.choose import Choice
from batch_pipeline.inventory.meta.reflected_table import CutTexts, ReflectedMetaTable
from batch_pipeline.inventory.meta.restarted import check_not_restarted
from batch_pipeline.inventory.server.engine import transaction
from batch_pipeline.inventory.work.acquire_in_server import share_a_database
from batch_pipeline.inventory.work.bisect import halves_of

_SECONDS_KNOWN = 1.0
_MAY_READ = sa.text("""
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
    """Cuts batches of a reflected table below its ceiling.

    A ceiling stays true once it was read, so it is read again only when a batch would end there,
    and every second, since a table may be truncated.
    """

    table: ReflectedMetaTable
    choice: Choice
    _known: int | None = field(default=None, init=False)
    _known_until: float = field(default=0.0, init=False)
    _texts: CutTexts | None = field(default=None, init=False)
    _texts_known: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return self.table.canonical_name

    def reading(self) -> CeilingReading:
        """Look at the ceiling once."""
        found = self.choice.ceiling.read()
        self._known, self._known_until = found.value, monotonic() + _SECONDS_KNOWN
        return found

    def known_ceiling(self) -> int | None:
        """Give the ceiling of less than a second ago."""
        return self._known if monotonic() < self._known_until else self.reading().value

    def cut_texts(self, inventory: sa.Engine) -> CutTexts | None:
        """Return the statements that cut a batch, for the inventory's own connection to execute.

        None where the table lives in another database, or may not be read from there, or where a
        column has a type of the user's own: its operators are those of the user's search path.
        """
        if not self._texts_known:
            self._texts = self._readable_cut_texts(inventory)
            self._texts_known = True
        return self._texts

    def _readable_cut_texts(self, inventory: sa.Engine) -> CutTexts | None:
        if not share_a_database(inventory, self.table.engine):
            return None
        reflected = self.table.table
        roles, where = self.table.columns, self.table.where
        columns = [roles.uid, roles.weight or roles.uid, *(where.columns if where else ())]
        names = {"schema": reflected.schema, "table": reflected.name, "columns": columns}
        with transaction(inventory) as connection:
            may = connection.execute(_MAY_READ, names).scalar_one()
        return self.table.cut_texts() if may else None

    def next_cut(self, after_id: int | None, last_id: int, limits: Limits) -> Cut | None:
        """Cut the next batch above an id (None: from the first row on), up to one and the ceiling.

        None when no item is there below which no row can still appear.
        """
        known = self._known
        if known is not None and monotonic() < self._known_until:
            cut = self.table.next_cut(after_id, min(known, last_id), limits)
            if cut is not None and (cut.closed or known >= last_id):
                return cut
        ceiling = self.reading().value
        if ceiling is None:
            return None
        return self.table.next_cut(after_id, min(ceiling, last_id), limits)

    def halves(self, one: Batch, planned: IdRuns | None) -> tuple[Half, Half] | None:
        """Split a batch in the middle of its items; None when less than two are left.

        `planned` are the ids that its range was planned with, None for all of it.
        """
        return halves_of(self.table, one, planned)

    def check_not_restarted(self, job: str, planned_up_to: int) -> None:
        """Check that ids still go on above what is planned.

        Raises:
            MetaTableRestartedError: they start again.
        """
        check_not_restarted(self.table, job, planned_up_to)
