"""The mapping of a stream's records: what the settings check and what a task applies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.stream import Stream
from batch_pipeline.spark.chunks import BadText, Chunk, JsonRecords
from batch_pipeline.spark.map.declared_schema import MappedSchema, mapped_schema
from batch_pipeline.spark.map.json_map import JsonMap
from batch_pipeline.spark.map.record_plan import RecordPlan
from batch_pipeline.spark.map.table_map import TableMap

_WITHHELD = "its text is withheld, as the mapping hides values"


class Mapper:
    """Selects, filters, maps and flattens the records of a stream.

    An expression that fails sets its record aside. Where values are hidden, no text of a record
    from before the mapping is left in what was set aside.
    """

    def __init__(self, plan: RecordPlan, on_nonfinite: OnNonfinite) -> None:
        self._plan = plan
        self._json = JsonMap(plan)
        self._table = TableMap(plan, on_nonfinite)

    @classmethod
    def of(cls, stream: Stream) -> "Mapper | None":
        """Make the mapper of a stream; None where records stay as they are.

        Raises:
            InvalidValueError: the mapping is not valid.
        """
        plan = RecordPlan.of(stream.name, stream.mapping, stream.key_properties)
        return None if plan is None else cls(plan, stream.on_nonfinite)

    @property
    def alias(self) -> str:
        """The name of the stream in messages."""
        return self._plan.alias

    @property
    def hides_values(self) -> bool:
        """Tell that values of the records are removed or replaced and may not appear anywhere."""
        return self._plan.hides_values

    def key_properties(self, original: Sequence[str]) -> tuple[str, ...]:
        """Give the keys of the mapped records; `original` are those of the stream."""
        return self._plan.keys if self._plan.is_custom else tuple(original)

    def schema(self, declared: Mapping[str, Any]) -> MappedSchema:
        """Return the JSON Schema of the mapped records; `declared` is that of the stream's."""
        return mapped_schema(declared, self._plan)

    def mapped(self, chunk: Chunk) -> Chunk:
        """Map the records of a chunk; those that are left out count as filtered or as bad."""
        if isinstance(chunk, JsonRecords):
            mapped: Chunk = self._json.mapped(chunk)
        else:
            mapped = self._table.mapped(chunk)
        if not self.hides_values or not mapped.bad:
            return mapped
        return replace(mapped, bad=tuple(_withheld(bad) for bad in mapped.bad))


def _withheld(bad: BadText) -> BadText:
    return replace(bad, reason=f"{bad.reason}; {_WITHHELD}", raw=b"")
