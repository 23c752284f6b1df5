"""Malformed files in whole tasks: rejected or quarantined with reason and line, never changed.

Each bad record is between two good ones, which must always be written.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.encode.task import TaskReport
from batch_pipeline.model.encoding import Format
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.task_fixture import (
    encode_with_inferred_schema,
    lines_of,
    quarantining_task,
    rows_of,
)
from batch_pipeline_tests.storage_roots import records

INVALID_JSON = [
    *(b'{"a":[1,]}', b'{"a":1,}', b'{"a":[,1]}', b"{'a':1}", b"{a:1}", b'{"a"}', b'{"a":}'),
    *(b"{:1}", b'{"a":1 2}'),
    *(b'{"a":[1 2]}', b'{"a":1/*x*/}', b'{"a":(1)}', b'{"a":1;}'),
    *(b'{"a":01}', b'{"a":-01}', b'{"a":+1}', b'{"a":.5}', b'{"a":1.}', b'{"a":1e}', b'{"a":1e+}'),
    *(b'{"a":0x1}', b'{"a":--1}', b'{"a":-}', b'{"a":1_0}', b'{"a":1,5}', b'{"a":nan}'),
    *(b'{"a":inf}', b'{"a":nul}', b'{"a":True}', b'{"a":undefined}'),
    *(b'{"a":"\t"}', b'{"a":"\x00"}', b'{"a":"\x1f"}', b'{"a":"\\x41"}', b'{"a":"\\u12"}'),
    *(b'{"a":"\\u123g"}', b'{"a":"\\0"}', b'{"a":"\\\t"}'),
]
INVALID_UTF_8 = [b'{"a":"\xff"}', b'{"a":"\xc0\xaf"}', b'{"a":"\xed\xa0\x80"}', b'{"\xe9":1}']
INVALID_UTF_8 += [b'{"a":"\xf4\x90\x80\x80"}', b'{"a":"\xe2\x82"}', b'{"a":["\xf0\x9f\x98"]}']
LONE_SURROGATES = [
    rb'{"a":"\ud800"}',
    rb'{"a":"\udc00\ud800"}',
    rb'{"a":["\ud800x"]}',
    rb'{"\udfff":1}',
]
DUPLICATE_KEYS = [
    b'{"a":1,"a":1}',
    b'{"a":1,"\\u0061":2}',
    b'{"a":{"b":1,"b":1}}',
    b'{"a":[{"":1,"":2}]}',
]
NULS_IN_KEYS = [
    rb'{"x\u0000y":1}',
    rb'{"a":1,"b":2,"\u0000":{"c":1}}',
    rb'{"a":null,"x\u0000":null}',
]
BAD_RECORDS = [
    *((text, "is not valid JSON") for text in INVALID_JSON),
    *((text, "is not UTF-8") for text in INVALID_UTF_8),
    *((text, "has a text with an unpaired surrogate") for text in LONE_SURROGATES),
    *((text, "has the key ") for text in DUPLICATE_KEYS),
    *((text, "has the key ") for text in NULS_IN_KEYS),
    (b'[{"a":1}]', "is not a JSON object but array"),
    (b'"a"', "is not a JSON object but string"),
    (b"1", "is not a JSON object but number"),
    (b"true", "is not a JSON object but boolean"),
    (b"null", "is not a JSON object but null"),
    (b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}", "is nested too deeply"),
]
BAD_LINES = [  # as documents these are several records, or their end is ambiguous
    *(b'{"a":1', b'{"a":[1}', b'{"a":"x', b"}", b'{"a" 1}', b'{"a"=1}', b'{"a":1 "b":2}'),
    *(b'{"a":1}{"a":2}', b'{"a":1}x', b'{"a":1}\x00', b'\xc2\xa0{"a":1}'),
]
BYTE_ORDER_MARK_INSIDE = (
    b'\xef\xbb\xbf{"a":1}',
    "starts with a byte order mark in the middle of the file",
)


def encode(
    folder: Path, data: bytes, source: SourceFormat, output: Format
) -> tuple[TaskReport, list[Any]]:
    """Encode a file and return the report and the written records."""
    task = quarantining_task(folder, source, output)
    task.land(data)
    report, _ = encode_with_inferred_schema(task)
    is_text = output is Format.JSONL
    return report, list(map(json.loads, lines_of(report))) if is_text else rows_of(report)


@pytest.mark.parametrize("output", [Format.JSONL, Format.PARQUET])
@pytest.mark.parametrize(
    ("source", "text", "reason"),
    [
        *((SourceFormat.JSONL, *case) for case in [*BAD_RECORDS, BYTE_ORDER_MARK_INSIDE]),
        *((SourceFormat.JSONL, text, "is not valid JSON") for text in BAD_LINES),
        *((SourceFormat.JSON, *case) for case in BAD_RECORDS),
    ],
)
def test_malformed_json_record_is_quarantined_alone(
    tmp_path: Path, source: SourceFormat, output: Format, text: bytes, reason: str
) -> None:
    data = b'{"a":"first"}\n' + text + b'\n{"a":"last"}\n'

    report, rows = encode(tmp_path, data, source, output)

    assert rows == [{"a": "first"}, {"a": "last"}]
    [bad] = records(report.quarantine_files)
    assert bad["line"] == 2
    assert bad["reason"].startswith(reason)
    assert bad["raw"].startswith(text.decode(errors="backslashreplace")[:20])


def test_bad_record_with_long_key_has_reason_of_bounded_length(tmp_path: Path) -> None:
    data = b'{"a":1}\n{"x\\u0000' + b"y" * 5_000 + b'":1}\n'

    report, _ = encode(tmp_path, data, SourceFormat.JSONL, Format.JSONL)

    [bad] = records(report.quarantine_files)
    assert bad["reason"].startswith('has the key "x')
    assert bad["reason"].endswith("a name with a NUL cannot be stored in PostgreSQL")
    assert len(bad["reason"]) == 1_000
    assert [record.reason for record in report.bad_records] == [bad["reason"]]


@pytest.mark.parametrize("output", [Format.JSONL, Format.PARQUET])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1", "expected fields: 2, found: 1"),
        (b" ", "expected fields: 2, found: 1"),
        (b"1,2,3", "expected fields: 2, found: 3"),
        (b"1,", None),
        (b'1,p"q', None),
        (b"1,\x00", None),
        (b'1,"p"q', "text follows a closing quote"),
        (b'1,"p" ', "text follows a closing quote"),
        (b"1,\xff", "is not UTF-8"),
        (b"1,\xed\xa0\x80", "is not UTF-8"),
        (b'1,"\xc0\xaf"', "is not UTF-8"),
    ],
)
def test_malformed_csv_record_is_quarantined_alone(
    tmp_path: Path, output: Format, line: bytes, reason: str | None
) -> None:
    """Only records that violate RFC 4180 are quarantined."""
    data = b"a,b\n0,first\n" + line + b"\n2,last\n"

    report, rows = encode(tmp_path, data, SourceFormat.CSV, output)

    assert [rows[0], rows[-1]] == [{"a": 0, "b": "first"}, {"a": 2, "b": "last"}]
    bad = [(entry["line"], entry["reason"]) for entry in records(report.quarantine_files)]
    assert bad == ([] if reason is None else [(3, reason)])
    assert [row["b"] for row in rows[1:-1]] == ([line[2:].decode() or None] if not reason else [])


@pytest.mark.parametrize("output", [Format.PARQUET, Format.ARROW])
def test_records_without_columns_are_rejected_for_columnar_output(
    tmp_path: Path, output: Format
) -> None:
    """A table without columns has no row count, so the records would be lost."""
    report, rows = encode(tmp_path, b"{}\n{}\n", SourceFormat.JSONL, output)

    reason = f"its records have no columns, so {output} cannot store them"
    assert (report.items[0].bad_file, rows) == (reason, [])


def test_document_with_integer_beyond_python_limit_is_read(tmp_path: Path) -> None:
    """Python's `int` conversion limit (4300 digits) does not apply."""
    data = b'{"a":\n' + b"9" * 5000 + b"}\n"
    report, _ = encode(tmp_path, data, SourceFormat.AUTO, Format.PARQUET)

    assert [item.written for item in report.items] == [1]
