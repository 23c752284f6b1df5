"""Mapping JSON records: unchanged text, quarantined records, selection, flattening."""

import subprocess
import sys
from contextlib import nullcontext

import pytest

from batch_pipeline.encode.chunks import MalformedRecord
from batch_pipeline.encode.mapping.mapper import Mapper
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.record_rules import OnNonfinite, RecordMapping
from batch_pipeline_tests.encode.mapping.mapping_factories import (
    ADA_MAIL,
    FLAT,
    WITHHELD,
    mapped,
    mapping,
)
from batch_pipeline_tests.factories import stream


def test_mapper_of_stream_without_mapping_is_none() -> None:
    assert Mapper.of(stream()) is None
    assert Mapper.of(stream(mapping=RecordMapping(stream_maps={"other": {"a": None}}))) is None


def test_selection_does_not_load_the_singer_sdk() -> None:
    """Loading it is slow; only stream maps and flattening need it."""
    code = (
        "import sys; from batch_pipeline.encode import task; "
        "from batch_pipeline_tests.encode.mapping.mapping_factories import mapped, mapping; "
        "mapped(mapping(('!a',)), b'{}'); print('singer_sdk' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_values_not_read_by_an_expression_keep_their_text() -> None:
    unread = (
        b'"a":1.10,"b":1e+2,"c":"\\u00e9\\/","d":[1, 2 ],"e":-0,"f":123456789012345678901234567890'
    )
    line = b'{"x":1,' + unread + b',"y":{"z" :1}}'
    assert mapped(mapping(x=None, y=None), line).lines == [b"{" + unread + b"}"]
    assert mapped(mapping(("!x", "!y.z")), line).lines == [b"{" + unread + b',"y":{}}']
    assert mapped(mapping(g="x + 1"), line).lines == [line[:-1] + b',"g":2}']
    assert mapped(mapping(b="a", a=None), b'{"a":1.10}').lines == [b'{"b":1.10}']


def test_filtered_and_bad_records_do_not_renumber_others() -> None:
    rules = mapping(__filter__="int(a) > 1")
    chunk = mapped(rules, b'{"a":"1"}', b'{"a":"2"}', b'{"a":"x"}', b'{"a":3}')
    assert (chunk.lines, list(chunk.line_numbers), list(chunk.record_numbers)) == (
        [b'{"a":"2"}', b'{"a":3}'],
        [12, 14],
        [2, 4],
    )
    assert chunk.filtered == 1
    reason = "filter of the stream map: ValueError: invalid literal for int() with base 10: 'x'"
    assert chunk.bad == (MalformedRecord(line=13, reason=reason, raw=b'{"a":"x"}'),)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1]", "is not a JSON object"),
        (b'{"a":', "is not valid JSON (Input data was truncated)"),
        (b'{"\xff":1}', "is not UTF-8"),
        (rb'{"a":"\ud800"}', "has a text with an unpaired surrogate, which UTF-8 cannot encode"),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "is nested too deeply"),
    ],
)
def test_line_that_is_no_record_is_malformed(line: bytes, reason: str) -> None:
    chunk = mapped(mapping(__filter__="a"), line)
    assert chunk.bad == (MalformedRecord(line=11, reason=reason, raw=line),)


@pytest.mark.parametrize(
    ("record_mapping", "line"),
    [
        (mapping(("*", "!b")), b'{"x":1,"b":2,"x":3}'),
        (mapping(("*", "!b")), rb'{"x":1,"\u0078":3}'),
        (mapping(("*", "!b")), rb'{"k\u0022:y":1,"x":1,"x":2}'),
        (mapping(("*", "!b")), b'{"b":{"x":1,"x":2}}'),
        (mapping(("*", "!b.c")), b'{"b":{"x":1,"c":2,"x":3}}'),
        (mapping(b="{'y': 1}"), b'{"x":1,"x":2,"a":["\xff"]}'),
        (mapping(__filter__="x > 1"), b'{"x":2,"x":1}'),
        (mapping(b="x"), b'{"x":[{"x":1,"x":2}]}'),
        (FLAT, b'{"a":{"x" : 1,"x":2}}'),
        (FLAT, b'{"a":[{"x":1,"x":2}]}'),
    ],
)
def test_duplicate_key_is_malformed_among_records_without_one(
    record_mapping: RecordMapping, line: bytes
) -> None:
    others = [b'{"x":2,"a":"\\":,"}', b'{"x":3,"c":{"y" : [{"z":"" }]}}']
    chunk = mapped(record_mapping, others[0], line, *others, b"-")
    reason = f"has a key twice; {WITHHELD}" if chunk.bad[0].raw == b"" else 'has the key "x" twice'
    assert [(bad.line, bad.reason) for bad in chunk.bad[:-1]] == [(12, reason)]
    assert chunk.lines == mapped(record_mapping, others[0], *others).lines
    assert list(chunk.line_numbers) == [11, 13, 14]


@pytest.mark.parametrize("record_mapping", [mapping(("!b",)), mapping(__filter__="i"), FLAT])
def test_nonfinite_number_follows_the_rule(record_mapping: RecordMapping) -> None:
    line = b'{"i":1,"n":-Infinity,"s":"NaN"}'
    results = {
        rule: (chunk.lines, [bad.reason.partition(";")[0] for bad in chunk.bad])
        for rule in OnNonfinite
        for chunk in [mapped(record_mapping, line, on_nonfinite=rule)]
    }
    assert results == {
        OnNonfinite.NULL: ([b'{"i":1,"n":null,"s":"NaN"}'], []),
        OnNonfinite.STRING: ([b'{"i":1,"n":"-Infinity","s":"NaN"}'], []),
        OnNonfinite.QUARANTINE: ([], ["holds -Infinity, which JSON cannot represent"]),
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'"\xff"', "is not UTF-8"),
        (b"9" * 5000, "holds a value that cannot be read (ValidationError)"),
        (b"1E99999999999999999999", "holds a value that cannot be read (InvalidOperation)"),
    ],
)
def test_unreadable_value_fails_only_where_it_is_read(value: bytes, reason: str) -> None:
    line = b'{"a":[' + value + b'],"b":1}'
    assert mapped(mapping(c="b"), line).lines == [line[:-1] + b',"c":1}']
    assert mapped(FLAT, line).bad == (MalformedRecord(line=11, reason=reason, raw=line),)
    assert mapped(mapping(__filter__="a"), line).bad == mapped(FLAT, line).bad


def test_failed_record_with_hidden_values_is_quarantined_without_text() -> None:
    rules = mapping(email=None, number="int(email)")
    line = b'{"email":"' + ADA_MAIL.encode() + b'"}'
    reason = f'stream map of "number": ValueError; {WITHHELD}'
    assert mapped(rules, line).bad == (MalformedRecord(line=11, reason=reason, raw=b""),)


def test_reason_with_hidden_values_names_undefined_name() -> None:
    (bad,) = mapped(mapping(email="md5(mail)"), b'{"email":"x"}').bad
    assert "NameNotDefined: 'mail' is not defined" in bad.reason


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [("randint(9) > rand", False), ("rand > 1", True), ("fake.pybool()", False)],
)
def test_random_filter_with_transform_is_rejected(
    monkeypatch: pytest.MonkeyPatch, text: str, is_valid: bool
) -> None:
    """Both passes over the files of a transform must filter the same records."""
    with monkeypatch.context() as patch:
        if "fake" in text:  # as with Faker installed
            patch.setattr("importlib.util.find_spec", lambda _name: object())
        random = stream(mapping=mapping(__filter__=text, id="rand()"), transform="a:b")
        with nullcontext() if is_valid else pytest.raises(InvalidValueError, match="without `rand"):
            Mapper.of(random)


def test_selection_applies_within_objects() -> None:
    line = b'{"id":1,"a":{"x":1,"y":{"z":2}},"b":{"x":3},"c":null,"d":[{"x":1}]}'
    assert mapped(mapping(("id", "a.y", "c.x")), line).lines == [
        b'{"id":1,"a":{"y":{"z":2}},"c":null}'
    ]
    assert mapped(mapping(("*", "!a", "a.x", "!d")), line).lines == [
        b'{"id":1,"a":{"x":1},"b":{"x":3},"c":null}'
    ]


def test_selection_keeps_key_properties() -> None:
    chunk = mapped(mapping(("name",)), b'{"id":1,"name":2,"x":3}', key_properties=("id",))
    assert chunk.lines == [b'{"id":1,"name":2}']


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"a":{"b":null},"a__b":{"c":2}}', b'{"a__b":"{\\"c\\":2}"}'),
        (b'{"a__b":{ },"a":{"b":1}}', b'{"a__b":1}'),
        (b'{"a":{"b":1},"a__b":{"c":2}}', None),
        (b'{"a__b":{"c":2},"a":{"b":null}}', None),
        (b'{"a":{"b":"{}"},"a__b":{"c":2}}', None),
        (b'{"a":{"b":1},"a__b":2}', None),
    ],
)
def test_flattening_to_existing_name_loses_no_value(line: bytes, expected: bytes | None) -> None:
    chunk = mapped(FLAT, line)
    assert chunk.lines == ([] if expected is None else [expected])
    reasons = ["flattening produces two properties 'a__b'"] if expected is None else []
    assert [bad.reason for bad in chunk.bad] == reasons


def test_decimal_nan_becomes_null() -> None:
    (line,) = mapped(mapping(b="[a.from_float(float('nan'))]"), b'{"a":1.5}').lines
    assert line == b'{"a":1.5,"b":[null]}'


def test_record_with_result_not_representable_in_json_is_quarantined() -> None:
    (bad,) = mapped(mapping(a="set(b)"), b'{"b":["x","y"]}').bad
    assert bad.reason.startswith('stream map of "a": TypeError: returns a set')


def test_shared_expression_names_the_property_on_which_it_fails() -> None:
    rules = mapping(a="int(self)", b="int(self)", c="int(b)")
    (bad,) = mapped(rules, b'{"a":"1","b":"x","c":"y"}').bad
    assert bad.reason.startswith('stream map of "b": ValueError')


def test_values_nested_in_flattened_objects_keep_their_text() -> None:
    rules = RecordMapping(flattening_enabled=True, flattening_max_depth=2)
    line = b'{"a":{"b":{"c":1e2},"d":"\\u00e9"},"e":[1, 2 ],"f":{"g":-0}}'
    assert mapped(rules, line).lines == [b'{"a__b__c":1e2,"a__d":"\\u00e9","e":"[1,2]","f__g":-0}']
