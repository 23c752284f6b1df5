"""Reading parquet: types, values out of range, damaged files, parts."""

import io
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from batch_pipeline.encode.chunks import ByteRange, Table
from batch_pipeline.encode.readers import arrow_values
from batch_pipeline.encode.readers.parquet import read_chunks
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline_tests.encode.landed_files import (
    in_memory,
    negative_row_group,
    parquet,
    stream_of,
)


def tables(
    data: bytes,
    *,
    rule: OnNonfinite = OnNonfinite.QUARANTINE,
    part: ByteRange | None = None,
    **limits: Any,
) -> list[Table]:
    stream = replace(stream_of(**limits), on_nonfinite=rule)
    return list(read_chunks(in_memory(data, stream, part), stream))


def rejection(data: bytes, **options: Any) -> str:
    with pytest.raises(BadFileError) as raised:
        tables(data, **options)
    return str(raised.value.reason)


def one_column(array: pa.Array, **options: Any) -> Table:
    (table,) = tables(parquet(pa.table({"a": array}), **options))
    return table


@pytest.mark.parametrize(
    ("array", "arrow_type", "values"),
    [
        (pa.array([1.5], pa.float16()), pa.float64(), [1.5]),
        (pa.array([-1500], pa.duration("ms")), pa.string(), ["-PT1.500S"]),
        (pa.nulls(2), pa.null(), [None, None]),
        (pa.array([1000], pa.time64("ns")), pa.time64("us"), [time(0, 0, 0, 1)]),
        (pa.array([1], pa.time32("ms")), pa.time64("us"), [time(0, 0, 0, 1000)]),
    ],
)
def test_parquet_reader_keeps_values_of_typed_columns(
    array: pa.Array, arrow_type: pa.DataType, values: list[Any]
) -> None:
    table = one_column(array)

    assert table.batch.column("a").type == arrow_type
    assert table.batch.column("a").to_pylist() == values
    assert table.bad == ()


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (
            pa.array([{"b": Decimal("1.10"), "a": date(2026, 1, 31)}, None]),
            ['{"b":1.10,"a":"2026-01-31"}', None],
        ),
        (
            pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int8())),
            ['{"k":1}', "{}", None],
        ),
        (pa.array([[(1, "x")]], pa.map_(pa.int8(), pa.string())), ['[[1,"x"]]']),
        (pa.array([[{"t": datetime(2026, 1, 1, tzinfo=UTC)}]]), ['[{"t":"2026-01-01T00:00:00Z"}]']),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), ["[1,2]", None]),
    ],
)
def test_parquet_reader_returns_nested_columns_as_json_text(
    array: pa.Array, texts: list[str | None]
) -> None:
    table = one_column(array)

    assert table.batch.column("a").to_pylist() == texts
    assert table.json == {"a"}


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([1000, 1001, 2000], pa.timestamp("ns")), "is not in whole microseconds or"),
        (pa.array([0, 2**60, 0], pa.timestamp("ms", "UTC")), "is not in whole microseconds or"),
        (pa.array([0, 1, 0], pa.time64("ns")), "is not a time of day in whole microseconds"),
        (pa.array([0, 2**30, 0], pa.date32()), "is not a whole day of the years 1 to 9999"),
        (pa.array([[1.5], [float("nan")], None]), "holds NaN, which JSON cannot represent"),
        (pa.array([[0], [1], None], pa.list_(pa.timestamp("ns"))), "is not in whole microseconds"),
        (
            pa.array([[], [("k", 1), ("k", 2)], None], pa.map_(pa.string(), pa.int8())),
            "holds a map with a duplicate key",
        ),
    ],
)
def test_parquet_reader_quarantines_records_with_values_out_of_range(
    array: pa.Array, reason: str
) -> None:
    """Values are never truncated."""
    data = parquet(pa.table({"n": pa.array([1, 2, 3]), "a": array}))

    (table,) = tables(data)

    assert table.batch.column("n").to_pylist() == [1, 3]
    assert (list(table.record_numbers), list(table.line_numbers)) == ([1, 3], [1, 3])
    (bad,) = table.bad
    assert bad.line == 2
    assert bad.reason.startswith(f"column 'a' {reason}")
    assert bad.raw.startswith(b'{"n":2,"a":')


def test_parquet_reader_converts_maps_of_quarantined_records_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the whole column for each of them."""
    converted: list[int] = []
    convert = arrow_values._leaves

    def leaves(array: pa.Array) -> list[Any]:
        converted.append(len(array))
        return convert(array)

    monkeypatch.setattr(arrow_values, "_leaves", leaves)
    values = [[(str(number), number)] for number in range(1, 201)]
    table = one_column(pa.array(values, pa.map_(pa.string(), pa.timestamp("ns"))))
    assert len(table.bad) == 200
    assert sum(converted) < 200 * 20


def test_parquet_reader_quarantines_record_with_invalid_utf_8() -> None:
    """Other writers do not validate strings."""
    binary = pa.array([b"a", b"\xff", b"c"])
    text = pa.StringArray.from_buffers(3, *binary.buffers()[1:])

    table = one_column(text)

    assert table.batch.column("a").to_pylist() == ["a", "c"]
    assert [(bad.line, bad.reason) for bad in table.bad] == [(2, "column 'a' is not UTF-8")]


def test_parquet_reader_reads_enumerations_as_text() -> None:
    """Arrow returns their bytes. Other writers than Arrow's mark columns as enumerations."""
    columns = {
        "a": pa.array(["RED", None]),
        "b": pa.array([b"RED", b"\xff"]),
        "s": pa.array([{"e": ["RED", None], "b": b"RED"}, None]),
        "m": pa.array([[("RED", "BLUE")], None], pa.map_(pa.string(), pa.string())),
    }
    data = parquet(pa.table(columns), store_schema=False)
    text, enumeration = b"\x25\x00\x4c\x1c\x00\x00", b"\x25\x08\x4c\x4c\x00\x00"  # in the footer

    (table,) = tables(data.replace(text, enumeration))

    assert data.count(text) == 4
    assert table.batch.to_pydict() == {
        "a": ["RED", None],
        "b": [b"RED", b"\xff"],
        "s": ['{"e":["RED",null],"b":"UkVE"}', None],
        "m": ['{"RED":"BLUE"}', None],
    }


def test_parquet_reader_applies_nonfinite_rule_to_nested_values_only() -> None:
    """Whether a column of doubles may hold NaN depends on the output."""
    array = pa.array([{"x": float("inf")}])
    data = parquet(pa.table({"f": pa.array([float("-inf")]), "o": array}))

    (as_text,) = tables(data, rule=OnNonfinite.STRING)
    (as_null,) = tables(data, rule=OnNonfinite.NULL)

    assert as_text.batch.to_pylist() == [{"f": float("-inf"), "o": '{"x":"Infinity"}'}]
    assert as_null.batch.to_pylist() == [{"f": float("-inf"), "o": '{"x":null}'}]


def test_parquet_reader_reads_int96_timestamps_of_all_years() -> None:
    """INT96 has a wider range than nanoseconds; values finer than microseconds are bad."""
    years_1_to_9999 = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None]  # noqa: DTZ001
    wide = one_column(
        pa.array(years_1_to_9999, pa.timestamp("us")), use_deprecated_int96_timestamps=True
    )
    fine = one_column(
        pa.array([1, 1000, None], pa.timestamp("ns")), use_deprecated_int96_timestamps=True
    )

    assert wide.batch.column("a").to_pylist() == years_1_to_9999
    assert fine.batch.column("a").cast(pa.int64()).to_pylist() == [1, None]
    assert [(bad.line, bad.reason) for bad in fine.bad] == [
        (1, "column 'a' is not in whole microseconds")
    ]


def test_parquet_reader_without_rows_returns_columns() -> None:
    (table,) = tables(parquet(pa.table({"a": pa.array([], pa.date32()), "b": pa.array([[1]])[:0]})))

    assert table.batch.schema == pa.schema([("a", pa.date32()), ("b", pa.string())])
    assert (table.good, table.json) == (0, frozenset({"b"}))


def test_parquet_reader_splits_large_row_group() -> None:
    """Each table has a few MiB and record numbers continue."""
    text = ["x" * 1000 + str(number) for number in range(20_000)]
    data = parquet(pa.table({"a": text}), use_dictionary=False)

    found = tables(data)

    assert len(found) > 3
    assert all(table.batch.nbytes < 6 * 2**20 for table in found)
    assert [number for table in found for number in table.record_numbers] == list(range(1, 20_001))
    assert [value for table in found for value in table.batch.column("a").to_pylist()] == text


def test_parquet_reader_splits_dictionary_encoded_row_group() -> None:
    """A file of a few kB can repeat one long text."""
    data = parquet(pa.table({"a": ["x" * 10_000] * 8_000}))

    assert "bytes expand more than 250-fold" in rejection(data)
    found = tables(data, max_expansion=10**6)

    assert len(data) < 100_000
    assert all(table.batch.nbytes < 10 * 2**20 for table in found)
    assert sum(table.good for table in found) == 8_000


@pytest.mark.parametrize("pieces", [1, 7, 50])
def test_parquet_reader_of_parts_reads_every_row_group_once(pieces: int) -> None:
    """A row group belongs to the part that contains its middle."""
    data = parquet(pa.table({"a": list(range(1000))}), row_group_size=90)
    size = len(data) // pieces + 1
    parts = [ByteRange(start, start + size) for start in range(0, len(data), size)]

    found = [table for part in parts for table in tables(data, part=part)]

    assert [number for table in found for number in table.record_numbers] == list(range(1, 1001))
    values = [value for table in found for value in table.batch.column("a").to_pylist()]
    assert values == list(range(1000))


def test_parquet_reader_reads_row_group_in_one_of_two_parts() -> None:
    """The cut may be exactly at the middle of the row group."""
    data = parquet(pa.table({"a": [1, 2]}))
    for cut in range(len(data)):
        parts = (ByteRange(0, cut), ByteRange(cut, len(data)))
        assert sum(table.good for part in parts for table in tables(data, part=part)) == 2, cut


GOOD = parquet(
    pa.table({"a": list(range(3000)), "b": [[{"x": "y"}]] * 3000, "c": ["text"] * 3000}),
    write_page_checksum=True,
)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"PAR1", "is not a parquet file: it is too short"),
        (GOOD[:-1], "is not a parquet file, or its end is missing"),
        (GOOD[:-4] + b"PARE", "is encrypted"),
        (GOOD[:300] + b"\0\1\2\3" + GOOD[304:], "is damaged: a page does not match its checksum"),
    ],
)
def test_parquet_reader_rejects_damaged_file_with_reason(data: bytes, reason: str) -> None:
    assert rejection(data) == reason


def test_parquet_reader_rejects_a_negative_number_of_rows() -> None:
    reason = "is damaged (a row group has a negative number of rows)"
    assert rejection(negative_row_group()) == reason


def test_parquet_reader_with_damaged_footer_does_not_crash() -> None:
    """Accessing damaged metadata may abort the process; each byte is changed once."""
    lists = pa.array([[1, 2], None, [3]], pa.list_(pa.int64()))
    data = parquet(pa.table({"a": lists, "b": ["x", "y", None]}), store_schema=False)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for position in range(footer, len(data) - 8):
        changed = bytearray(data)
        changed[position] ^= 1
        with suppress(BadFileError):
            tables(bytes(changed), part=ByteRange(0, len(data)))


def test_parquet_reader_rejects_invalid_names() -> None:
    inner = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    nul = "column 'x\\x00y': a name with a NUL cannot be stored in PostgreSQL"
    for table, reason in [
        (pa.table([[1], [2]], names=["a", "a"]), "column 'a' is duplicated"),
        (pa.table({"o": inner}), "column 'o' holds objects with a duplicate name"),
        (pa.table({"x\0y": [2]}), nul),
    ]:
        assert rejection(parquet(table)).startswith(reason)


def test_parquet_reader_rejects_too_many_columns() -> None:
    reason = "has 2 columns, more than `read_limits.max_columns` allows (1)"
    assert rejection(parquet(pa.table({"a": [1], "b": [2]})), max_columns=1) == reason


class Keys(pe.KmsClient):  # type: ignore[misc]  # Arrow has no types for it
    """A key service that does not encrypt keys."""

    def __init__(self, _: Any) -> None:
        pe.KmsClient.__init__(self)

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        """Write a key as text."""
        return (master_key_identifier + key_bytes.hex()).encode()

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        """Read what `wrap_key` wrote."""
        return bytes.fromhex(wrapped_key.decode().removeprefix(master_key_identifier))


def encrypted() -> bytes:
    """Return a file of two columns, the second one encrypted with its own key."""
    configuration = pe.EncryptionConfiguration(
        footer_key="f",
        column_keys={"c": ["b"]},
        plaintext_footer=True,
        cache_lifetime=timedelta(minutes=5),
    )
    properties = pe.CryptoFactory(Keys).file_encryption_properties(
        pe.KmsConnectionConfig(), configuration
    )
    file = io.BytesIO()
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    with pq.ParquetWriter(file, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return file.getvalue()


@pytest.mark.parametrize("part", [None, ByteRange(start=0, stop=2**20)])
def test_parquet_reader_rejects_encrypted_column(part: ByteRange | None) -> None:
    """Arrow must not abort the process."""
    with pytest.raises(BadFileError, match="is encrypted"):
        tables(encrypted(), part=part)
