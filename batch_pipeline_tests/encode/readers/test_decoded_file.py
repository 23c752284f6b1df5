"""Opening the file of an item: change detection, charsets, seekable files, cuts into ranges."""

import bz2
import codecs
import errno
import gzip
import io
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import ByteRange, Chunk, JsonRecords
from batch_pipeline.encode.readers.decoded_file import DecodedFile, ItemCutter, open_source
from batch_pipeline.encode.source_file import bad_file_error
from batch_pipeline.model.errors import BadFileError, SourceRefusedError, SourceUnavailableError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.record_rules import BadFileKind
from batch_pipeline.model.stream import CsvOptions, SourceFormat, Stream
from batch_pipeline.storage.local import PinnedLocalFile
from batch_pipeline_tests.encode.landed_files import (
    STREAM,
    csv_text,
    in_memory,
    landed,
    rejection,
    stream_of,
)


def kind_and_reason(file: LandedFile) -> tuple[BadFileKind, str]:
    """Open a bad file and return the kind and the reason."""
    with pytest.raises(BadFileError) as error, open_source(file, STREAM):
        pass
    return BadFileKind(error.value.kind), error.value.reason


@pytest.mark.guarantee("G9")
def test_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    """Missing files and folders differ from unreadable ones."""
    for name in ("gone", "no/folder"):
        file = LandedFile(location=to_uri(tmp_path / name), size_bytes=1)
        assert kind_and_reason(file) == (BadFileKind.MISSING, "does not exist")
    folder, relative = LandedFile(location=to_uri(tmp_path)), LandedFile(location="a.csv")
    assert kind_and_reason(folder) == (BadFileKind.CORRUPT, "is not a regular file")
    assert kind_and_reason(relative)[1].startswith("is not an absolute file URI")


@pytest.mark.guarantee("G9")
def test_file_with_other_size_or_time_is_reported_as_changed(tmp_path: Path) -> None:
    file = landed(tmp_path, b"a\n1\n")
    assert file.modified_at is not None
    earlier = replace(file, modified_at=file.modified_at - timedelta(microseconds=1))

    kind, reason = kind_and_reason(replace(file, size_bytes=5))
    assert (kind, reason) == (BadFileKind.CHANGED, "changed since it was registered: size 5 -> 4 B")
    kind, reason = kind_and_reason(earlier)
    assert kind is BadFileKind.CHANGED
    assert reason.startswith("changed since it was registered: modified 20")


@pytest.mark.guarantee("G9")
def test_file_changed_while_read_is_reported_as_changed(tmp_path: Path) -> None:
    """No size or time is registered, and the new content looks damaged."""
    file = LandedFile(location=landed(tmp_path, gzip.compress(os.urandom(600_000))).location)
    path = Path(to_path(file.location))

    with pytest.raises(BadFileError) as error, open_source(file, STREAM) as source:
        assert path.write_bytes(b"other") + len(source.read(2**20)) > 0
    assert (error.value.kind, error.value.reason) == (
        BadFileKind.CHANGED,
        "changed while it was read",
    )
    with pytest.raises(BadFileError) as error, open_source(file, STREAM):
        path.unlink()
    assert error.value.kind is BadFileKind.MISSING


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ETIMEDOUT, errno.EMFILE, errno.EIO])
def test_outage_of_mounted_file_system_is_not_a_bad_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Damage and outages both have EIO, so its batch is retried, and others are encoded."""
    file = landed(tmp_path, b"a\n1\n")
    expected = SourceRefusedError if number == errno.EIO else SourceUnavailableError
    error = OSError(number, os.strerror(number))
    with pytest.raises(SourceUnavailableError) as caught, open_source(file, STREAM) as source:
        raise source.bad_file("cannot be read") from error  # as readers do
    assert type(caught.value) is expected
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", Mock(side_effect=error))
        with pytest.raises(expected), open_source(file, STREAM):
            pass


def test_bad_file_reason_is_one_printable_line() -> None:
    """Libraries quote bytes of the file, and reasons go to logs and terminals."""
    error = bad_file_error(STREAM, "file:///in/a", "is damaged (\x1b[2J\nbyte \x0f)" + "é" * 2000)
    assert error.reason.startswith("is damaged (\\x1b[2J\\nbyte \\x0f)ééé")
    assert len(error.reason) == 1000


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_source_file_is_seekable_and_uncompressed(compress: Callable[[bytes], bytes]) -> None:
    data = b"PAR1\x15" + os.urandom(3_000_000)
    source = in_memory(compress(data))

    for _ in range(2):
        file = source.file
        assert file.read() == data
        file.seek(-1_000_000, os.SEEK_END)
        assert file.read(5) == data[-1_000_000:][:5]
    source.close()


def test_only_plain_utf_8_sources_can_be_split() -> None:
    jsonl = b'{"a":1}\n'

    for data in (jsonl, b"\xef\xbb\xbfa,b\n", b"PAR1\x15..."):
        assert in_memory(data).can_be_split
    for data in (gzip.compress(jsonl), "\ufeffa,b\n".encode("utf-16-le"), b"[{}]", b"Obj\x01...."):
        assert not in_memory(data).can_be_split
    assert not in_memory(jsonl, stream_of(charset="latin-1")).can_be_split


def test_source_with_part_can_read_any_byte(tmp_path: Path) -> None:
    file = landed(tmp_path, b"\xef\xbb\xbf" + b'{"a":1}\n{"a":2}\n')

    with open_source(file, STREAM, ByteRange(4, 9)) as source:
        assert source.part == ByteRange(4, 9)
        assert source.text_start == 3
        source.seek(11)
        assert source.read(100) == b'{"a":2}\n'
        with source.reopened() as again:
            assert again.read(3) == b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "compress", [gzip.compress, bz2.compress, lambda text: text.decode().encode("utf-16")]
)
def test_source_reads_exactly_the_requested_size(compress: Callable[[bytes], bytes]) -> None:
    """Readers treat a short read as the end of the file."""
    text = b"".join(b'{"id":%d}\n' % number for number in range(150_000))
    source = in_memory(compress(text), stream_of(SourceFormat.JSONL))
    start = source.read(2**20)
    assert len(start) == 2**20
    assert start + source.read(2**24) == text


NO_MARK = "is UTF-16 text without a byte order mark: set `source.options.charset` to "
TEXT = 'name,city\n"Zoë",München – 東京 😀\n'


def read_text(source: DecodedFile, *, size_bytes: int = 2**20) -> bytes:
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

    assert read_text(in_memory(data, stream)) == TEXT.encode()
    assert read_text(in_memory(gzip.compress(data), stream), size_bytes=3) == TEXT.encode()
    assert read_text(in_memory(mark, stream)) == b""


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be", "utf-32-le", "gb18030", "utf-7"])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60), size=st.integers(1, 9))
def test_source_with_declared_charset_is_decoded(charset: str, text: str, size: int) -> None:
    """Characters of several bytes survive block boundaries."""
    stream = stream_of(SourceFormat.CSV, charset=charset)

    assert read_text(in_memory(f"x{text}".encode(charset), stream), size_bytes=size) == b"x%b" % (
        text.encode()
    )


@pytest.mark.parametrize(
    ("data", "charset", "reason"),
    [
        (b"abc\x81d", "cp1252", "is not cp1252 text at byte 3"),
        (b"a\0b\0\0\xd8c\0", "utf-16-le", "is not utf-16-le text at byte 4"),
        (b"\xff\xfea\0b\0c", "utf-8", "is not utf-16-le text at byte 6"),
        (b"a" * (2**20 - 1) + b"\x82\xff", "shift_jis", "is not shift_jis text at byte 1048575"),
        (b"+2AA-", "utf-7", "holds an unpaired surrogate of utf-7 text"),
        (
            b"a\0b\0c\0",
            "utf-16",
            "has no byte order mark: set `source.options.charset` to utf-16-le or utf-16-be",
        ),
        ("a,b".encode("utf-16-be"), "utf-8", NO_MARK + "utf-16-be"),
        ("a,b".encode("utf-16-le"), "utf-8", NO_MARK + "utf-16-le"),
    ],
)
def test_undecodable_source_is_bad_file(data: bytes, charset: str, reason: str) -> None:
    """Nothing is replaced; the reason names the offset of the first undecodable byte."""
    stream = stream_of(SourceFormat.CSV, charset=charset)
    assert rejection(lambda: read_text(in_memory(data, stream))) == (None, reason)


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", "utf_8", "utf-8-sig"])
def test_utf8_source_passes_bytes_through(charset: str) -> None:
    """Invalid UTF-8 makes bad records, not a bad file."""
    data = b'{"a":"\xff"}\n{"a":1}\n'
    source = in_memory(data, stream_of(charset=charset))

    assert source.can_be_split
    assert read_text(source) == data


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NumberedRecords = list[tuple[int, str]]

cells = st.none() | st.text(alphabet='ab,"\n\ré', max_size=5)
starts = st.sampled_from([b"", BYTE_ORDER_MARK])
sizes = st.integers(1, 60)


CSV = stream_of(SourceFormat.CSV)
JSONL = stream_of(SourceFormat.JSONL)


def cut(file: LandedFile, max_bytes: int, stream: Stream = CSV) -> list[LandedFile]:
    """Split a file as registration does."""
    return list(ItemCutter(stream=stream, most_bytes=max_bytes).ranges(file))


def spans(ranges: list[LandedFile]) -> list[tuple[int, int]]:
    """Return the first and the last byte of each range."""
    byte_ranges = [file.range for file in ranges]
    return [(one.start, one.stop - 1) for one in byte_ranges if one is not None]


def records(file: LandedFile, stream: Stream) -> NumberedRecords:
    """Read an item: each record, or its error, with its line number."""
    found: NumberedRecords = []
    with open_source(file, stream) as source:
        for chunk in source.reader.chunks(source, stream):
            if not chunk.bad:  # records are numbered within the item, lines within the file
                first = len(found) + 1
                assert [*chunk.record_numbers] == [*range(first, first + chunk.good)]
            found += sorted([*zip(chunk.line_numbers, rows(chunk), strict=True), *bad(chunk)])
    return found


def read_until_error(items: list[LandedFile], stream: Stream) -> NumberedRecords:
    """Read items up to the first bad file, whose error counts as a record."""
    found: NumberedRecords = []
    try:
        for item in items:
            found += records(item, stream)
    except BadFileError as error:
        found.append((error.line or 0, error.reason))
    return found


def rows(chunk: Chunk) -> list[str]:
    """Return the good records of a chunk as text."""
    if isinstance(chunk, JsonRecords):
        return [str(line) for line in chunk.lines]
    return [json.dumps(row) for row in chunk.batch.to_pylist()]


def bad(chunk: Chunk) -> NumberedRecords:
    return [(one.line, f"{one.reason}: {one.raw!r}") for one in chunk.bad]


def check_ranges(data: bytes, max_bytes: int, stream: Stream) -> list[LandedFile]:
    """Check the ranges of a file against the whole file and return them."""
    with tempfile.TemporaryDirectory() as folder:
        file = landed(Path(folder), data)
        ranges = cut(file, max_bytes, stream)
        if ranges == [file]:
            return ranges
        bounds = spans(ranges)
        assert [first for first, _ in bounds] == [0, *(last + 1 for _, last in bounds[:-1])]
        assert bounds[-1][1] == len(data) - 1
        assert {piece.uri for piece in ranges} == {file.location}
        assert read_until_error([file], stream) == read_until_error(ranges, stream)
        return ranges


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.tuples(cells, cells), max_size=9),
    end=st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    max_bytes=sizes,
    start=starts,
    names=st.sampled_from([(), ("x", "y")]),
    is_ended=st.booleans(),
)
@example(
    rows=[("a", "b")] * 3, end="\r\n", max_bytes=1, start=BYTE_ORDER_MARK, names=(), is_ended=False
)
def test_ranges_of_csv_have_records_and_lines_of_the_file(
    rows: list[tuple[str | None, ...]],
    end: str,
    max_bytes: int,
    start: bytes,
    names: tuple[str, ...],
    is_ended: bool,
) -> None:
    data = start + csv_text([("id", "note"), *rows], end)
    data = data if is_ended else data.removesuffix(end.encode())
    stream = stream_of(SourceFormat.CSV, csv=CsvOptions(names=names))
    ranges = check_ranges(data, max_bytes, stream)
    longest = max(len(csv_text([row], end)) for row in [("id", "note"), *rows])
    if len(data) > max_bytes > longest + len(start):
        assert len(ranges) > 1


@settings(deadline=None, max_examples=200)
@given(
    data=st.text(alphabet='a,"\n\r\\', max_size=60),
    max_bytes=sizes,
    escape=st.sampled_from([None, "\\"]),
)
@example(data="a\n1\n1,2\n3\n", max_bytes=4, escape=None)
@example(data='a,b\n1,5" pipe\n2,3" pipe\n4,5\n', max_bytes=4, escape=None)
def test_ranges_of_any_csv_text_have_the_same_bad_records(
    data: str, max_bytes: int, escape: str | None
) -> None:
    check_ranges(
        data.encode(), max_bytes, stream_of(SourceFormat.CSV, csv=CsvOptions(escape=escape))
    )


@settings(deadline=None, max_examples=100)
@given(data=st.text(alphabet='{}"a\n\r ', max_size=60), max_bytes=sizes, start=starts)
@example(data="\n}\r{", max_bytes=1, start=b"")
def test_ranges_of_jsonl_are_cut_at_line_feeds(data: str, max_bytes: int, start: bytes) -> None:
    text = start + data.encode()
    ranges = check_ranges(text, max_bytes, JSONL)
    if b"\n" in text[:-1] and len(text) > max_bytes:
        assert len(ranges) > 1


def test_ranges_are_as_large_as_allowed(tmp_path: Path) -> None:
    lines = b"id,note\n" + b"".join(b"%d,abc\n" % number for number in range(1, 7))
    assert spans(cut(landed(tmp_path, lines), 20)) == [(0, 19), (20, 37), (38, 43)]
    assert spans(cut(landed(tmp_path, b"id\n1\n2\n3\n"), 4)) == [(0, 2), (3, 6), (7, 8)]
    assert spans(cut(landed(tmp_path, b"{}\n{}\n{}\n{}"), 6, JSONL)) == [(0, 5), (6, 10)]
    one_is_longer = b'{"a":1}\n{"a":"' + b"x" * 90 + b'"}\n{"a":2}\n'
    assert spans(cut(landed(tmp_path, one_is_longer), 10, JSONL)) == [(0, 7), (8, 106), (107, 114)]


@pytest.mark.parametrize("name", ["#bytes=0-9", "a#bytes=0-9,size=20.csv", "100%#.csv"])
def test_file_name_that_looks_like_a_range_is_a_name(tmp_path: Path, name: str) -> None:
    file = landed(tmp_path, b"id\n1\n2\n3\n", name)
    assert (file.range, file.uri) == (None, file.location)
    assert records(file, CSV) == [(2, '{"id": "1"}'), (3, '{"id": "2"}'), (4, '{"id": "3"}')]
    ranges = cut(file, 5)
    assert spans(ranges) == [(0, 4), (5, 8)]
    assert [line for piece in ranges for line, _ in records(piece, CSV)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("data", "stream"),
    [
        (gzip.compress(b"id\n1\n2\n3\n", mtime=0), CSV),
        (b"id\n1\n2\n3\n", stream_of(SourceFormat.CSV, charset="latin-1")),
        ("id\n1\n2\n3\n".encode("utf-16"), CSV),
        (b'[{"id": 1},\n{"id": 2}]\n', stream_of(SourceFormat.AUTO)),
        (b'id\n1\n2"\n3\n', CSV),
        (b"id\n1\n2\n3\n", stream_of(SourceFormat.PARQUET)),
    ],
)
def test_file_that_cannot_be_split_is_one_item(tmp_path: Path, data: bytes, stream: Stream) -> None:
    file = landed(tmp_path, data)
    assert cut(file, 3, stream) == [file]


def test_missing_or_changed_file_is_left_to_the_next_listing(tmp_path: Path) -> None:
    file = landed(tmp_path, b"id\n1\n2\n3\n")
    assert cut(replace(file, size_bytes=8), 3) == []
    Path(tmp_path / "orders").unlink()
    assert cut(file, 3) == []


def test_file_that_refuses_reads_is_one_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its own batch fails. An outage ends the registration."""
    file = landed(tmp_path, b"id\n1\n2\n3\n")
    monkeypatch.setattr(os, "stat", Mock(side_effect=OSError(errno.EIO, "")))
    assert cut(file, 3) == [file]
    monkeypatch.setattr(os, "stat", Mock(side_effect=OSError(errno.ETIMEDOUT, "")))
    with pytest.raises(SourceUnavailableError):
        cut(file, 3)


class _DamagedFile(io.FileIO):
    """A file whose second MiB cannot be read."""

    def readinto(self, buffer: Any, /) -> int | None:
        if 2**20 <= self.tell() < 2 * 2**20:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().readinto(memoryview(buffer)[: 2**20])


@pytest.mark.parametrize("stream", [CSV, stream_of(SourceFormat.JSONL)])
def test_damaged_sector_is_a_refused_file_and_one_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    data = b"123\n" * 1_000_000
    file = landed(tmp_path, data)

    def open_damaged(pinned: PinnedLocalFile) -> io.BufferedReader:
        return io.BufferedReader(_DamagedFile(pinned._path))

    monkeypatch.setattr(PinnedLocalFile, "open", open_damaged)
    assert cut(file, 3_000_000, stream) == [file]
    part = replace(file, location=f"{file.location}#bytes=0-3999999,size=4000000")
    for whole in (file, part):
        with pytest.raises(SourceRefusedError, match=r"[Ii]nput/output error"):
            records(whole, stream)


def _ranged(tmp_path: Path, data: bytes, fragment: str) -> LandedFile:
    """Return an entry of a user's own table, which has a location only."""
    return LandedFile(location=landed(tmp_path, data).location + fragment)


@pytest.mark.parametrize(
    ("fragment", "reason"),
    [
        ("#bytes=3-99", "has no byte 99, which its range includes"),
        ("#bytes=4-8", "byte 4 is inside a line"),
        ("#bytes=3-5", "byte 6 is inside a line"),
        ("#bytes=1-2", "byte 1 is inside a line"),
        ("#bytes=5-3", "is not a range of bytes of its file, such as #bytes=0-99"),
        ("#bytes=0-8,size=10", "changed since it was registered: size 10 -> 9 B"),
    ],
)
def test_invalid_range_is_rejected(tmp_path: Path, fragment: str, reason: str) -> None:
    with pytest.raises(BadFileError) as caught:
        records(_ranged(tmp_path, b"id\n1\n2\n3\n", fragment), CSV)
    assert caught.value.reason == reason


def test_range_of_compressed_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="only plain csv and jsonl files in UTF-8"):
        records(_ranged(tmp_path, gzip.compress(os.urandom(50), mtime=0), "#bytes=0-9"), CSV)
