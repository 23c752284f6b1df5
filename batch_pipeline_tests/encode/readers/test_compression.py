"""Decompressing landed files: completely or not at all, with limits for bombs."""

import bz2
import gzip
import hashlib
import lzma
import tracemalloc
import zlib
from collections import deque
from io import BufferedReader, BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.encode.errors import DecodeError
from batch_pipeline.encode.readers.compression import (
    DecompressedFile,
    SourceCompression,
    detect_compression,
)
from batch_pipeline.model.errors import BadFileError
from batch_pipeline_tests.encode.landed_files import COMPRESSORS, in_memory, stream_of

compressions = pytest.mark.parametrize("compression", COMPRESSORS)
SKIPPABLE = b"\x5a\x2a\x4d\x18\x05\x00\x00\x00hello"


def noise(size_bytes: int) -> bytes:
    """Return reproducible bytes that do not compress."""
    return hashlib.shake_256(b"noise").digest(size_bytes)


def decompress(data: bytes, *, size_bytes: int = 2**20, max_expansion: int = 250) -> bytes:
    """Decompress a file in blocks of this size."""
    compression = detect_compression(data)
    assert compression is not None
    raw = BufferedReader(BytesIO(data))
    source = DecompressedFile(raw, compression, max_expansion=max_expansion)
    blocks = list(iter(lambda: source.read(size_bytes), b""))
    assert all(len(block) <= size_bytes for block in blocks)
    return b"".join(blocks)


@compressions
@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=5), size=st.integers(1, 400))
def test_decompress_reads_all_members(compression: str, parts: list[bytes], size: int) -> None:
    data = b"".join(map(COMPRESSORS[compression], parts))

    assert detect_compression(data) == compression
    assert decompress(data, size_bytes=size) == b"".join(parts)


@compressions
def test_decompress_reads_members_larger_than_buffers(compression: str) -> None:
    part = noise(300_000) + b"0123456789" * 100_000

    assert decompress(COMPRESSORS[compression](part) * 3, size_bytes=700_001) == part * 3


@compressions
def test_decompress_rejects_data_truncated_anywhere(compression: str) -> None:
    """Sizes below 12 are skipped: the compression cannot be detected from so few bytes."""
    data = COMPRESSORS[compression](b"one line\n" * 50) + COMPRESSORS[compression](
        b"another line\n" * 50
    )
    whole = len(COMPRESSORS[compression](b"one line\n" * 50))

    for size in range(12, len(data)):
        if size == whole:
            continue
        with pytest.raises(DecodeError, match=r"ends early|are not"):
            decompress(data[:size])


@compressions
def test_decompress_rejects_trailing_bytes(compression: str) -> None:
    padding = [bytes(8)] if compression == "bzip2" else []
    for trailing in (b"x", b"behind the data", b"\x1f", b"\0\0\0\0x", b"PK", *padding):
        with pytest.raises(
            DecodeError, match=f"trailing bytes after the {compression} data are not"
        ):
            decompress(COMPRESSORS[compression](b"data") + trailing)


@pytest.mark.parametrize("compression", ["gzip", "xz"])
def test_decompress_skips_zero_padding(compression: str) -> None:
    """Tapes and block devices pad files; gzip and xz allow it."""
    compress = COMPRESSORS[compression]

    assert decompress(compress(b"a") + bytes(8) + compress(b"b") + bytes(200_000)) == b"ab"


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz"])
def test_decompress_rejects_any_flipped_bit(compression: str) -> None:
    data = COMPRESSORS[compression](b"".join(b"line %d\n" % number for number in range(200)))

    for at in range(len(data) // 2, len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x10
        with pytest.raises(DecodeError, match=r"is wrong|is damaged|ends early|are not"):
            decompress(bytes(broken))


def test_decompress_checks_zstd_checksum() -> None:
    # One raw block of three bytes; the last four bytes of a frame would be its checksum.
    frame = b"\x28\xb5\x2f\xfd\x24\x03\x19\x00\x00abc" + b"\0\0\0\0"

    with pytest.raises(DecodeError, match="zstd checksum is wrong"):
        decompress(frame)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_decompress_ignores_skippable_zstd_frames(place: int) -> None:
    frames = [COMPRESSORS["zstd"](b"a"), COMPRESSORS["zstd"](b"b")]
    frames.insert(place, SKIPPABLE)

    assert decompress(b"".join(frames)) == b"ab"


def test_decompress_rejects_huge_xz_dictionary() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**29}]
    data = lzma.compress(b"data", filters=filters)

    with pytest.raises(DecodeError, match="xz data takes too much memory to decompress"):
        decompress(data)


def test_decompress_rejects_huge_zstd_window() -> None:
    with pytest.raises(DecodeError, match="zstd data takes too much memory to decompress"):
        decompress(b"\x28\xb5\x2f\xfd\x00\xa8\x19\x00\x00abc")


def bomb(compression: str) -> bytes:
    """Return a small file that decompresses to at least 1 GiB."""
    if compression == "zstd":
        # Blocks of 128 KiB that repeat one byte; the last one has the "last block" flag.
        header = b"\x28\xb5\x2f\xfd\x00\x58"
        size = 2**17
        block = ((size << 3) | 2).to_bytes(3, "little") + b"0"
        last = ((size << 3) | 3).to_bytes(3, "little") + b"0"
        return header + block * (2**30 // size) + last
    zeros = b"0" * 2**24
    return COMPRESSORS[compression](zeros) * 64


@compressions
def test_decompress_stops_bomb_early_with_little_memory(compression: str) -> None:
    """Above 64 MiB a file may expand at most 250-fold."""
    data = bomb(compression)
    source = DecompressedFile(
        BufferedReader(BytesIO(data)), SourceCompression(compression), max_expansion=250
    )
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match=r"more than 250-fold .* `read_limits.max_expans"):
            deque(iter(lambda: source.read(2**20), b""), maxlen=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 16 * 2**20


def test_decompress_of_damaged_zstd_leaks_no_memory() -> None:
    damaged = COMPRESSORS["zstd"](b"x")[:4] + b"\xff" * 50
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(20):
        with pytest.raises(DecodeError, match="zstd"):
            decompress(damaged, size_bytes=2**20)
    leaked = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert leaked < 2**20


def test_source_uses_expansion_limit_of_stream() -> None:
    """There is no limit below 64 MiB."""
    stream, zeros = stream_of(max_expansion=3), b"0" * 2**26

    assert len(in_memory(gzip.compress(zeros[1:]), stream).read(2**27)) == 2**26 - 1
    with pytest.raises(BadFileError, match="more than 3-fold"):
        in_memory(gzip.compress(zeros), stream).read(2**27)


def test_detect_compression_needs_full_magic_bytes() -> None:
    assert detect_compression(b"BZh9,other\n1,2\n") is None
    assert detect_compression(bz2.compress(b"")) is SourceCompression.BZIP2
    assert detect_compression(b"") is None
    assert detect_compression(zlib.compress(b"x")) is None
