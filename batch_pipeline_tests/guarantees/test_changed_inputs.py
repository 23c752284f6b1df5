"""Files that change between listing and reading, or while they are read (G9).

Every change of a file must be reported, and no byte of another version may be in a part file.
"""

import gzip
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
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

ROWS = 50_000


def rows(first: int) -> bytes:
    """Write csv with as many bytes whatever the first id is."""
    return b"id\n" + b"".join(b"1%06d\n" % uid for uid in range(first, first + ROWS))


def lines(first: int) -> bytes:
    """Write JSON lines with as many bytes whatever the first id is."""
    return b"".join(b'{"id":1%06d}\n' % uid for uid in range(first, first + ROWS))


def parquet(first: int) -> bytes:
    """Write parquet with as many bytes whatever the first id is."""
    sink = pa.BufferOutputStream()
    table = pa.table({"id": pa.array(range(first, first + ROWS), pa.int64())})
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    return bytes(sink.getvalue())


FORMATS: dict[str, Callable[[int], bytes]] = {
    "csv": rows,
    "jsonl": lines,
    "parquet": parquet,
    "gzip": lambda first: gzip.compress(rows(first), 0, mtime=0),
}


def _grown(path: Path, other: bytes) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def _shrunk(path: Path, other: bytes) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _rewritten(path: Path, other: bytes) -> None:
    path.write_bytes(other)


def _replaced(path: Path, other: bytes) -> None:
    path.with_suffix(".new").write_bytes(other)
    path.with_suffix(".new").rename(path)


def _touched(path: Path, other: bytes) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000))


def _gone(path: Path, other: bytes) -> None:
    path.unlink()


CHANGES = {
    "grown": _grown,
    "shrunk": _shrunk,
    "rewritten": _rewritten,
    "replaced": _replaced,
    "touched": _touched,
    "gone": _gone,
}


def later(path: Path) -> None:
    """Make a file newer, however coarse the clock of the disk is."""
    if path.exists():
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 2_000))


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("name", FORMATS)
def test_file_that_changed_before_it_was_read_is_told_and_nothing_of_it_written(
    tmp_path: Path, name: str, figures: Figures
) -> None:
    made = FORMATS[name]
    for change, change_file in CHANGES.items():
        landing, storage = new_folder(tmp_path / change), new_folder(tmp_path / f"{change}-out")
        files = [landing.land(f"{number}.dat", made(number * ROWS)) for number in (0, 1, 2)]
        path = Path(to_path(files[1].location))
        change_file(path, made(9 * ROWS))
        later(path)
        stream = replace(
            between(STREAM, landing, storage), on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE)
        )
        report = task(stream, files, id="integer")
        kind = BadFileKind.MISSING if change == "gone" else BadFileKind.CHANGED
        assert [item.bad_kind for item in report.items] == [None, kind, None]
        assert [item.written for item in report.items] == [ROWS, 0, ROWS]
        [part] = report.part_files
        assert len(gzip.decompress(content(part.uri)).splitlines()) == 2 * ROWS
        figures(changes=1, told=1, read_silently=0)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("change", sorted(CHANGES.keys() - {"touched"}))
@pytest.mark.parametrize("name", FORMATS)
def test_file_that_changes_while_it_is_read_is_told(
    tmp_path: Path, name: str, change: str, figures: Figures
) -> None:
    """For each second file no facts were noted before."""
    made, times = FORMATS[name], 5
    for number in range(times):
        landing = new_folder(tmp_path / str(number))
        file = landing.land("orders", made(0))
        already = number * (file.size_bytes or 0) // times
        file = LandedFile(location=file.location) if number % 2 else file
        with pytest.raises(BadFileError) as caught:
            _read(file, already, lambda path: CHANGES[change](path, made(9 * ROWS)))
        assert caught.value.kind in {BadFileKind.CHANGED, BadFileKind.MISSING}
    figures(changes=times, told=times, read_silently=0)


def _read(file: LandedFile, already: int, change: Callable[[Path], None]) -> None:
    """Read so many bytes, change the file, and read on to the end."""
    path = Path(to_path(file.location))
    with open_source(file, STREAM) as source:
        source.read(already)
        change(path)
        later(path)
        while source.read(2**20):
            pass


@pytest.mark.guarantee("G9")
def test_file_whose_facts_were_not_noted_is_compared_with_nothing(tmp_path: Path) -> None:
    """The limit of the promise: a user's table need not have sizes or times."""
    file = new_folder(tmp_path / "in").land("orders", rows(0))
    assert file.modified_at is not None
    other_time = replace(file, modified_at=file.modified_at - timedelta(seconds=1))
    with pytest.raises(BadFileError), open_source(other_time, STREAM):
        pass
    with open_source(LandedFile(location=file.location), STREAM) as source:
        assert source.read(3) == b"id\n"
