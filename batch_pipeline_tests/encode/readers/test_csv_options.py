"""Reading csv of many makers: escapes, names given, odd but right files, limits."""

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
    find_end_of_records,
    mask_escaped,
)
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.stream import CsvOptions, SourceFormat
from batch_pipeline_tests.encode.landed_files import in_memory, stream_of

BACKSLASH = CsvOptions(escape="\\")
Rows = list[tuple[str | None, ...]]


def read(data: bytes, options: CsvOptions, **limits: int) -> tuple[Rows, list[MalformedRecord]]:
    """Read a whole file: its good records and its bad ones."""
    stream = stream_of(SourceFormat.CSV, csv=options, **limits)
    rows: Rows = []
    bad: list[MalformedRecord] = []
    for chunk in CsvReader(in_memory(data, stream), stream).chunks():
        rows += [tuple(row.values()) for row in chunk.batch.to_pylist()]
        assert len(chunk.line_numbers) == len(chunk.record_numbers) == chunk.good
        bad += chunk.bad
    return rows, bad


def scanned(data: bytes, options: CsvOptions) -> tuple[Rows, list[int]]:
    """Read two columns with the strict parser: good records, and the lines of the bad ones."""
    good: Rows = []
    bad: list[int] = []
    for found in CsvScanner(data, options, first_line=1, eof=True):
        if isinstance(found, CsvRecord) and len(found.cells) == 2:
            good.append(tuple(None if cell is None else cell.decode() for cell in found.cells))
        else:
            bad.append(found.line)
    return good, bad


@settings(deadline=None, max_examples=500)
@given(text=st.text(alphabet='ab,"\n\r\\', max_size=40))
@example(text="a,b\\")
@example(text='a,"b\\')
@example(text="a\\\r\nb,c\n")
@example(text='"x\\"y",\\N\n')
@example(text='"\\\\","\\""""\n')
@example(text='a\\,"b",c\n')
def test_csv_reader_with_escapes_in_any_text_reads_what_the_strict_parser_reads(text: str) -> None:
    """Which parser reads a record makes no difference, whatever the escapes stand before."""
    good, bad = scanned(text.encode(), BACKSLASH)
    options = CsvOptions(escape="\\", names=("a", "b"))

    rows, found_bad = read(text.encode(), options)

    assert rows == good
    assert [record.line for record in found_bad] == bad


@settings(deadline=None)
@given(text=st.text(alphabet='ab,"\n\\', max_size=40))
def test_end_of_records_with_escapes_sends_only_what_the_strict_parser_reads(text: str) -> None:
    """Whatever is sent to Arrow is read by the strict parser without an error, to the same end."""
    data = text.encode()

    end = find_end_of_records(mask_escaped(data, BACKSLASH), BACKSLASH, eof=False)

    if end:
        scanner = CsvScanner(data[:end], BACKSLASH, first_line=1, eof=True)
        assert not [found for found in scanner if isinstance(found, MalformedRecord)]
        assert scanner.consumed == end


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

    assert read(text.getvalue().encode(), CsvOptions(escape="\\", names=("a", "b"))) == (rows, [])


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
    assert read(b"a,b\n" + line + b"\n", BACKSLASH) == ([cells], [])


def test_csv_reader_with_escaped_line_breaks_counts_lines() -> None:
    """A bad record behind a line break in a cell is reported with the line of the file."""
    rows, bad = read(b'a,b\n1\\\n1,2\n"x\\\ny",3\n4\n', BACKSLASH)

    assert rows == [("1\n1", "2"), ("x\ny", "3")]
    assert [(text.line, text.raw) for text in bad] == [(6, b"4")]


def test_csv_reader_with_names_takes_the_first_record_for_data() -> None:
    """Files without a header get the names of the stream file."""
    assert read(b"1,2\n3,4\n", CsvOptions(names=("a", "b"))) == ([("1", "2"), ("3", "4")], [])
    rows, bad = read(b"1,2,3\n", CsvOptions(names=("a", "b")))
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
    good, bad = read(end.join(lines).encode(), CsvOptions())

    assert ["|".join(cell or "" for cell in row) for row in good] == rows
    assert bad == []


def test_csv_reader_with_too_many_columns_refuses_the_file() -> None:
    """A header wider than the limit is no header; the message names the limit to change."""
    with pytest.raises(BadFileError) as raised:
        read(b"a,b,c\n", CsvOptions(), max_columns=2)

    assert raised.value.reason == (
        "header: has 3 columns, more than `read_limits.max_columns` allows (2)"
    )


@pytest.mark.parametrize("body", [b"1,2\n3,4567890\n5,6\n", b'1,2\n3,"5\n6\n7890"\n5,6\n', b'1,"'])
@pytest.mark.parametrize("filling", [0, 3_000_000])
def test_csv_reader_with_a_record_over_the_limit_refuses_the_file(
    body: bytes, filling: int
) -> None:
    """Where it stands in the file makes no difference; no other record is too long."""
    filled = b"0,0\n" * (filling // 4)
    data = b"a,b\n" + filled + (body if body != b'1,"' else b'1,"' + b"x" * 20)

    with pytest.raises(BadFileError) as raised:
        read(data, CsvOptions(), max_record_bytes=8)

    assert raised.value.reason == "a record is longer than 8 bytes (an open quote?)"


def test_csv_reader_with_a_record_at_the_limit_reads_it() -> None:
    """The limit itself is allowed; line ends do not count."""
    assert read(b"a,b\r\n1,234567\r\n", CsvOptions(), max_record_bytes=8) == (
        [("1", "234567")],
        [],
    )
