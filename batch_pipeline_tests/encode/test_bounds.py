"""Hostile and large files: either the exceeded limit is named or all records are written.

Every file is encoded by a whole task in its own process, whose peak memory is measured.
"""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batch_pipeline_tests.encode.landed_files import parquet
from batch_pipeline_tests.proofs import Figures

MAX_PEAK_MIB = 512
PROJECT = Path(__file__).parents[2]


def run_bounded_task(
    folder: Path, data: Iterable[bytes], *, source: str = "auto", output: str = "jsonl"
) -> dict[str, Any]:
    """Land a file and encode it in its own process."""
    folder.mkdir(exist_ok=True)
    with (folder / "landed").open("wb") as file:
        file.writelines(data)
    module = "batch_pipeline_tests.encode.bounded_task"
    command = [sys.executable, "-m", module, str(folder), source, output]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["peak_mib"] < MAX_PEAK_MIB
    return result


def records(mib: int) -> Iterable[bytes]:
    """Yield gzip members of 1 MiB of JSON lines, 512 bytes each."""
    for member in range(mib):
        numbers = range(member * 2048, member * 2048 + 2048)
        lines = [b'{"id":%d,"price":%d.25,"more":[1,{"a":null}],"b":"' % (n, n) for n in numbers]
        texts = [line + b"%d" % (n * 2**99 // 7) for line, n in zip(lines, numbers, strict=True)]
        whole = b"".join(text.ljust(509, b"x") + b'"}\n' for text in texts)
        yield gzip.compress(whole, compresslevel=1, mtime=0)


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("output", ["jsonl", pytest.param("parquet", marks=pytest.mark.long)])
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, output: str, figures: Figures, *, long_form: bool
) -> None:
    """6 or 16 times the records take as much memory, apart from what allocators keep."""
    least, most = (50, 800) if long_form else (20, 120)
    small = run_bounded_task(tmp_path / "small", records(least), output=output)
    large = run_bounded_task(tmp_path / "large", records(most), output=output)

    figures(
        mib_in_a_file=float(most),
        mib_at_peak=float(large["peak_mib"]),
        mib_at_peak_of_small=float(small["peak_mib"]),
    )
    assert (small["written"], large["written"]) == (least * 2048, most * 2048)
    assert large["peak_mib"] <= small["peak_mib"] + 64


def test_parquet_page_with_false_size_allocates_no_memory(tmp_path: Path) -> None:
    """A damaged page header of a small file claims a size of 1 GiB."""
    data = parquet(pa.table({"a": [1, 2]}), compression="none", use_dictionary=False)
    header = data[4:10]
    assert (header[:2], header[2], header[4]) == (b"\x15\x00", 0x15, 0x15)  # sizes of one byte
    large = b"\xfe\xff\xff\xff\x07"  # 2**30 - 1, as a zigzag varint

    result = run_bounded_task(tmp_path, [data[:9], large, data[10:]], source="parquet")

    assert "is damaged" in result["bad_file"]
    assert result["written"] == 0
