"""Reading a csv file in slices returns the same records as reading it whole."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import ByteRange, Table
from batch_pipeline.encode.errors import TaskInputError
from batch_pipeline.encode.readers import csv
from batch_pipeline.encode.readers.csv import CsvReader, CsvSlice
from batch_pipeline.encode.readers.csv_parsers import guess_in_quotes
from batch_pipeline.model.stream import CsvOptions, SourceFormat
from batch_pipeline_tests.encode.landed_files import COMMA, csv_text, in_memory, stream_of

NumberedRows = list[tuple[int, tuple[str | None, ...]]]

cells = st.none() | st.text(alphabet='ab,"\n\ré', max_size=5)


def read_whole(data: bytes, options: CsvOptions = COMMA) -> NumberedRows:
    """Return all rows with their line numbers."""
    stream = stream_of(SourceFormat.CSV, csv=options)
    found: NumberedRows = []
    for chunk in CsvReader(in_memory(data, stream), stream).chunks():
        assert not chunk.bad
        found += rows_of(chunk)
    return found


def rows_of(table: Table) -> NumberedRows:
    rows = [tuple(row.values()) for row in table.batch.to_pylist()]
    return list(zip(table.line_numbers, rows, strict=True))


def read_slice(
    data: bytes, part: ByteRange, options: CsvOptions, start: int | None
) -> tuple[CsvSlice, NumberedRows]:
    stream = stream_of(SourceFormat.CSV, csv=options)
    csv_slice = CsvSlice(in_memory(data, stream), stream, part, start)
    return csv_slice, [row for table in csv_slice.chunks() for row in rows_of(table)]


def read_slices(data: bytes, cuts: list[int], options: CsvOptions = COMMA) -> NumberedRows:
    """Return all rows with their line numbers, reading the file in slices cut at these bytes.

    Slices whose start is guessed, and guessed right, are the same as those that start at the end of
    the slice before.
    """
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    end: int | None = 0
    found: NumberedRows = []
    for part in (ByteRange(start, stop) for start, stop in pairwise(bounds)):
        csv_slice, rows = read_slice(data, part, options, end)
        with suppress(TaskInputError):
            guessed, guessed_rows = read_slice(data, part, options, None)
            if guessed.start == csv_slice.start:
                assert (guessed_rows, guessed.find_end()) == (rows, csv_slice.find_end())
        found += rows
        end = csv_slice.find_end()
    return found


@settings(deadline=None, max_examples=400)
@given(
    rows=st.lists(st.tuples(cells, cells), max_size=8),
    end=st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    cuts=st.lists(st.integers(0, 80), max_size=6),
    start=st.sampled_from([b"", b"\xef\xbb\xbf", b"\n\r\n"]),
    names=st.sampled_from([(), ("x", "y")]),
    is_ended=st.booleans(),
)
@example(rows=[('"', "\r\n")], end="\r\n", cuts=[1, 4, 5, 6], start=b"", names=(), is_ended=True)
def test_slices_with_any_cuts_equal_whole_file(
    rows: list[tuple[str | None, ...]],
    end: str,
    cuts: list[int],
    start: bytes,
    names: tuple[str, ...],
    is_ended: bool,
) -> None:
    data = start + csv_text([("a", "b"), *rows], end)
    if not is_ended and rows and rows[-1] != (None, None):
        data = data.removesuffix(end.encode())
    options = CsvOptions(names=names)

    assert read_slices(data, cuts, options) == read_whole(data, options)


def test_slices_with_cut_at_every_byte_equal_whole_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts, also of counted lines, are within CRLF, doubled quotes and the header."""
    monkeypatch.setattr(csv, "_COUNT_BYTES", 3)
    data = b'\n"h\n1",b\r\n1,"a""\r\n"\r\n\r\n"""",\r\n3,"x\n\ny"\r\n'

    expected = read_whole(data)

    assert [row for _, row in expected] == [("1", 'a"\r\n'), ('"', None), ("3", "x\n\ny")]
    for cut in range(len(data) + 1):
        assert read_slices(data, [cut]) == expected, cut
    assert read_slices(data, list(range(len(data)))) == expected


def test_slices_with_records_longer_than_a_block_find_record_ends() -> None:
    """Some slices have no record."""
    long = "x\n" * 200_000
    data = csv_text([("a", "b"), ("1", long), ("2", long), ("3", "y")], "\n")

    expected = [(2, ("1", long)), (200_003, ("2", long)), (400_004, ("3", "y"))]

    assert read_slices(data, list(range(100_000, len(data), 100_000))) == expected
    assert read_slices(data, [5]) == expected  # before the opening quote


@pytest.mark.parametrize(
    "body",
    [
        b'1,2\n3,4\n5,"6\n7,8\n',
        b'1,2\n3,"4"x\n5,6\n7,8\n',
        b"1,2\n3\n5,6\n7,8\n",
        b"1,2\n3,\xff\n5,6\n7,8\n",
        b'1,2\n3,4"\n5,6\n7,8"\n',
    ],
)
def test_slices_with_bad_record_require_whole_file(body: bytes) -> None:
    """Quotes prove where records start only in well-formed files."""
    data = b"a,b\n" + body

    for cut in range(len(data)):
        with pytest.raises(TaskInputError):
            read_slices(data, [cut])


def test_slices_with_unbalanced_quote_in_header_require_whole_file() -> None:
    assert read_whole(b'5",b\n1,2\n') == [(2, ("1", "2"))]

    with pytest.raises(TaskInputError):
        read_slices(b'5",b\n1,2\n3,4\n', [8])


def test_file_with_escapes_cannot_be_split() -> None:
    """An escaped quote is an ordinary byte, so quotes cannot be counted."""
    data = b"a,b\n1,2\n"

    assert in_memory(data, stream_of(SourceFormat.CSV)).can_be_split
    assert not in_memory(
        data, stream_of(SourceFormat.CSV, csv=CsvOptions(escape="\\"))
    ).can_be_split


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"1,2\n3,4\n", False),
        (b'x\n1,"2"\n3,"4"', False),
        (b'x\n1,"2"\n3,"4"\n', False),
        (b'two\nlines"\n1,2\n', True),
        (b'a, ""b""\n,c",1\n', True),
        (b'"2\n3"\n', False),  # the second half of a doubled quote, or an opening one
        (b'","', False),  # both readings are valid
        (b'5" pipe, 6" pipe', False),  # neither reading is valid
    ],
)
def test_guess_in_quotes_takes_the_reading_in_which_quotes_follow_the_rules(
    text: bytes, expected: bool
) -> None:
    assert guess_in_quotes(text, COMMA) is expected


def test_end_of_slice_does_not_depend_on_how_much_was_read() -> None:
    """A task that has seen enough records to infer types stops before the end of its slice."""
    data = csv_text([("a", "b"), *[("1", "two\nlines")] * 700_000], "\n")
    part = ByteRange(1_000_000, len(data) - 1_000_000)
    stream = stream_of(SourceFormat.CSV)
    partly, wholly = (CsvSlice(in_memory(data, stream), stream, part) for _ in range(2))

    first, *others = wholly.chunks()
    assert next(partly.chunks()).batch.equals(first.batch)

    assert others
    assert partly.start == wholly.start
    assert partly.find_end() == wholly.find_end() == data.index(b"1,", part.stop)
