"""Reading csv: agreement of the fast and the strict parser, escapes, dialects, limits, slices."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import ByteRange, MalformedRecord, Table
from batch_pipeline.encode.errors import TaskInputError
from batch_pipeline.encode.readers import csv
from batch_pipeline.encode.readers.csv import CsvReader, CsvSlice
from batch_pipeline.encode.readers.csv_parsers import (
    CsvRecord,
    CsvScanner,
    detect_dialect,
    find_end_of_records,
    guess_charset,
    guess_in_quotes,
    mask_escaped,
)
from batch_pipeline.model.stream import CsvOptions, SourceFormat
from batch_pipeline_tests.encode.landed_files import (
    COMMA,
    Rows,
    csv_text,
    in_memory,
    read_csv,
    rejection,
    stream_of,
)

BACKSLASH = CsvOptions(escape="\\")

cells = st.none() | st.text(
    alphabet=st.one_of(
        st.sampled_from("\",;'\r\n\t \0\ufeff\u2028é😀"), st.characters(exclude_categories=["Cs"])
    ),
    max_size=6,
)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


def scan(data: bytes, options: CsvOptions = COMMA, *, width: int) -> tuple[Rows, list[int]]:
    """Return the strict parser's rows of this width, and the lines of all other records."""
    good: Rows = []
    bad: list[int] = []
    for found in CsvScanner(data, options, first_line=1, eof=True):
        if isinstance(found, CsvRecord) and len(found.cells) == width:
            good.append(tuple(None if cell is None else cell.decode() for cell in found.cells))
        else:
            bad.append(found.line)
    return good, bad


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(cells, cells, cells), max_size=8),
    end=line_ends,
    options=st.sampled_from([COMMA, CsvOptions(delimiter=";", quote="'")]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
@example(rows=[("a", 'x"y', None), ("", "\r\n", "b")], end="\r\n", options=COMMA, mark=b"")
def test_both_parsers_read_the_written_rows(
    rows: Rows, end: str, options: CsvOptions, mark: bytes
) -> None:
    body = csv_text(rows, end, options)
    header = csv_text([("a", "b", "c")], end, options)

    assert read_csv(mark + header + body, options) == (rows, [])
    assert scan(body, options, width=3) == (rows, [])


@pytest.mark.parametrize("options", [COMMA, BACKSLASH], ids=["quotes", "escapes"])
@settings(deadline=None, max_examples=200)
@given(text=st.text(alphabet='ab,"\n\r\\\ufeff', max_size=50))
@example(text='"a"b,c\n')
@example(text='5" pipe,"x\ny"\n')
@example(text='a,"b\nc,d\n')
@example(text='"","{""a"":1,""b"":""}"\ra,b')
@example(text="a,b\n\ufeffa,b\n")  # files with byte order marks were concatenated
@example(text="a,b\\")
@example(text='a,"b\\')
@example(text="a\\\r\nb,c\n")
@example(text='"x\\"y",\\N\n')
@example(text='"\\\\","\\""""\n')
@example(text='a\\,"b",c\n')
def test_csv_reader_agrees_with_strict_parser(options: CsvOptions, text: str) -> None:
    """The result does not depend on the parser of a record; Arrow gets no bad record."""
    data = b"x,y\n" + text.encode()
    names = CsvOptions(escape=options.escape, names=("a", "b"))

    rows, bad = read_csv(data, names)

    assert (rows, [record.line for record in bad]) == scan(data, options, width=2)
    end = find_end_of_records(mask_escaped(data, options), options, eof=False)
    if end:
        scanner = CsvScanner(data[:end], options, first_line=1, eof=True)
        assert not [found for found in scanner if isinstance(found, MalformedRecord)]
        assert options is COMMA or scanner.consumed == end


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        (rb'"say \"hi\"",1', ('say "hi"', "1")),
        (rb"a\,b,1", ("a,b", "1")),
        (rb"5\" pipe,1", ('5" pipe', "1")),
        (rb"C:\temp,\N", (r"C:\temp", r"\N")),
        (rb'"C:\temp",1', (r"C:\temp", "1")),
        (rb'"\\","a""b"', ("\\", 'a"b')),
        (b"two\\\nlines,1", ("two\nlines", "1")),
    ],
)
def test_escape_before_ordinary_character_is_literal(line: bytes, cells: tuple[str, str]) -> None:
    assert read_csv(b"a,b\n" + line + b"\n", BACKSLASH) == ([cells], [])


def test_csv_reader_counts_line_breaks_in_cells() -> None:
    rows, bad = read_csv(b'a,b\n1\\\n1,2\n"x\\\ny",3\n4\n', BACKSLASH)

    assert rows == [("1\n1", "2"), ("x\ny", "3")]
    assert [(text.line, text.raw) for text in bad] == [(6, b"4")]


def test_csv_reader_rejects_too_many_columns() -> None:
    reason = "header: has 3 columns, more than `read_limits.max_columns` allows (2)"
    assert rejection(read_csv, b"a,b,c\n", max_columns=2) == (1, reason)


@pytest.mark.parametrize(
    "body", [b"1,2\n3,4567890\n5,6\n", b'1,2\n3,"5\n6\n7890"\n5,6\n', b'1,"' + b"x" * 20]
)
@pytest.mark.parametrize("filler_bytes", [0, 4 * 2**20])
def test_csv_reader_rejects_record_over_size_limit(body: bytes, filler_bytes: int) -> None:
    """The record is in the first or in a later block."""
    data = b"a,b\n" + b"0,0\n" * (filler_bytes // 4) + body
    stream = stream_of(SourceFormat.CSV, max_record_bytes=8)

    _, reason = rejection(lambda: list(CsvReader(in_memory(data, stream), stream).chunks()))

    assert reason == "a record is longer than 8 bytes (an open quote?)"


def test_csv_reader_reads_record_at_size_limit() -> None:
    """Line ends do not count."""
    assert read_csv(b"a,b\r\n1,234567\r\n", max_record_bytes=8) == ([("1", "234567")], [])


def test_csv_reader_counts_lines_across_blocks() -> None:
    """Records cross block boundaries, and the strict parser reads a block with a bad record."""
    lines = [b'%d,"' % number + b"x" * 2000 + b'\n"\n' for number in range(4000)]  # 8 MB
    lines[1000] = b'1000,"a"b\n'

    rows, bad = read_csv(b"a,b\n" + b"".join(lines) + b"last\n")

    assert [row[0] for row in rows] == [str(n) for n in range(4000) if n != 1000]
    assert {row[1] for row in rows} == {"x" * 2000 + "\n"}
    assert [(text.line, text.reason) for text in bad] == [
        (2002, "text follows a closing quote"),
        (8001, "expected fields: 2, found: 1"),
    ]


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"a,a\n1,2\n", 1, "header: column 'a' is duplicated"),
        (b"a,\n1,2\n", 1, "header: column 2 has no name"),
        (b'\na,""\n', 2, "header: column 2 has no name"),
        (b"a,\xff\n", 1, "header: is not UTF-8"),
        (b'a,"b\n1,2\n', 1, "header: a quote is not closed"),
        (bytes(9), 1, "header: contains a zero byte, so it is not text"),
    ],
)
def test_csv_reader_rejects_bad_header(data: bytes, line: int, reason: str) -> None:
    assert rejection(read_csv, data) == (line, reason)


@pytest.mark.parametrize(
    ("data", "written", "count"),
    [
        (b"id;s\n1;x\n2;y\n", ";", 2),
        (b"id\ts\tt\n1\tx\t\n", "\\t", 3),
        (b"id|s\n1|x, y\n2|z\n", "|", 2),
        (b"id;price\n1;2,5\n2;3,5\n", ";", 2),
        (b"id;s\n", ";", 2),
    ],
)
def test_csv_reader_rejects_other_delimiter_and_names_it(
    data: bytes, written: str, count: int
) -> None:
    name = data.split(b"\n")[0].decode()
    reason = (
        f"header: has one column, {name!r}, with delimiter `,`, but {count} with "
        f'`{written}`, like the records; set `source.options: {{delimiter: "{written}"}}`, or '
        f'`{{delimiter: ","}}` to read it as one column'
    )
    assert rejection(read_csv, data) == (1, reason)


@pytest.mark.parametrize(
    "data",
    [
        b"id\n1\n2\n",
        b"id;s\nx\ny\n",
        b"note\na;b\nc;d\n",
        b"a,b;c\n1,2;3\n",
        b"a;\nb;\n",
        b"a;a\n1;2\n",
    ],
)
def test_csv_reader_without_clear_other_delimiter_reads_commas(data: bytes) -> None:
    lines = data.decode().splitlines()[1:]
    rows, bad = read_csv(data)
    assert ([",".join(cell or "" for cell in row) for row in rows], bad) == (lines, [])


def test_csv_reader_with_declared_comma_reads_one_column() -> None:
    options = CsvOptions(delimiter=",", is_delimiter_given=True)
    assert read_csv(b"id;s\n1;x\n", options) == ([("1;x",)], [])


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_detect_dialect_finds_consistent_delimiter(delimiter: str) -> None:
    """Other delimiters occur in some cells."""
    lines = ["id_name_note", "1_Ada_a, b", '2_"Zoë; | x"_"c, d"', "3_Bo_"]
    text = "\n".join(lines).replace("_", delimiter)
    if delimiter == ",":
        text = text.replace("a, b", '"a, b"')
    assert detect_dialect(text.encode(), is_whole=True) == CsvOptions(delimiter=delimiter)


def test_detect_dialect_without_header_names_columns() -> None:
    """The first record is data if it begins with a number."""
    found = detect_dialect(b"1,Ada\n2,Bo\n", is_whole=True)
    assert found is not None
    assert found.names == ("column_1", "column_2")
    assert detect_dialect(b"country,2025\nIE,1\n", is_whole=True) == CsvOptions()
    assert detect_dialect(b'id,name\n1,Ada\n2,"Bo', is_whole=False) == CsvOptions()


def test_detect_dialect_of_prose_is_none() -> None:
    text = b"Dear all,\nplease find, as ever,\nthe figures; of May, June\nYours\n"
    assert detect_dialect(text, is_whole=True) is None
    assert detect_dialect(b"", is_whole=True) is None


def test_guess_charset_prefers_utf_8() -> None:
    """The first text ends within a character."""
    assert guess_charset("Zoë".encode()[:-1]) == "utf-8"
    assert guess_charset("Zoë".encode("cp1252") + b",1") == "cp1252"
    assert guess_charset(b"Zo\xeb\x81,1") == "iso-8859-1"


def test_strict_parser_reads_carriage_returns_after_quoted_line_feed() -> None:
    """Only the last record of a block may be incomplete."""
    data = b'a,b\r1,"x\ny"\r2,b\r3,5" pipe\r4,'
    scanner = CsvScanner(data, CsvOptions(), first_line=1, eof=False)
    assert len(list(scanner)) == 4
    assert scanner.consumed == len(data) - 2


NumberedRows = list[tuple[int, tuple[str | None, ...]]]

short_cells = st.none() | st.text(alphabet='ab,"\n\ré', max_size=5)


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


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.tuples(short_cells, short_cells), max_size=8),
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
    long = "x\n" * 150_000  # 300 kB; starts are guessed from 256 KiB
    data = csv_text([("a", "b"), ("1", long), ("2", long), ("3", "y")], "\n")

    expected = [(2, ("1", long)), (150_003, ("2", long)), (300_004, ("3", "y"))]

    assert read_slices(data, list(range(140_000, len(data), 140_000))) == expected
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
    data = csv_text([("a", "b"), *[("1", "two\nlines")] * 450_000], "\n")
    part = ByteRange(500_000, len(data) - 500_000)
    stream = stream_of(SourceFormat.CSV)
    partly, wholly = (CsvSlice(in_memory(data, stream), stream, part) for _ in range(2))

    first, *others = wholly.chunks()
    assert next(partly.chunks()).batch.equals(first.batch)

    assert others
    assert partly.start == wholly.start
    assert partly.find_end() == wholly.find_end() == data.index(b"1,", part.stop)
