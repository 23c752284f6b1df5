"""A chunk validator with a stream and a known schema, without files or tasks."""

from dataclasses import replace
from typing import Any

from batch_pipeline.encode.chunks import Chunk, JsonRecords
from batch_pipeline.encode.validation import ChunkValidator
from batch_pipeline.encode.validation.type_inference import SchemaProfile
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.record_rules import Evolution, SchemaRules
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.encode.landed_files import STREAM
from batch_pipeline_tests.encode.writers.part_factories import json_records


class ValidatorUnderTest:
    """A validator for a known schema; the output is lines or, with `values`, columns.

    The known schema is declared unless it is `inferred`.
    """

    def __init__(
        self,
        known: RecordSchema | None = None,
        *,
        values: bool = False,
        inferred: bool = False,
        evolution: Evolution = Evolution.ADD,
        **stream: Any,
    ) -> None:
        if values:
            parquet = Encoding(format=Format.PARQUET, compression=Compression.ZSTD)
            stream = {"encoding": parquet, **stream}
        rules = SchemaRules(evolution=evolution)
        self.profile = SchemaProfile(known or RecordSchema(), None if inferred else known)
        self.validator = ChunkValidator(self.profile, replace(STREAM, schema=rules, **stream))

    def validate(self, *lines: bytes) -> Chunk:
        """Validate lines numbered from 1."""
        return self.validator.validate(json_records(*lines))

    def lines(self, *lines: bytes) -> JsonRecords:
        """Validate lines for an output of lines."""
        validated = self.validate(*lines)
        assert isinstance(validated, JsonRecords)
        return validated

    def misfits(self) -> list[tuple[str, str]]:
        """Return the missing or misfitting columns, with the types they need."""
        return [(one.column.name, one.column.type_text) for one in self.profile.misfits()]


def reasons(chunk: Chunk) -> list[tuple[int, str]]:
    return [(bad.line, bad.reason) for bad in chunk.bad]
