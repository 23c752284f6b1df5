"""A user's meta table with its ceiling: what batches of it are cut from."""

from dataclasses import dataclass, field
from time import monotonic

from batch_pipeline.domain.errors import MetaTableRestartedError
from batch_pipeline.domain.planning import Cut, Limits
from batch_pipeline.inventory.ceilings.ceiling import CeilingReading
from batch_pipeline.inventory.ceilings.choose import Choice
from batch_pipeline.inventory.reflected_table import ReflectedMetaTable

_SECONDS_KNOWN = 1.0


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

    @property
    def name(self) -> str:
        """The table's canonical name."""
        return self.table.canonical_name

    def reading(self) -> CeilingReading:
        """Look at the ceiling once."""
        found = self.choice.ceiling.read()
        self._known, self._known_until = found.value, monotonic() + _SECONDS_KNOWN
        return found

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

    def check_not_restarted(self, job: str, planned_up_to: int) -> None:
        """Check that ids still go on above what is planned.

        Raises:
            MetaTableRestartedError: they start again.
        """
        highest = self.table.highest_id()
        if highest is not None and highest < planned_up_to:
            raise MetaTableRestartedError(job, self.name, planned_up_to, highest + 1)
