"""Incoming Singer messages: read the lines of a tap and parse them into values.

`lines` splits the input, `MessageReader` parses each line. Numbers are exact: int or Decimal,
never float. Every error names the line.
"""

import json
import os
import re
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from typing import IO, Annotated, Any, NoReturn, TypeVar

import msgspec

from batch_pipeline.model.encoding import PART_FORMATS, Compression, Format
from batch_pipeline.model.errors import ConfigurationError

MAX_LINE_BYTES = 64 * 2**20
_CHUNK = 256 * 1024
_MAX_SHOWN_CHARACTERS = 80
_MISSING = re.compile("Object missing required field `(.*)`")
Text = Annotated[str, msgspec.Meta(min_length=1)]
T = TypeVar("T")
_TOO_LONG = "Raise `max_line_bytes`, or have the tap write smaller records"
SINGER_FORMATS = (Format.JSONL, Format.PARQUET)  # of the BATCH messages that taps write
_RECORD = b'"RECORD"'
_NOTHING = msgspec.Raw(b"")
_NULL = msgspec.Raw(b"null")
_ESCAPED_COLON = b"\\u003"
_ENCODER = msgspec.json.Encoder()
EXACT_DECODER = msgspec.json.Decoder(float_hook=Decimal)
FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
DECODE_ERRORS = (ValueError, ArithmeticError, RecursionError)  # msgspec's errors are ValueErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaMessage:
    """A SCHEMA message: the shape of the stream's records from this line on.

    `schema` is a JSON Schema with `properties`.
    """

    line: int
    stream: Text
    schema: dict[str, Any]
    key_properties: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordMessage:
    """A RECORD message: `text` is the record byte for byte as written, `record` its value."""

    line: int
    stream: Text
    text: bytes
    record: dict[str, Any]
    version: int | None = None
    time_extracted: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEncoding:
    """The encoding of a BATCH's files; `compression` is None if the tap omits it."""

    format: Format
    compression: Compression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMessage:
    """A BATCH message: the files of the next records, named as the tap wrote them.

    `sha256` are the checksums of the files in the order of `manifest`, empty if the tap omits
    them.
    """

    line: int
    stream: Text
    encoding: BatchEncoding
    manifest: tuple[Text, ...]
    version: int | None = None
    sha256: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMessage:
    """A STATE message: `text` is its value as written, on one line."""

    line: int
    value: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivateVersionMessage:
    """An ACTIVATE_VERSION message: records of other versions become invalid."""

    line: int
    stream: Text
    version: int


Message = SchemaMessage | RecordMessage | BatchMessage | StateMessage | ActivateVersionMessage


class _Typed(msgspec.Struct):
    type: Text


class _Properties(msgspec.Struct):
    properties: dict[str, Any]


class _WithProperties(msgspec.Struct):
    stream: Text
    schema: _Properties


@dataclass(eq=False)
class MessageError(ConfigurationError):
    """An invalid line of Singer input; lines are counted from 1."""

    line: int
    problem: str
    stream: str | None = None
    key: str | None = None
    next_step: str = "Correct the program that wrote the line"

    def sentence(self) -> str:
        stream = "" if self.stream is None else f", stream {self.stream!r}"
        key = "" if self.key is None else f", key `{self.key}`"
        return (
            f"Line {self.line}{stream}{key}: {self.problem}. Records after the last printed STATE "
            f"may have landed and arrive twice. {self.next_step}, then run again from the last "
            f"STATE that was printed."
        )


class MessageReader:
    """A parser of the lines of one tap in order, which tracks the streams that have a SCHEMA.

    `schema_missing` is the error class for records or files that precede the SCHEMA of their
    stream.
    """

    def __init__(self, *, schema_missing: type[MessageError] = MessageError) -> None:
        self._schema_missing = schema_missing
        self._streams_by_json_name: dict[bytes, str] = {}  # keys are encoded JSON strings
        self._announced_streams: set[str] = set()

    def read(self, line: bytes, number: int) -> Message:
        """Parse a line, with or without its line ending; `number` counts from 1.

        Raises:
            MessageError: the line is invalid.
        """
        return self._read_plain_record(line, number) or self._read_strictly(line, number)

    def _read_plain_record(self, line: bytes, number: int) -> RecordMessage | None:
        """Parse a regular RECORD quickly; return None for any other line."""
        try:
            fields = FIELDS_DECODER.decode(line)
            if bytes(fields.get("type", _NOTHING)) != _RECORD or "record" not in fields:
                return None
            stream = self._streams_by_json_name.get(bytes(fields.get("stream", _NOTHING)))
            text = bytes(fields["record"])
            record = EXACT_DECODER.decode(text)
            version = EXACT_DECODER.decode(fields.get("version", _NULL))
            extracted = EXACT_DECODER.decode(fields.get("time_extracted", _NULL))
            is_right = (
                type(record) is dict
                and (version is None or type(version) is int)
                and (extracted is None or type(extracted) is str)
                and fields_are_complete(fields, line)
                and is_complete(record, text)
            )
        except DECODE_ERRORS:
            return None
        if stream is None or not is_right:
            return None
        return RecordMessage(number, stream, text, record, version, extracted)

    def _read_strictly(self, line: bytes, number: int) -> Message:
        values = {**_parse_object(line, number), "line": number}
        kind = _convert(values, _Typed, number).type
        if kind not in MESSAGES:
            problem = f"is {abbreviate(kind)}; expected {', '.join(MESSAGES)}"
            raise _error(values, number, "type", problem)
        message = _message(kind, values, line)
        if isinstance(message, SchemaMessage):
            self._announced_streams.add(message.stream)
            self._streams_by_json_name[_text_of(line, "stream")] = message.stream
        elif (
            not isinstance(message, StateMessage) and message.stream not in self._announced_streams
        ):
            problem = f"{kind} comes before the SCHEMA of its stream"
            raise self._schema_missing(
                number, problem, message.stream, next_step="Have the tap write SCHEMA first"
            )
        return message


def _message(kind: str, values: dict[str, Any], line: bytes) -> Message:
    number = values["line"]
    match kind:
        case "BATCH":
            return _batch_message(values, number)
        case "SCHEMA":
            _convert(values, _WithProperties, number)
            if values.get("key_properties") is None:
                values["key_properties"] = ()
        case "RECORD":
            values["text"] = _text_of(line, "record")
        case "STATE":
            values["text"] = _text_of(line, "value").decode().replace("\r", " ")
    return _convert(values, MESSAGES[kind], number)


def _text_of(line: bytes, key: str) -> bytes:
    """Return the value of a key byte for byte as written, empty if it is missing."""
    return bytes(FIELDS_DECODER.decode(line).get(key, _NOTHING))


def _parse_object(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = parse(line)
    except DuplicateKeyError as error:
        raise MessageError(number, "is duplicated", None, str(error)) from error
    except ValueError as error:
        problem = f"is not JSON ({error}); it begins with {abbreviate(line[:40])}"
        raise MessageError(number, problem) from error
    if not isinstance(value, dict):
        raise MessageError(number, f"is {abbreviate(value)}; expected a JSON object")
    return value


def _convert(values: dict[str, Any], kind: type[T], number: int) -> T:
    """Return the values of a line as a message of this type, or raise an error for a key."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        expected, _, path = str(error).partition(" - at `$")
        key, element, _ = path.strip(".`").partition("[")
        expected = expected.partition(", got ")[0]
        if element:
            expected = f"Expected an array, each element {expected.removeprefix('Expected ')}"
        if missing := _MISSING.fullmatch(expected):
            key = f"{key}.{missing[1]}".lstrip(".")
            problem = "is missing; the message cannot be understood without it"
        else:
            value = reduce(lambda part, name: part[name], key.split("."), values)
            problem = f"is {abbreviate(value)}; {expected[:1].lower()}{expected[1:]}"
        raise _error(values, number, key, problem) from error


def _error(
    values: Mapping[str, Any], number: int, key: str, problem: str, **next_step: str
) -> MessageError:
    stream = values.get("stream")
    return MessageError(
        number, problem, stream if isinstance(stream, str) else None, key, **next_step
    )


def _batch_message(values: dict[str, Any], number: int) -> BatchMessage:
    encoding, checksums = values.get("encoding"), values.get("sha256")
    if isinstance(encoding, dict):
        _check_encoding(values, encoding, number)
    message = _convert({**values, "sha256": ()}, BatchMessage, number)
    manifest = message.manifest
    if not manifest:
        raise _error(values, number, "manifest", "is empty; expected at least one file")
    if len(set(manifest)) < len(manifest):
        duplicate = next(uri for uri in manifest if manifest.count(uri) > 1)
        raise _error(values, number, "manifest", f"has {abbreviate(duplicate)} twice")
    has_checksums = (
        isinstance(checksums, list)
        and len(checksums) == len(manifest)
        and all(isinstance(checksum, str) for checksum in checksums)
    )
    return replace(message, sha256=tuple(checksums or ())) if has_checksums else message


def _check_encoding(values: dict[str, Any], encoding: dict[str, Any], number: int) -> None:
    """Check the format and compression that a BATCH message names for its files."""
    if "format" not in encoding:
        return  # the conversion reports it
    name = encoding["format"]
    compressions = (
        *(PART_FORMATS[Format(name)].compressions if name in SINGER_FORMATS else ()),
        None,
    )
    known: dict[str, Sequence[str | None]] = {"format": SINGER_FORMATS, "compression": compressions}
    for key in ("format", *encoding):  # the compressions depend on the format
        value = encoding[key]
        if key not in known or value not in known[key]:
            expected = ", ".join(filter(None, known.get(key, known)))
            problem = f"is {abbreviate(value)}; expected {expected}"
            step = "Set `batch_config.encoding` of the tap to one of these"
            raise _error(values, number, f"encoding.{key}", problem, next_step=step)


MESSAGES: dict[str, type[Message]] = {
    "SCHEMA": SchemaMessage,
    "RECORD": RecordMessage,
    "BATCH": BatchMessage,
    "STATE": StateMessage,
    "ACTIVATE_VERSION": ActivateVersionMessage,
}


def abbreviate(value: object) -> str:
    """Return the beginning of a value's repr for use in a sentence."""
    try:
        text = repr(value)
    except RecursionError:
        return "something nested very deeply"
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"


class DuplicateKeyError(ValueError):
    """A duplicate key of an object; the text is the key."""


def parse(line: bytes) -> Any:
    """Parse JSON: integers become int, all other numbers Decimal.

    Raises:
        DuplicateKeyError: an object has a key twice.
        ValueError: the line is not valid JSON in UTF-8; the text gives the reason.
    """
    try:
        text = line.decode("utf-8")
        value = json.loads(
            text,
            parse_float=Decimal,
            parse_constant=_reject_constant,
            object_pairs_hook=_unique_pairs,
        )
        EXACT_DECODER.decode(line)  # rejects lone surrogates, which UTF-8 cannot encode
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is not UTF-8") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ArithmeticError as error:
        raise ValueError("a number is too large") from error
    return value


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise DuplicateKeyError(name)
            seen.add(name)
    return values


def is_complete(value: Any, text: bytes) -> bool:
    """Return whether no key of a text was lost in its value.

    The check is quick and may return False for a complete value.

    Each key adds one colon outside of strings. As long as no colon is escaped, the strings of value
    and text contain the same colons, so equal totals mean equal numbers of keys.
    """
    return _ESCAPED_COLON not in text and _ENCODER.encode(value).count(b":") == text.count(b":")


def fields_are_complete(fields: dict[str, msgspec.Raw], line: bytes) -> bool:
    """Return whether no field of an object was lost, without checking inside the values."""
    colons = len(fields)
    for name, raw in fields.items():
        colons += name.count(":") + bytes(raw).count(b":")
    return _ESCAPED_COLON not in line and colons == line.count(b":")


def lines(
    source: IO[Any], *, max_bytes: int = MAX_LINE_BYTES, idle: Callable[[], float] | None = None
) -> Iterator[bytes]:
    """Yield the lines of a file or pipe without their line endings.

    `idle` returns how many seconds to wait for input. It is called again after each wait without
    input and may do work that is due, or raise. It is never called for a source without a
    descriptor.

    Raises:
        MessageError: a line has more bytes than `max_bytes`.
    """
    number = 0
    rest: list[bytes] = []
    held_bytes = 0
    for chunk in _chunks(source, idle):
        pieces = chunk.split(b"\n")
        if len(pieces) > 1:
            number += 1
            _check_length(held_bytes + len(pieces[0]), number, max_bytes)
            yield b"".join([*rest, pieces[0]])
            for piece in pieces[1:-1]:
                number += 1
                _check_length(len(piece), number, max_bytes)
                yield piece
            rest, held_bytes = [], 0
        rest.append(pieces[-1])
        held_bytes += len(pieces[-1])
        _check_length(held_bytes, number + 1, max_bytes)
    if held_bytes:
        yield b"".join(rest)


def _check_length(length: int, number: int, max_bytes: int) -> None:
    if length > max_bytes:
        problem = f"is longer than {max_bytes} bytes, the maximum"
        raise MessageError(number, problem, next_step=_TOO_LONG)


def _chunks(source: IO[Any], idle: Callable[[], float] | None) -> Iterator[bytes]:
    descriptor = _descriptor(source)
    if descriptor is None:
        for text in source:
            yield text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return
    while True:
        while idle is not None and not select.select([descriptor], [], [], idle())[0]:
            pass
        chunk = os.read(descriptor, _CHUNK)
        if not chunk:
            return
        yield chunk


def _descriptor(source: IO[Any]) -> int | None:
    """Return the descriptor of a file that has not been read from yet, None if it has none."""
    try:
        return source.fileno()
    except (OSError, AttributeError):  # an in-memory file
        return None
