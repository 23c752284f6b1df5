"""Text in any charset is decoded to UTF-8, or rejected with the position of the error."""

import codecs
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.encode.readers.decoded_file import DecodedFile
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.landed_files import in_memory, rejection, stream_of

TEXT = 'name,city\n"Zoë",München – 東京 😀\n'


def read(source: DecodedFile, *, size_bytes: int = 2**20) -> bytes:
    """Read the whole source in blocks of this size."""
    blocks = list(iter(lambda: source.read(size_bytes), b""))
    assert all(len(block) == size_bytes for block in blocks[:-1])
    return b"".join(blocks)


@pytest.mark.parametrize(
    ("mark", "charset"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
@pytest.mark.parametrize("declared", ["utf-8", "latin-1", "utf-16", "utf-8-sig"])
def test_byte_order_mark_overrides_declared_charset(
    mark: bytes, charset: str, declared: str
) -> None:
    data = mark + TEXT.encode(charset)
    stream = stream_of(charset=declared)

    assert read(in_memory(data, stream)) == TEXT.encode()
    assert read(in_memory(gzip.compress(data), stream), size_bytes=3) == TEXT.encode()
    assert read(in_memory(mark, stream)) == b""


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be", "utf-32-le", "gb18030", "utf-7"])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60), size=st.integers(1, 9))
def test_source_with_declared_charset_is_decoded(charset: str, text: str, size: int) -> None:
    """Characters of several bytes survive block boundaries."""
    stream = stream_of(SourceFormat.CSV, charset=charset)

    assert read(in_memory(f"x{text}".encode(charset), stream), size_bytes=size) == b"x%b" % (
        text.encode()
    )


@pytest.mark.parametrize(
    ("data", "charset", "reason"),
    [
        (b"abc\x81d", "cp1252", "is not cp1252 text at byte 3"),
        (b"a" * 2**21 + b"\xe9", "ascii", "is not ascii text at byte 2097152"),
        (b"a\0b\0\0\xd8c\0", "utf-16-le", "is not utf-16-le text at byte 4"),
        (b"\xff\xfea\0b\0c", "utf-8", "is not utf-16-le text at byte 6"),
        (b"ab\x82", "shift_jis", "is not shift_jis text at byte 2"),
        (b"a" * (2**20 - 1) + b"\x82\xff", "shift_jis", "is not shift_jis text at byte 1048575"),
        (b"+2AA-", "utf-7", "holds an unpaired surrogate of utf-7 text"),
        (
            b"a\0b\0c\0",
            "utf-16",
            "has no byte order mark: set `source.options.charset` to utf-16-le or utf-16-be",
        ),
        (
            b"\0a\0,\0b",
            "utf-8",
            "is UTF-16 text without a byte order mark: set `source.options.charset` to utf-16-be",
        ),
        (
            b"a\0,\0b\0",
            "utf-8",
            "is UTF-16 text without a byte order mark: set `source.options.charset` to utf-16-le",
        ),
    ],
)
def test_undecodable_source_is_bad_file(data: bytes, charset: str, reason: str) -> None:
    """Nothing is replaced; the reason names the offset of the first undecodable byte."""
    stream = stream_of(SourceFormat.CSV, charset=charset)
    assert rejection(lambda: read(in_memory(data, stream))) == (None, reason)


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", "utf_8", "utf-8-sig"])
def test_utf8_source_passes_bytes_through(charset: str) -> None:
    """Invalid UTF-8 makes bad records, not a bad file."""
    data = b'{"a":"\xff"}\n{"a":1}\n'
    source = in_memory(data, stream_of(charset=charset))

    assert source.can_be_split
    assert read(source) == data
    latin = in_memory(data, stream_of(charset="latin-1"))
    assert not latin.can_be_split
