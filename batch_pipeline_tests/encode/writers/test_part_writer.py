"""Writing part files: names, bounds, hashes, and what is left when it fails."""

import gzip
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.encode.writers.json_lines import Lines, LineWriter
from batch_pipeline.model.encoding import Compression
from batch_pipeline.model.errors import StorageUnavailableError
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import PartLimits
from batch_pipeline_tests.concurrency import run_python
from batch_pipeline_tests.encode.writers.part_factories import content, list_files, names

WRITE_ONE_PART = """
import sys
from pathlib import Path
from batch_pipeline.model.location import to_path
from batch_pipeline_tests.encode.writers.test_part_writer import PartLimits, written
written(Path(to_path(sys.argv[1])), [b"{}"], PartLimits())
"""


def written(root: Path, records: list[bytes], limits: PartLimits) -> list[list[bytes]]:
    """Write records in one go and give the lines of each part file."""
    writer = LineWriter(names(root), limits, Compression.GZIP)
    writer.append(Lines.of(records))
    parts = writer.close()
    lines = [gzip.decompress(content(part)).splitlines() for part in parts]
    assert [part.records for part in parts] == list(map(len, lines))
    return lines


def test_line_writer_with_one_part_names_and_hashes_it(tmp_path: Path) -> None:
    """The name tells stem, task, part and execution; size and hash are those of the file."""
    writer = LineWriter(names(tmp_path), PartLimits(), Compression.GZIP)

    writer.append(Lines.of([b'{"a":1}', b'{"a":2}']))
    assert list_files(tmp_path) == [".orders-1-00030000-00c0ffee.jsonl.gz.tmp"]
    [part] = writer.close()

    assert list_files(tmp_path) == ["orders-1-00030000-00c0ffee.jsonl.gz"]
    assert gzip.decompress(content(part)) == b'{"a":1}\n{"a":2}\n'
    assert part.records == 2
    flags_and_time = content(part)[3:8]
    assert flags_and_time == bytes(5)  # neither a time nor a name: same records, same bytes


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (PartLimits(max_records=2), [2, 2, 1]),
        (PartLimits(max_bytes=12), [3, 2]),
        (PartLimits(max_bytes=11), [2, 2, 1]),
        (PartLimits(max_bytes=1), [1, 1, 1, 1, 1]),
        (PartLimits(max_records=5), [5]),
    ],
)
def test_line_writer_with_limits_cuts_at_whole_records(
    tmp_path: Path, limits: PartLimits, expected: list[int]
) -> None:
    """A part file ends before the record that would exceed a limit; one record always fits."""
    records = [b"{1}", b"{2}", b"{3}", b"{4}", b"{5}"]  # 4 bytes each with the line feed

    parts = written(tmp_path, records, limits)

    assert [len(part) for part in parts] == expected
    assert [line for part in parts for line in part] == records


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 30), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    max_records=st.integers(1, 10),
    max_bytes=st.integers(1, 60),
)
def test_line_writer_however_lines_arrive_writes_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    cuts: list[int],
    max_records: int,
    max_bytes: int,
) -> None:
    """Part files depend on the records alone, not on the pieces in which they were given."""
    records = [b"x" * size for size in sizes]
    limits = PartLimits(max_records=max_records, max_bytes=max_bytes)
    hashes = []
    for bounds in ([], sorted(cuts)):
        writer = LineWriter(names(tmp_path_factory.mktemp("parts")), limits, Compression.GZIP)
        for piece in np.split(np.arange(len(records)), bounds):
            writer.append(Lines.of([records[index] for index in piece]))
        hashes.append([(part.sha256, part.records) for part in writer.close()])

    assert hashes[0] == hashes[1]


def test_lines_between_two_records_start_anew() -> None:
    """Ends count from the first line that is taken."""
    taken = Lines.of([b"1", b"22", b"333"]).between(1, 3)

    assert bytes(taken.text) == b"22\n333\n"
    assert list(taken.ends) == [3, 7]


def test_line_writer_with_large_uncompressed_text_writes_it_whole(tmp_path: Path) -> None:
    """Text of many pieces arrives in order and complete."""
    records = [b"%07d" % number * 10 for number in range(50_000)]  # 3.5 MB
    writer = LineWriter(names(tmp_path, "jsonl"), PartLimits(), Compression.NONE)
    for start in range(0, 50_000, 7_000):
        writer.append(Lines.of(records[start : start + 7_000]))

    [part] = writer.close()

    assert content(part).splitlines() == records


def test_line_writer_without_records_writes_no_file(tmp_path: Path) -> None:
    """No record, no part file."""
    assert LineWriter(names(tmp_path), PartLimits(), Compression.GZIP).close() == ()
    assert list_files(tmp_path) == []


def test_line_writer_when_aborted_leaves_nothing(tmp_path: Path) -> None:
    """Finished files and the open one are removed."""
    writer = LineWriter(names(tmp_path), PartLimits(max_records=1), Compression.GZIP)
    writer.append(Lines.of([b"{}", b"{}", b"{}"]))
    assert len(list_files(tmp_path)) == 3

    writer.abort()

    assert list_files(tmp_path) == []


def test_line_writer_with_a_missing_root_says_that_storage_is_unavailable(tmp_path: Path) -> None:
    """The error names the root and the operating system's reason."""
    root = tmp_path / "gone"
    writer = LineWriter(names(root), PartLimits(), Compression.GZIP)

    with pytest.raises(StorageUnavailableError) as raised:
        writer.append(Lines.of([b"{}"]))

    assert (raised.value.uri, raised.value.reason) == (to_uri(root), "No such file or directory")


def test_line_writer_with_a_file_of_that_name_leaves_it_alone(tmp_path: Path) -> None:
    """A hidden file that another run is writing is not touched."""
    theirs = tmp_path / ".orders-1-00030000-00c0ffee.jsonl.gz.tmp"
    theirs.write_bytes(b"theirs")
    writer = LineWriter(names(tmp_path), PartLimits(), Compression.GZIP)

    with pytest.raises(StorageUnavailableError):
        writer.append(Lines.of([b"{}"]))
    writer.abort()

    assert theirs.read_bytes() == b"theirs"


def test_line_writer_killed_before_the_file_has_its_name_leaves_no_part_file(
    tmp_path: Path,
) -> None:
    """Expect what a killed process wrote to be hidden."""
    killed = run_python(WRITE_ONE_PART, to_uri(tmp_path), failpoints="encode.before_rename=kill")
    assert killed == -signal.SIGKILL
    assert list_files(tmp_path) == [".orders-1-00030000-00c0ffee.jsonl.gz.tmp"]
