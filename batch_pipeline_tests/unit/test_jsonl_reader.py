"""Reading JSON lines: what is taken as it stands, what is bad, and what widens the columns."""

import io

import pytest

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import Source, Storage, Stream
from batch_pipeline.spark.check.profile import Profile
from batch_pipeline.spark.read.jsonl_reader import JsonChunk, JsonlReader
from batch_pipeline.spark.read.sources import TextSource

STREAM = Stream(
    name="orders",
    source=Source(uri="file:///landing"),
    limits=Limits(max_weight=1, max_count=1),
    encoding=Encoding(format=Format.JSONL, compression=Compression.GZIP),
    storage=Storage(root="file:///batches"),
)


def schema(**types: str) -> RecordSchema:
    """Make a schema of columns given as name=type."""
    return RecordSchema.from_json(list(types.items()))


def read(
    data: bytes, known: RecordSchema, *, values: bool = False
) -> tuple[list[JsonChunk], Profile]:
    """Read a whole file: its chunks and what was seen of its columns."""
    source = TextSource(io.BufferedReader(io.BytesIO(data)), STREAM, "file:///orders.jsonl")
    profile = Profile(known)
    return list(JsonlReader(source, profile, values=values).chunks()), profile


def misfits(data: bytes, known: RecordSchema, *, values: bool = False) -> list[tuple[str, str]]:
    """Give the columns that a file needs wider or new."""
    _, profile = read(data, known, values=values)
    return [(column.name, column.type.value) for column in profile.misfits()]


def test_jsonl_reader_with_fitting_lines_gives_them_unchanged() -> None:
    """Key order, big integers, nulls, absent keys and number text survive; blanks around do not."""
    lines = [
        b'{"b":"x","a":123456789012345678901234567890}',
        b'{ "a" : null }',
        b"{}",
        b'{"c":1.50,"a":-0,"b":"\\u00e9\\ud83d\\ude00\xe2\x80\xa8"}',
    ]
    data = b"\xef\xbb\xbf" + b"  \r\n\n".join(lines)

    [chunk], profile = read(data, schema(a="integer", b="string", c="number"))

    assert chunk.lines == lines
    assert chunk.bad == ()
    assert profile.fits


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a":1', "is not valid JSON (Input data was truncated)"),
        (b'{"a":NaN}', "is not valid JSON (JSON is malformed: invalid character (byte 5))"),
        (b"[1]", "is not a JSON object but array"),
        (b"7", "is not a JSON object but integer"),
        (b"null", "is not a JSON object but unknown"),
        (b'{"a":"\xff"}', "is not UTF-8"),
        (b'{"x":{"y":"\xff"}}', "is not UTF-8"),
        (b'{"a":1e999}', "is not valid JSON (Number out of range - at `$[...]`)"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "is nested too deeply"),
    ],
)
def test_jsonl_reader_with_a_bad_line_tells_its_number(line: bytes, reason: str) -> None:
    """A line that is no JSON object is bad; the lines around it are read."""
    data = b'{"a":1}\n\n' + line + b'\n{"a":2}\n'

    [chunk], profile = read(data, schema(a="integer"))

    assert chunk.lines == [b'{"a":1}', b'{"a":2}']
    assert [(bad.line, bad.reason, bad.raw) for bad in chunk.bad] == [(3, reason, line)]
    assert profile.fits


def test_jsonl_reader_with_unknown_columns_finds_their_types() -> None:
    """Without a schema the columns appear in order, each as wide as its values need."""
    data = b"""
{"i":1,"n":1,"s":"x","o":{},"l":[],"u":null,"m":1}
{"b":true,"n":1.5,"m":"x","i":-3}
"""

    assert misfits(data, schema()) == [
        ("i", "integer"),
        ("n", "number"),
        ("s", "string"),
        ("o", "object"),
        ("l", "array"),
        ("u", "unknown"),
        ("m", "any"),
        ("b", "boolean"),
    ]


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        (b'{"i":1.5}', [("i", "number")]),
        (b'{"n":1}', []),
        (b'{"i":true}', [("i", "any")]),
        (b'{"s":1}', [("s", "any")]),
        (b'{"u":"x"}', [("u", "string")]),
        (b'{"new":null}', [("new", "unknown")]),
        (b'{"quo\\"te":1}', [('quo"te', "integer")]),
    ],
)
def test_jsonl_reader_with_a_value_of_another_type_widens_its_column(
    line: bytes, needed: list[tuple[str, str]]
) -> None:
    """A column takes the narrowest type that holds old and new values; others stay."""
    assert misfits(line, schema(i="integer", n="number", s="string", u="unknown")) == needed


def test_jsonl_reader_with_a_name_that_json_escapes_reads_its_values() -> None:
    """Column names with quotes, backslashes or control characters are names like any other."""
    known = RecordSchema.from_json([('a"b\\c\nd', "integer")])
    line = b'{"a\\"b\\\\c\\nd":5}'

    [chunk], profile = read(line, known, values=True)

    assert (chunk.lines, chunk.rows, profile.fits) == ([line], [(5,)], True)


def test_jsonl_reader_with_values_asked_gives_a_row_per_line() -> None:
    """Rows follow the schema; objects, arrays and mixtures are the JSON text as it stood."""
    known = schema(a="any", o="object", l="array", i="integer", s="string")
    data = b"""{"o":{"x": 1.50},"a":12345678901234567890.12,"i":9007199254740992}
{"l":[1, 2],"a":"t","o":null,"s":"x"}"""

    [chunk], profile = read(data, known, values=True)

    assert chunk.rows == [
        ("12345678901234567890.12", '{"x": 1.50}', None, 9007199254740992, None),
        ('"t"', None, "[1, 2]", None, "x"),
    ]
    assert profile.fits


@pytest.mark.parametrize(
    ("data", "known", "needed"),
    [
        (b'{"i":9223372036854775808}', {"i": "integer"}, [("i", "any")]),
        (b'{"i":9223372036854775807}', {"i": "integer"}, []),
        (b'{"n":9007199254740993}', {"n": "number"}, [("n", "any")]),
        (b'{"i":9007199254740993}\n{"i":0.5}', {"i": "integer"}, [("i", "any")]),
        (b'{"i":9007199254740992}\n{"i":0.5}', {"i": "integer"}, [("i", "number")]),
        (b'{"o":[]}', {"o": "object"}, [("o", "any")]),
    ],
)
def test_jsonl_reader_with_values_a_column_would_round_makes_it_any(
    data: bytes, known: dict[str, str], needed: list[tuple[str, str]]
) -> None:
    """Integers that 64 bits or a double cannot hold are kept as JSON text instead of rounded."""
    assert misfits(data, schema(**known), values=True) == needed


def test_jsonl_reader_with_many_blocks_reads_every_line_once() -> None:
    """Lines that cross the borders of blocks are whole, and numbers are counted over them."""
    lines = [b'{"a":%d,"s":"%s"}' % (number, b"x" * 1000) for number in range(6000)]  # 6 MB
    data = b"\n".join([*lines, b"oops"])

    chunks, _ = read(data, schema(a="integer", s="string"))

    assert [line for chunk in chunks for line in chunk.lines] == lines
    assert [bad.line for chunk in chunks for bad in chunk.bad] == [6001]


def test_jsonl_reader_with_returns_between_values_leaves_one_line() -> None:
    """A carriage return inside of a record becomes a space: no reader can end the line there."""
    [chunk], _ = read(b'{"a":1,\r"b":2}\r\n', schema(a="integer", b="integer"))

    assert chunk.lines == [b'{"a":1, "b":2}']
