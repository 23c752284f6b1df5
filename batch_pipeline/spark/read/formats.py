"""Tells what is in a file by its first bytes. Nothing is opened or decompressed here."""

import json
import re

import msgspec

from batch_pipeline.domain.stream import SourceFormat

_BINARY = {b"PAR1": SourceFormat.PARQUET, b"Obj\x01": SourceFormat.AVRO}
_REFUSED = {
    b"PK\x03\x04": "a zip archive (or a spreadsheet)",
    b"PK\x05\x06": "an empty zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7-zip archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"\xff\x06\x00\x00sNaPpY": "compressed with snappy",
    b"\x1f\x9d": "compressed with compress (.Z)",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Office document",
    b"PARE": "an encrypted parquet file",
    b"ARROW1\0\0": "an Arrow file",
    b"\xff\xff\xff\xff": "an Arrow stream",
    b"SQLite format 3\0": "an SQLite database",
    b"%PDF-": "a PDF document",
}
_TAR = re.compile(rb"(?s)(?=.{0,256}\0).{257}ustar")
_WORDS = re.compile(rb"PAR[1E][\t\n\r -\x7e\x80-\xff]{8}")  # a column may be called PARENT_ID
_as_raw = msgspec.json.Decoder(msgspec.Raw).decode  # parses, and makes nothing
_BLANKS = b" \t\r\n"
_ARRAY = re.compile(rb'\[\s*(?:[\[{\]"\d-]|true\b|false\b|null\b|$)')


def refusal(start: bytes) -> str | None:
    """Say what a file is that nothing here can read, None if it may be readable."""
    if _WORDS.match(start):
        return None
    for magic, name in _REFUSED.items():
        if start.startswith(magic):
            return f"is {name}, which cannot be read"
    return "is a tar archive, which cannot be read" if _TAR.match(start) else None


def binary_format(start: bytes) -> SourceFormat | None:
    """Tell a format by its magic bytes, None if it has none."""
    return None if _WORDS.match(start) else _BINARY.get(start[:4])


def text_format(start: bytes) -> SourceFormat:
    """Tell csv, JSON lines and other JSON apart; `start` is UTF-8, maybe cut anywhere."""
    text = start.lstrip(_BLANKS)
    if text.startswith(b"{"):
        return SourceFormat.JSON if _are_documents(text) else SourceFormat.JSONL
    return SourceFormat.JSON if _ARRAY.match(text) else SourceFormat.CSV


def _are_documents(text: bytes) -> bool:
    """Tell whether an object ends elsewhere than its line, or others follow in the line.

    An object that breaks off with its line is a broken line, not a document.
    """
    end = text.find(b"\n")
    if _is_object(text if end < 0 else text[:end]):
        return False
    decoded = text.decode("utf-8", "replace")
    line, has_end, rest = decoded.partition("\n")
    try:
        _, end = json.JSONDecoder(parse_int=str).raw_decode(decoded)
    except json.JSONDecodeError as error:
        rest = rest.lstrip()
        next_line = len(decoded) - len(rest)
        return bool(has_end and rest) and error.pos >= next_line + rest.startswith("{")
    except RecursionError:
        return False
    return end > len(line) or line[end:].lstrip().startswith("{")


def _is_object(line: bytes) -> bool:
    """Tell quickly of most lines that begin with a brace that they are just that."""
    try:
        _as_raw(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
