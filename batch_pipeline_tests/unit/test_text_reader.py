"""Reading text files: whole lines and fixed-width columns."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.domain.errors import BadFileError
from batch_pipeline.domain.record_rules import ReadLimits
from batch_pipeline.domain.text_options import FixedColumn, TextOptions
from batch_pipeline.spark.chunks import BadText, Table
from batch_pipeline.spark.read.text_reader import TextReader
from batch_pipeline_tests.unit.text_blocks import BytesBlocks

COLUMNS = TextOptions(
    columns=(FixedColumn(name="id", start=1, width=3), FixedColumn(name="name", start=4, width=5))
)


def tables(data: bytes, options: TextOptions, limits: ReadLimits | None = None) -> list[Table]:
    """Read a whole file."""
    return list(TextReader(BytesBlocks(data), options, limits or ReadLimits()).chunks())


def lines(data: bytes) -> list[str]:
    """Read the lines of a whole file."""
    found: list[str] = []
    for table in tables(data, TextOptions()):
        assert (table.text, table.json, table.bad) == (frozenset(), frozenset(), ())
        assert list(table.places) == list(table.numbers)
        found += table.batch.column("line").to_pylist()
    return found


@settings(deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_text_reader_with_any_lines_gives_them_back(texts: list[str], end: str) -> None:
    """A line is a record, whatever is in it; empty ones are too."""
    assert lines("".join(text + end for text in texts).encode()) == texts


def test_text_reader_without_a_last_line_end_reads_the_last_line() -> None:
    """The last line counts with or without its end; numbers stay text."""
    assert lines(b"1\n02\r\n\nx\ry") == ["1", "02", "", "x\ry"]
    assert lines(b"a\r") == ["a"]


def test_text_reader_with_many_blocks_numbers_lines_through() -> None:
    """Lines that cross the borders of blocks are whole."""
    data = b"".join(b"%07d" % number + b"x" * 993 + b"\n" for number in range(5000))

    found = tables(data, TextOptions())

    assert len(found) == 3
    numbers = [number for table in found for number in table.numbers]
    texts = [text for table in found for text in table.batch.column("line").to_pylist()]
    assert numbers == list(range(1, 5001))
    assert [int(text[:7]) + 1 for text in texts] == numbers
    assert {len(text) for text in texts} == {1000}


def test_text_reader_with_columns_cuts_characters() -> None:
    """Columns count characters, blanks at their ends are cut, what is not there is null."""
    data = "  1 Ann \n\n22 Zoë😀x|rest\n   \t    \n3\n   Bo\n".encode()

    (table,) = tables(data, COLUMNS)

    assert table.batch.to_pylist() == [
        {"id": "1", "name": "Ann"},
        {"id": "22", "name": "Zoë😀x"},
        {"id": "3", "name": None},
        {"id": None, "name": "Bo"},
    ]
    assert table.text == {"id", "name"}
    assert list(table.places) == [1, 3, 5, 6]
    assert list(table.numbers) == [1, 2, 3, 4]


@pytest.mark.parametrize("options", [TextOptions(), COLUMNS])
def test_text_reader_with_lines_that_are_not_utf8_sets_them_aside(options: TextOptions) -> None:
    """The other lines are read; a bad one keeps its bytes and its number."""
    (table,) = tables(b"1  a\n2  \xff\xfe\r\n3  c\n\xc3", options)

    assert table.good == 2
    assert table.bad == (
        BadText(line=2, reason="is not UTF-8", raw=b"2  \xff\xfe"),
        BadText(line=4, reason="is not UTF-8", raw=b"\xc3"),
    )
    assert (list(table.places), list(table.numbers)) == ([1, 3], [1, 3])


@pytest.mark.parametrize("data", [b"", b"\n\n"])
def test_text_reader_without_records_tells_the_columns(data: bytes) -> None:
    """An empty file has no records, but its columns are known."""
    (table,) = tables(data, COLUMNS)

    assert (table.batch.schema.names, table.good) == (["id", "name"], 0)


def test_text_reader_with_a_line_over_the_limit_refuses_the_file() -> None:
    """The message names the limit and the line."""
    with pytest.raises(BadFileError) as raised:
        tables(b"1234\n12345\n", TextOptions(), ReadLimits(max_record_bytes=4))

    assert (raised.value.line, raised.value.reason) == (2, "a line is longer than 4 bytes")
    assert len(tables(b"1234\n1234\n", TextOptions(), ReadLimits(max_record_bytes=4))) == 1
