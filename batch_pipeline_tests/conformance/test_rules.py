"""The rules for BATCH producers accept valid lines and detect violations."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.singer.messages import JSON_SCHEMA, line, messages
from batch_pipeline_tests.conformance.rules import Producer, broken_resume, broken_rules
from batch_pipeline_tests.encode.writers.part_factories import (
    published_lines,
    published_table,
    table,
)
from batch_pipeline_tests.factories import record_schema


@pytest.fixture
def valid_lines(tmp_path: Path) -> list[bytes]:
    """Lines that follow the rules."""
    manifest = published_lines(tmp_path, b'{"order_id":1}', b'{"order_id":2}')
    return [line(message).encode() for message in messages([(1, manifest)], stream="orders")]


def changed(text: bytes, **changes: Any) -> bytes:
    """Replace values of a message."""
    return json.dumps({**json.loads(text), **changes}).encode() + b"\n"


def test_rules_accept_valid_lines(valid_lines: list[bytes]) -> None:
    assert broken_rules(valid_lines, json.loads(JSON_SCHEMA.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"encoding": {"format": "jsonl", "compression": "none"}}, "is gzip, declared as none"),
        ({"encoding": {"format": "jsonl", "compression": "gzip", "_x": 1}}, "SDK rejects"),
        ({"manifest": ["batches/a"], "sha256": ["ab" * 32]}, "is not absolute"),
        ({"manifest": ["file:///a%20b"], "sha256": ["ab" * 32]}, "does not exist"),
        ({"sha256": ["ab" * 32]}, "a different SHA-256"),
        ({"record_count": 3}, "record_count is 3, but the files have 2"),
        ({"bytes": 3}, "bytes is 3, but the files have"),
        ({"stream": "sales"}, "before the SCHEMA of sales"),
    ],
)
def test_rules_detect_an_invalid_batch_message(
    valid_lines: list[bytes], changes: dict[str, Any], expected: str
) -> None:
    schema, batch, state = valid_lines
    [problem, *_] = broken_rules([schema, changed(batch, **changes), state])
    assert problem.startswith("line 2: ")
    assert expected in problem


def test_rules_detect_another_compression_in_a_parquet_file(tmp_path: Path) -> None:
    rows = table(pa.record_batch({"order_id": pa.array([1, 2])}))
    encoding = Encoding(format=Format.PARQUET, compression=Compression.ZSTD)
    manifest = published_table(tmp_path, rows, record_schema(), encoding)
    lines = [line(message).encode() for message in messages([(1, manifest)], stream="orders")]
    assert broken_rules(lines) == []
    schema, batch, state = lines
    other = changed(batch, encoding={"format": "parquet", "compression": "snappy"})
    [problem] = broken_rules([schema, other, state])
    assert problem.endswith(" is parquet with zstd, declared with snappy")


def test_rules_detect_records_that_do_not_fit_the_schema(valid_lines: list[bytes]) -> None:
    schema, batch, state = valid_lines
    other = changed(
        schema, schema={"type": "object", "properties": {}}, key_properties=["customer"]
    )
    unknown_column, missing_key = broken_rules([other, batch, state])
    assert "records have ['order_id'], which are not in the SCHEMA" in unknown_column
    assert "records lack the key property customer" in missing_key


def test_rules_detect_messages_out_of_order(valid_lines: list[bytes]) -> None:
    schema, batch, state = valid_lines
    assert broken_rules([batch, schema, state]) == ["line 1: BATCH before the SCHEMA of orders"]
    assert broken_rules([schema, batch, batch, state]) == [
        "line 3: no STATE after the BATCH of line 2"
    ]
    assert broken_rules([schema, batch]) == ["line 2: no STATE after the BATCH of line 2"]


def test_rules_detect_lines_that_are_not_messages(valid_lines: list[bytes]) -> None:
    schema, batch, state = valid_lines
    problems = broken_rules([b"hi\n", b"[]\n", schema])
    assert [problem.partition(" (")[0] for problem in problems] == [
        "line 1: is not a message",
        "line 2: is not a message",
    ]
    assert broken_rules([schema, batch, state.strip()]) == ["line 3: has no line ending"]


def test_rules_detect_a_producer_that_ignores_the_state(
    valid_lines: list[bytes], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    output.write_bytes(b"".join(valid_lines))
    stateless = Producer(command=["sh", "-c", f"cat {output}"], environment={"PATH": "/bin"})
    assert broken_resume(stateless, valid_lines) == ["after batch 1: sent 1 batches, not 0"]
