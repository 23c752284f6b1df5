"""Random typed values of parquet and avro files through whole tasks, read by other libraries."""

import io
from datetime import datetime
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batch_pipeline.model.encoding import Format
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.landed_files import parquet
from batch_pipeline_tests.encode.task_fixture import (
    encode_with_inferred_schema,
    fields_of,
    lines_of,
    quarantining_task,
    rows_of,
)
from batch_pipeline_tests.encode.test_value_round_trips import PROPERTY
from batch_pipeline_tests.encode.typed_values import KINDS, Kind, is_json

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


def parquet_of(given_columns: Columns, compression: str) -> bytes:
    """Write a parquet file with Arrow, in row groups of four."""
    arrays = {name: pa.array(values, kind.arrow) for name, (kind, values) in given_columns.items()}
    return parquet(pa.table(arrays), compression=compression, row_group_size=4)


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
        is_same = is_json if is_text else kind.is_same
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
    assert_round_trip(parquet_of(given_columns, compression), given_columns, output)


@pytest.mark.parametrize("output", Format)
@PROPERTY
@given(given_columns=columns(avro=True), codec=st.sampled_from(["null", "deflate"]))
def test_avro_values_round_trip(output: Format, given_columns: Columns, codec: str) -> None:
    assert_round_trip(avro(given_columns, codec), given_columns, output)
