"""Reads the lines of a tap, one by one and strictly, into values.

Knows the messages and their order: SCHEMA comes first. Files that a BATCH names are not looked at.
Keys at the top level that are not known are somebody's own business and tolerated.

Source: Singer's specification, and `docs/batch.md` of the Meltano Singer SDK.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from batch_pipeline.domain.encoding import Compression, Format
from batch_pipeline.singer.incoming import json_text
from batch_pipeline.singer.incoming.fields import Fields
from batch_pipeline.singer.incoming.refusals import (
    DuplicateKeyError,
    LineNotJsonError,
    LineNotObjectError,
    ManifestError,
    SchemaMissingError,
    UnknownEncodingError,
    UnknownMessageTypeError,
    shown,
)
from batch_pipeline.singer.incoming.values import (
    ActivateVersionMessage,
    BatchEncoding,
    BatchMessage,
    Message,
    RecordMessage,
    SchemaMessage,
    StateMessage,
)

_COMPRESSIONS = {
    Format.JSONL: (Compression.GZIP, Compression.NONE, Compression.ZSTD),
    Format.PARQUET: (Compression.SNAPPY, Compression.ZSTD, Compression.GZIP, Compression.NONE),
}
_RECORD = b'"RECORD"'
_NOTHING = msgspec.Raw(b"")
_NULL = msgspec.Raw(b"null")


class MessageReader:
    """Reads the lines of one tap in their order; remembers which streams have a SCHEMA."""

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}  # name of the stream as it stands in JSON: itself
        self._streams: set[str] = set()

    def read(self, line: bytes, number: int) -> Message:
        """Read a line, without its ending or with it; `number` counts from 1.

        Raises:
            MessageError: it cannot be taken; there is an error for each kind of mistake.
        """
        return self._quick_record(line, number) or self._careful(line, number)

    def _quick_record(self, line: bytes, number: int) -> RecordMessage | None:
        """Read the usual RECORD; None where anything at all is unusual."""
        try:
            fields = json_text.FIELDS.decode(line)
            if bytes(fields.get("type", _NOTHING)) != _RECORD or "record" not in fields:
                return None
            stream = self._known.get(bytes(fields.get("stream", _NOTHING)))
            text = bytes(fields["record"])
            record = json_text.EXACT.decode(text)
            version = json_text.EXACT.decode(fields.get("version", _NULL))
            extracted = json_text.EXACT.decode(fields.get("time_extracted", _NULL))
            is_right = (
                type(record) is dict
                and (version is None or type(version) is int)
                and (extracted is None or type(extracted) is str)
                and json_text.are_complete(fields, line)
                and json_text.is_complete(record, text)
            )
        except json_text.UNREADABLE:
            return None
        if stream is None or not is_right:
            return None
        return RecordMessage(number, stream, text, record, version, extracted)

    def _careful(self, line: bytes, number: int) -> Message:
        found = _parsed(line, number)
        named = found.get("stream")
        fields = Fields(number, named if isinstance(named, str) else None, found)
        kind = fields.text("type")
        read = _READERS.get(kind)
        if read is None:
            problem = f"is {shown(kind)}; expected {', '.join(_READERS)}"
            raise UnknownMessageTypeError(number, problem, fields.stream, "type")
        message = read(fields, line)
        if isinstance(message, SchemaMessage):
            self._streams.add(message.stream)
            self._known[bytes(json_text.FIELDS.decode(line)["stream"])] = message.stream
        elif not isinstance(message, StateMessage) and message.stream not in self._streams:
            problem = f"{kind} comes before the SCHEMA of its stream"
            raise SchemaMissingError(number, problem, message.stream)
        return message


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        found = json_text.parse(line)
    except json_text.TwiceError as error:
        raise DuplicateKeyError(number, "is there twice", None, str(error)) from error
    except ValueError as error:
        problem = f"is no JSON ({error}); it begins with {shown(line[:40])}"
        raise LineNotJsonError(number, problem) from error
    if not isinstance(found, dict):
        raise LineNotObjectError(number, f"is {shown(found)}; expected a JSON object")
    return found


def _schema(fields: Fields, _line: bytes) -> SchemaMessage:
    stream = fields.text("stream")
    schema = fields.members("schema")
    Fields(fields.line, stream, schema, "schema.").members("properties")
    has_keys = fields.found.get("key_properties") is not None
    keys = fields.texts("key_properties") if has_keys else ()
    return SchemaMessage(line=fields.line, stream=stream, schema=schema, key_properties=keys)


def _record(fields: Fields, line: bytes) -> RecordMessage:
    return RecordMessage(
        fields.line,
        fields.text("stream"),
        record=fields.members("record"),
        text=bytes(json_text.FIELDS.decode(line)["record"]),
        version=fields.whole_or_none("version"),
        time_extracted=fields.text_or_none("time_extracted"),
    )


def _state(fields: Fields, line: bytes) -> StateMessage:
    value = fields.members("value")
    text = bytes(json_text.FIELDS.decode(line)["value"]).decode().replace("\r", " ")
    return StateMessage(line=fields.line, text=text, value=value)


def _activate(fields: Fields, _line: bytes) -> ActivateVersionMessage:
    stream, version = fields.text("stream"), fields.whole("version")
    return ActivateVersionMessage(line=fields.line, stream=stream, version=version)


def _batch(fields: Fields, _line: bytes) -> BatchMessage:
    stream = fields.text("stream")
    encoding = _encoding(Fields(fields.line, stream, fields.members("encoding"), "encoding."))
    manifest = fields.texts("manifest")
    if not manifest:
        raise ManifestError(fields.line, "is empty; expected one file or more", stream, "manifest")
    if len(set(manifest)) < len(manifest):
        twice = next(one for one in manifest if manifest.count(one) > 1)
        raise ManifestError(fields.line, f"has {shown(twice)} twice", stream, "manifest")
    sums = fields.found.get("sha256")
    is_told = isinstance(sums, list) and all(isinstance(one, str) for one in sums)
    return BatchMessage(
        line=fields.line,
        stream=stream,
        encoding=encoding,
        manifest=manifest,
        version=fields.whole_or_none("version"),
        sha256=tuple(sums) if is_told and sums and len(sums) == len(manifest) else (),
    )


def _encoding(fields: Fields) -> BatchEncoding:
    named, written = fields.text("format"), fields.text_or_none("compression")
    format_ = next((one for one in _COMPRESSIONS if one.value == named), None)
    if format_ is None:
        raise _unknown(fields, "format", named, list(_COMPRESSIONS))
    known = _COMPRESSIONS[format_]
    compression = next((one for one in known if one.value == written), None)
    if written is not None and compression is None:
        raise _unknown(fields, "compression", written, list(known))
    for key, value in fields.found.items():
        if key not in ("format", "compression"):
            raise _unknown(fields, key, value, ["format", "compression"])
    return BatchEncoding(format=format_, compression=compression)


def _unknown(fields: Fields, key: str, value: object, known: list[Any]) -> UnknownEncodingError:
    problem = f"is {shown(value)}; expected {', '.join(str(one) for one in known)}"
    return UnknownEncodingError(fields.line, problem, fields.stream, fields.at + key)


_READERS: dict[str, Callable[[Fields, bytes], Message]] = {
    "SCHEMA": _schema,
    "RECORD": _record,
    "BATCH": _batch,
    "STATE": _state,
    "ACTIVATE_VERSION": _activate,
}
