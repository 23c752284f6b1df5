"""Files that change between listing and reading, or while they are read (G9).

Every change must be reported, and no byte of the other version may reach a part file.
"""

import gzip
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import to_path
from batch_pipeline.model.record_rules import BadFileKind, BadFileRules, OnBadFile
from batch_pipeline_tests.encode.landed_files import STREAM
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.storage.places import between, task
from batch_pipeline_tests.storage_roots import content, new_folder

ROWS = 50_000  # 400 kB: opening a file reads its first 256 KiB


def rows(first: int) -> bytes:
    """Return csv of the same size for each first id."""
    return b"id\n" + b"".join(b"1%06d\n" % uid for uid in range(first, first + ROWS))


def parquet(first: int) -> bytes:
    """Return parquet of the same size for each first id."""
    sink = pa.BufferOutputStream()
    table = pa.table({"id": pa.array(range(first, first + ROWS), pa.int64())})
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    return bytes(sink.getvalue())


FORMATS: dict[str, Callable[[int], bytes]] = {
    "csv": rows,
    "parquet": parquet,
    "gzip": lambda first: gzip.compress(rows(first), 0, mtime=0),
}


def _append(path: Path, _other: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def _rename_over(path: Path, other: bytes) -> None:
    path.with_suffix(".new").write_bytes(other)
    path.with_suffix(".new").rename(path)


CHANGES: dict[str, Callable[[Path, bytes], object]] = {
    "appended": _append,
    "truncated": lambda path, _other: os.truncate(path, path.stat().st_size // 2),
    "overwritten": Path.write_bytes,
    "replaced": _rename_over,
    "touched": lambda _path, _other: None,
    "deleted": lambda path, _other: path.unlink(),
}


def change_file(path: Path, change: str, other: bytes) -> None:
    """Change a file and move its modification time, because the clock of the disk may be coarse."""
    CHANGES[change](path, other)
    if path.exists():
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 2_000))


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("format_name", FORMATS)
def test_file_changed_before_reading_is_reported_and_not_published(
    tmp_path: Path, format_name: str, figures: Figures
) -> None:
    content_from = FORMATS[format_name]
    for change in CHANGES:
        landing, storage = new_folder(tmp_path / change), new_folder(tmp_path / f"{change}-out")
        files = [landing.land(f"{number}.dat", content_from(number * ROWS)) for number in (0, 1, 2)]
        path = Path(to_path(files[1].location))
        change_file(path, change, content_from(9 * ROWS))
        stream = replace(
            between(STREAM, landing, storage), on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE)
        )
        report = task(stream, files, id="integer")
        kind = BadFileKind.MISSING if change == "deleted" else BadFileKind.CHANGED
        assert [item.bad_kind for item in report.items] == [None, kind, None]
        assert [item.written for item in report.items] == [ROWS, 0, ROWS]
        [part] = report.part_files
        assert len(gzip.decompress(content(part.uri)).splitlines()) == 2 * ROWS
        figures(changes=1, reported=1, read_silently=0)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("change", sorted(CHANGES.keys() - {"touched"}))
@pytest.mark.parametrize("format_name", FORMATS)
def test_file_changed_while_being_read_is_reported(
    tmp_path: Path, format_name: str, change: str, figures: Figures
) -> None:
    """Every second file was registered without size and time."""
    content_from, times = FORMATS[format_name], 5
    for number in range(times):
        landing = new_folder(tmp_path / str(number))
        file = landing.land("orders", content_from(0))
        bytes_before = number * (file.size_bytes or 0) // times
        file = LandedFile(location=file.location) if number % 2 else file
        with pytest.raises(BadFileError) as caught:
            _read(file, bytes_before, change, content_from(9 * ROWS))
        assert caught.value.kind in {BadFileKind.CHANGED, BadFileKind.MISSING}
    figures(changes=times, reported=times, read_silently=0)


def _read(file: LandedFile, bytes_before: int, change: str, other: bytes) -> None:
    """Read some bytes, change the file, and read the rest."""
    with open_source(file, STREAM) as source:
        source.read(bytes_before)
        change_file(Path(to_path(file.location)), change, other)
        while source.read(2**20):
            pass
