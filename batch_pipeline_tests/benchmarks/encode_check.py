"""Reads the output of an encode without the product and compares it with the generated records.

The standard library decompresses, msgspec or Arrow read; two columns of every record are summed.
"""

import gzip
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batch_pipeline_tests.benchmarks.wide_records import CHECKED
from batch_pipeline_tests.benchmarks.workload import Facts

_BLOCK_BYTES = 8 * 2**20
Sums = tuple[int, int, int]


class _Record(msgspec.Struct):
    id: int
    attribute_003: int


def check(paths: Iterable[Path], facts: Facts) -> int:
    """Check number and sums of the records in files of one format; return the size of the files.

    Raises:
        AssertionError: they differ from the generated records.
    """
    expected = (facts.records, facts.sum_of_ids, facts.sum_of_integers)
    files = sorted(paths)
    each = [
        _sums_of_parquet(path) if path.suffix == ".parquet" else _sums_of_jsonl(path)
        for path in files
    ]
    actual = tuple(sum(column) for column in zip(*each, strict=True))
    assert actual == expected, f"records and sums of id and {CHECKED}: {actual}, not {expected}"
    return sum(path.stat().st_size for path in files)


def _sums_of_parquet(path: Path) -> Sums:
    table = pq.read_table(path, columns=["id", CHECKED])
    sums = [pc.sum(table.column(name)).as_py() for name in ("id", CHECKED)]
    return table.num_rows, sums[0], sums[1]


def _sums_of_jsonl(path: Path) -> Sums:
    decode = msgspec.json.Decoder(_Record).decode_lines
    records = ids = integers = 0
    remainder = b""
    with gzip.open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            whole, newline, remainder = (remainder + block).rpartition(b"\n")
            decoded = decode(whole + newline)
            records += len(decoded)
            ids += sum(record.id for record in decoded)
            integers += sum(record.attribute_003 for record in decoded)
    assert not remainder, f"{path} ends without a line end"
    return records, ids, integers
