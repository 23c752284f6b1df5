"""Reading JSON arrays and documents: each record once, unchanged, with its line number."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch_pipeline.encode.readers.json import JsonReader
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.landed_files import (
    in_memory,
    line_numbers,
    record_numbers,
    rejection,
    stream_of,
    texts,
)

JSON = stream_of(SourceFormat.JSON)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('{}[]",:\\\n\r/ '))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), values, max_size=4)
indents = st.none() | st.integers(0, 3) | st.sampled_from(["\t", " \n", "\r\n"])


def read(data: bytes, *, block_bytes: int = 2**21) -> tuple[list[bytes], list[int]]:
    """Read a whole file and return the records and their line numbers."""
    chunks = list(JsonReader(in_memory(data, JSON), block_bytes=block_bytes).chunks())
    assert record_numbers(chunks) == list(range(1, len(texts(chunks)) + 1))
    return texts(chunks), line_numbers(chunks)


@given(
    st.lists(objects | values, max_size=6),
    indents,
    st.booleans(),
    st.sampled_from([b"", b" ", b"\r\n", b"\n\n\t"]),
    st.integers(1, 80),
)
@example([{"a": "]},{"}, {"b": '\\"'}, {"c": "\\"}], None, True, b"", 1)
@example([1, "a,b", None, [], {}, "]"], 2, False, b"\n", 7)
def test_json_reader_returns_any_elements_and_documents(
    expected: list[Any], indent: Any, is_ascii: bool, around: bytes, block_bytes: int
) -> None:
    """Neither the layout nor block boundaries matter; a first `[]` would be the whole array."""
    array = json.dumps(expected, indent=indent, ensure_ascii=is_ascii).encode()
    if indent is None:
        array = around.join([b"", b"[", array[1:-1], b"]", b""])
    documents = [json.dumps(one, indent=indent).encode() for one in [{}, *expected]]

    elements, _ = read(array, block_bytes=block_bytes)
    records, lines = read((around or b" ").join(documents), block_bytes=block_bytes)

    assert [json.loads(element) for element in elements] == expected
    assert not any(b"\n" in element or b"\r" in element for element in elements)
    assert [json.loads(record) for record in records] == [{}, *expected]
    assert (lines[0], lines) == (1, sorted(lines))


@pytest.mark.parametrize("block_bytes", [1, 5, 2**21])
def test_json_reader_keeps_text_and_line_numbers(block_bytes: int) -> None:
    """Digits, blanks and key order are kept; line ends become spaces."""
    data = b'\n [\n  {\r\n "b": 1.50,\n "a": 12345678901234567890 }\n,\n\n {"a":"x\\ny"}, {}\n]\n'

    assert read(data, block_bytes=block_bytes) == (
        [b'{   "b": 1.50,  "a": 12345678901234567890 }', b'{"a":"x\\ny"}', b"{}"],
        [3, 8, 8],
    )


@pytest.mark.parametrize("block_bytes", [1, 6, 2**21])
@pytest.mark.parametrize(
    "broken",
    [
        *(b'{"a":NaN}', b'{"a":1,}', b'{"a":"\\x"}', b'{"a":"\n"}', b'{"a":"\xff"}'),
        *(b'{"a":nope, "b":"]"}', b'{"a":"\\ud800"}', b'{"a":1 1}'),
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_json_reader_returns_malformed_element_unchanged(broken: bytes, block_bytes: int) -> None:
    """The validator rejects it; its end is unambiguous."""
    array = b'[{"a":1},' + broken + b',{"a":2}]'
    documents = b'{"a":1}' + broken + b'{"a":2}'
    expected = [b'{"a":1}', broken, b'{"a":2}']

    assert read(array, block_bytes=block_bytes)[0] == expected
    assert read(documents, block_bytes=block_bytes)[0] == expected


QUOTES = "its quotes do not match: its end cannot be determined"
BRACKETS = QUOTES.replace("quotes", "brackets")


@pytest.mark.parametrize("block_bytes", [1, 4, 2**21])
@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b'[{"a":1},\n{"b":2}\n', 3, "the array has no end"),
        (b"[", 1, "the array has no end"),
        (b'[{"a":1},\n{"b":', 2, "the record that starts here has no end"),
        (b'{"a":1}\n\n{"b":{}', 3, "the record that starts here has no end"),
        (b"[{}]\n\n{}", 3, "data follows the end of the array"),
        (b"[{},\n]", 1, "a comma has no element on one side"),
        (b"[\n,{}]", 2, "a comma has no element on one side"),
        (b"[1,,2]", 1, "a comma has no element on one side"),
        (b"[{}\n{}]", 2, "a comma is missing between two elements"),
        (b"[{} x,{}]", 1, "a comma is missing between two elements"),
        (b"{}\n]", 2, "an unmatched closing bracket"),
        (b"[{}}", 1, "an unmatched closing bracket"),
        (b"{},\n{}", 1, "a comma between documents"),
        (b'{}\n"x', 2, "a quote is not closed"),
        # A missing quote or bracket must not turn several good records into a bad one.
        (b'[{"a":"x}, {"b":1}, {"c":2"}, {"d":3}]', 1, QUOTES),
        (b'{"a":"x} {"b":1} {"c":2"}\n{"d":3}', 1, QUOTES),
        (b'[{"a":1}, {"b" 2}]', 1, QUOTES),
        (b'[{"a":\\"x}, {"b":1}]', 1, QUOTES),
        (b'[{"a":[1}, {"b":2]}, {"c":3}]', 1, BRACKETS),
        (b'[{"a":1], {"b":2}, {"c":3}]', 1, BRACKETS),
        (b'[{"a":1}, xx"yy, {"b":2}, z", {"c":3}]', 1, "a misplaced quote"),
    ],
)
def test_json_reader_rejects_ambiguous_record_boundaries(
    data: bytes, line: int, reason: str, block_bytes: int
) -> None:
    assert rejection(read, data, block_bytes=block_bytes) == (line, reason)


array_text = st.lists(st.sampled_from(list('[]{},:" \n1a\\')), max_size=14).map("".join)


def test_json_reader_reads_many_scalars_and_quotes() -> None:
    """Reading in quadratic time would not finish."""
    records, _ = read(b"1 " * 200_000)
    assert (len(records), set(records)) == (200_000, {b"1"})
    assert rejection(read, b"{" + b'\\"' * 500_000 + b"}") == (1, QUOTES)


@given(array_text, st.integers(1, 6))
@example('{"a":"},{"}', 3)
def test_json_reader_of_any_array_text_neither_invents_nor_loses_data(
    text: str, block_bytes: int
) -> None:
    """Valid arrays have the elements that Python reads; invalid ones keep all text."""
    data = b"[" + text.encode()
    try:
        records, _ = read(data, block_bytes=block_bytes)
    except BadFileError:
        with pytest.raises(json.JSONDecodeError):
            json.loads(data)
        return
    try:
        expected = json.loads(data)
    except ValueError:
        kept = b"[" + b",".join(records) + b"]"
        assert b"".join(kept.split()) == b"".join(data.split())
    else:
        assert [json.loads(record) for record in records] == expected


def test_json_reader_rejects_record_over_size_limit() -> None:
    """The end of the record may or may not be in the file."""
    stream = stream_of(SourceFormat.JSON, max_record_bytes=100)
    reason = "a record is longer than 100 bytes, more than `read_limits.max_record_bytes` allows"
    long = b'{"a":"' + b"x" * 100 + b'"}'

    for data in (b"[{},\n" + long + b"]", b"{}\n" + long, b"[{},\n" + long[:-2]):
        for block_bytes in (1, 10, 2**21):
            reader = JsonReader(in_memory(data, stream), block_bytes=block_bytes)
            line, found = rejection(list, reader.chunks())
            assert line == 2
            assert found in (reason, "the record that starts here has no end")


def test_json_reader_memory_depends_on_block_not_file() -> None:
    data = b"[" + b",\n".join(b'{"a":%d,"b":"%s"}' % (n, b"x" * 100) for n in range(60_000)) + b"]"
    reader = JsonReader(in_memory(data, JSON), block_bytes=2**16)
    tracemalloc.start()
    try:
        count = sum(chunk.good for chunk in reader.chunks())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert count == 60_000
    assert len(data) > 6 * 2**20
    assert peak < 3 * 2**20
