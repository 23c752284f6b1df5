"""Reads back what an encode wrote, without any part of the product, and holds it against the facts.

The standard library inflates, msgspec or Arrow read; two columns of every record are added up.
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
    """Check number and sums of the records in files of one kind; give the bytes of the files.

    Raises:
        AssertionError: they differ from what was generated.
    """
    wanted = (facts.records, facts.sum_of_ids, facts.sum_of_integers)
    files = sorted(paths)
    each = [_of_parquet(path) if path.suffix == ".parquet" else _of_lines(path) for path in files]
    found = tuple(sum(column) for column in zip(*each, strict=True))
    assert found == wanted, f"records and sums of id and {CHECKED} are {found}, not {wanted}"
    return sum(path.stat().st_size for path in files)


def _of_parquet(path: Path) -> Sums:
    table = pq.read_table(path, columns=["id", CHECKED])
    sums = [pc.sum(table.column(name)).as_py() for name in ("id", CHECKED)]
    return table.num_rows, sums[0], sums[1]


def _of_lines(path: Path) -> Sums:
    decode = msgspec.json.Decoder(_Record).decode_lines
    records = ids = integers = 0
    rest = b""
    with gzip.open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            whole, newline, rest = (rest + block).rpartition(b"\n")
            found = decode(whole + newline)
            records += len(found)
            ids += sum(record.id for record in found)
            integers += sum(record.attribute_003 for record in found)
    assert not rest, f"{path} ends without a line end"
    return records, ids, integers
