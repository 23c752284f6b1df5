"""Validate records against the schema of their stream, and determine how it must widen.

`json_validator` and `table_validator` validate the two kinds of chunks, `type_inference` infers the
types of values that the schema does not hold.
"""

from batch_pipeline.encode.chunks import Chunk, JsonRecords
from batch_pipeline.encode.validation.json_validator import JsonValidator
from batch_pipeline.encode.validation.table_validator import TableValidator
from batch_pipeline.encode.validation.type_inference import SchemaProfile
from batch_pipeline.model.stream import Stream


class ChunkValidator:
    """Moves invalid records to `bad` and adds types that the schema does not hold to the profile.

    For columnar outputs, validated chunks are tables of the schema's types. Their columns of type
    `any` hold JSON text, text cells or typed values. For JSON lines, records remain lines and cells
    remain text.
    """

    def __init__(self, profile: SchemaProfile, stream: Stream) -> None:
        values = stream.encoding.part_format.is_columnar
        self._json = JsonValidator(profile, stream, values=values)
        self._tables = TableValidator(profile, stream, values=values)

    def validate(self, chunk: Chunk) -> Chunk:
        """Validate a chunk; the result can be written only as long as the profile fits."""
        if isinstance(chunk, JsonRecords):
            return self._json.validate(chunk)
        return self._tables.validate(chunk)
