"""Records of part files: equal in every encoding, and none from bad files."""

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.errors import BatchDataError
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.singer.part_records import record_blocks, records
from batch_pipeline_tests.encode.writers.part_factories import (
    ALL_TYPES,
    ENCODINGS,
    GZIP,
    encoding_id,
    part_paths,
    published_lines,
    published_table,
    schema,
    table,
    typed,
)
from batch_pipeline_tests.factories import manifest, part_file
from batch_pipeline_tests.published_files import described

HEAD = b'{"type":"RECORD","stream":"sales","record":'
ONE, TWO, THREE = b'{"order_id":1}', b'{"order_id":2}', b'{"order_id":3}'


def record_lines(one: Manifest, name: str = "sales", **options: Any) -> Iterator[bytes]:
    """Yield the RECORD messages of a manifest."""
    for block in record_blocks(one, name, **options):
        yield from (line + b"\n" for line in block[:-1].split(b"\n"))


def read(one: Manifest, **options: Any) -> list[dict[str, Any]]:
    """Return the records of a manifest's messages and check that `records` agrees."""
    lines = list(record_lines(one, **options))
    messages = [json.loads(line, parse_float=Decimal) for line in lines]
    assert all(message.keys() == {"type", "stream", "record"} for message in messages)
    values = [message["record"] for message in messages]
    assert values == list(records(one, **options))
    return values


def with_data(one: Manifest, data: bytes) -> Manifest:
    """Replace the bytes of the only file and its size and digest in the manifest."""
    (part,), (path,) = one.part_files, part_paths(one)
    path.write_bytes(data)
    return replace(one, part_files=(described(path, part.records),))


@pytest.mark.parametrize("encoding", ENCODINGS, ids=encoding_id)
def test_records_of_any_encoding_are_equal(tmp_path: Path, encoding: Encoding) -> None:
    one = published_table(tmp_path, typed(), schema(**ALL_TYPES), encoding)
    first, second = read(one)
    assert b'"price":1234567890.10,' in next(record_lines(one))
    some = read(one, columns={"price", "nested"})
    assert some[0] == {name: first[name] for name in ("price", "nested")}
    assert "Zoë".encode() not in b"".join(record_lines(one, columns={"price"}))
    assert read(one, columns=set()) == [{}, {}]
    assert first == {
        "empty": None,
        "flag": True,
        "count": -9223372036854775808,
        "price": Decimal("1234567890.10"),
        "ratio": Decimal("0.1"),
        "name": '"Zoë"',
        "octets": "AP8=",
        "day": "2026-01-31",
        "clock": "12:30:00.000001",
        "instant": "2026-01-31T12:00:00.000000Z",
        "local": "1970-01-01T00:00:00.000005",
        "nested": {"b": None, "a": Decimal("1.10")},
        "list": [1, []],
        "mixed": "x",
    }
    assert second == dict.fromkeys(ALL_TYPES)


def test_record_lines_keep_text_and_order(tmp_path: Path) -> None:
    unusual = b'{"b": 1.50 ,"a":12345678901234567890123}'
    one = published_lines(tmp_path, ONE, unusual, THREE)
    assert list(record_lines(one)) == [HEAD + text + b"}\n" for text in (ONE, unusual, THREE)]
    compact = HEAD + b'{"b":1.50,"a":12345678901234567890123}}\n'
    assert list(record_lines(one, columns={"a", "b"}))[1] == compact


def test_record_lines_of_name_with_quotes_are_json(tmp_path: Path) -> None:
    (line,) = record_lines(published_lines(tmp_path, ONE), 'a"b')
    assert json.loads(line) == {"type": "RECORD", "stream": 'a"b', "record": {"order_id": 1}}


def test_record_longer_than_a_block_is_one_line(tmp_path: Path) -> None:
    long = b'{"note":"' + b"x" * 3 * 2**20 + b'"}'
    one = published_lines(tmp_path, ONE, long, THREE, each=3)
    lengths = [len(HEAD) + len(text) + 2 for text in (ONE, long, THREE)]
    assert [len(line) for line in record_lines(one)] == lengths


def test_records_of_long_file_need_memory_of_a_few_blocks(tmp_path: Path) -> None:
    rows = table(pa.record_batch({"name": pa.array(["x" * 20] * 200_000)}))
    one = published_table(tmp_path, rows, schema(name="string"), GZIP)
    list(record_blocks(published_lines(tmp_path / "warm", ONE), "sales"))
    tracemalloc.start()
    count = sum(block.count(b"\n") for block in record_blocks(one, "sales"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 200_000
    assert peak < 12 * 2**20


def test_records_of_path_with_special_characters(tmp_path: Path) -> None:
    one = published_lines(tmp_path / "100% of it, é", ONE)
    assert "100%25%20of%20it" in one.part_files[0].uri
    assert read(one) == [{"order_id": 1}]


def test_records_of_local_files_need_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = published_lines(tmp_path, ONE)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert read(one) == [{"order_id": 1}]


def test_json_column_with_line_breaks_is_one_line(tmp_path: Path) -> None:
    cells = table(pa.record_batch({"a": pa.array(['{"b":\r\n"\\n"}'])}), json=frozenset({"a"}))
    one = published_table(tmp_path, cells, schema(a="object"), ENCODINGS[3])
    assert read(one) == [{"a": {"b": "\n"}}]


@given(notes=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_records_of_any_text_round_trip(
    tmp_path_factory: pytest.TempPathFactory, notes: list[str]
) -> None:
    name = f"n{notes[0]}"
    rows = table(pa.record_batch([pa.array(notes)], names=[name]))
    for encoding in (GZIP, ENCODINGS[3]):
        root = tmp_path_factory.mktemp("any")
        one = published_table(root, rows, schema(**{name: "string"}), encoding)
        assert read(one) == [{name: note} for note in notes]


def test_numbers_of_columnar_files_that_json_lacks_follow_on_nonfinite(tmp_path: Path) -> None:
    rows = table(pa.record_batch({"a": [1.5, None, float("nan")], "b": [1.0, float("-inf"), 2.0]}))
    one = published_table(tmp_path, rows, schema(a="number", b="number"), ENCODINGS[3])
    last = read(one, on_nonfinite=OnNonfinite.STRING)[1:]
    assert last == [{"a": None, "b": "-Infinity"}, {"a": "NaN", "b": Decimal("2.0")}]
    last = read(one, on_nonfinite=OnNonfinite.NULL)[1:]
    assert last == [{"a": None, "b": None}, {"a": None, "b": Decimal("2.0")}]
    for columns in ({"a"}, None):
        with pytest.raises(BatchDataError, match=r"record 3: 'a' is nan.*`on_nonfinite` of the"):
            list(records(one, columns=columns))


def test_missing_part_file_is_rejected(tmp_path: Path) -> None:
    one = published_lines(tmp_path, ONE, TWO, THREE)
    part_paths(one)[1].unlink()
    with pytest.raises(BatchDataError, match="is missing") as caught:
        next(record_lines(one))
    assert str(caught.value) == (
        "orders: a part file of batch 00000001-00000003, generation 1, cannot be sent: "
        f"{part_paths(one)[1]} is missing. No STATE was written for this batch, so it is sent "
        "again. Restore the file, or materialize the partition again: its next generation "
        "replaces this one. `batch-pipeline verify` checks all files."
    )


def test_folder_instead_of_part_file_is_rejected(tmp_path: Path) -> None:
    size = tmp_path.stat().st_size
    one = manifest(part_files=(part_file(uri=f"file://{tmp_path}", size_bytes=size),))
    with pytest.raises(BatchDataError, match="cannot be read"):
        next(record_lines(one))


def test_changed_part_file_is_rejected(tmp_path: Path) -> None:
    one = published_lines(tmp_path, ONE, encoding=ENCODINGS[2])
    for content, problem in (
        (b"short", "has 5 B, published: 15 B"),
        (1_000 * b"x", "has 1,000 B, published: 15 B"),
        (b'{"order_id":9}\n', "has the SHA-256"),
    ):
        part_paths(one)[0].write_bytes(content)
        with pytest.raises(BatchDataError, match=problem):
            next(record_lines(one))


@pytest.mark.parametrize(
    ("encoding", "data", "problem"),
    [
        (GZIP, ONE + b"\n", "is not jsonl with compression gzip"),
        (GZIP, gzip.compress(ONE + b"\n", mtime=0)[:-9], "is not jsonl with compression gzip"),
        (ENCODINGS[1], ONE + b"\n", "is not jsonl with compression zstd"),
        (ENCODINGS[3], ONE + b"\n", "is not parquet"),
        (ENCODINGS[7], ONE + b"\n", "is not arrow"),
        (ENCODINGS[2], ONE + b"\n" + TWO + b"\n", "has a record count of 2, published: 1"),
        (ENCODINGS[2], b"", "has a record count of 0, published: 1"),
    ],
)
def test_part_file_of_another_encoding_is_rejected(
    tmp_path: Path, encoding: Encoding, data: bytes, problem: str
) -> None:
    one = replace(with_data(published_lines(tmp_path, ONE), data), encoding=encoding)
    with pytest.raises(BatchDataError, match=problem):
        list(record_lines(one))


def test_record_that_is_no_object_is_rejected_with_line(tmp_path: Path) -> None:
    one = published_lines(tmp_path, ONE, TWO, b"[3]", each=2)
    with pytest.raises(BatchDataError, match=r"gz, line 1: is not a JSON object") as caught:
        list(record_lines(one, columns={"order_id"}))
    assert f" {part_paths(one)[1]}, line 1: " in str(caught.value)
    with pytest.raises(BatchDataError, match="line 1: is not a JSON object"):
        list(records(one))


def test_last_line_without_line_end_is_a_record(tmp_path: Path) -> None:
    one = with_data(published_lines(tmp_path, ONE, encoding=ENCODINGS[2]), ONE)
    assert read(one) == [{"order_id": 1}]
