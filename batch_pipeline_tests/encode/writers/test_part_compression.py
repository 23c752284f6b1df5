"""Compressing part files: every level is read by other readers, and always the same bytes."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from batch_pipeline.encode.writers.json_lines import Lines, LineWriter
from batch_pipeline.model.encoding import Compression
from batch_pipeline.model.stream import PartLimits
from batch_pipeline.storage.part_formats.jsonl import new_compressor
from batch_pipeline_tests.encode.writers.part_factories import content, names

RECORDS = [json.dumps({"id": number, "square": number**2}).encode() for number in range(2_000)]


def plain(data: bytes) -> bytes:
    """Leave bytes as they are."""
    return data


def unpacked(data: bytes) -> bytes:
    """Read a zstd frame whose length is not in its header."""
    return zstandard.ZstdDecompressor().stream_reader(data).read()


READERS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.NONE: plain,
    Compression.GZIP: gzip.decompress,
    Compression.ZSTD: unpacked,
}
LEVELS = [
    (Compression.NONE, None),
    *((Compression.GZIP, level) for level in (None, *range(10))),
    *((Compression.ZSTD, level) for level in (None, *range(1, 20))),
]


def compressed(root: Path, compression: Compression, level: int | None) -> bytes:
    """Write the records to one part file and give its bytes."""
    root.mkdir(exist_ok=True)
    writer = LineWriter(names(root), PartLimits(), compression, level)
    writer.append(Lines.of(RECORDS))
    [part] = writer.close()
    return content(part)


@pytest.mark.parametrize(("compression", "level"), LEVELS)
def test_part_file_of_any_level_is_read_by_others_and_always_the_same(
    tmp_path: Path, compression: Compression, level: int | None
) -> None:
    """Expect an independent reader to find the records, and a second writing to give the bytes."""
    first = compressed(tmp_path / "first", compression, level)
    second = compressed(tmp_path / "second", compression, level)

    assert READERS[compression](first).splitlines() == RECORDS
    assert first == second


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_part_file_without_level_is_that_of_level_one(
    tmp_path: Path, compression: Compression
) -> None:
    """The fastest level that is worth it is the default."""
    default = compressed(tmp_path / "default", compression, None)

    assert default == compressed(tmp_path / "one", compression, 1)


def test_part_file_of_the_hardest_gzip_level_is_smaller_than_of_the_easiest(
    tmp_path: Path,
) -> None:
    """Levels mean something: 0 is bigger than 1, 1 than 9."""
    sizes = [len(compressed(tmp_path / str(level), Compression.GZIP, level)) for level in (0, 1, 9)]

    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_zstd_part_file_has_a_checksum_that_tells_damage(tmp_path: Path) -> None:
    """A byte that changes on the way is noticed by whoever reads."""
    data = bytearray(compressed(tmp_path / "parts", Compression.ZSTD, None))
    data[-1] ^= 1  # of the checksum

    with pytest.raises(zstandard.ZstdError, match="checksum"):
        unpacked(bytes(data))


def test_compressor_of_a_compression_for_columns_is_refused() -> None:
    """Snappy is known inside of parquet only."""
    with pytest.raises(ValueError, match="snappy"):
        new_compressor(Compression.SNAPPY)
