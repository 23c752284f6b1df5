"""Decompressing landed files: whole or refused, never half; bombs are cheap."""

import bz2
import gzip
import hashlib
import lzma
import tracemalloc
import zlib
from collections.abc import Callable
from io import BufferedReader, BytesIO

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.encode.errors import DecodeError
from batch_pipeline.encode.readers import compression
from batch_pipeline.encode.readers.compression import (
    DecompressedFile,
    SourceCompression,
    detect_compression,
)
from batch_pipeline.encode.readers.decoded_file import DecodedFile
from batch_pipeline.model.errors import BadFileError
from batch_pipeline_tests.encode.landed_files import fault_of, in_memory, stream_of

Compress = Callable[[bytes], bytes]


def zstd(data: bytes) -> bytes:
    """Make one zstd frame."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return bytes(sink.getvalue().to_pybytes())


COMPRESSORS: dict[str, Compress] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
}
compressions = pytest.mark.parametrize("compression", COMPRESSORS)
SKIPPABLE = b"\x5a\x2a\x4d\x18\x05\x00\x00\x00hello"


def noise(size_bytes: int) -> bytes:
    """Give bytes that do not compress, always the same."""
    return hashlib.shake_256(b"noise").digest(size_bytes)


def read_up_to(source: DecompressedFile | DecodedFile, size_bytes: int) -> None:
    """Read a file in blocks of one MiB, to its end or so far."""
    while size_bytes > 0 and (block := source.read(2**20)):
        size_bytes -= len(block)


def decompress(data: bytes, *, size_bytes: int = 2**20, max_expansion: int = 250) -> bytes:
    """Decompress a file, some bytes at a time."""
    compression = detect_compression(data)
    assert compression is not None
    raw = BufferedReader(BytesIO(data))
    source = DecompressedFile(raw, compression, max_expansion=max_expansion)
    found = []
    while block := source.read(size_bytes):
        assert len(block) <= size_bytes
        found.append(block)
    return b"".join(found)


@compressions
@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=5), size=st.integers(1, 400))
def test_decompress_with_any_members_gives_all_their_bytes(
    compression: str, parts: list[bytes], size: int
) -> None:
    """Members follow each other, empty ones too."""
    data = b"".join(map(COMPRESSORS[compression], parts))

    assert detect_compression(data) == compression
    assert decompress(data, size_bytes=size) == b"".join(parts)


@compressions
def test_decompress_with_large_members_gives_all_their_bytes(compression: str) -> None:
    """Members longer than any buffer, of bytes that compress badly, then well."""
    part = noise(300_000) + b"0123456789" * 100_000

    assert decompress(COMPRESSORS[compression](part) * 3, size_bytes=700_001) == part * 3


@compressions
def test_decompress_with_data_cut_anywhere_refuses_it(compression: str) -> None:
    """No cut, behind the first bytes that tell the compression, goes unnoticed."""
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
def test_decompress_with_bytes_behind_the_data_refuses_them(compression: str) -> None:
    """What is no member is not passed over."""
    for behind in (b"x", b"behind the data", b"\x1f", b"\0\0\0\0x", b"PK"):
        with pytest.raises(DecodeError, match=f"bytes behind the {compression} data are not"):
            decompress(COMPRESSORS[compression](b"data") + behind)


@pytest.mark.parametrize("compression", ["gzip", "xz"])
def test_decompress_with_zeros_behind_a_member_passes_over_them(compression: str) -> None:
    """Tapes and block devices pad what they hold; both formats say that padding is fine."""
    compress = COMPRESSORS[compression]

    assert decompress(compress(b"a") + bytes(8) + compress(b"b") + bytes(200_000)) == b"ab"


def test_decompress_with_zeros_behind_bzip2_refuses_them() -> None:
    """bzip2 knows no padding."""
    with pytest.raises(DecodeError, match="bytes behind the bzip2 data are not bzip2"):
        decompress(bz2.compress(b"a") + bytes(8))


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz"])
def test_decompress_with_any_flipped_bit_of_the_content_refuses_it(compression: str) -> None:
    """Checksums are looked at: a wrong byte in the second half of the file is found."""
    data = COMPRESSORS[compression](b"".join(b"line %d\n" % number for number in range(200)))

    for at in range(len(data) // 2, len(data)):
        broken = bytearray(data)
        broken[at] ^= 0x10
        with pytest.raises(DecodeError, match=r"is wrong|is damaged|ends early|are not"):
            decompress(bytes(broken))


@pytest.mark.parametrize("at", [-5, -1])
def test_decompress_with_a_wrong_gzip_trailer_says_that_the_checksum_is_wrong(
    at: int,
) -> None:
    """The checksum and the length behind a member are both compared."""
    data = bytearray(gzip.compress(b"data" * 1000))
    data[at] ^= 1

    with pytest.raises(DecodeError, match="gzip checksum is wrong"):
        decompress(bytes(data))


def test_decompress_with_a_wrong_zstd_checksum_says_so() -> None:
    """A frame that brings a checksum is compared with it."""
    # One raw block of three bytes; the last four bytes of a frame would be its checksum.
    frame = b"\x28\xb5\x2f\xfd\x24\x03\x19\x00\x00abc" + b"\0\0\0\0"

    with pytest.raises(DecodeError, match="zstd checksum is wrong"):
        decompress(frame)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_decompress_with_skippable_zstd_frames_passes_over_them(place: int) -> None:
    """Frames of user data may stand anywhere; they are no content."""
    frames = [zstd(b"a"), zstd(b"b")]
    frames.insert(place, SKIPPABLE)

    assert decompress(b"".join(frames)) == b"ab"


def test_decompress_with_an_xz_block_of_a_huge_dictionary_refuses_it() -> None:
    """A file must not decide how much memory is taken."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**29}]
    data = lzma.compress(b"data", filters=filters)

    with pytest.raises(DecodeError, match="xz data takes too much memory to decompress"):
        decompress(data)


def test_decompress_with_a_zstd_frame_of_a_huge_window_refuses_it() -> None:
    """The same for zstd, whose frames may ask for 2 GiB to look back."""
    with pytest.raises(DecodeError, match="zstd data takes too much memory to decompress"):
        decompress(b"\x28\xb5\x2f\xfd\x00\xa8\x19\x00\x00abc")


def test_decompress_without_isal_reads_and_refuses_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there is no ISA-L, zlib does its work."""
    monkeypatch.setattr(compression, "ZLIB", zlib)
    data = noise(300_000) + b"0" * 3_000_000
    compressed = gzip.compress(data)

    assert decompress(compressed * 2, size_bytes=99_999) == data * 2
    for broken in (
        compressed[:-1],
        compressed + b"x",
        compressed[:-5] + b"x" + compressed[-4:],
        b"\x1f\x8b" * 20,
    ):
        with pytest.raises(DecodeError, match=r"ends early|are not|checksum is wrong|is damaged"):
            decompress(broken)


def bomb(compression: str) -> bytes:
    """Make a small file that becomes at least 1 GiB."""
    if compression == "zstd":
        # Blocks of 128 KiB that repeat one byte; the last one is marked as such.
        header = b"\x28\xb5\x2f\xfd\x00\x58"
        size = 2**17
        block = ((size << 3) | 2).to_bytes(3, "little") + b"0"
        last = ((size << 3) | 3).to_bytes(3, "little") + b"0"
        return header + block * (2**30 // size) + last
    zeros = b"0" * 2**24
    return COMPRESSORS[compression](zeros) * 64


@compressions
def test_decompress_with_a_bomb_stops_early_with_little_memory(compression: str) -> None:
    """From 64 MiB on a file must not have become more than 250 times as long."""
    data = bomb(compression)
    source = DecompressedFile(
        BufferedReader(BytesIO(data)), SourceCompression(compression), max_expansion=250
    )
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match=r"more than 250 times .* `read_limits.max_expans"):
            read_up_to(source, 256 * 2**20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 16 * 2**20


def test_decompress_with_damaged_zstd_keeps_no_memory() -> None:
    """A worker meets more than one damaged file in its life."""
    damaged = zstd(b"x")[:4] + b"\xff" * 50
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(20):
        with pytest.raises(DecodeError, match="zstd"):
            decompress(damaged, size_bytes=2**20)
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 2**20


def test_decompress_with_a_higher_limit_reads_what_was_a_bomb() -> None:
    """The limit is the stream's; and 64 MiB are read of any file."""
    zeros = b"0" * 2**26
    data = gzip.compress(zeros[: 2**26 - 1])

    assert len(decompress(data, max_expansion=2)) == 2**26 - 1
    assert len(decompress(gzip.compress(zeros), max_expansion=2000)) == 2**26


def test_source_with_damaged_data_is_a_bad_file() -> None:
    """Damage is found where it is met, and so is a second compression inside of the first."""
    data = gzip.compress(noise(3_000_000))
    source = in_memory(data[:-1])

    with pytest.raises(BadFileError) as error:
        read_up_to(source, 2**30)
    assert fault_of(error) == (None, "gzip data ends early")

    with pytest.raises(BadFileError) as error:
        in_memory(gzip.compress(zstd(b"a\n1\n")))
    assert fault_of(error) == (None, "is compressed twice, with gzip and zstd")


def test_source_with_a_stream_limit_takes_it_for_compressed_data() -> None:
    """`read_limits.max_expansion` reaches the decompression."""
    source = in_memory(gzip.compress(b"0" * 2**26), stream_of(max_expansion=3))

    with pytest.raises(BadFileError, match="more than 3 times as many"):
        source.read(2**27)


def test_compression_of_text_that_starts_like_bzip2_is_none() -> None:
    """Three letters are not enough."""
    assert detect_compression(b"BZh9,other\n1,2\n") is None
    assert detect_compression(bz2.compress(b"")) is SourceCompression.BZIP2
    assert detect_compression(b"") is None
    assert detect_compression(zlib.compress(b"x")) is None
