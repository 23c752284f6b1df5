"""Checking JSON records: what goes on as it stands, what is bad, and what widens the columns."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.domain.record_rules import OnNonfinite, ReadLimits
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.spark.chunks import JsonRecords, Table
from batch_pipeline_tests.unit.check_scene import Desk, reasons, schema

LONG = "0.12345678901234567890"


def test_check_with_fitting_lines_gives_them_unchanged() -> None:
    """Key order, big integers, nulls, absent keys and number text survive."""
    lines = [
        b'{"b":"x","a":12345}',
        b'{ "a" : null }',
        b"{}",
        b'{"c":1.50,"a":-0,"b":"\\u00e9\\ud83d\\ude00\xe2\x80\xa8"}',
        b'{"c":0.123456789012345678901234567890}',
        b'{"b":"a \\":\\" in a text","a":1}',
    ]
    desk = Desk(schema(a="integer", b="string", c="number"))

    chunk = desk.lines(*lines)

    assert chunk.lines == lines
    assert chunk.bad == ()
    assert desk.profile.fits


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a":1', "is not valid JSON (Input data was truncated)"),
        (b'{"a":NaN}', "holds NaN, which JSON cannot say"),
        (b'{"x":[-Infinity]}', "holds -Infinity, which JSON cannot say"),
        (b"[1]", "is not a JSON object but array"),
        (b"7", "is not a JSON object but number"),
        (b"null", "is not a JSON object but null"),
        (b'{"s":"\xff"}', "is not UTF-8"),
        (b'{"x":{"y":"\xff"}}', "is not UTF-8"),
        (b'{"s":"a\rb"}', "is not valid JSON (JSON is malformed: invalid character (byte 7))"),
        (b'{"s":"a\x00b"}', "is not valid JSON (JSON is malformed: invalid character (byte 7))"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "is nested too deeply"),
        (b'\xef\xbb\xbf{"a":1}', "starts with a byte order mark in the middle of the file"),
        (
            b'{"s":"\\ud800"}',
            "has a text with half of a surrogate pair, which UTF-8 cannot hold",
        ),
        (
            b'{"x":{"\\udc00":1}}',
            "has a text with half of a surrogate pair, which UTF-8 cannot hold",
        ),
        (b'{"a":1,"a":1}', 'has the key "a" twice'),
        (b'{"a":1,"s":"x" , "a" : 2,"x":1}', 'has the key "a" twice'),
        (b'{"a" :1,"a":2}', 'has the key "a" twice'),
        (b'{"a":1,"\\u0061":2}', 'has the key "a" twice'),
        (b'{"s":"\\u0022:","a":1,"a":1}', 'has the key "a" twice'),
        (b'{"x":{"y":1,"y":2}}', 'has the key "y" twice'),
        (b'{"x":[{"y":"\\u0022:","z":1,"z":2}]}', 'has the key "z" twice'),
        (b'{"new":1,"new":1}', 'has the key "new" twice'),
        (
            b'{"new":1,"x\\u0000y":2}',
            'has the key "x\\u0000y": a name with a NUL cannot be stored in PostgreSQL',
        ),
    ],
)
def test_check_with_a_bad_line_tells_its_number(values: bool, line: bytes, reason: str) -> None:
    """A line that is no JSON object of its own kind is bad; the lines around it go on."""
    desk = Desk(schema(a="integer", s="string", x="any"), values=values)
    if b"NaN" in line:
        desk = Desk(schema(a="string", s="string", x="any"), values=values)
    good = [b'{"s":"x"}', b'{"s":"y","x":{"y":1}}']

    chunk = desk.checked(good[0], line, good[1])

    assert [(bad.line, bad.reason, bad.raw) for bad in chunk.bad] == [(2, reason, line)]
    assert (chunk.good, list(chunk.numbers), list(chunk.places)) == (2, [1, 3], [1, 3])
    assert desk.profile.fits


@pytest.mark.parametrize("values", [False, True])
def test_check_with_a_nul_in_a_key_takes_no_column_from_the_record(values: bool) -> None:
    desk = Desk(values=values)

    chunk = desk.checked(b'{"a":1}', rb'{"new":1,"x\u0000y":2}', b'{"a":2}')

    assert [bad.line for bad in chunk.bad] == [2]
    assert desk.misfits() == [("a", "integer")]


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"a":1,"s":"x","a":2}', "a"),
        (b'{"a" :1,"s":"x","a":2}', "a"),
        (b'{"a":1,"s":"x","a":2,"x":{"y":1}}', "a"),
        (b'{"a":1,"s":"x","x":{"y":1,"y":2}}', "y"),
        (b'{"a":1,"s":"x","x":[{"\\u0022:":1,"y":1,"y":2}]}', "y"),
    ],
)
def test_check_with_complete_records_finds_a_key_that_is_there_twice(
    values: bool, line: bytes, key: str
) -> None:
    """Records that have all columns are read the fastest way, which proves the same."""
    nested = b'"x":' in line
    good = b'{"a":1,"s":"text \\":"%b}' % (b',"x":{"y":[]}' if nested else b"")
    types = {"a": "integer", "s": "string"} | ({"x": "any"} if nested else {})
    desk = Desk(schema(**types), values=values)

    chunk = desk.checked(good.replace(b'\\":', b""), line)

    assert reasons(chunk) == [(2, f'has the key "{key}" twice')]
    assert desk.checked(good, good).bad == ()


def test_check_with_unknown_columns_finds_their_types() -> None:
    """Without a schema the columns appear in order, each as wide as its values need."""
    desk = Desk()

    desk.lines(
        b'{"i":1,"n":1,"s":"x","o":{},"l":[],"u":null,"m":1}',
        b'{"b":true,"n":1.5,"m":"x","i":-3}',
    )

    assert desk.misfits() == [
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
        (b'{"I":1}', [("I", "integer")]),
        (b'{"":1}', [("", "integer")]),
        (b'{"i":9223372036854775807}', []),
        (b'{"i":9223372036854775808}', [("i", "decimal(19,0)")]),
        (b'{"i":-12345678901234567890123456789012345678}', [("i", "decimal(38,0)")]),
        (b'{"i":123456789012345678901234567890123456789}', [("i", "any")]),
        (b'{"i":' + b"9" * 5000 + b"}", [("i", "any")]),
        (b'{"n":1e400}', [("n", "any")]),
        (b'{"n":1e99999999999999999999}', [("n", "any")]),
        (b'{"t":"2026-01-31T10:00:00+01:00"}', []),
        (b'{"t":"2026-01-31T10:00:00.123456000Z"}', []),
        (b'{"t":"2026-01-31T10:00:00.1234567Z"}', [("t", "string")]),
        (b'{"t":"2026-01-31T10:00:00"}', [("t", "string")]),
        (b'{"t":1769853600}', [("t", "any")]),
        (b'{"d":"2026-02-29"}', [("d", "string")]),
        (b'{"d":"0000-01-01"}', [("d", "string")]),
        (b'{"c":"12:30:00.000001"}', []),
        (b'{"c":"24:00:00"}', [("c", "string")]),
        (b'{"y":"AA=="}', []),
        (b'{"y":"AB=="}', [("y", "string")]),
        (b'{"m":123.45}', []),
        (b'{"m":123.450}', []),
        (b'{"m":1e2}', []),
        (b'{"m":123.456}', [("m", "decimal(6,3)")]),
        (b'{"m":"1"}', [("m", "any")]),
        (b'{"m":true}', [("m", "any")]),
    ],
)
@pytest.mark.parametrize("values", [False, True])
def test_check_with_a_value_of_another_type_widens_its_column(
    line: bytes, needed: list[tuple[str, str]], values: bool
) -> None:
    """A column takes the narrowest type that holds old and new values; others stay."""
    known = schema(
        i="integer",
        n="number",
        s="string",
        u="unknown",
        t="timestamp",
        d="date",
        c="time",
        y="binary",
        m="decimal(5,2)",
    )
    desk = Desk(known, values=values)

    desk.checked(b"{}", line, b"{}")

    assert desk.misfits() == needed
    assert [misfit.line for misfit in desk.profile.misfits()] == [2] * len(needed)


@pytest.mark.parametrize(
    ("lines", "known", "needed"),
    [
        ([b'{"n":9007199254740993}'], {"n": "number"}, [("n", "any")]),
        ([b'{"i":9007199254740993}', b'{"i":0.5}'], {"i": "integer"}, [("i", "decimal(19,0)")]),
        ([b'{"i":0.5}', b'{"i":9007199254740993}'], {"i": "integer"}, [("i", "decimal(19,0)")]),
        ([b'{"i":9007199254740992}', b'{"i":0.5}'], {"i": "integer"}, [("i", "number")]),
        ([b'{"o":[]}'], {"o": "object"}, [("o", "any")]),
        ([b'{"n":%s}' % LONG.encode()], {"n": "number"}, [("n", "any")]),
        ([b'{"n":%s}' % LONG.encode()], {}, [("n", "decimal(19,19)")]),
        ([b'{"n":0.8444218515250481}'], {"n": "number"}, []),
        ([b'{"n":9007199254740993.5}'], {"n": "number"}, [("n", "any")]),
        ([b'{"n":1e-400}'], {"n": "number"}, [("n", "any")]),
        ([b'{"n":0e-400}'], {"n": "number"}, []),
        ([b'{"n":1.50}', b'{"n":-0.0}'], {"n": "number"}, []),
    ],
)
def test_check_with_values_that_a_column_would_round_widens_it(
    lines: list[bytes], known: dict[str, str], needed: list[tuple[str, str]]
) -> None:
    """Numbers that 64 bits or a double cannot hold become decimals or JSON text, never rounded."""
    desk = Desk(schema(**known), values=True)

    desk.checked(*lines)

    assert desk.misfits() == needed


def test_check_with_numbers_of_all_lengths_settles_on_a_decimal() -> None:
    """A new column with one long number counts the digits of all: exact, whatever came first."""
    lines = [b'{"n":0.5}', b'{"n":%s}' % LONG.encode(), b'{"n":123}', b'{"n":1e3}']
    for order in (lines, lines[::-1]):
        desk = Desk(values=True).settled(*order)
        assert [column.type_text for column in desk.profile.columns.values()] == ["decimal(23,19)"]
        found = {row["n"] for row in desk.rows(*order)}
        assert found == {Decimal("0.5"), Decimal(LONG), Decimal(123), Decimal(1000)}


def test_check_with_a_name_that_json_escapes_reads_its_values() -> None:
    """Column names with quotes, backslashes or control characters are names like any other."""
    known = RecordSchema.from_json([('a"b\\c\nd', "integer"), ("s", "string")])
    line = b'{"a\\"b\\\\c\\nd":5}'

    assert Desk(known, values=True).rows(line) == [{'a"b\\c\nd': 5, "s": None}]
    assert Desk(known).lines(line).lines == [line]


def test_check_with_values_asked_gives_a_table_of_the_schemas_types() -> None:
    """Columns follow the schema; objects, arrays and mixtures are the JSON text as it stood."""
    known = schema(a="any", o="object", l="array", i="integer", s="string", m="decimal(3,2)")
    desk = Desk(known, values=True)
    lines = (
        b'{"o":{"x": 1.50},"a":12345678901234567890.12,"i":9007199254740992,"m":1.5}',
        b'{"l":[1, 2],"a":"t","o":null,"s":"x"}',
    )

    rows = desk.rows(*lines)

    empty = dict.fromkeys("aolism")
    assert rows == [
        empty
        | {"a": "12345678901234567890.12", "o": '{"x": 1.50}', "i": 2**53, "m": Decimal("1.50")},
        empty | {"a": '"t"', "l": "[1, 2]", "s": "x"},
    ]
    assert desk.profile.fits
    table = desk.checked(*lines)
    assert isinstance(table, Table)
    assert (table.json, table.text) == (frozenset("aol"), frozenset())


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (OnNonfinite.NULL, b'{"n": null ,"s":"NaN \\" Infinity","x":[null,null]}'),
        (OnNonfinite.STRING, b'{"n": "NaN" ,"s":"NaN \\" Infinity","x":["Infinity","-Infinity"]}'),
    ],
)
def test_check_with_tokens_that_json_lacks_obeys_the_rule(rule: OnNonfinite, line: bytes) -> None:
    """All else in the line stays byte by byte; texts that look alike are texts."""
    desk = Desk(schema(n="any", s="string", x="array"), on_nonfinite=rule)

    chunk = desk.lines(b'{"n": NaN ,"s":"NaN \\" Infinity","x":[Infinity,-Infinity]}')

    assert (chunk.lines, chunk.bad, desk.profile.fits) == ([line], (), True)


def test_check_with_values_keeps_nan_where_a_column_of_doubles_holds_it() -> None:
    """A double is NaN or infinite in parquet too; JSON text is not."""
    desk = Desk(schema(n="number", x="array"), values=True)

    chunk = desk.checked(b'{"n":Infinity}', b'{"n":1.5,"x":[NaN]}', b'{"n":2}')

    assert isinstance(chunk, Table)
    assert chunk.batch.column("n").to_pylist() == [float("inf"), 2.0]
    assert reasons(chunk) == [(2, "holds NaN, which JSON cannot say")]


def test_check_with_too_many_columns_calls_the_record_bad() -> None:
    """Neither one record nor all of them together may have more columns than the limit."""
    desk = Desk(schema(a="integer"), read_limits=ReadLimits(max_columns=2))

    chunk = desk.checked(b'{"a":1,"b":1,"c":1}', b'{"b":1}', b'{"c":1}')

    assert reasons(chunk) == [
        (1, "has 3 columns, more than `read_limits.max_columns` allows (2)"),
        (3, "has columns that would make more than `read_limits.max_columns` allows (2)"),
    ]
    assert desk.misfits() == [("b", "integer")]


def test_check_with_returns_between_values_leaves_one_line() -> None:
    """A carriage return between values becomes a space: no reader can end the line there."""
    chunk = Desk(schema(a="integer", b="integer")).lines(b'{"a":1,\r"b":2}')

    assert chunk.lines == [b'{"a":1, "b":2}']


names = st.sampled_from(["a", "b", "é", "", 'q"', "A", "long name"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5)
    | st.sampled_from(['":', '" :', "2026-01-31"])
)
values_ = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)
)
records = st.lists(st.dictionaries(names, values_, max_size=5), min_size=1, max_size=5)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])


@settings(deadline=None, max_examples=200)
@given(records, separators, st.booleans())
def test_check_with_any_records_keeps_their_text(
    found: list[dict[str, Any]], separator: tuple[str, str], ascii_only: bool
) -> None:
    """Whatever a JSON writer writes goes on byte by byte, once the schema holds it."""
    lines = [
        json.dumps(record, separators=separator, ensure_ascii=ascii_only).encode()
        for record in found
    ]

    chunk = Desk().settled(*lines).checked(*lines)

    assert isinstance(chunk, JsonRecords)
    assert (chunk.lines, chunk.bad) == (lines, ())


@settings(deadline=None, max_examples=200)
@given(records)
@example([{"a": 0.1}, {"a": 2**53 + 1}, {"a": None}])
@example([{"a": 1e300}, {"a": 2**60}])
def test_check_with_any_records_makes_columns_that_give_them_back(
    found: list[dict[str, Any]],
) -> None:
    """Values in columns are the values of the records; absent and null are both null."""
    lines = [json.dumps(record).encode() for record in found]
    desk = Desk(values=True).settled(*lines)

    chunk = desk.checked(*lines)

    assert isinstance(chunk, Table)
    assert chunk.bad == ()
    rows = chunk.batch.to_pylist() if chunk.batch.num_columns else [{}] * len(found)
    for record, row in zip(found, rows, strict=True):
        for name, cell in row.items():
            back = cell
            if cell is not None and name in chunk.json:
                back = json.loads(cell)
            if isinstance(back, float) and isinstance(record.get(name), int):
                back = int(back)
            assert back == record.get(name) or Decimal(str(record[name])) == back
        assert {name for name, value in record.items() if value is not None} <= row.keys()


@settings(deadline=None, max_examples=200)
@given(st.permutations([b"1", b"0.5", LONG.encode(), b"9007199254740993", b"1e30", b"null"]))
def test_check_with_values_in_any_order_needs_the_same_types(texts: list[bytes]) -> None:
    """The order of records changes no type of the schema that holds them all."""
    lines = [b'{"n":%s}' % text for text in texts]

    desk = Desk(values=True).settled(*lines)

    assert [column.type_text for column in desk.profile.columns.values()] == ["any"]
