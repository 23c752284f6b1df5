"""Reading csv: agreement of the fast and the strict parser; escapes, dialects, limits."""

import csv
import io
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import MalformedRecord
from batch_pipeline.encode.readers.csv import CsvReader
from batch_pipeline.encode.readers.csv_parsers import (
    CsvRecord,
    CsvScanner,
    detect_dialect,
    find_end_of_records,
    guess_charset,
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
@settings(deadline=None, max_examples=400)
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


@settings(deadline=None)
@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=5))
def test_strict_parser_agrees_with_standard_library(rows: Rows) -> None:
    """Python's csv module does not distinguish null from empty cells."""
    data = csv_text(rows, "\r\n")

    expected = [tuple(row) for row in csv.reader(io.StringIO(data.decode(), newline="")) if row]

    good, bad = scan(data, width=2)
    assert ([tuple(cell or "" for cell in row) for row in good], bad) == (expected, [])


QUOTINGS: tuple[Literal[1, 3], ...] = (csv.QUOTE_ALL, csv.QUOTE_NONE)
cell_texts = st.text(alphabet="ab,;\"'\\\n é", min_size=1, max_size=6)


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(cell_texts, cell_texts), min_size=1, max_size=6),
    quoting=st.sampled_from(QUOTINGS),
)
def test_csv_reader_reads_escapes_written_by_standard_library(
    rows: list[tuple[str, str]], quoting: Literal[1, 3]
) -> None:
    """Python's writer escapes quotes, delimiters, line breaks and escapes."""
    text = io.StringIO()
    writer = csv.writer(
        text, quoting=quoting, doublequote=False, escapechar="\\", lineterminator="\n"
    )
    writer.writerows(rows)

    assert read_csv(text.getvalue().encode(), CsvOptions(escape="\\", names=("a", "b"))) == (
        rows,
        [],
    )


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


FOUND_1_OF_2 = "expected fields: 2, found: 1"


def test_csv_reader_counts_lines_across_blocks() -> None:
    """Records cross block boundaries."""
    record = b'%d,"' + b"x" * 2000 + b'\n"\n'
    body = b"".join(record % number for number in range(4000))  # 8 MB

    rows, bad = read_csv(b"a,b\n" + body + b"last\n")

    assert [row[0] for row in rows] == [str(number) for number in range(4000)]
    assert {row[1] for row in rows} == {"x" * 2000 + "\n"}
    assert [(text.line, text.reason) for text in bad] == [(8002, FOUND_1_OF_2)]


def test_csv_reader_continues_after_block_with_bad_record() -> None:
    """The strict parser reads the block with the bad record."""
    lines = [b"%d,%s" % (number, b"y" * 1000) for number in range(6000)]
    lines[3000] = b'3000,"a"b'

    rows, bad = read_csv(b"\n".join([b"a,b", *lines]))

    assert [row[0] for row in rows] == [str(number) for number in range(6000) if number != 3000]
    assert [text.line for text in bad] == [3002]


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"a,a\n1,2\n", 1, "header: column 'a' is duplicated"),
        (b"a,\n1,2\n", 1, "header: column 2 has no name"),
        (b'\na,""\n', 2, "header: column 2 has no name"),
        (b"a,\xff\n", 1, "header: is not UTF-8"),
        (b'a,"b\n1,2\n', 1, "header: a quote is not closed"),
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
        b'"id;s"\n1\n2\n',
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


def test_detect_dialect_of_prose_is_none() -> None:
    text = b"Dear all,\nplease find, as ever,\nthe figures; of May, June\nYours\n"
    assert detect_dialect(text, is_whole=True) is None
    assert detect_dialect(b"", is_whole=True) is None


def test_detect_dialect_ignores_truncated_last_line() -> None:
    found = detect_dialect(b'id,name,city\n1,Ada,Cork\n2,"Bo', is_whole=False)
    assert found == CsvOptions()


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
