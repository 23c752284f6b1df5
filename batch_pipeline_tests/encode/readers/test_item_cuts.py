"""Splitting a file into items: ranges cover it once and have the records of the whole file."""

import errno
import gzip
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import Chunk, JsonRecords
from batch_pipeline.encode.readers.decoded_file import ItemCutter, open_source
from batch_pipeline.model.errors import BadFileError, SourceUnavailableError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.stream import CsvOptions, SourceFormat, Stream
from batch_pipeline_tests.encode.landed_files import csv_text, landed, stream_of

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


@settings(deadline=None, max_examples=300)
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


@settings(deadline=None, max_examples=500)
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


@settings(deadline=None, max_examples=300)
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


def test_record_longer_than_limit_gets_its_own_range(tmp_path: Path) -> None:
    file = landed(tmp_path, b'{"a":1}\n{"a":"' + b"x" * 90 + b'"}\n{"a":2}\n')
    assert spans(cut(file, 10, JSONL)) == [(0, 7), (8, 106), (107, 114)]


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


@pytest.mark.parametrize(
    ("data", "stream"), [(b"id\n1\n2\n3\n4\n", CSV), (b"{}\n{}\n{}\n{}\n", JSONL)]
)
def test_record_numbers_start_at_range_but_lines_at_file(
    tmp_path: Path, data: bytes, stream: Stream
) -> None:
    part = cut(landed(tmp_path, data), 6, stream)[1]
    with open_source(part, stream) as source:
        assert source.range is not None
        [chunk] = source.reader.chunks(source, stream)
        assert [*chunk.record_numbers] == [1, 2, 3][: chunk.good]
        assert chunk.good > 1
        assert [*chunk.line_numbers] == [line for line, _ in records(part, stream)]
        assert chunk.line_numbers[0] > 2
