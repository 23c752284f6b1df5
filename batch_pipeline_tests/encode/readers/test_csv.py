"""Reading csv: the fast parser, the strict one, that they agree; escapes, dialects, limits."""

import csv
import io
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import MalformedRecord
from batch_pipeline.encode.readers.csv_parsers import (
    CsvRecord,
    CsvScanner,
    detect_dialect,
    find_end_of_records,
    guess_charset,
    mask_escaped,
)
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.stream import CsvOptions
from batch_pipeline_tests.encode.landed_files import COMMA, Rows, csv_text, fault_of, read_csv

BACKSLASH = CsvOptions(escape="\\")

cells = st.none() | st.text(
    alphabet=st.one_of(
        st.sampled_from("\",;'\r\n\t \0\ufeff\u2028é😀"), st.characters(exclude_categories=["Cs"])
    ),
    max_size=6,
)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


def scan(data: bytes, options: CsvOptions = COMMA, *, width: int) -> tuple[Rows, list[int]]:
    """Read records of so many columns with the strict parser: good ones, and lines of bad ones."""
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
def test_both_parsers_with_good_records_read_what_was_written(
    rows: Rows, end: str, options: CsvOptions, mark: bytes
) -> None:
    """The file as a whole and the strict parser alone give back the very rows that were written."""
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
@example(text="a,b\n\ufeffa,b\n")  # as where files that begin with marks were put together
@example(text="a,b\\")
@example(text='a,"b\\')
@example(text="a\\\r\nb,c\n")
@example(text='"x\\"y",\\N\n')
@example(text='"\\\\","\\""""\n')
@example(text='a\\,"b",c\n')
def test_csv_reader_with_any_text_reads_what_the_strict_parser_reads(
    options: CsvOptions, text: str
) -> None:
    """Which parser reads a record makes no difference; what Arrow gets has no bad record."""
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
def test_strict_parser_agrees_with_the_standard_library(rows: Rows) -> None:
    """Apart from empty cells, which it does not tell apart, Python's csv reads the same."""
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
def test_csv_reader_with_escapes_reads_what_the_standard_library_writes(
    rows: list[tuple[str, str]], quoting: Literal[1, 3]
) -> None:
    """Python's writer escapes quotes, delimiters, line breaks and escapes, in quotes or without."""
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
def test_csv_reader_with_an_escape_keeps_what_it_does_not_escape(
    line: bytes, cells: tuple[str, str]
) -> None:
    """An escape takes the meaning from what has one; before other letters it is a letter itself."""
    assert read_csv(b"a,b\n" + line + b"\n", BACKSLASH) == ([cells], [])


def test_csv_reader_with_escaped_line_breaks_counts_lines() -> None:
    """A bad record behind a line break in a cell is reported with the line of the file."""
    rows, bad = read_csv(b'a,b\n1\\\n1,2\n"x\\\ny",3\n4\n', BACKSLASH)

    assert rows == [("1\n1", "2"), ("x\ny", "3")]
    assert [(text.line, text.raw) for text in bad] == [(6, b"4")]


def test_csv_reader_with_names_takes_the_first_record_for_data() -> None:
    """Files without a header get the names of the stream file."""
    assert read_csv(b"1,2\n3,4\n", CsvOptions(names=("a", "b"))) == ([("1", "2"), ("3", "4")], [])
    rows, bad = read_csv(b"1,2,3\n", CsvOptions(names=("a", "b")))
    assert (rows, [text.reason for text in bad]) == ([], ["expected fields: 2, found: 3"])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        (["first,last", 'John,"120 any st., Anytown, WW"'], ["John|120 any st., Anytown, WW"]),
        (["a,b,c", "1,2,3", "", "", "4,5,6", ""], ["1|2|3", "4|5|6"]),
        (["a,b", '1,"ha ""ha"" ha"', '3,""'], ['1|ha "ha" ha', "3|"]),
        (
            ["key,value", '1,"{""type"": ""Point"", ""at"": [102.0, 0.5]}"'],
            ['1|{"type": "Point", "at": [102.0, 0.5]}'],
        ),
        (["a,b", '"once upon\na time",2', '"3\r\n4",5'], ["once upon\na time|2", "3\r\n4|5"]),
        (['"a","b"', '" x "," "'], [" x | "]),
        (["ä,名", "é,😀"], ["é|😀"]),
        (["a", "1", '""', "2"], ["1", "", "2"]),
    ],
)
def test_csv_reader_with_odd_but_right_files_reads_them(
    lines: list[str], rows: list[str], end: str
) -> None:
    """Commas and breaks in quotes, doubled quotes, blank lines, other scripts, each line end."""
    good, bad = read_csv(end.join(lines).encode())

    assert ["|".join(cell or "" for cell in row) for row in good] == rows
    assert bad == []


def test_csv_reader_with_too_many_columns_refuses_the_file() -> None:
    """A header wider than the limit is no header; the message names the limit to change."""
    reason = "header: has 3 columns, more than `read_limits.max_columns` allows (2)"
    with pytest.raises(BadFileError) as raised:
        read_csv(b"a,b,c\n", max_columns=2)

    assert fault_of(raised) == (1, reason)


@pytest.mark.parametrize("body", [b"1,2\n3,4567890\n5,6\n", b'1,2\n3,"5\n6\n7890"\n5,6\n', b'1,"'])
@pytest.mark.parametrize("filling", [0, 3_000_000])
def test_csv_reader_with_a_record_over_the_limit_refuses_the_file(
    body: bytes, filling: int
) -> None:
    """Where it stands in the file makes no difference; no other record is too long."""
    filled = b"0,0\n" * (filling // 4)
    data = b"a,b\n" + filled + (body if body != b'1,"' else b'1,"' + b"x" * 20)

    with pytest.raises(BadFileError) as raised:
        read_csv(data, max_record_bytes=8)

    assert raised.value.reason == "a record is longer than 8 bytes (an open quote?)"


def test_csv_reader_with_a_record_at_the_limit_reads_it() -> None:
    """The limit itself is allowed; line ends do not count."""
    found = read_csv(b"a,b\r\n1,234567\r\n", max_record_bytes=8)
    assert found == ([("1", "234567")], [])


def test_csv_reader_with_empty_cells_tells_null_from_empty_text() -> None:
    """An empty cell is null, an empty cell in quotes is empty text."""
    assert read_csv(b'a,b\n,""\n') == ([(None, "")], [])


def test_csv_reader_with_quoted_line_breaks_and_mark_in_header_reads_the_names() -> None:
    """The header may hold quotes and line breaks; lines are counted on behind it."""
    data = b'\xef\xbb\xbf"first\nname","b"\n1,2\n3\n'

    assert read_csv(data) == (
        [("1", "2")],
        [MalformedRecord(line=4, reason=FOUND_1_OF_2, raw=b"3")],
    )


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
    good, found = read_csv(b"a,b\n" + body)

    assert ["".join(cell or "" for cell in row) for row in good] == rows
    if bad is not None:
        assert [(text.line, text.reason, text.raw) for text in found] == bad


def test_csv_reader_with_many_blocks_counts_lines_through() -> None:
    """Records that cross the borders of blocks are whole, and lines are counted over them."""
    record = b'%d,"' + b"x" * 2000 + b'\n"\n'
    body = b"".join(record % number for number in range(4000))  # 8 MB

    rows, bad = read_csv(b"a,b\n" + body + b"last\n")

    assert [row[0] for row in rows] == [str(number) for number in range(4000)]
    assert {row[1] for row in rows} == {"x" * 2000 + "\n"}
    assert [(text.line, text.reason) for text in bad] == [(8002, FOUND_1_OF_2)]


def test_csv_reader_with_a_bad_block_in_the_middle_reads_on_behind_it() -> None:
    """The block with the bad record is read by the strict parser; nothing is lost or repeated."""
    lines = [b"%d,%s" % (number, b"y" * 1000) for number in range(6000)]
    lines[3000] = b'3000,"a"b'

    rows, bad = read_csv(b"\n".join([b"a,b", *lines]))

    assert [row[0] for row in rows] == [str(number) for number in range(6000) if number != 3000]
    assert [text.line for text in bad] == [3002]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"a,b", b"a,b\n", b'\n"a",b\n\n'])
def test_csv_reader_without_records_gives_none(data: bytes) -> None:
    """An empty file and a header alone are fine."""
    assert read_csv(data) == ([], [])


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
        read_csv(data)

    assert fault_of(raised) == (line, reason)


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
        read_csv(data)

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
    rows, bad = read_csv(data)
    assert ([",".join(cell or "" for cell in row) for row in rows], bad) == (lines, [])


def test_csv_reader_with_commas_asked_for_reads_one_column() -> None:
    options = CsvOptions(delimiter=",", is_delimiter_given=True)
    assert read_csv(b"id;s\n1;x\n", options) == ([("1;x",)], [])


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_dialect_is_detected_by_what_parts_all_lines_alike(delimiter: str) -> None:
    """Expect the delimiter, though another one stands in some cells."""
    lines = ["id_name_note", "1_Ada_a, b", '2_"Zoë; | x"_"c, d"', "3_Bo_"]
    text = "\n".join(lines).replace("_", delimiter)
    if delimiter == ",":
        text = text.replace("a, b", '"a, b"')
    assert detect_dialect(text.encode(), is_whole=True) == CsvOptions(delimiter=delimiter)


def test_dialect_without_a_header_names_the_columns() -> None:
    """Expect names of our own where the first record begins with a number, a header else."""
    found = detect_dialect(b"1,Ada\n2,Bo\n", is_whole=True)
    assert found is not None
    assert found.names == ("column_1", "column_2")
    assert detect_dialect(b"country,2025\nIE,1\n", is_whole=True) == CsvOptions()


def test_dialect_of_prose_is_none() -> None:
    """Expect no table where lines are parted in no way alike."""
    text = b"Dear all,\nplease find, as ever,\nthe figures; of May, June\nYours\n"
    assert detect_dialect(text, is_whole=True) is None
    assert detect_dialect(b"", is_whole=True) is None


def test_dialect_of_a_start_leaves_its_last_line_alone() -> None:
    """Expect a record that was cut off not to count."""
    found = detect_dialect(b'id,name,city\n1,Ada,Cork\n2,"Bo', is_whole=False)
    assert found == CsvOptions()


def test_charset_is_utf_8_wherever_it_can_be() -> None:
    """Expect other charsets for bytes that are no UTF-8 only; a cut character is one."""
    assert guess_charset("Zoë".encode()[:-1]) == "utf-8"
    assert guess_charset("Zoë".encode("cp1252") + b",1") == "cp1252"
    assert guess_charset(b"Zo\xeb\x81,1") == "iso-8859-1"


def test_strict_parser_reads_returns_behind_a_line_feed_in_quotes() -> None:
    """Only the last line of a block may go on behind it."""
    data = b'a,b\r1,"x\ny"\r2,b\r3,5" pipe\r4,'
    scanner = CsvScanner(data, CsvOptions(), first_line=1, eof=False)
    assert len(list(scanner)) == 4
    assert scanner.consumed == len(data) - 2
