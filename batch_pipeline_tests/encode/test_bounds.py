"""Hostile and large files: each ends with the name of the limit or with all records, in bounds.

Every file goes through a whole task in a process of its own, whose peak memory is measured.
"""

import bz2
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from batch_pipeline_tests.proofs import Figures

MIB = 2**20
MOST_MIB = 512
PROJECT = Path(__file__).parents[2]
SIXTEEN_MIB = (b'{"a":"' + b"x" * 1015 + b'"}\n') * (16 * 1024)
BOMBS = {
    "gzip": gzip.compress(SIXTEEN_MIB, mtime=0),
    "bzip2": bz2.compress(SIXTEEN_MIB),
    "zstd": zstandard.compress(SIXTEEN_MIB),
}


def told_of(
    folder: Path, data: Iterable[bytes], *, source: str = "auto", output: str = "jsonl"
) -> dict[str, Any]:
    """Land a file, written piece by piece, and run the task."""
    folder.mkdir(exist_ok=True)
    with (folder / "landed").open("wb") as file:
        file.writelines(data)
    module = "batch_pipeline_tests.encode.bounded_task"
    command = [sys.executable, "-m", module, str(folder), source, output]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["peak_mib"] < MOST_MIB
    return told


@pytest.mark.parametrize("packing", BOMBS)
@pytest.mark.parametrize("output", ["jsonl", "parquet"])
def test_bombs_are_refused_for_their_growth(tmp_path: Path, packing: str, output: str) -> None:
    """Small files of 16 GiB of records end as soon as the growth shows."""
    told = told_of(tmp_path, [BOMBS[packing]] * 1024, output=output)

    assert "`read_limits.max_expansion`" in told["bad_file"]
    assert told["written"] == 0


def records(mib: int) -> Iterable[bytes]:
    """Write JSON lines of so many MiB, 512 bytes each, as gzip members of one MiB."""
    for member in range(mib):
        numbers = range(member * 2048, member * 2048 + 2048)
        lines = [b'{"id":%d,"price":%d.25,"more":[1,{"a":null}],"b":"' % (n, n) for n in numbers]
        texts = [line + b"%d" % (n * 2**99 // 7) for line, n in zip(lines, numbers, strict=True)]
        whole = b"".join(text.ljust(509, b"x") + b'"}\n' for text in texts)
        yield gzip.compress(whole, compresslevel=1, mtime=0)


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("output", ["jsonl", "parquet"])
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, output: str, figures: Figures, *, long_form: bool
) -> None:
    """Four times the records, or sixteen, take as much memory, but for what the allocators keep."""
    most = 800 if long_form else 200
    small = told_of(tmp_path / "small", records(50), output=output)
    large = told_of(tmp_path / "large", records(most), output=output)

    figures(
        mib_in_a_file=float(most),
        mib_at_peak=float(large["peak_mib"]),
        mib_at_peak_of_50=float(small["peak_mib"]),
    )
    assert (small["written"], large["written"]) == (50 * 2048, most * 2048)
    assert large["peak_mib"] <= small["peak_mib"] + 64


def test_a_line_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """It is not read to its end."""
    told = told_of(tmp_path, [b'{"a":1}\n{"a":"', *[b"x" * MIB] * 100, b'"}\n'])

    assert "`read_limits.max_record_bytes`" in told["bad_file"]


@pytest.mark.parametrize("source", ["jsonl", "json"])
def test_too_many_columns_in_json_are_told(tmp_path: Path, source: str) -> None:
    """The record is set aside, the others are written."""
    wide = json.dumps({f"c{number}": number for number in range(20_000)}).encode()

    told = told_of(tmp_path, [b'{"a":1}\n', wide, b'\n{"a":2}\n'], source=source)

    assert "`read_limits.max_columns`" in told["bad_records"][0]
    assert told["written"] == 2


def test_too_many_columns_in_csv_are_refused(tmp_path: Path) -> None:
    """The header decides."""
    header = ",".join(f"c{number}" for number in range(20_000)).encode()

    told = told_of(tmp_path, [header, b"\n", b"1," * 19_999, b"1\n"], source="csv")

    assert "`read_limits.max_columns`" in told["bad_file"]


@pytest.mark.parametrize("output", ["jsonl", "parquet"])
@pytest.mark.parametrize("source", ["jsonl", "json"])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_deep_nesting_is_set_aside(
    tmp_path: Path, source: str, output: str, brackets: tuple[bytes, bytes]
) -> None:
    """100,000 levels crash nothing and take no other record with them."""
    opening, closing = brackets
    deep = b'{"a":' + opening * 100_000 + b"1" + closing * 100_000 + b"}\n"

    told = told_of(tmp_path, [b'{"a":null}\n', deep, b'{"a":null}\n'], source=source, output=output)

    assert (told["bad_file"], told["written"]) == (None, 2)
    assert told["bad_records"] == ["is nested too deeply"]


def test_page_that_claims_to_be_large_takes_no_memory(tmp_path: Path) -> None:
    """The size in a damaged page header of a small parquet file is not allocated."""
    file = io.BytesIO()
    table = pa.table({"a": [1, 2]})
    pq.write_table(table, file, compression="none", use_dictionary=False)
    data = file.getvalue()
    header = data[4:10]
    assert (header[:2], header[2], header[4]) == (b"\x15\x00", 0x15, 0x15)  # sizes of one byte
    large = b"\xfe\xff\xff\xff\x07"  # 2**30 - 1, as a zigzag varint

    told = told_of(tmp_path, [data[:9], large, data[10:]], source="parquet")

    assert "is damaged" in told["bad_file"]
    assert told["written"] == 0
