"""Validation of JSON records: unchanged lines, bad records, and schema widening."""

import json

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.validation.json_records import cached_decoder
from batch_pipeline.model.record_rules import Evolution, OnNonfinite, ReadLimits
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline_tests.encode.validation.test_type_inference import is_exactly_double
from batch_pipeline_tests.encode.validation.validator_under_test import ValidatorUnderTest, reasons
from batch_pipeline_tests.encode.writers.part_factories import schema

LONG = "0.12345678901234567890"


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a":1', "is not valid JSON (Input data was truncated)"),
        (b'{"s":"a\rb"}', "is not valid JSON (JSON is malformed: invalid character (byte 7))"),
        (b'{"a":NaN}', "holds NaN, which JSON cannot represent"),
        (b'{"x":[-Infinity]}', "holds -Infinity, which JSON cannot represent"),
        (b'{"a":1,"s":"x" , "a" : 2,"x":1}', 'has the key "a" twice'),
        (b'{"x":[{"y":"\\u0022:","z":1,"z":2}]}', 'has the key "z" twice'),
        (rb'{"x":{"y":1,"y":"\"\u003a"}}', 'has the key "y" twice'),
        (rb'{"x":{"y":1,"y":"\"\u0020"}}', 'has the key "y" twice'),
        (
            b'{"new":1,"x\\u0000y":2}',
            'has the key "x\\u0000y": a name with a NUL cannot be stored in PostgreSQL',
        ),
    ],
)
def test_bad_line_is_reported_with_number_and_reason(
    values: bool, line: bytes, reason: str
) -> None:
    subject = ValidatorUnderTest(schema(a="integer", s="string", x="any"), values=values)
    if b"NaN" in line:
        subject = ValidatorUnderTest(schema(a="string", s="string", x="any"), values=values)
    good = [b'{"s":"x"}', b'{"s":"y","x":{"y":1}}']

    chunk = subject.validate(good[0], line, good[1])

    assert [(bad.line, bad.reason, bad.raw) for bad in chunk.bad] == [(2, reason, line)]
    assert (chunk.good, list(chunk.record_numbers), list(chunk.line_numbers)) == (2, [1, 3], [1, 3])
    assert subject.profile.fits


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"a":1,"s":"x","a":2}', "a"),
        (b'{"a" :1,"s":"x","a":2}', "a"),
        (b'{"a":1,"s":"x","a":2,"x":{"y":1}}', "a"),
        (b'{"a":1,"s":"x","x":{"y":1,"y":2}}', "y"),
        (b'{"a":1,"s":"x","x":[{"\\u0022:":1,"y":1,"y":2}]}', "y"),
        (rb'{"a":1,"s":"x","x":{"y":1,"y":"\"\u003A"}}', "y"),
    ],
)
def test_duplicate_key_is_found_in_complete_records(values: bool, line: bytes, key: str) -> None:
    """Records with all columns are decoded as a block."""
    nested = b'"x":' in line
    good = b'{"a":1,"s":"text \\":"%b}' % (b',"x":{"y":[]}' if nested else b"")
    types = {"a": "integer", "s": "string"} | ({"x": "any"} if nested else {})
    subject = ValidatorUnderTest(schema(**types), values=values)

    chunk = subject.validate(good.replace(b'\\":', b""), line)

    assert reasons(chunk) == [(2, f'has the key "{key}" twice')]
    assert subject.validate(good, good).bad == ()


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        (b'{"i":1.5}', [("i", "number")]),
        (b'{"n":1}', []),
        (b'{"i":true}', [("i", "any")]),
        (b'{"s":1}', [("s", "any")]),
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
def test_value_of_another_type_widens_column(
    line: bytes, needed: list[tuple[str, str]], values: bool
) -> None:
    known = schema(
        i="integer",
        n="number",
        s="string",
        t="timestamp",
        d="date",
        c="time",
        y="binary",
        m="decimal(5,2)",
    )
    subject = ValidatorUnderTest(known, values=values)

    subject.validate(b"{}", line, b"{}")

    assert subject.misfits() == needed
    assert [misfit.line for misfit in subject.profile.misfits()] == [2] * len(needed)


@pytest.mark.parametrize("values", [False, True])
def test_text_is_base64_only_in_declared_binary_column(values: bool) -> None:
    for inferred in (False, True):
        subject = ValidatorUnderTest(schema(y="binary"), values=values, inferred=inferred)

        chunk = subject.validate(b'{"y":null}')
        subject.validate(b'{"y":"ABCD"}')

        assert not isinstance(chunk, Table) or chunk.batch.schema.types == [pa.binary()]
        assert subject.misfits() == ([("y", "string")] if inferred else [])


@pytest.mark.parametrize(
    ("lines", "known", "needed"),
    [
        ([b'{"i":9007199254740993}', b'{"i":0.5}'], {"i": "integer"}, [("i", "decimal(19,0)")]),
        ([b'{"i":0.5}', b'{"i":9007199254740993}'], {"i": "integer"}, [("i", "decimal(19,0)")]),
        ([b'{"i":9007199254740992}', b'{"i":0.5}'], {"i": "integer"}, [("i", "number")]),
        ([b'{"o":[]}'], {"o": "object"}, [("o", "any")]),
        ([b'{"n":%s}' % LONG.encode()], {"n": "number"}, [("n", "any")]),
        ([b'{"n":%s}' % LONG.encode()], {}, [("n", "decimal(19,19)")]),
        ([b'{"n":9007199254740993}'], {"n": "number"}, [("n", "any")]),
        ([b'{"n":9007199254740993.5}'], {"n": "number"}, [("n", "any")]),
        ([b'{"n":1e-400}'], {"n": "number"}, [("n", "any")]),
        ([b'{"n":0e-400}'], {"n": "number"}, []),
    ],
)
def test_value_that_would_be_rounded_widens_column(
    lines: list[bytes], known: dict[str, str], needed: list[tuple[str, str]]
) -> None:
    subject = ValidatorUnderTest(schema(**known), values=True)

    subject.validate(*lines)

    assert subject.misfits() == needed


json_numbers = (
    st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
    | st.integers(10**14, 10**17).map(lambda digits: f"0.{digits}")
)


@settings(deadline=None, max_examples=100)
@given(st.lists(json_numbers | st.just("null"), min_size=1, max_size=7))
@example(["0.30000000000000004", "1.7976931348623157e308", "5e-324"])
@example(["1234567890123456789.5"])
@example(["123456789012345e-330", "null"])
@example(["1.00000000000000001e5", "1e-0000000000000000000000000000000000000000330"])
@example(["123456789012345678e0000000000000000000000000000000000000000000001"])
@example(["-0", "-0.0", "0"])
def test_numbers_fit_doubles_only_if_each_is_exact(texts: list[str]) -> None:
    subject = ValidatorUnderTest(schema(n="number"), values=True)

    chunk = subject.validate(*(b'{"n":%b}' % text.encode() for text in texts))

    fits = all(text == "null" or is_exactly_double(text) for text in texts)
    assert subject.profile.fits is fits
    if fits:
        assert isinstance(chunk, Table)
        (column,) = chunk.batch.columns
        doubles = [None if text == "null" else float(json.loads(text)) for text in texts]
        assert list(map(repr, column.to_pylist())) == list(map(repr, doubles))


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (OnNonfinite.NULL, b'{"n": null ,"s":"NaN \\" Infinity","x":[null,null]}'),
        (OnNonfinite.STRING, b'{"n": "NaN" ,"s":"NaN \\" Infinity","x":["Infinity","-Infinity"]}'),
    ],
)
def test_nan_follows_rule(rule: OnNonfinite, line: bytes) -> None:
    subject = ValidatorUnderTest(schema(n="any", s="string", x="array"), on_nonfinite=rule)

    chunk = subject.lines(b'{"n": NaN ,"s":"NaN \\" Infinity","x":[Infinity,-Infinity]}')

    assert (chunk.lines, chunk.bad, subject.profile.fits) == ([line], (), True)


@pytest.mark.parametrize(
    ("rule", "doubles", "nested"),
    [
        (OnNonfinite.NULL, ["-inf", "inf"], [None, "[null]"]),
        (OnNonfinite.STRING, ["-inf", "inf"], [None, '["NaN"]']),
        (OnNonfinite.QUARANTINE, ["-inf"], [None]),
    ],
)
def test_column_of_doubles_keeps_nan_beside_nested_nan(
    rule: OnNonfinite, doubles: list[str], nested: list[str | None]
) -> None:
    """JSON text cannot hold NaN in parquet either."""
    subject = ValidatorUnderTest(schema(n="number", x="array"), values=True, on_nonfinite=rule)

    chunk = subject.validate(b'{"n":-Infinity}', b'{"n":Infinity,"x":[NaN]}')

    assert isinstance(chunk, Table)
    assert chunk.batch.column("n").to_pylist() == list(map(float, doubles))
    assert chunk.batch.to_pydict().get("x", []) == nested
    nan = "holds NaN, which JSON cannot represent"
    assert reasons(chunk) == [(2, nan)] * (rule is OnNonfinite.QUARANTINE)
    assert subject.profile.fits


def test_hostile_lines_are_rejected_in_linear_time() -> None:
    line = b'{"n":' + b'\\"' * 500_000 + b"NaN}"
    chunk = ValidatorUnderTest(schema(n="any")).validate(b'{"n":1}', line)
    [bad] = chunk.bad
    assert (bad.line, bad.reason[:18], chunk.good) == (2, "is not valid JSON ", 1)


@pytest.mark.parametrize("values", [False, True])
def test_record_of_any_depth_is_good_or_bad(values: bool) -> None:
    lines = [b'{"x":' + b"[" * depth + b"]" * depth + b"}" for depth in range(900, 1000)]
    chunk = ValidatorUnderTest(schema(x="any"), values=values).validate(*lines)
    assert chunk.good + len(chunk.bad) == len(lines)
    assert {reason for _, reason in reasons(chunk)} <= {"is nested too deeply"}


def test_record_with_too_many_columns_is_rejected() -> None:
    subject = ValidatorUnderTest(schema(a="integer"), read_limits=ReadLimits(max_columns=2))

    chunk = subject.validate(b'{"a":1,"b":1,"c":1}', b'{"b":1}', b'{"c":1}')

    assert reasons(chunk) == [
        (1, "has 3 columns, more than `read_limits.max_columns` allows (2)"),
        (3, "has columns that would make more than `read_limits.max_columns` allows (2)"),
    ]
    assert subject.misfits() == [("b", "integer")]


def test_carriage_return_between_values_becomes_space() -> None:
    """Otherwise some readers would end the line there."""
    chunk = ValidatorUnderTest(schema(a="integer", b="integer")).lines(b'{"a":1,\r"b":2}')

    assert chunk.lines == [b'{"a":1, "b":2}']


@settings(deadline=None, max_examples=60)
@given(st.permutations([b"1", b"0.5", LONG.encode(), b"9007199254740993", b"1e30", b"null"]))
def test_inferred_types_do_not_depend_on_order(texts: list[bytes]) -> None:
    lines = [b'{"n":%s}' % text for text in texts]

    known = RecordSchema()
    for _ in range(3):
        subject = ValidatorUnderTest(known, values=True)
        subject.validate(*lines)
        known = RecordSchema(tuple(subject.profile.columns.values()))

    assert (subject.profile.fits, [column.type_text for column in known.columns]) == (True, ["any"])


@pytest.mark.parametrize("values", [False, True])
def test_decoders_are_compiled_for_few_of_many_new_columns(values: bool) -> None:
    """Compiling for each of them would take quadratic time."""
    subject = ValidatorUnderTest(values=values)
    before = cached_decoder.cache_info().misses

    subject.validate(*(b'{"id":1,"k%d":1}' % number for number in range(200)))

    assert len(subject.misfits()) == 201
    assert cached_decoder.cache_info().misses - before < 30


def test_large_integer_after_new_number_remains_number() -> None:
    subject = ValidatorUnderTest()

    subject.validate(b'{"a":1.5}', b'{"a":12345678901234567890}')

    assert subject.misfits() == [("a", "number")]


@pytest.mark.parametrize("evolution", Evolution)
def test_large_integer_remains_number_beside_a_new_column(evolution: Evolution) -> None:
    subject = ValidatorUnderTest(schema(a="number"), evolution=evolution)

    chunk = subject.lines(b'{"a":12345678901234567890,"b":1}')

    assert "a" not in dict(subject.misfits())
    assert chunk.lines[0].startswith(b'{"a":12345678901234567890,')
