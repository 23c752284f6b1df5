"""Part files of lines: names, limits, hashes, compression, and files left after a failure."""

import gzip
import json
import signal
from io import BytesIO
from pathlib import Path

import pytest
import zstandard

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
from batch_pipeline_tests.encode.writers.test_part_writer import (
    Compression, LineWriter, Lines, PartLimits, names
)
writer = LineWriter(names(Path(to_path(sys.argv[1]))), PartLimits(), Compression.GZIP)
writer.append(Lines.of([b"{}"]))
writer.close()
"""


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


def test_line_writer_starts_new_part_at_limit_of_records_or_bytes(tmp_path: Path) -> None:
    limits = PartLimits(max_records=3, max_bytes=20)
    writer = LineWriter(names(tmp_path, "jsonl"), limits, Compression.NONE)
    for lines in ([b"{}"] * 2, [b"{}"] * 3, [b"x" * 30, b"{}"]):
        writer.append(Lines.of(lines))

    parts = writer.close()

    texts = [b"{}\n" * 3, b"{}\n" * 2, b"x" * 30 + b"\n", b"{}\n"]
    assert list(map(content, parts)) == texts
    assert [part.records for part in parts] == [3, 2, 1, 1]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP, Compression.ZSTD])
def test_line_writer_bytes_do_not_depend_on_appended_sizes(
    tmp_path: Path, compression: Compression
) -> None:
    records = [b"%07d" % number * 10 for number in range(50_000)]  # 3.5 MB
    files: list[bytes] = []
    for step in (7_000, 50_000):
        (tmp_path / str(step)).mkdir()
        writer = LineWriter(names(tmp_path / str(step)), PartLimits(), compression)
        for start in range(0, len(records), step):
            writer.append(Lines.of(records[start : start + step]))
        files += map(content, writer.close())

    assert files[0] == files[1]
    assert compression is not Compression.NONE or files[0].splitlines() == records


def test_line_writer_without_records_writes_no_file(tmp_path: Path) -> None:
    assert LineWriter(names(tmp_path), PartLimits(), Compression.GZIP).close() == ()
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


LEVELS = [
    *((Compression.GZIP, level) for level in (None, 0, 1, 3, 4, 9)),
    *((Compression.ZSTD, level) for level in (None, 1, 19)),
]


@pytest.mark.parametrize(("compression", "level"), LEVELS)
def test_part_file_of_any_level_is_readable_and_reproducible(
    tmp_path: Path, compression: Compression, level: int | None
) -> None:
    files: list[bytes] = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        writer = LineWriter(names(tmp_path / name), PartLimits(), compression, level)
        writer.append(Lines.of(RECORDS))
        files += map(content, writer.close())

    open_file = gzip.open if compression is Compression.GZIP else zstandard.open
    with open_file(BytesIO(files[0])) as file:
        assert file.read().splitlines() == RECORDS
    assert files[0] == files[1]


def test_new_compressor_rejects_columnar_compression() -> None:
    with pytest.raises(ValueError, match="snappy"):
        new_compressor(Compression.SNAPPY)
