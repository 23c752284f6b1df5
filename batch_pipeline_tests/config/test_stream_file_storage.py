"""How long files are kept, in stream files: what it becomes, and with which words it is refused."""

from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.model.stream import Storage
from batch_pipeline_tests.config.test_stream_file_mistakes import (
    refusal_of,
    stream_file,
    with_lines,
)

TARGETS = "targets: {dw: {postgres: {conn: $DW}}}"
DAY = timedelta(days=1)


def storage_of(folder: Path, text: str) -> Storage:
    """Read a stream file with a target and this as its storage."""
    written = with_lines(TARGETS, f"storage: {text}")
    return read_stream_file(stream_file(folder, written)).storage


def test_stream_file_keeps_everything_for_ever_unless_it_says_so(tmp_path: Path) -> None:
    """Expect no time."""
    storage = storage_of(tmp_path, "{}")
    assert (storage.keep_loaded, storage.keep_superseded) == (None, None)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            ("", "storage: {keep_loaded: 30d}"),
            "`storage.keep_loaded` is '30 days, 0:00:00'; expected none without `targets`",
        ),
        (
            (TARGETS, "storage: {keep_loaded: soon}"),
            "`storage.keep_loaded` is 'soon'; expected a duration such as",
        ),
        (
            (TARGETS, "storage: {keep_loaded: 1d, archive: ./old}"),
            "`storage.archive` was removed; copy files away before `keep_superseded`",
        ),
        (
            ("", "storage: {root: gs://bucket/out}"),
            "cannot read or write; expected s3://bucket/prefix, a file:///… URI without a host, or",
        ),
    ],
)
def test_storage_that_makes_no_sense_is_refused(
    tmp_path: Path, lines: tuple[str, ...], problem: str
) -> None:
    """Expect the key, what is there and what may be there, in its line."""
    refusal = refusal_of(tmp_path, with_lines(*lines))
    assert refusal.line == 6
    assert problem in refusal.problem


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("./landing", "storage: {root: ./landing}"),
        ("./landing", "storage: {root: landing/../landing/out/deep}"),
        ("../in", "storage: {root: ../in/batches}"),
        ("s3://lake/in", "storage: {root: s3://lake/in}"),
        ("s3a://lake/in/", "storage: {root: s3://lake/in/out}"),
        ("s3://lake", "storage: {root: s3://lake/out}"),
    ],
)
def test_stream_that_would_land_its_own_files_is_refused(
    tmp_path: Path, source: str, written: str
) -> None:
    """Expect the line of the key, where files land, and why."""
    text = with_lines(TARGETS, written).replace("./landing}", f"{source}}}", 1)
    error = refusal_of(tmp_path, text)
    assert error.line == 6
    assert "expected a place outside of `source.uri` (" in error.problem
    assert "storage.root is " in error.problem


@pytest.mark.parametrize(
    ("source", "root"),
    [
        ("./landing", "./landing2"),
        ("./data/landing", "./data"),
        ("../in", "./in/out"),
        ("./landing", "./landing/.batches"),
        ("s3://lake/in", "s3://lake/in-out"),
        ("s3://lake/in", "s3://lake"),
        ("s3://lake/in", "s3://lake2/in"),
    ],
)
def test_stream_may_write_beside_its_landing(tmp_path: Path, source: str, root: str) -> None:
    """Expect neighbours, the folder around the landing, and hidden folders in it to be fine."""
    text = with_lines(f"storage: {{root: {root}}}").replace("./landing}", f"{source}}}", 1)
    assert read_stream_file(stream_file(tmp_path, text)).storage.root.endswith(root.lstrip("."))
