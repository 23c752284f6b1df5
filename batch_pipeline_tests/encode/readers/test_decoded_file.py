"""Opening the file of an item: change detection, decoded text and seekable files."""

import bz2
import errno
import gzip
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from batch_pipeline.encode.chunks import ByteRange
from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.encode.source_file import bad_file_error
from batch_pipeline.model.errors import (
    BadFileError,
    SourceRefusedError,
    SourceUnavailableError,
)
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.record_rules import BadFileKind
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.landed_files import STREAM, in_memory, landed, stream_of


def rejection(file: LandedFile) -> tuple[BadFileKind, str]:
    """Open a bad file and return the kind and the reason."""
    with pytest.raises(BadFileError) as error, open_source(file, STREAM):
        pass
    return BadFileKind(error.value.kind), error.value.reason


@pytest.mark.guarantee("G9")
def test_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    """Missing files and folders differ from unreadable ones."""
    for name in ("gone", "no/folder"):
        file = LandedFile(location=to_uri(tmp_path / name), size_bytes=1)
        assert rejection(file) == (BadFileKind.MISSING, "does not exist")
    folder, relative = LandedFile(location=to_uri(tmp_path)), LandedFile(location="a.csv")
    assert rejection(folder) == (BadFileKind.CORRUPT, "is not a regular file")
    assert rejection(relative)[1].startswith("is not an absolute file URI")


@pytest.mark.guarantee("G9")
def test_file_with_other_size_or_time_is_reported_as_changed(tmp_path: Path) -> None:
    file = landed(tmp_path, b"a\n1\n")
    assert file.modified_at is not None
    earlier = replace(file, modified_at=file.modified_at - timedelta(microseconds=1))

    kind, reason = rejection(replace(file, size_bytes=5))
    assert (kind, reason) == (BadFileKind.CHANGED, "changed since it was registered: size 5 -> 4 B")
    kind, reason = rejection(earlier)
    assert kind is BadFileKind.CHANGED
    assert reason.startswith("changed since it was registered: modified 20")


@pytest.mark.guarantee("G9")
def test_file_changed_while_read_is_reported_as_changed(tmp_path: Path) -> None:
    """No size or time is registered, and the new content looks damaged."""
    file = LandedFile(location=landed(tmp_path, gzip.compress(os.urandom(600_000))).location)
    path = Path(to_path(file.location))

    with pytest.raises(BadFileError) as error, open_source(file, STREAM) as source:
        assert path.write_bytes(b"other") + len(source.read(2**20)) > 0
    assert (error.value.kind, error.value.reason) == (
        BadFileKind.CHANGED,
        "changed while it was read",
    )
    with pytest.raises(BadFileError) as error, open_source(file, STREAM):
        path.unlink()
    assert error.value.kind is BadFileKind.MISSING


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ETIMEDOUT, errno.EMFILE, errno.EIO])
def test_outage_of_mounted_file_system_is_not_a_bad_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Damage and outages both have EIO, so its batch is retried, and others are encoded."""
    file = landed(tmp_path, b"a\n1\n")
    expected = SourceRefusedError if number == errno.EIO else SourceUnavailableError
    error = OSError(number, os.strerror(number))
    with pytest.raises(SourceUnavailableError) as caught, open_source(file, STREAM) as source:
        raise source.bad_file("cannot be read") from error  # as readers do
    assert type(caught.value) is expected
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", Mock(side_effect=error))
        with pytest.raises(expected), open_source(file, STREAM):
            pass


def test_bad_file_reason_is_one_printable_line() -> None:
    """Libraries quote bytes of the file, and reasons go to logs and terminals."""
    error = bad_file_error(STREAM, "file:///in/a", "is damaged (\x1b[2J\nbyte \x0f)" + "é" * 2000)
    assert error.reason.startswith("is damaged (\\x1b[2J\\nbyte \\x0f)ééé")
    assert len(error.reason) == 1000


@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("start", [b"PAR1\x15", b"Obj\x01", b"a,b"])
def test_source_file_is_seekable_and_uncompressed(start: bytes, is_compressed: bool) -> None:
    data = start + os.urandom(3_000_000)
    source = in_memory(gzip.compress(data) if is_compressed else data)

    for _ in range(2):
        file = source.file
        assert file.read() == data
        file.seek(-1_000_000, os.SEEK_END)
        assert file.read(5) == data[-1_000_000:][:5]
    source.close()


def test_only_plain_utf_8_sources_can_be_split() -> None:
    jsonl = b'{"a":1}\n'

    plain = [in_memory(data) for data in (jsonl, b"\xef\xbb\xbfa,b\n", b"PAR1\x15...")]
    assert all(source.can_be_split for source in plain)
    whole = [
        in_memory(gzip.compress(jsonl)),
        in_memory("\ufeffa,b\n".encode("utf-16-le")),
        in_memory(b"[{}]"),
        in_memory(b"Obj\x01...."),
        in_memory(jsonl, stream_of(SourceFormat.JSON)),
    ]
    assert not any(source.can_be_split for source in whole)


def test_source_with_part_can_read_any_byte(tmp_path: Path) -> None:
    file = landed(tmp_path, b"\xef\xbb\xbf" + b'{"a":1}\n{"a":2}\n')

    with open_source(file, STREAM, ByteRange(4, 9)) as source:
        assert source.part == ByteRange(4, 9)
        assert source.text_start == 3
        source.seek(11)
        assert source.read(100) == b'{"a":2}\n'
        with source.reopened() as again:
            assert again.read(3) == b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "compress", [gzip.compress, bz2.compress, lambda text: text.decode().encode("utf-16")]
)
def test_source_reads_exactly_the_requested_size(compress: Callable[[bytes], bytes]) -> None:
    """Readers treat a short read as the end of the file."""
    text = b"".join(b'{"id":%d}\n' % number for number in range(300_000))
    source = in_memory(compress(text), stream_of(SourceFormat.JSONL))
    start = source.read(3 * 2**20)
    assert len(start) == 3 * 2**20
    assert start + source.read(2**24) == text
