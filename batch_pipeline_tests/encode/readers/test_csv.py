"""Reading csv: the fast parser, the strict parser, and that they agree."""

import csv
import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import MalformedRecord
from batch_pipeline.encode.readers.csv import CsvReader
from batch_pipeline.encode.readers.csv_parsers import CsvRecord, CsvScanner, find_end_of_records
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.stream import CsvOptions, SourceFormat
from batch_pipeline_tests.encode.landed_files import COMMA, in_memory, stream_of

Rows = list[tuple[str | None, ...]]

cells = st.none() | st.text(
    alphabet=st.one_of(
        st.sampled_from("\",;'\r\n\t \0\ufeff\u2028é😀"), st.characters(exclude_categories=["Cs"])
    ),
    max_size=6,
)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


def read(data: bytes, options: CsvOptions = COMMA) -> tuple[Rows, list[MalformedRecord]]:
    """Read a whole file: its good records and its bad ones."""
    stream = stream_of(SourceFormat.CSV, csv=options)
    rows: Rows = []
    bad: list[MalformedRecord] = []
    for chunk in CsvReader(in_memory(data, stream), stream).chunks():
        rows += [tuple(row.values()) for row in chunk.batch.to_pylist()]
        bad += chunk.bad
    return rows, bad


def scan(data: bytes, options: CsvOptions = COMMA) -> Rows:
    """Read records, without a header, with the strict parser alone; a bad one fails the test."""
    rows: Rows = []
    for found in CsvScanner(data, options, first_line=1, eof=True):
        assert isinstance(found, CsvRecord), found
        rows.append(tuple(None if cell is None else cell.decode() for cell in found.cells))
    return rows


def written(rows: Rows, end: str, options: CsvOptions = COMMA) -> bytes:
    """Write rows so that None is an empty cell and an empty text a quoted one."""
    quote, delimiter = options.quote, options.delimiter

    def cell(value: str | None) -> str:
        if value is None:
            return ""
        special = {quote, delimiter, "\r", "\n"}
        if value == "" or special & set(value):
            return quote + value.replace(quote, quote * 2) + quote
        return value

    return "".join(delimiter.join(map(cell, row)) + end for row in rows).encode()


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(cells, cells, cells), max_size=8),
    end=line_ends,
    options=st.sampled_from([COMMA, CsvOptions(delimiter=";", quote="'")]),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
@example(rows=[("a", 'x"y', None), ("", "\r\n", "b")], end="\r\n", options=COMMA, mark=b"")
def test_both_parsers_with_good_records_read_what_was_written(
    rows: Rows, end: str, options: CsvOptions, mark: bytes
) -> None:
    """The file as a whole and the strict parser alone give back the very rows that were written."""
    body = written(rows, end, options)
    header = written([("a", "b", "c")], end, options)

    assert read(mark + header + body, options) == (rows, [])
    assert scan(body, options) == rows


@settings(deadline=None)
@given(
    text=st.text(alphabet='ab,"\n\r', max_size=40),
)
@example(text='"a"b,c\n')
@example(text='5" pipe,"x\ny"\n')
@example(text='a,"b\nc,d\n')
def test_end_of_records_with_any_quotes_sends_only_what_the_strict_parser_reads(text: str) -> None:
    """Whatever is sent to Arrow is read by the strict parser without an error, to the same end."""
    data = text.encode()

    end = find_end_of_records(data, COMMA, eof=False)

    if end:
        scanner = CsvScanner(data[:end], COMMA, first_line=1, eof=True)
        assert not [found for found in scanner if isinstance(found, MalformedRecord)]


@settings(deadline=None)
@given(text=st.text(alphabet='ab,"\n\r\ufeff', max_size=60))
@example(text='"a"b,c\n')
@example(text='5" pipe,"x\ny"\n')
@example(text='a,"b\nc,d\n')
@example(text='"","{""a"":1,""b"":""}"\ra,b')
@example(text="\ufeffa,b\n")  # as where files that begin with marks were put together
def test_csv_reader_with_any_text_reads_what_the_strict_parser_reads(text: str) -> None:
    """Which parser reads a record makes no difference, neither for good nor for bad ones."""
    data = text.encode()
    good: Rows = []
    bad: list[int] = []
    for found in CsvScanner(data, COMMA, first_line=2, eof=True):
        if isinstance(found, CsvRecord) and len(found.cells) == 2:
            good.append(tuple(None if cell is None else cell.decode() for cell in found.cells))
        else:
            bad.append(found.line)

    rows, found_bad = read(b"h,i\n" + data)

    assert rows == good
    assert [record.line for record in found_bad] == bad


@settings(deadline=None)
@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=5))
def test_strict_parser_agrees_with_the_standard_library(rows: Rows) -> None:
    """Apart from empty cells, which it does not tell apart, Python's csv reads the same."""
    data = written(rows, "\r\n")

    expected = [tuple(row) for row in csv.reader(io.StringIO(data.decode(), newline="")) if row]

    assert [tuple(cell or "" for cell in row) for row in scan(data)] == expected


def test_csv_reader_with_empty_cells_tells_null_from_empty_text() -> None:
    """An empty cell is null, an empty cell in quotes is empty text."""
    assert read(b'a,b\n,""\n') == ([(None, "")], [])


def test_csv_reader_with_quoted_line_breaks_and_mark_in_header_reads_the_names() -> None:
    """The header may hold quotes and line breaks; lines are counted on behind it."""
    data = b'\xef\xbb\xbf"first\nname","b"\n1,2\n3\n'

    assert read(data) == ([("1", "2")], [MalformedRecord(line=4, reason=FOUND_1_OF_2, raw=b"3")])


FOUND_1_OF_2 = "expected fields: 2, found: 1"


@pytest.mark.parametrize(
    ("body", "rows", "bad"),
    [
        (b"1,2\n3\n4,5\n", ["12", "45"], [(3, FOUND_1_OF_2, b"3")]),
        (b"1,2\n\n\n3,4,5\r\n6,7", ["12", "67"], [(5, "expected fields: 2, found: 3", b"3,4,5")]),
        (b"1,\xff\n3,4\n", ["34"], [(2, "is not UTF-8", b"1,\xff")]),
        (
            b'1,"x\n2,y\n',
            [],
            [
                (2, "a quote is not closed", b'1,"x'),
                (3, "stands behind an open quote of line 2", b"2,y"),
            ],
        ),
        (b'1,2\n"a"b,c\n3,4\n', ["12", "34"], [(3, "text follows a closing quote", b'"a"b,c')]),
        (b'1,"a\nb"c\n3,4\n', ["34"], None),
        (b'1,5" pipe\n2,3" pipe\n', ['15" pipe', '23" pipe'], []),
        (b'1,5" pipe\n2,"a\nb"\n3\n', ['15" pipe', "2a\nb"], [(5, FOUND_1_OF_2, b"3")]),
    ],
)
def test_csv_reader_with_bad_records_keeps_the_good_ones(
    body: bytes, rows: list[str], bad: list[tuple[int, str, bytes]] | None
) -> None:
    """Every bad record is reported with its line, its reason and its text; the others are read."""
    good, found = read(b"a,b\n" + body)

    assert ["".join(cell or "" for cell in row) for row in good] == rows
    if bad is not None:
        assert [(text.line, text.reason, text.raw) for text in found] == bad


def test_csv_reader_with_many_blocks_counts_lines_through() -> None:
    """Records that cross the borders of blocks are whole, and lines are counted over them."""
    record = b'%d,"' + b"x" * 2000 + b'\n"\n'
    body = b"".join(record % number for number in range(4000))  # 8 MB

    rows, bad = read(b"a,b\n" + body + b"last\n")

    assert [row[0] for row in rows] == [str(number) for number in range(4000)]
    assert {row[1] for row in rows} == {"x" * 2000 + "\n"}
    assert [(text.line, text.reason) for text in bad] == [(8002, FOUND_1_OF_2)]


def test_csv_reader_with_a_bad_block_in_the_middle_reads_on_behind_it() -> None:
    """The block with the bad record is read by the strict parser; nothing is lost or repeated."""
    lines = [b"%d,%s" % (number, b"y" * 1000) for number in range(6000)]
    lines[3000] = b'3000,"a"b'

    rows, bad = read(b"\n".join([b"a,b", *lines]))

    assert [row[0] for row in rows] == [str(number) for number in range(6000) if number != 3000]
    assert [text.line for text in bad] == [3002]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"a,b", b"a,b\n", b'\n"a",b\n\n'])
def test_csv_reader_without_records_gives_none(data: bytes) -> None:
    """An empty file and a header alone are fine."""
    assert read(data) == ([], [])


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"a,a\n1,2\n", 1, "header: column 'a' is there twice"),
        (b"a,\n1,2\n", 1, "header: column 2 has no name"),
        (b'\na,""\n', 2, "header: column 2 has no name"),
        (b"a,\xff\n", 1, "header: is not UTF-8"),
        (b'a,"b\n1,2\n', 1, "header: a quote is not closed"),
    ],
)
def test_csv_reader_with_a_bad_header_refuses_the_file(data: bytes, line: int, reason: str) -> None:
    """Without one name for each column no record can be understood."""
    with pytest.raises(BadFileError) as raised:
        read(data)

    assert (raised.value.line, raised.value.reason) == (line, reason)


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
def test_csv_reader_with_another_delimiter_refuses_the_file_and_names_it(
    data: bytes, written: str, count: int
) -> None:
    with pytest.raises(BadFileError) as caught:
        read(data)

    name = data.split(b"\n")[0].decode()
    assert caught.value.line == 1
    assert caught.value.reason == (
        f"header: is one column, {name!r}, with `,` between cells, and {count} columns with "
        f'`{written}`, as the records; set `source.options: {{delimiter: "{written}"}}`, or '
        f'`{{delimiter: ","}}` to read it as one column'
    )


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
def test_csv_reader_with_no_clear_other_delimiter_reads_commas(data: bytes) -> None:
    lines = data.decode().splitlines()[1:]
    rows, bad = read(data)
    assert ([",".join(cell or "" for cell in row) for row in rows], bad) == (lines, [])


def test_csv_reader_with_commas_asked_for_reads_one_column() -> None:
    options = CsvOptions(delimiter=",", is_delimiter_given=True)
    assert read(b"id;s\n1;x\n", options) == ([("1;x",)], [])
