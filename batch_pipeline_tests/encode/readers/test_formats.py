"""Detection of source formats from the first bytes of a file."""

import gzip

import pytest

from batch_pipeline.encode.readers.formats import detect_text_format
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.landed_files import in_memory, rejection, stream_of

CSV, JSONL, JSON = SourceFormat.CSV, SourceFormat.JSONL, SourceFormat.JSON
PARQUET, AVRO = b"PAR1\x15\x04\x15...", b"Obj\x01...."


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"", CSV),
        (b"a,b\n1,2\n", CSV),
        (b"[id],[name]\n1,x\n", CSV),
        (b'"{",b\n', CSV),
        (b'\n \r\n{"a":1}\r\n\r\n{"a":2}\r\n', JSONL),
        (b"{}\n[]\n", JSONL),
        (b'{"a":nope}\n{"a":2}\n', JSONL),
        (b'{"a":1,\n{"a":2}\n', JSONL),
        (b'{"a":"x\n{"a":"y"}\n', JSONL),
        (b'{"a":1} garbage\n{"a":2}\n', JSONL),
        (b'{"a":"a line longer than what was read', JSONL),
        (b'{"a":"\xff"}\n{"a":2}\n', JSONL),
        (b'{"a":' + b"[" * 5000 + b"\n", JSONL),
        (b'{\n  "a": 1\n}\n', JSON),
        (b'{\r\n\r\n "a": [\r\n {', JSON),
        (b'{"a":1}{"a":2}', JSON),
        (b'{"a":1}\r{"a":2}\r', JSON),
        (b'\n[\n {"a":1}', JSON),
        (b"[", JSON),
        (b"[ ]", JSON),
        (b"[1, 2]", JSON),
        (b"[null]", JSON),
    ],
)
def test_detect_text_format(start: bytes, expected: SourceFormat) -> None:
    """One record per line is jsonl, even if broken; objects in any other layout are json."""
    assert detect_text_format(start) is expected


@pytest.mark.parametrize(
    ("data", "expected"), [(PARQUET, SourceFormat.PARQUET), (AVRO, SourceFormat.AVRO)]
)
def test_magic_bytes_decide_format(data: bytes, expected: SourceFormat) -> None:
    assert in_memory(data).format is expected
    assert in_memory(data, stream_of(expected)).format is expected


@pytest.mark.parametrize("declared", [CSV, JSONL, JSON])
def test_binary_file_declared_as_text_is_bad_file(declared: SourceFormat) -> None:
    """A declaration overrides a guess, but not magic bytes."""
    assert in_memory(b"{a\n1\n", stream_of(declared)).format is declared
    reason = f"has format parquet, but `source.format` is {declared}"
    assert rejection(in_memory, PARQUET, stream_of(declared)) == (None, reason)


@pytest.mark.parametrize("data", [b"", b"a,b\n", AVRO, b'{"a":1}'])
def test_other_file_declared_as_parquet_is_bad_file(data: bytes) -> None:
    with pytest.raises(BadFileError, match=r"format parquet, which|format avro, but"):
        in_memory(data, stream_of(SourceFormat.PARQUET))


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"PK\x03\x04", "a zip archive (or a spreadsheet)"),
        (b"PK\x05\x06", "an empty zip archive"),
        (b"ARROW1\0\0", "an Arrow file"),
        (b"\xff\xff\xff\xff", "an Arrow stream"),
        (b"PARE\x10\0\0\0", "an encrypted parquet file"),
        (b"\x04\x22\x4d\x18", "compressed with lz4"),
        (b"%PDF-1.7", "a PDF document"),
        (b"name" + bytes(253) + b"ustar", "a tar archive"),
    ],
)
def test_unsupported_file_type_is_bad_file(start: bytes, name: str) -> None:
    assert rejection(in_memory, start + b"...") == (None, f"is {name}, which cannot be read")


def test_file_compressed_twice_is_bad_file() -> None:
    data = gzip.compress(gzip.compress(b"a\n"))
    assert rejection(in_memory, data) == (None, "is compressed twice, with gzip and gzip")


@pytest.mark.parametrize(
    "data", [b"PARENT_ID,name\n1,x\n", b"PAR1,PAR2,PAR3\n1,2,3\n", b"x" * 257 + b"ustar"]
)
def test_text_that_starts_like_a_binary_format_is_text(data: bytes) -> None:
    assert in_memory(data).format is CSV
