"""Random typed values of parquet and avro files through whole tasks, read by other libraries."""

import io
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from batch_pipeline.model.encoding import Format
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.task_fixture import (
    encode_with_inferred_schema,
    fields_of,
    lines_of,
    quarantining_task,
    rows_of,
)
from batch_pipeline_tests.encode.typed_values import KINDS, Kind

PROPERTY = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
NAMES = st.sampled_from(["a", "b", "A", "ä", "a b", "a.b", 'q"q', "date"])
AVRO_NAMES = st.sampled_from(["a", "b", "A", "_c", "date"])
Columns = dict[str, tuple[Kind, list[Any]]]


@st.composite
def columns(draw: st.DrawFn, *, avro: bool) -> Columns:
    """Draw columns of one kind each, with the same number of values or nulls."""
    kinds = sorted(name for name, kind in KINDS.items() if kind.avro is not None or not avro)
    names = AVRO_NAMES if avro else NAMES
    chosen = draw(st.dictionaries(names, st.sampled_from(kinds), min_size=1, max_size=4))
    count = draw(st.integers(1, 6))
    return {
        name: (
            KINDS[kind],
            draw(
                st.lists(st.one_of(KINDS[kind].values, st.none()), min_size=count, max_size=count)
            ),
        )
        for name, kind in chosen.items()
    }


def parquet(given_columns: Columns, compression: str) -> bytes:
    """Write a parquet file with Arrow, in row groups of four."""
    arrays = {name: pa.array(values, kind.arrow) for name, (kind, values) in given_columns.items()}
    file = io.BytesIO()
    pq.write_table(pa.table(arrays), file, compression=compression, row_group_size=4)
    return file.getvalue()


def avro(given_columns: Columns, codec: str) -> bytes:
    fields = [
        {"name": name, "type": ["null", _named(kind.avro, name)]}
        for name, (kind, _) in given_columns.items()
    ]
    values = zip(*(values for _, values in given_columns.values()), strict=True)
    records = [dict(zip(given_columns, row, strict=True)) for row in values]
    file = io.BytesIO()
    schema = {"type": "record", "name": "outer", "fields": fields}
    fastavro.writer(file, schema, records, codec=codec)
    return file.getvalue()


def _named(kind: Any, name: str) -> Any:
    return kind | {"name": f"in_{name}"} if "fields" in kind else kind


def is_beyond_orc(value: Any) -> bool:
    """Return whether a timestamp exceeds 64 bits of nanoseconds."""
    return isinstance(value, datetime) and not 1678 <= value.year <= 2261


def assert_round_trip(data: bytes, expected: Columns, output: Format) -> None:
    """Encode a file and compare each written value."""
    if output is Format.ORC:
        assume(not any(map(is_beyond_orc, chain(*(values for _, values in expected.values())))))
    with TemporaryDirectory() as folder:
        task = quarantining_task(Path(folder), SourceFormat.AUTO, output)
        task.land(data)
        report, _ = encode_with_inferred_schema(task)
        assert (report.items[0].bad_file, report.bad_records) == (None, ())
        is_text = output is Format.JSONL
        records = list(map(fields_of, lines_of(report))) if is_text else rows_of(report)
    for name, (kind, values) in expected.items():
        is_same = kind.in_json if is_text else kind.in_columns
        for record, value in zip(records, values, strict=True):
            if value is None:
                assert record[name] is None
            else:
                assert is_same(record[name], value), (kind.arrow, record[name], value)


@pytest.mark.parametrize("output", Format)
@PROPERTY
@given(given_columns=columns(avro=False), compression=st.sampled_from(["none", "snappy", "zstd"]))
def test_parquet_values_round_trip(
    output: Format, given_columns: Columns, compression: str
) -> None:
    assert_round_trip(parquet(given_columns, compression), given_columns, output)


@pytest.mark.parametrize("output", Format)
@PROPERTY
@given(given_columns=columns(avro=True), codec=st.sampled_from(["null", "deflate"]))
def test_avro_values_round_trip(output: Format, given_columns: Columns, codec: str) -> None:
    assert_round_trip(avro(given_columns, codec), given_columns, output)


SOME_NAN = pa.table({"a": [1.5, float("nan"), float("-inf"), None]})
NONFINITE: dict[OnNonfinite, list[Any]] = {
    OnNonfinite.QUARANTINE: [("number", "1.5"), None],
    OnNonfinite.NULL: [("number", "1.5"), None, None, None],
    OnNonfinite.STRING: [("number", "1.5"), "NaN", "-Infinity", None],
}


@pytest.mark.parametrize("rule", OnNonfinite)
@pytest.mark.parametrize("as_avro", [False, True], ids=["parquet", "avro"])
def test_nonfinite_rule_applies_to_json_only(
    tmp_path: Path, rule: OnNonfinite, as_avro: bool
) -> None:
    """JSON has no NaN; columns of doubles keep it."""
    doubles = {"a": (KINDS["double"], SOME_NAN["a"].to_pylist())}
    data = avro(doubles, "null") if as_avro else parquet(doubles, "none")
    for output in Format:
        (tmp_path / output).mkdir()
        task = quarantining_task(tmp_path / output, SourceFormat.AUTO, output)
        task.stream = replace(task.stream, on_nonfinite=rule)
        task.land(data)
        report, _ = encode_with_inferred_schema(task)
        if output is Format.JSONL:
            assert [fields_of(line)["a"] for line in lines_of(report)] == NONFINITE[rule]
            assert len(report.bad_records) == 4 - len(NONFINITE[rule])
        else:
            assert str([row["a"] for row in rows_of(report)]) == "[1.5, nan, -inf, None]"


@PROPERTY
@given(counts=st.lists(st.integers(-(10**18), 10**18), min_size=1, max_size=6))
def test_fractions_of_microseconds_are_quarantined(counts: list[int]) -> None:
    data = parquet({"a": (replace(KINDS["local"], arrow=pa.timestamp("ns")), counts)}, "none")
    with TemporaryDirectory() as folder:
        task = quarantining_task(Path(folder), SourceFormat.AUTO, Format.PARQUET)
        task.land(data)
        report, _ = encode_with_inferred_schema(task)
    good = [number for number, count in enumerate(counts, start=1) if count % 1000 == 0]
    bad = [number for number in range(1, len(counts) + 1) if number not in good]
    assert [record.line for record in report.bad_records] == bad
    assert sum(part.records for part in report.part_files) == len(good)
