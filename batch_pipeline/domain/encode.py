"""What an encoder is asked and what it answers, as values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from batch_pipeline.domain.item import Item
from batch_pipeline.domain.manifest import ItemReport, PartFile, check_batch_conservation
from batch_pipeline.domain.record_rules import LineageContext
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.schema_change import Misfit, SchemaChange
from batch_pipeline.domain.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who looks after an encode while it runs.

    `tell` hears every few seconds how many tasks are done, of how many; `is_called_off` is asked
    several times a second and must be cheap. Both are called on the thread that encodes.
    """

    tell: Callable[[int, int], None] | None = None
    is_called_off: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeRequest:
    """All that an encoder needs: items in id order, the schema to write, the files' name stem.

    `context` is what the lineage columns of the stream, which are in the schema, say of the
    attempt.
    """

    stream: Stream
    items: Sequence[Item]
    schema: RecordSchema
    stem: str
    context: LineageContext
    watch: Watch = field(default_factory=Watch)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that could not be read: `line` is the line its text starts at, counted from 1."""

    item_id: int
    location: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeResult:
    """What the tasks reported.

    `misfits` lists columns, in order of appearance, that the requested schema cannot hold; when
    there are any, no part file is valid and the request must be repeated with a wider schema.
    `text_source` tells that the values were text cells: a column with no common type stays text.
    Of a `transformed` stream the items count as written what the transform was given; how many
    records it made of that, only the part files tell.
    """

    part_files: tuple[PartFile, ...]
    quarantine_files: tuple[PartFile, ...]
    items: tuple[ItemReport, ...]
    misfits: tuple[Misfit, ...]
    bad_records: tuple[BadRecord, ...]
    text_source: bool
    transformed: bool = False

    def check_conservation(self) -> None:
        """Check that every record read is accounted for.

        Raises:
            ConservationError: a record is unaccounted for or there twice.
        """
        if not self.transformed:
            check_batch_conservation(self.items, self.part_files)
            return
        for item in self.items:
            item.check_conservation()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A finished encode: result and the version of the schema it was written with.

    `schema_changes` are what this encode changed in it on the way. `weight` is what the items
    weighed when they were read; None where nobody looked.
    """

    result: EncodeResult
    schema: RecordSchema
    schema_version: int
    schema_changes: tuple[SchemaChange, ...] = ()
    weight: int | None = None

    def facts(self) -> dict[str, Any]:
        """Give the counters that are kept with the attempt.

        With a transform, `given_to_transform` is what it was given and `written` what it made.
        """
        items = self.result.items
        written = sum(item.written for item in items)
        given = {"given_to_transform": written} if self.result.transformed else {}
        if self.result.transformed:
            written = sum(part.records for part in self.result.part_files)
        return {
            **given,
            "items": len(items),
            "read": sum(item.read for item in items),
            "written": written,
            "filtered": sum(item.filtered for item in items),
            "quarantined": sum(item.quarantined for item in items),
            "rescued": sum(item.rescued for item in items),
        }
