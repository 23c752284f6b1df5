"""Messages of others as values; numbers are exact: int, or Decimal. Nothing is parsed here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batch_pipeline.domain.encoding import Compression, Format


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaMessage:
    """SCHEMA: the shape of the records of a stream from here on.

    `schema` is a JSON Schema with `properties`.
    """

    line: int
    stream: str
    schema: Mapping[str, Any]
    key_properties: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordMessage:
    """RECORD: `text` is the record as it was written, byte for byte, `record` what it says."""

    line: int
    stream: str
    text: bytes
    record: dict[str, Any]
    version: int | None = None
    time_extracted: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEncoding:
    """What the files of a BATCH are; None where the tap does not say how they are compressed."""

    format: Format
    compression: Compression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMessage:
    """BATCH: the files whose records come next, as the tap wrote their names.

    `sha256` are the checksums of the files where the tap tells them, in the order of `manifest`.
    """

    line: int
    stream: str
    encoding: BatchEncoding
    manifest: tuple[str, ...]
    version: int | None = None
    sha256: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMessage:
    """STATE: `text` is the value as it was written, on one line."""

    line: int
    text: str
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivateVersionMessage:
    """ACTIVATE_VERSION: records of other versions of the stream are not valid any more."""

    line: int
    stream: str
    version: int


Message = SchemaMessage | RecordMessage | BatchMessage | StateMessage | ActivateVersionMessage
