"""A stream and a check over lines or tables, without files and tasks."""

from dataclasses import replace
from typing import Any

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.record_rules import Evolution, OnNonfinite, SchemaRules
from batch_pipeline.domain.schema import Column, RecordSchema
from batch_pipeline.domain.stream import Source, Storage, Stream
from batch_pipeline.spark.check.check import Check
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.chunks import Chunk, JsonRecords, Table

STREAM = Stream(
    name="orders",
    source=Source(uri="file:///landing"),
    limits=Limits(max_weight=1, max_count=1),
    encoding=Encoding(format=Format.JSONL, compression=Compression.GZIP),
    storage=Storage(root="file:///batches"),
)


def schema(**types: str) -> RecordSchema:
    """Make a schema of columns given as name=type."""
    return RecordSchema.from_json(list(types.items()))


class Desk:
    """A check of chunks against a known schema, for lines or, with `values`, for tables."""

    def __init__(
        self,
        known: RecordSchema | None = None,
        *,
        values: bool = False,
        evolution: Evolution = Evolution.ADD,
        **stream: Any,
    ) -> None:
        if values:
            parquet = Encoding(format=Format.PARQUET, compression=Compression.ZSTD)
            stream = {"encoding": parquet, **stream}
        rules = SchemaRules(evolution=evolution)
        self.profile = Profile(known or RecordSchema())
        self.check = Check(self.profile, replace(STREAM, schema=rules, **stream))

    def lines(self, *lines: bytes) -> JsonRecords:
        """Check lines, the first one of which is line 1, for an output of lines."""
        checked = self.checked(*lines)
        assert isinstance(checked, JsonRecords)
        return checked

    def rows(self, *lines: bytes) -> list[dict[str, Any]]:
        """Check lines, none of them bad, and give the rows of the table that they become."""
        checked = self.checked(*lines)
        assert isinstance(checked, Table)
        assert checked.bad == ()
        rows: list[dict[str, Any]] = checked.batch.to_pylist()
        return rows

    def checked(self, *lines: bytes) -> Chunk:
        """Check lines."""
        places = range(1, len(lines) + 1)
        return self.check.checked(JsonRecords(lines=list(lines), places=places, numbers=places))

    def misfits(self) -> list[tuple[str, str]]:
        """Give the columns that the schema lacks or must widen, with the types they need."""
        return [(one.column.name, one.column.type_text) for one in self.profile.misfits()]

    def settled(self, *lines: bytes, **stream: Any) -> "Desk":
        """Repeat with the schema that is needed until it holds all lines."""
        desk = self
        for _ in range(4):
            desk.checked(*lines)
            if desk.profile.fits:
                break
            known = RecordSchema(tuple(desk.profile.columns.values()))
            values = bool(desk.check._json._values)
            desk = Desk(known, values=values, **stream)
        assert desk.profile.fits
        return desk


def reasons(chunk: Chunk) -> list[tuple[int, str]]:
    """Give line and reason of each bad record."""
    return [(bad.line, bad.reason) for bad in chunk.bad]


def columns(found: RecordSchema) -> dict[str, Column]:
    """Give the columns by name."""
    return found.by_name()


__all__ = ["STREAM", "Desk", "OnNonfinite", "columns", "reasons", "schema"]
