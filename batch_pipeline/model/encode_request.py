"""Values exchanged with an encoder: `EncodeRequest`, `EncodeResult` and the final `Encoded`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from batch_pipeline.model.item import Item
from batch_pipeline.model.manifest import ItemReport, PartFile, check_batch_conservation
from batch_pipeline.model.record_rules import LineageContext
from batch_pipeline.model.schema import Misfit, RecordSchema, SchemaChange
from batch_pipeline.model.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeCallbacks:
    """Callbacks during an encode, called on the encoding thread.

    `on_progress` receives the number of finished tasks and their total every few seconds.
    `is_cancelled` is called several times a second and must be cheap.
    """

    on_progress: Callable[[int, int], None] | None = None
    is_cancelled: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeRequest:
    """Input of an encoder: items in id order, the schema to write, the prefix of file names.

    `context` has the values of the attempt for the lineage columns, which the schema includes.
    If records do not fit, the tasks together examine `sample_records` of them to report columns;
    None: the number in the stream's rules.
    """

    stream: Stream
    items: Sequence[Item]
    schema: RecordSchema
    stem: str
    context: LineageContext
    sample_records: int | None = None
    watch: EncodeCallbacks = field(default_factory=EncodeCallbacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """Record that could not be read; `line` is the line at which it starts, counted from 1."""

    item_id: int
    location: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeResult:
    """Combined reports of the tasks.

    `misfits` lists the columns, in order of appearance, that do not fit the requested schema. If
    there are any, no part file is valid and the request must be repeated with a wider schema.
    `text_source` states that the values were text cells, so columns without a common type stay
    text. If the stream is `transformed`, the items count the input of the transform as written;
    only the part files count its output.
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
            InvariantError: a record is missing or counted twice.
        """
        if not self.transformed:
            check_batch_conservation(self.items, self.part_files)
            return
        for item in self.items:
            item.check_conservation()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Finished encode: the result and the version of the schema it was written with.

    `schema_changes` are the changes that this encode made to the schema. `weight` is the weight of
    the items at the time they were read, None if it was not measured.
    """

    result: EncodeResult
    schema: RecordSchema
    schema_version: int
    schema_changes: tuple[SchemaChange, ...] = ()
    weight: int | None = None

    def facts(self) -> dict[str, Any]:
        """Return the counters that are stored with the attempt.

        With a transform, `given_to_transform` counts its input and `written` its output.
        """
        items = self.result.items
        outcomes = ("read", "written", "filtered", "quarantined", "rescued")
        counts = {name: sum(getattr(item, name) for item in items) for name in outcomes}
        facts = {"items": len(items), **counts}
        if self.result.transformed:
            written = sum(part.records for part in self.result.part_files)
            return {"given_to_transform": counts["written"], **facts, "written": written}
        return facts
