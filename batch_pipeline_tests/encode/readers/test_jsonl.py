"""Reading JSON lines: each line once, unchanged, with its number; whole files and parts."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import ByteRange, JsonRecords, TextLines
from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.encode.readers.jsonl import JsonlReader
from batch_pipeline.encode.writers.json_lines import Lines
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.landed_files import (
    in_memory,
    landed,
    line_numbers,
    record_numbers,
    rejection,
    stream_of,
    texts,
)

JSONL = stream_of(SourceFormat.JSONL)


def read(data: bytes, *, block_bytes: int = 2**21) -> list[JsonRecords]:
    return list(JsonlReader(in_memory(data, JSONL), block_bytes=block_bytes).chunks())


def read_part(
    file: LandedFile, start: int, stop: int, block_bytes: int = 2**21
) -> list[JsonRecords]:
    """Read a part of a file, and its line numbers while it is open."""
    with open_source(file, JSONL, ByteRange(start, stop)) as source:
        chunks = list(JsonlReader(source, block_bytes=block_bytes).chunks())
        assert len(line_numbers(chunks)) == len(record_numbers(chunks)) == len(texts(chunks))
    return chunks


@pytest.mark.parametrize("block_bytes", [1, 7, 2**21])
def test_jsonl_reader_returns_lines_unchanged(block_bytes: int) -> None:
    """Surrounding blanks are stripped and blank lines skipped; the validator rejects the rest."""
    data = b'\xef\xbb\xbf{"b": 1.50,"a":null} \r\n\n \t\r\n\0\n  nonsense\n{"c":\r1}'

    chunks = read(data, block_bytes=block_bytes)

    assert texts(chunks) == [b'{"b": 1.50,"a":null}', b"\0", b"nonsense", b'{"c":\r1}']
    assert line_numbers(chunks) == [1, 4, 5, 6]
    assert record_numbers(chunks) == [1, 2, 3, 4]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_jsonl_reader_returns_plain_lines_as_one_block(end: bytes) -> None:
    """Lines are not split until they are accessed."""
    data = b'{"a":1}\n{"a":"}"}\n{}'

    [chunk] = read(data + end)

    assert isinstance(chunk.lines, TextLines)
    assert bytes(Lines.of(chunk.lines).text) == data + b"\n"
    assert Lines.of(chunk.lines).ends.tolist() == [8, 18, 21]
    assert list(map(bytes, chunk.lines.views())) == list(chunk.lines) == data.split(b"\n")


@pytest.mark.parametrize("unusual", [b" {}", b"{} ", b"{}\r", b" \t", b"1", b"{", b"}"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_jsonl_reader_with_one_unusual_line_returns_the_same_lines(
    unusual: bytes, index: int
) -> None:
    lines = [b'{"a":1}', b"{}"]
    lines.insert(index, unusual)

    [chunk] = read(b"\n".join(lines))

    assert not isinstance(chunk.lines, TextLines)
    assert texts([chunk]) == [line.strip() for line in lines if line.strip()]
    numbered = enumerate(lines, start=1)
    assert line_numbers([chunk]) == [number for number, line in numbered if line.strip()]


@pytest.mark.parametrize("end", [b"", b"\r", b"\n"])
def test_jsonl_reader_rejects_carriage_returns_as_line_ends(end: bytes) -> None:
    """Otherwise all records would be one line."""
    reason = (
        "its lines end with carriage returns, but JSON lines end with line feeds; "
        "`source.format: json` reads them"
    )
    assert rejection(read, b'{"a":1}\r\r{"a":2}\r{"a":3}' + end) == (None, reason)


def test_jsonl_reader_of_many_carriage_returns_takes_linear_time() -> None:
    assert texts(read(b"{}" + b"\r" * 1_000_000)) == [b"{}"]


@pytest.mark.parametrize("block_bytes", [1, 13, 2**21])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n{}\n"])
def test_jsonl_reader_rejects_line_over_size_limit(block_bytes: int, end: bytes) -> None:
    """The end of the line may or may not be in the block."""
    stream = stream_of(SourceFormat.JSONL, max_record_bytes=100)
    data = b"{}\n\n" + b"x" * 101 + end

    reader = JsonlReader(in_memory(data, stream), block_bytes=block_bytes)
    reason = "a line is longer than 100 bytes, more than `read_limits.max_record_bytes` allows"
    assert rejection(list, reader.chunks()) == (3, reason)


pieces = st.lists(
    st.sampled_from([b"\n", b"\r\n", b" \n", b'{"a":1}\n', b"x\n", b"\0\n", b"a long line\n", b"y"])
)


@given(pieces, st.booleans(), st.lists(st.integers(0, 60), max_size=5), st.integers(1, 30))
@example([b"\n", b"x\n"], True, [1, 2, 3, 4], 1)
@example([b"\0\n", b"\0\n"], False, [0, 2, 2], 1)
def test_jsonl_reader_of_all_parts_equals_whole_file(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    has_mark: bool,
    cuts: list[int],
    block_bytes: int,
) -> None:
    data = b"\xef\xbb\xbf" * has_mark + b"".join(lines)
    file = landed(tmp_path_factory.mktemp("landing"), data)
    bounds = sorted([0, *(cut for cut in cuts if cut < len(data)), len(data) + 1])
    whole = read(data)

    parts = [chunk for bound in pairwise(bounds) for chunk in read_part(file, *bound, block_bytes)]

    assert texts(parts) == texts(whole)
    assert line_numbers(parts) == line_numbers(whole)
    assert record_numbers(parts) == record_numbers(whole)


def test_jsonl_reader_of_part_names_long_line_by_number_in_file(tmp_path: Path) -> None:
    stream = stream_of(SourceFormat.JSONL, max_record_bytes=100)
    file = landed(tmp_path, b"{}\n" * 1000 + b"x" * 101)

    with open_source(file, stream, ByteRange(1500, 4000)) as source:
        assert rejection(list, JsonlReader(source).chunks())[0] == 1001


def test_jsonl_reader_of_part_counts_preceding_lines_on_demand(tmp_path: Path) -> None:
    """The text before a part is read only for the line numbers of its records."""
    file = landed(tmp_path, b"{}\n" * 1000)

    with open_source(file, JSONL, ByteRange(1500, 4000)) as source:
        [chunk] = JsonlReader(source).chunks()
    (tmp_path / "orders").unlink()

    assert len(chunk.line_numbers) == len(chunk.record_numbers) == chunk.good == 500
    with pytest.raises(BadFileError, match="does not exist"):
        chunk.line_numbers[0]
