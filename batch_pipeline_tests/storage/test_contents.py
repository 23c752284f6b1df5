"""Reading published files to their end: sums and records, and each kind of damage by name."""

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import orc

from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.storage.verification import read_contents, verify_contents

LINES = b'{"id":1}\n{"id":2}\n{"id":3}\n'
TABLE = pa.table({"id": [1, 2, 3]})


def zipped(lines: bytes) -> bytes:
    """Write a gzip member, always the same."""
    return gzip.compress(lines, mtime=0)


def parquet() -> bytes:
    """Write three rows as parquet."""
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink)
    return bytes(sink.getvalue())


def arrow() -> bytes:
    """Write three rows as an Arrow file of two batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=2)
    return bytes(sink.getvalue())


def orc_file() -> bytes:
    """Write three rows as ORC."""
    sink = pa.BufferOutputStream()
    orc.write_table(TABLE, sink)
    return bytes(sink.getvalue())


WRITTEN: dict[str, Callable[[], bytes]] = {
    "jsonl": lambda: LINES,
    "jsonl.gz": lambda: zipped(LINES),
    "jsonl.zst": lambda: zstandard.ZstdCompressor(write_checksum=True).compress(LINES),
    "parquet": parquet,
    "arrow": arrow,
    "orc": orc_file,
}


def published(folder: Path, suffix: str, data: bytes, records: int = 3) -> PartFile:
    """A file that is there, and what was published of it."""
    path = folder / f"orders-0.{suffix}"
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return PartFile(uri=to_uri(path), records=records, size_bytes=len(data), sha256=digest)


def flipped(data: bytes, place: int) -> bytes:
    """Flip one bit."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("suffix", WRITTEN)
def test_records_of_each_encoding_are_counted(suffix: str, tmp_path: Path) -> None:
    data = WRITTEN[suffix]()
    part = published(tmp_path, suffix, data)
    found = read_contents(part.uri)
    assert (found.records, found.damage) == (3, None)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert verify_contents(part) is None


@pytest.mark.parametrize("suffix", WRITTEN)
def test_bit_that_flipped_is_found_by_the_sum(suffix: str, tmp_path: Path) -> None:
    data = WRITTEN[suffix]()
    part = published(tmp_path, suffix, data)
    (tmp_path / f"orders-0.{suffix}").write_bytes(flipped(data, len(data) // 2))
    problem = str(verify_contents(part))
    assert problem.startswith(f"{tmp_path}/orders-0.{suffix} has the SHA-256 ")
    assert f"{part.sha256[:12]}… was published" in problem


def test_damage_that_was_published_is_found_by_reading(tmp_path: Path) -> None:
    data = zipped(LINES)
    part = published(tmp_path, "jsonl.gz", flipped(data, len(data) - 8))
    problem = str(verify_contents(part))
    assert problem.startswith(f"{tmp_path}/orders-0.jsonl.gz cannot be read to its end (")


def test_file_that_ends_too_early_is_found_by_reading(tmp_path: Path) -> None:
    for suffix in ("jsonl.gz", "parquet", "arrow", "orc"):
        data = WRITTEN[suffix]()
        half = data[: len(data) // 2]
        found = read_contents(published(tmp_path, suffix, half).uri)
        assert (found.records, bool(found.damage)) == (None, True), suffix
        assert found.sha256 == hashlib.sha256(half).hexdigest()


def test_line_that_is_missing_is_counted(tmp_path: Path) -> None:
    two = zipped(LINES[9:])
    said = "has other records: 2, published: 3"
    part = published(tmp_path, "jsonl.gz", two)
    assert verify_contents(part) == f"{tmp_path}/orders-0.jsonl.gz {said}"
    before = published(tmp_path, "jsonl.gz", zipped(b'{"id":9}\n{"id":8}\n{"id":7}\n'))
    (tmp_path / "orders-0.jsonl.gz").write_bytes(two.ljust(before.size_bytes, b"\0"))
    assert str(verify_contents(before)).endswith(f"was published, and {said}")


def test_last_line_without_an_end_counts(tmp_path: Path) -> None:
    assert read_contents(published(tmp_path, "jsonl", LINES[:-1]).uri).records == 3
    assert read_contents(published(tmp_path, "jsonl", b"").uri).records == 0


def test_members_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    assert read_contents(published(tmp_path, "jsonl.gz", zipped(LINES) * 2).uri).records == 6
    frames = WRITTEN["jsonl.zst"]() * 2
    assert read_contents(published(tmp_path, "jsonl.zst", frames).uri).records == 6


def test_name_that_tells_nothing_is_not_judged_by_records(tmp_path: Path) -> None:
    found = read_contents(published(tmp_path, "txt", b"abc").uri)
    assert (found.records, found.damage) == (None, None)
    assert found.sha256 == hashlib.sha256(b"abc").hexdigest()
