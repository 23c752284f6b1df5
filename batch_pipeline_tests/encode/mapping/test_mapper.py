"""Mapping records and tables: selection, flattening, typed columns, quarantine, hidden values."""

import gzip
import math
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline.encode.chunks import JsonRecords, MalformedRecord, Table
from batch_pipeline.encode.mapping.mapper import Mapper
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.record_rules import OnNonfinite, RecordMapping
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.task_fixture import quarantining_task
from batch_pipeline_tests.factories import stream

WITHHELD = "its text is omitted because the mapping removes values"
FLAT = RecordMapping(flattening_enabled=True, flattening_max_depth=1)
ADA_MAIL = "ada@secret.example"


def mapping(select: tuple[str, ...] = ("*",), **rules: Any) -> RecordMapping:
    return RecordMapping(stream_maps={"orders": rules} if rules else {}, select=select)


def mapper(record_mapping: RecordMapping, **overrides: Any) -> Mapper:
    """Return the mapper of a stream `orders`, by default without keys."""
    made = Mapper.of(stream(**{"mapping": record_mapping, "key_properties": (), **overrides}))
    assert made is not None
    return made


def mapped(record_mapping: RecordMapping, *lines: bytes, **overrides: Any) -> JsonRecords:
    """Map records numbered from 1, whose line numbers start at 11."""
    line_numbers, record_numbers = range(11, 11 + len(lines)), range(1, 1 + len(lines))
    chunk = mapper(record_mapping, **overrides).mapped(
        JsonRecords(lines=list(lines), line_numbers=line_numbers, record_numbers=record_numbers)
    )
    assert isinstance(chunk, JsonRecords)
    return chunk


def table(columns: dict[str, pa.Array], **overrides: Any) -> Table:
    """Return a table of typed columns, whose line numbers start at 11."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    line_numbers, record_numbers = range(11, 11 + batch.num_rows), range(1, 1 + batch.num_rows)
    return Table(batch=batch, line_numbers=line_numbers, record_numbers=record_numbers, **overrides)


def mapped_table(record_mapping: RecordMapping, original: Table, **overrides: Any) -> Table:
    chunk = mapper(record_mapping, **overrides).mapped(original)
    assert isinstance(chunk, Table)
    return chunk


def test_mapper_of_stream_without_mapping_is_none() -> None:
    assert Mapper.of(stream()) is None
    assert Mapper.of(stream(mapping=RecordMapping(stream_maps={"other": {"a": None}}))) is None


def test_selection_does_not_load_the_singer_sdk() -> None:
    """Loading it is slow; only stream maps and flattening need it."""
    code = (
        "import sys; from batch_pipeline.encode import task; "
        "from batch_pipeline_tests.encode.mapping.test_mapper import mapped, mapping; "
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


HIDING = {
    "select": mapping(("*", "!email")),
    "remove": mapping(email=None),
    "hash": mapping(email="md5(email)"),
    "keep only": mapping(id="id", name="name", __else__=None),
    "else": mapping(id="id", n="int(name)", __else__=None),
    "remove and fail": mapping(email=None, n="int(name)", m="email['x']", o="float(email)"),
    "hash and fail": mapping(email="sha256(email)", n="datetime.date.fromisoformat(email)"),
    "filter that fails": mapping(email=None, __filter__="int(email) > 1"),
    "key that fails": mapping(email=None, n="config[email]", m="{}[email]"),
    "change in place": mapping(email=None, n="tags.append(1)", m="int(email)"),
    "flatten": RecordMapping(
        stream_maps={"orders": {"email": None}}, flattening_enabled=True, flattening_max_depth=1
    ),
}


@pytest.mark.parametrize("name", HIDING)
def test_hidden_value_is_not_in_mapped_records(name: str) -> None:
    record_mapping = HIDING[name]
    lines = [
        f'{{"id":1,"email":"{ADA_MAIL}","name":"Ada","tags":[]}}',
        f'{{"id":2,"name":"7","email":"{ADA_MAIL}","tags":{{}}}}',
        f'{{"id":3,"email":"{ADA_MAIL}"',
        f'["{ADA_MAIL}"]',
        f'{{"id":4,"em\\u0061il":"{ADA_MAIL}","email":"{ADA_MAIL}","name":"8","tags":null}}',
    ]
    chunk = mapped(record_mapping, *(line.encode() for line in lines))
    assert len(chunk.bad) >= 2
    assert ADA_MAIL not in repr(chunk)
    columns = {name: pa.array(cells) for name, cells in _CELLS.items()}
    for text in (frozenset(columns), frozenset[str]()):
        given = table(
            columns, text=text, bad=(MalformedRecord(line=1, reason="-", raw=ADA_MAIL.encode()),)
        )
        result = mapped_table(record_mapping, given)
        assert ADA_MAIL not in repr((result.batch.to_pydict(), result.bad))


_CELLS = {
    "id": ["1", "2"],
    "email": [ADA_MAIL, ADA_MAIL],
    "name": ["Ada", "7"],
    "tags": ["a", None],
}

MIXED = {
    "jsonl": (
        f'{{"id":1,"email":"{ADA_MAIL}","name":"7"}}\n'
        f'{{"id":2,"email":"{ADA_MAIL}","name":"Ada"}}\n'
        f'{{"id":3,"email":"{ADA_MAIL}"\n'
    ),
    "csv": f"id,email,name\n1,{ADA_MAIL},7\n2,{ADA_MAIL},Ada\n3,{ADA_MAIL}\n4,a,b,c,{ADA_MAIL}\n",
}


@pytest.mark.parametrize("output", [Format.JSONL, Format.PARQUET])
@pytest.mark.parametrize("source", MIXED)
@pytest.mark.parametrize(
    "record_mapping",
    [mapping(email="md5(email)", n="int(name)"), mapping(("!email",), n="int(name)")],
)
def test_hidden_value_is_not_in_files_or_report_of_task(
    tmp_path: Path, output: Format, source: str, record_mapping: RecordMapping
) -> None:
    task = quarantining_task(tmp_path, SourceFormat.AUTO, output)
    encoding = Encoding(format=output, compression=Compression.NONE)  # text is visible
    task.stream = replace(task.stream, mapping=record_mapping, encoding=encoding)
    task.land(MIXED[source].encode())
    types = {} if record_mapping.select == ("!email",) else {"email": "string"}
    report = task.encode(id="integer", **types, name="string", n="integer")
    assert report.part_files
    assert report.quarantine_files
    assert sum(item.written for item in report.items) == 1
    assert ADA_MAIL not in repr(report)
    for path in tmp_path.glob("batches/**/*"):
        if path.is_file():
            data = path.read_bytes()
            plain = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
            assert ADA_MAIL.encode() not in plain


@pytest.mark.parametrize(
    ("columns", "kept", "line", "reason"),
    [
        (
            {"a": ['{"b":1}', '{"c":2}', None, '{"b":4}'], "a__b": [1, 2, 3, None]},
            {"a__b": [2, 3, 4], "a__c": [2, None, None]},
            11,
            "flattening produces two properties 'a__b'",
        ),
        (
            {"a": ['{"b":1}', '{"c":2}'], "a__b": ["{}", '{"d":3}']},
            {"a__c": [2], "a__b__d": [3]},
            11,
            "flattening produces two properties 'a__b'",
        ),
        (
            {"a": ['{"b":1}', '{"x\\u0000y":2}', '{"b":3}']},
            {"a__b": [1, 3]},
            12,
            "flattening produces 'a__x\\x00y': a name with a NUL cannot be stored in PostgreSQL",
        ),
    ],
)
def test_flattened_row_without_unique_valid_names_is_quarantined(
    columns: dict[str, list[Any]], kept: dict[str, list[Any]], line: int, reason: str
) -> None:
    arrays = {name: pa.array(cells) for name, cells in columns.items()}
    json = frozenset(name for name, cells in columns.items() if isinstance(cells[0], str))
    result = mapped_table(FLAT, table(arrays, json=json))
    assert result.batch.to_pydict() == kept
    assert [(bad.line, bad.reason) for bad in result.bad] == [(line, reason)]


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"a": None, "n": "number", "object": "self"},  # `object` is a string in some rows
        {"n": "object", "__else__": None},
        {"number": "object", "object": "number"},
        {"object__x": "number"},  # also the name of a flattened property
        {"n": "missing"},
    ],
)
def test_flattening_by_column_equals_flattening_by_row(rules: dict[str, Any]) -> None:
    columns = {
        "number": pa.array([1, None, 3, 4]),
        "object": pa.array(['{"x":1,"y":{"z":2}}', None, '"text"', '{"x":null}']),
        "nested": pa.array([{"x": [1], "y": "t"}, None, {"x": [], "y": None}, {"x": None}]),
        "a": pa.array(["A", "B", None, ""]),
    }
    original = table(columns, json=frozenset({"object"}))

    def flattened(**options: str) -> Table:
        maps = {"orders": rules | options}
        record_mapping = RecordMapping(
            stream_maps=maps, flattening_enabled=True, flattening_max_depth=1
        )
        return mapped_table(record_mapping, original)

    by_column, by_row = flattened(), flattened(__filter__="1 == 1")  # a filter reads each row
    assert by_column.batch.to_pylist() == by_row.batch.to_pylist()
    assert by_column.filtered == by_row.filtered
    assert [(bad.line, bad.reason) for bad in by_column.bad] == [
        (bad.line, bad.reason) for bad in by_row.bad
    ]


def test_expressions_read_typed_columns_as_json_and_keep_them_typed() -> None:
    columns = {
        "id": pa.array([1, 2]),
        "at": pa.array(
            [datetime(2026, 1, 31, 12, 30, tzinfo=UTC), None], pa.timestamp("us", "UTC")
        ),
        "price": pa.array([Decimal("1.10"), None]),
        "ratio": pa.array([0.1, None]),
        "nested": pa.array(['{"a":1.50}', None]),
    }
    record_mapping = mapping(
        day="at[:10] if at else None",
        twice="price * 2 if price else 0",
        ratio_text="str(ratio)",
        inner="nested.a if nested else 'none'",
        number="id",
    )
    result = mapped_table(record_mapping, table(columns, json=frozenset({"nested"})))
    assert result.batch.schema.names == [*columns, "day", "twice", "ratio_text", "inner", "number"]
    for name, array in columns.items():
        assert result.batch.column(name).equals(array)
    assert result.batch.column("number").equals(columns["id"])
    assert result.json == {"nested", "inner"}
    assert result.batch.select(["day", "twice", "ratio_text", "inner"]).to_pydict() == {
        "day": ["2026-01-31", None],
        "twice": [2.2, 0.0],
        "ratio_text": ["0.1", "None"],
        "inner": ["1.50", '"none"'],
    }


def test_renamed_text_cells_are_text_cells() -> None:
    columns = {"a": pa.array(["1", None]), "b": pa.array(["x", "y"])}
    record_mapping = mapping(c="a", a=None, d="'k'")
    result = mapped_table(record_mapping, table(columns, text=frozenset(columns)))
    assert (set(result.text), set(result.json)) == ({"b", "c"}, set())
    assert result.batch.to_pydict() == {"b": ["x", "y"], "c": ["1", None], "d": ["k", "k"]}


def test_filtered_and_failed_rows_do_not_renumber_others() -> None:
    columns = {"a": pa.array(["1", "2", "x", "3", None])}
    record_mapping = mapping(__filter__="a != '1'", b="int(a)")
    result = mapped_table(record_mapping, table(columns, text=frozenset({"a"}), filtered=1))
    assert (result.batch.to_pydict(), result.filtered) == ({"a": ["2", "3"], "b": [2, 3]}, 2)
    assert (list(result.line_numbers), list(result.record_numbers)) == ([12, 14], [2, 4])
    assert [(bad.line, bad.raw) for bad in result.bad] == [(13, b""), (15, b"")]


def test_row_with_two_failing_expressions_names_the_first() -> None:
    columns = {"a": pa.array(["x"]), "b": pa.array([1.5])}
    record_mapping = mapping(a="self", c="int(a)", d="float(a)")
    (bad,) = mapped_table(record_mapping, table(columns, text=frozenset({"a"}))).bad
    assert bad.reason.startswith('stream map of "c": ValueError')


def test_row_with_failing_filter_is_quarantined_as_json() -> None:
    columns = {"a": pa.array(["x"]), "b": pa.array([1.5])}
    given = table(columns, text=frozenset({"a"}))
    (bad,) = mapped_table(mapping(__filter__="int(a) > 1"), given).bad
    assert bad.reason.startswith("filter of the stream map: ValueError")
    assert bad.raw == b'{"a":"x","b":1.5}'


def test_selection_of_no_columns_keeps_record_count() -> None:
    columns = {"a": pa.array([1, 2])}
    result = mapped_table(mapping(("b",)), table(columns))
    assert (result.good, result.batch.num_columns, result.filtered) == (2, 0, 0)
    result = mapped_table(mapping(("b",), c="1 + 1"), table(columns))
    assert result.batch.to_pydict() == {"c": [2, 2]}


def test_filter_of_all_rows_leaves_no_columns() -> None:
    result = mapped_table(mapping(__filter__="a > 2", d="a"), table({"a": pa.array([1, 2])}))
    assert (result.good, result.batch.num_columns, result.filtered) == (0, 0, 2)


def test_computed_one_character_texts_are_not_copies() -> None:
    """Python interns such strings, so identity does not show that a value is a copy."""
    columns = {"a": pa.array(["1", "1"]), "b": pa.array(["x", "y"])}
    record_mapping = mapping(c="'1'", d="a[0]", e="str(a)")
    result = mapped_table(record_mapping, table(columns, text=frozenset(columns)))
    assert set(result.text) == {"a", "b"}
    assert result.batch.select(["c", "d", "e"]).to_pydict() == {name: ["1", "1"] for name in "cde"}


def test_invalid_values_not_read_by_an_expression_are_kept() -> None:
    columns = {"a": pa.array([1, 2]), "b": pa.array([math.nan, 1.0]), "c": pa.array(["{", "1"])}
    record_mapping = mapping(d="record['a'] + _.get('a', 0)", e="b", b=None)
    result = mapped_table(record_mapping, table(columns, json=frozenset({"c"})))
    assert (result.batch.schema.names, result.bad) == (["a", "c", "d", "e"], ())
    assert result.batch.column("c").to_pylist() == ["{", "1"]
    assert result.batch.column("d").to_pylist() == [2, 4]
    assert result.json == {"c"}


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (OnNonfinite.NULL, ["None", "None"], 0),
        (OnNonfinite.STRING, ["NaN", "None"], 0),
        (OnNonfinite.QUARANTINE, ["None"], 1),
    ],
)
def test_nan_read_by_an_expression_follows_rule(
    rule: OnNonfinite, good: list[str], bad: int
) -> None:
    columns = {"a": pa.array([math.nan, None], pa.float64())}
    result = mapped_table(mapping(b="str(a)"), table(columns), on_nonfinite=rule)
    assert result.batch.column("b").to_pylist() == good
    assert len(result.bad) == bad


@pytest.mark.parametrize(
    ("expression", "kind", "cells"),
    [
        ("name == 'x'", pa.bool_(), [True, False]),
        ("number * 2", pa.int64(), [2, 4]),
        ("number / 2", pa.float64(), [0.5, 1.0]),
        ("number * 2 ** 62", pa.string(), ["4611686018427387904", "9223372036854775808"]),
        ("0.5 if name else 10 ** 400", pa.string(), ["0.5", "1" + "0" * 400]),
        ("name or number", pa.string(), ['"x"', "2"]),
        ("None", pa.string(), [None, None]),
    ],
)
def test_computed_column_has_common_type_of_its_values(
    expression: str, kind: pa.DataType, cells: list[Any]
) -> None:
    columns = {"name": pa.array(["x", None]), "number": pa.array([1, 2])}
    result = mapped_table(mapping(a=expression), table(columns))
    assert result.batch.column("a").type == kind
    assert result.batch.column("a").to_pylist() == cells
    assert ("a" in result.json) is (kind == pa.string())
