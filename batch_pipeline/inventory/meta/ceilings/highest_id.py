"""The highest visible id as the ceiling: right only where ids are given in commit order."""

from dataclasses import dataclass

from batch_pipeline.inventory.meta.ceilings.ceiling import CeilingReading, Strategy
from batch_pipeline.inventory.meta.reflected_table import ReflectedMetaTable


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestIdCeiling:
    """The ceiling of a table that one writer at a time fills: our registrar, or SQLite."""

    table: ReflectedMetaTable
    strategy: Strategy

    def read(self) -> CeilingReading:
        """Read the highest id."""
        return CeilingReading(value=self.table.highest_id(), strategy=self.strategy)
