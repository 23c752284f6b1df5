"""Part files of lines: names, limits, hashes, compression, and files left after a failure."""

import gzip
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.writers.json_lines import Lines, LineWriter
from batch_pipeline.model.encoding import Compression
from batch_pipeline.model.errors import StorageUnavailableError
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import PartLimits
from batch_pipeline.storage.part_formats.jsonl import new_compressor
from batch_pipeline_tests.concurrency import run_python
from batch_pipeline_tests.encode.writers.part_factories import content, list_files, names

WRITE_ONE_PART = """
import sys
from pathlib import Path
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.encode.writers.test_part_writer import PartLimits, write_parts
write_parts(Path(to_path(sys.argv[1])), [b"{}"], PartLimits())
"""


def write_parts(root: Path, records: list[bytes], limits: PartLimits) -> list[list[bytes]]:
    """Write records at once and return the lines of each part file."""
    writer = LineWriter(names(root), limits, Compression.GZIP)
    writer.append(Lines.of(records))
    parts = writer.close()
    lines = [gzip.decompress(content(part)).splitlines() for part in parts]
    assert [part.records for part in parts] == list(map(len, lines))
    return lines


def test_line_writer_names_and_hashes_part(tmp_path: Path) -> None:
    writer = LineWriter(names(tmp_path), PartLimits(), Compression.GZIP)

    writer.append(Lines.of([b'{"a":1}', b'{"a":2}']))
    assert list_files(tmp_path) == [".orders-1-00030000-00c0ffee.jsonl.gz.tmp"]
    [part] = writer.close()

    assert list_files(tmp_path) == ["orders-1-00030000-00c0ffee.jsonl.gz"]
    assert gzip.decompress(content(part)) == b'{"a":1}\n{"a":2}\n'
    assert part.records == 2
    flags_and_time = content(part)[3:8]
    assert flags_and_time == bytes(5)  # neither a time nor a name: bytes are reproducible


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 30), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    max_records=st.integers(1, 10),
    max_bytes=st.integers(1, 60),
)
def test_line_writer_bytes_do_not_depend_on_appended_sizes(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    cuts: list[int],
    max_records: int,
    max_bytes: int,
) -> None:
    records = [b"x" * size for size in sizes]
    limits = PartLimits(max_records=max_records, max_bytes=max_bytes)
    hashes = []
    for bounds in ([], sorted(cuts)):
        writer = LineWriter(names(tmp_path_factory.mktemp("parts")), limits, Compression.GZIP)
        for piece in np.split(np.arange(len(records)), bounds):
            writer.append(Lines.of([records[index] for index in piece]))
        hashes.append([(part.sha256, part.records) for part in writer.close()])

    assert hashes[0] == hashes[1]


def test_line_writer_writes_large_uncompressed_text(tmp_path: Path) -> None:
    records = [b"%07d" % number * 10 for number in range(50_000)]  # 3.5 MB
    writer = LineWriter(names(tmp_path, "jsonl"), PartLimits(), Compression.NONE)
    for start in range(0, 50_000, 7_000):
        writer.append(Lines.of(records[start : start + 7_000]))

    [part] = writer.close()

    assert content(part).splitlines() == records


def test_line_writer_without_records_writes_no_file(tmp_path: Path) -> None:
    assert LineWriter(names(tmp_path), PartLimits(), Compression.GZIP).close() == ()
    assert list_files(tmp_path) == []


def test_aborted_line_writer_leaves_no_files(tmp_path: Path) -> None:
    writer = LineWriter(names(tmp_path), PartLimits(max_records=1), Compression.GZIP)
    writer.append(Lines.of([b"{}", b"{}", b"{}"]))
    assert len(list_files(tmp_path)) == 3

    writer.abort()

    assert list_files(tmp_path) == []


def test_line_writer_does_not_overwrite_existing_file(tmp_path: Path) -> None:
    existing = tmp_path / ".orders-1-00030000-00c0ffee.jsonl.gz.tmp"
    existing.write_bytes(b"existing")
    writer = LineWriter(names(tmp_path), PartLimits(), Compression.GZIP)

    with pytest.raises(StorageUnavailableError):
        writer.append(Lines.of([b"{}"]))
    writer.abort()

    assert existing.read_bytes() == b"existing"


def test_line_writer_killed_before_rename_leaves_no_part_file(tmp_path: Path) -> None:
    killed = run_python(WRITE_ONE_PART, to_uri(tmp_path), failpoints="encode.before_rename=kill")
    assert killed == -signal.SIGKILL
    assert list_files(tmp_path) == [".orders-1-00030000-00c0ffee.jsonl.gz.tmp"]


RECORDS = [json.dumps({"id": number, "square": number**2}).encode() for number in range(2_000)]


def decompressed(data: bytes, compression: Compression) -> bytes:
    """Decompress with another library than the product's."""
    if compression is Compression.ZSTD:
        return zstandard.ZstdDecompressor().stream_reader(data).read()
    return gzip.decompress(data) if compression is Compression.GZIP else data


LEVELS = [
    (Compression.NONE, None),
    *((Compression.GZIP, level) for level in (None, *range(10))),
    *((Compression.ZSTD, level) for level in (None, *range(1, 20))),
]


def compressed(root: Path, compression: Compression, level: int | None) -> bytes:
    """Write the records to one part file and return its bytes."""
    root.mkdir(exist_ok=True)
    writer = LineWriter(names(root), PartLimits(), compression, level)
    writer.append(Lines.of(RECORDS))
    [part] = writer.close()
    return content(part)


@pytest.mark.parametrize(("compression", "level"), LEVELS)
def test_part_file_of_any_level_is_readable_and_reproducible(
    tmp_path: Path, compression: Compression, level: int | None
) -> None:
    first = compressed(tmp_path / "first", compression, level)
    second = compressed(tmp_path / "second", compression, level)

    assert decompressed(first, compression).splitlines() == RECORDS
    assert first == second


def test_new_compressor_rejects_columnar_compression() -> None:
    with pytest.raises(ValueError, match="snappy"):
        new_compressor(Compression.SNAPPY)
