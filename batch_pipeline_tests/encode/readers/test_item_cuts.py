"""A file that is cut into items: they cover it once and give the records of the whole."""

import gzip
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import Chunk, JsonRecords
from batch_pipeline.encode.readers.decoded_file import ItemCutter, open_source
from batch_pipeline.encode.readers.formats import read_chunks
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.stream import CsvOptions, Source, SourceFormat, Stream
from batch_pipeline_tests.encode.landed_files import STREAM, csv_text, landed

MARK = b"\xef\xbb\xbf"
Found = list[tuple[int, str]]

cells = st.none() | st.text(alphabet='ab,"\n\ré', max_size=5)
starts = st.sampled_from([b"", MARK])
sizes = st.integers(1, 60)


def stream_of(form: SourceFormat, **options: object) -> Stream:
    """Make a stream of files of one format."""
    return replace(STREAM, source=Source(uri="file:///landing", format=form, **options))  # type: ignore[arg-type] # of a source


CSV = stream_of(SourceFormat.CSV)
JSONL = stream_of(SourceFormat.JSONL)


def cut(file: LandedFile, most: int, stream: Stream = CSV) -> list[LandedFile]:
    """Cut a file as its registration does."""
    return list(ItemCutter(stream=stream, most_bytes=most).ranges(file))


def spans(pieces: list[LandedFile]) -> list[tuple[int, int]]:
    """Give the first and the last byte of each piece."""
    ranges = [piece.range for piece in pieces]
    return [(one.start, one.stop - 1) for one in ranges if one is not None]


def records(file: LandedFile, stream: Stream) -> Found:
    """Read an item: each record, or what is wrong with it, with its line."""
    found: Found = []
    with open_source(file, stream) as source:
        for chunk in read_chunks(source, stream):
            found += sorted([*zip(chunk.line_numbers, rows(chunk), strict=True), *bad(chunk)])
    return found


def read_until_error(items: list[LandedFile], stream: Stream) -> Found:
    """Read items until one cannot be read, which counts as a record."""
    found: Found = []
    try:
        for item in items:
            found += records(item, stream)
    except BadFileError as error:
        found.append((error.line or 0, error.reason))
    return found


def rows(chunk: Chunk) -> list[str]:
    """Write the good records of a chunk as text."""
    if isinstance(chunk, JsonRecords):
        return [str(line) for line in chunk.lines]
    return [json.dumps(row) for row in chunk.batch.to_pylist()]


def bad(chunk: Chunk) -> Found:
    """Give the bad records of a chunk."""
    return [(one.line, f"{one.reason}: {one.raw!r}") for one in chunk.bad]


def check(data: bytes, most: int, stream: Stream) -> list[LandedFile]:
    """Check all that must hold of the pieces of a file, and give them."""
    with tempfile.TemporaryDirectory() as folder:
        file = landed(Path(folder), data)
        pieces = cut(file, most, stream)
        if pieces == [file]:
            return pieces
        bounds = spans(pieces)
        assert [first for first, _ in bounds] == [0, *(last + 1 for _, last in bounds[:-1])]
        assert bounds[-1][1] == len(data) - 1
        assert {piece.uri for piece in pieces} == {file.location}
        assert read_until_error([file], stream) == read_until_error(pieces, stream)
        return pieces


@settings(deadline=None, max_examples=300)
@given(
    rows=st.lists(st.tuples(cells, cells), max_size=9),
    end=st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    most=sizes,
    start=starts,
    names=st.sampled_from([(), ("x", "y")]),
    is_ended=st.booleans(),
)
@example(rows=[("a", "b")] * 3, end="\r\n", most=1, start=MARK, names=(), is_ended=False)
def test_csv_cut_into_items_gives_the_records_of_the_file(
    rows: list[tuple[str | None, ...]],
    end: str,
    most: int,
    start: bytes,
    names: tuple[str, ...],
    is_ended: bool,
) -> None:
    """Expect all records in their order, with the lines that they have in the file."""
    data = start + csv_text([("id", "note"), *rows], end)
    data = data if is_ended else data.removesuffix(end.encode())
    stream = stream_of(SourceFormat.CSV, csv=CsvOptions(names=names))
    pieces = check(data, most, stream)
    longest = max(len(csv_text([row], end)) for row in [("id", "note"), *rows])
    if len(data) > most > longest + len(start):
        assert len(pieces) > 1


@settings(deadline=None, max_examples=500)
@given(
    data=st.text(alphabet='a,"\n\r\\', max_size=60),
    most=sizes,
    escape=st.sampled_from([None, "\\"]),
)
@example(data="a\n1\n1,2\n3\n", most=4, escape=None)
@example(data='a,b\n1,5" pipe\n2,3" pipe\n4,5\n', most=4, escape=None)
def test_any_text_cut_as_csv_gives_what_one_piece_gives(
    data: str, most: int, escape: str | None
) -> None:
    """Expect bad records to be the same, too, however quotes and escapes stand."""
    check(data.encode(), most, stream_of(SourceFormat.CSV, csv=CsvOptions(escape=escape)))


@settings(deadline=None, max_examples=300)
@given(
    data=st.text(alphabet='{}"a\n\r ', max_size=60),
    most=sizes,
    start=starts,
)
@example(data="\n}\r{", most=1, start=b"")
def test_lines_cut_into_items_are_the_lines_of_the_file(data: str, most: int, start: bytes) -> None:
    """Expect JSON lines to be cut at line feeds, blank lines or not."""
    text = start + data.encode()
    pieces = check(text, most, JSONL)
    if b"\n" in text[:-1] and len(text) > most:
        assert len(pieces) > 1


def test_items_of_a_file_are_as_large_as_may_be(tmp_path: Path) -> None:
    """Expect each piece to end with the last record within reach."""
    lines = b"id,note\n" + b"".join(b"%d,abc\n" % number for number in range(1, 7))
    assert spans(cut(landed(tmp_path, lines), 20)) == [(0, 19), (20, 37), (38, 43)]
    assert spans(cut(landed(tmp_path, b"id\n1\n2\n3\n"), 4)) == [(0, 2), (3, 6), (7, 8)]
    assert spans(cut(landed(tmp_path, b"{}\n{}\n{}\n{}"), 6, JSONL)) == [(0, 5), (6, 10)]


def test_record_longer_than_an_item_is_in_one_of_its_own(tmp_path: Path) -> None:
    """Expect a long line to make its item longer, and nothing else."""
    file = landed(tmp_path, b'{"a":1}\n{"a":"' + b"x" * 90 + b'"}\n{"a":2}\n')
    assert spans(cut(file, 10, JSONL)) == [(0, 7), (8, 106), (107, 114)]


@pytest.mark.parametrize("name", ["#bytes=0-9", "a#bytes=0-9,size=20.csv", "100%#.csv"])
def test_name_that_looks_like_a_range_is_a_name(tmp_path: Path, name: str) -> None:
    """Expect a landed file of that name to be read whole, and cut like any other."""
    file = landed(tmp_path, b"id\n1\n2\n3\n", name)
    assert (file.range, file.uri) == (None, file.location)
    assert records(file, CSV) == [(2, '{"id": "1"}'), (3, '{"id": "2"}'), (4, '{"id": "3"}')]
    pieces = cut(file, 5)
    assert spans(pieces) == [(0, 4), (5, 8)]
    assert [line for piece in pieces for line, _ in records(piece, CSV)] == [2, 3, 4]


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
def test_file_that_cannot_be_read_in_ranges_is_one_item(
    tmp_path: Path, data: bytes, stream: Stream
) -> None:
    """Expect compressed files, other charsets, arrays and unruly quotes to stay in one piece."""
    file = landed(tmp_path, data)
    assert cut(file, 3, stream) == [file]


def test_file_that_is_gone_or_changed_is_no_item_yet(tmp_path: Path) -> None:
    """Expect the next listing to decide about it."""
    file = landed(tmp_path, b"id\n1\n2\n3\n")
    assert cut(replace(file, size_bytes=8), 3) == []
    Path(tmp_path / "orders").unlink()
    assert cut(file, 3) == []


def _ranged(tmp_path: Path, data: bytes, fragment: str) -> LandedFile:
    """Name a range as a user's own table does: nothing else is known."""
    return LandedFile(location=landed(tmp_path, data).location + fragment)


@pytest.mark.parametrize(
    ("fragment", "reason"),
    [
        ("#bytes=3-99", "has no byte 99, up to which it is wanted"),
        ("#bytes=4-8", "byte 4 is inside of a line"),
        ("#bytes=3-5", "byte 6 is inside of a line"),
        ("#bytes=1-2", "byte 1 is inside of a line"),
        ("#bytes=5-3", "is not a range of bytes of its file, such as #bytes=0-99"),
        ("#bytes=0-8,size=10", "changed since it was registered: size 10 -> 9 B"),
    ],
)
def test_range_that_is_none_of_the_file_is_refused(
    tmp_path: Path, fragment: str, reason: str
) -> None:
    """Expect ranges that cut records, or are not in the file, to be rejected."""
    with pytest.raises(BadFileError) as caught:
        records(_ranged(tmp_path, b"id\n1\n2\n3\n", fragment), CSV)
    assert caught.value.reason == reason


def test_range_of_a_compressed_file_is_refused(tmp_path: Path) -> None:
    """Expect the reason to say what can be read in ranges."""
    with pytest.raises(BadFileError, match="only plain csv and jsonl files in UTF-8"):
        records(_ranged(tmp_path, gzip.compress(os.urandom(50), mtime=0), "#bytes=0-9"), CSV)


@pytest.mark.parametrize(
    ("data", "stream"),
    [(b"id\n1\n2\n3\n4\n", CSV), (b"{}\n{}\n{}\n{}\n", JSONL)],
)
def test_records_of_a_range_are_counted_from_its_start(
    tmp_path: Path, data: bytes, stream: Stream
) -> None:
    """Expect the same for all formats: nobody counts the records in front, only the lines."""
    part = cut(landed(tmp_path, data), 6, stream)[1]
    with open_source(part, stream) as source:
        assert source.range is not None
        [chunk] = read_chunks(source, stream)
        assert [*chunk.record_numbers] == [1, 2, 3][: chunk.good]
        assert chunk.good > 1
        assert [*chunk.line_numbers] == [line for line, _ in records(part, stream)]
        assert chunk.line_numbers[0] > 2
