"""BATCH messages of other taps: their files are checked, then registered where they lie."""

import errno
import gzip
import io
import json
import shutil
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batch_pipeline.cli.target import TargetBatchPipeline
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.singer.parser import MessageError
from batch_pipeline.singer.target.sink import LandingSink
from batch_pipeline_tests.singer.target.target_fixture import (
    TargetHome,
    batch,
    batch_file,
    record,
    schema,
    state,
)


def test_batch_comes_after_the_records_that_were_said_before_it(home: TargetHome) -> None:
    path = batch_file(home.root / "theirs/a.jsonl.gz", 2, 3)
    printed = home.run(schema(), record(1), state(1), batch(f"file://{path}"), record(4), state(2))
    assert printed == [{"at": 1}, {"at": 2}]
    assert home.ids() == [1, 2, 3, 4]
    assert home.files()[1] == path


def test_batch_is_registered_before_its_state_is_printed(home: TargetHome) -> None:
    """Expect STATE right after a BATCH, although more messages follow."""
    path = batch_file(home.root / "theirs/a.jsonl.gz", 1)
    printed, _ = home.run_until_refused(schema(), batch(str(path)), state(1), b"nonsense")
    assert printed == [{"at": 1}]
    assert home.ids() == [1]


@pytest.mark.parametrize(
    ("name", "written"),
    [("a b.gz", "a b.gz"), ("a b.gz", "a%20b.gz"), ("a%20b.gz", "a%20b.gz"), ("é.gz", "%C3%A9.gz")],
)
def test_batch_file_is_found_with_blanks_and_escapes(
    home: TargetHome, name: str, written: str
) -> None:
    path = batch_file(home.root / "theirs" / name, 1)
    home.run(schema(), batch(f"file://{home.root}/theirs/{written}"))
    assert home.files() == [path]


def test_batch_file_that_exists_in_both_spellings_is_the_one_that_was_written(
    home: TargetHome,
) -> None:
    """Expect what the SDK opens: the name as it stands in the message."""
    batch_file(home.root / "a b.gz", 1)
    batch_file(home.root / "a%20b.gz", 2)
    home.run(schema(), batch(f"file://{home.root}/a%20b.gz"))
    assert home.ids() == [2]


def test_batch_files_are_found_below_a_storage_root(home: TargetHome) -> None:
    batch_file(home.root / "here/a.gz", 1)
    config = {"storage": {"root": f"file://{home.root}/here"}}
    home.run(schema(), batch("file:///elsewhere/deep/a.gz"), batch_config=config)
    assert home.ids() == [1]


@pytest.mark.parametrize(
    "uris",
    [
        ("file:///theirs/one/a%20b.gz", "file:///theirs/two/a%20b.gz"),
        ("file:///theirs/a%20b.gz", "file:///theirs/a b.gz"),
    ],
)
def test_batch_with_two_entries_for_one_file_is_refused(
    home: TargetHome, uris: Sequence[str]
) -> None:
    batch_file(home.root / "here/a b.gz", 1)
    config = {"storage": {"root": str(home.root / "here")}}
    printed = home.refuses(
        MessageError,
        f"two entries of `manifest` stand for here: {uris[0]} and {uris[1]}",
        schema(),
        batch(*uris),
        state(1),
        batch_config=config,
    )
    assert (printed, home.files()) == ([], [])


def test_batch_file_cannot_be_named_out_of_the_storage_root(home: TargetHome) -> None:
    batch_file(home.root / "outside.gz", 1)
    (home.root / "here").mkdir()
    config = {"storage": {"root": str(home.root / "here")}}
    said = batch("file:///theirs/..%2Foutside.gz")
    home.refuses(MessageError, "is not there", schema(), said, batch_config=config)


@pytest.mark.guarantee("S1")
def test_batch_file_outside_of_the_roots_is_not_read(home: TargetHome) -> None:
    """Expect the file and the key to be told, and a link to lead nowhere else either."""
    path = batch_file(home.root / "secret/a.gz", 1)
    (home.root / "theirs").mkdir()
    (home.root / "theirs/link.gz").symlink_to(path)
    for written in (str(path), f"{home.root}/theirs/../secret/a.gz", f"{home.root}/theirs/link.gz"):
        roots = [str(home.root / "theirs")]
        printed, error = home.run_until_refused(
            schema(), batch(written), state(1), batch_roots=roots
        )
        assert isinstance(error, MessageError)
        assert "lies outside of" in str(error)
        assert f"{written} lies outside of `batch_roots`, so it was not opened" in str(error)
        assert (printed, home.files()) == ([], [])
    home.refuses(MessageError, "lies outside of", schema(), batch(str(path)), batch_roots=[])


def test_batch_file_that_a_link_names_is_registered_by_its_real_path(home: TargetHome) -> None:
    path = batch_file(home.root / "theirs/a.gz", 1)
    (home.root / "link.gz").symlink_to(path)
    home.run(schema(), batch(str(home.root / "link.gz")), batch(str(path)))
    assert home.files() == [path]


def test_batch_file_with_a_line_that_is_too_long_is_refused(home: TargetHome) -> None:
    path = home.root / "a.gz"
    long = b'{"id": 2, "name": "' + b"x" * 3_000 + b'"}\n'
    path.write_bytes(gzip.compress(b'{"id": 1}\n' + long))
    home.refuses(
        MessageError,
        "line 2 has more than 2000 bytes",
        schema(),
        batch(str(path)),
        max_line_bytes=2_000,
    )
    exact = len(long) - 1
    assert home.run(schema(), batch(str(path)), state(1), max_line_bytes=exact) == [{"at": 1}]


def test_batch_with_a_file_that_vanished_registers_none(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    printed, error = home.run_until_refused(
        schema(), state(1), batch(str(path), f"{home.root}/gone.gz"), state(2)
    )
    assert isinstance(error, MessageError)
    assert (error.line, error.stream) == (3, "orders")
    assert "gone.gz is not there" in str(error)
    assert printed == [{"at": 1}]
    assert home.files() == []


_GOOD = b'{"id": 1}\n'
_PARQUET = {"format": "parquet"}


def parquet(columns: dict[str, list[int]]) -> bytes:
    """Write columns as a file of parquet."""
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target)
    return target.getvalue()


_gzip = partial(gzip.compress, mtime=0)  # names of tests are the same in every process


@pytest.mark.parametrize(
    ("content", "changes", "problem"),
    [
        (_GOOD, {}, "has compression none, while `encoding.compression` says gzip"),
        (_gzip(_GOOD), {"encoding": {"format": "jsonl"}}, "has compression gzip, while"),
        (_gzip(_GOOD * 99)[:-9], {}, "is damaged or breaks off"),
        (_gzip(b'{"id": 1}\n[1]\n'), {}, "line 2 is not a JSON object"),
        (_gzip(b'{"id": 1}\n{"a": 1}\n'), {}, "line 2 lacks the key 'id'"),
        (_gzip(b'{"id": "\xff"}\n'), {}, "line 1 is not a JSON object"),
        (_gzip(_GOOD), {"sha256": ["00"]}, "has the SHA-256"),
        (b"PAR2", {"encoding": _PARQUET}, "is not a parquet file"),
        (b"PAR1 broken PAR1", {"encoding": _PARQUET}, "is not a parquet file that can be read"),
        pytest.param(
            parquet({"name": [1]}).replace(b"name", b"n\xeame"),
            {"encoding": _PARQUET},
            "is not a parquet file that can be read",
            id="column name that is not UTF-8",
        ),
    ],
)
def test_batch_file_unlike_its_message_is_told(
    home: TargetHome, content: bytes, changes: dict[str, Any], problem: str
) -> None:
    path = home.root / "a.gz"
    path.write_bytes(content)
    _, error = home.run_until_refused(schema(), batch(str(path), **changes))
    assert isinstance(error, MessageError)
    assert problem in str(error)
    assert home.files() == []


def test_batch_with_the_right_checksum_is_taken(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    home.run(schema(), batch(str(path), sha256=[sha256(path.read_bytes()).hexdigest()]))
    assert home.ids() == [1]


def test_batch_in_a_storage_of_another_kind_is_told(home: TargetHome) -> None:
    _, error = home.run_until_refused(schema(), batch("gs://bucket/a.gz"))
    assert "lies in a gs storage; expected a file on a disk of this machine" in str(error)


def test_batch_that_is_sent_again_is_registered_once(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    assert home.run(schema(), batch(str(path)), state(1)) == [{"at": 1}]
    assert home.run(schema(), batch(str(path)), state(2)) == [{"at": 2}]
    assert home.files() == [path]


def test_batch_file_that_was_overwritten_is_refused(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    home.run(schema(), batch(str(path)))
    batch_file(path, 2, 3)
    printed = home.refuses(
        ConfigurationError, "was registered before", schema(), batch(str(path)), state(2)
    )
    assert printed == []


def test_batch_with_one_overwritten_file_registers_none(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    home.run(schema(), batch(str(path)))
    batch_file(path, 2, 3)
    fresh = batch_file(home.root / "b.gz", 4)
    home.refuses(
        ConfigurationError, "was registered before", schema(), batch(str(fresh), str(path))
    )
    assert home.files() == [path]


def test_batch_file_that_cannot_be_copied_leaves_no_copy_of_others(
    home: TargetHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [batch_file(home.root / name, 1) for name in ("a.jsonl.gz", "b.jsonl.gz")]
    real, copied = shutil.copyfileobj, list[int]()

    def full(source: Any, target: Any, length: int) -> None:
        copied.append(length)
        if len(copied) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target, length)

    monkeypatch.setattr(shutil, "copyfileobj", full)
    home.refuses(
        ConfigurationError,
        "The landing folder",
        schema(),
        batch(*map(str, paths)),
        batch_files="copy",
    )
    assert (home.landed(), home.files()) == ([], [])


def test_batch_files_are_copied_where_that_is_asked_for(home: TargetHome) -> None:
    path = batch_file(home.root / "a.jsonl.gz", 1)
    home.run(schema(), batch(str(path)), batch_files="copy")
    (landed,) = home.files()
    assert landed.read_bytes() == path.read_bytes()
    assert landed.parent == home.root / "home/landing/orders"


def test_batch_of_parquet_stays_where_it_lies(home: TargetHome) -> None:
    path = home.root / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), path)
    home.run(schema(), batch(str(path), encoding={"format": "parquet", "compression": "gzip"}))
    assert home.files() == [path]


def test_batch_of_parquet_is_rewritten_for_a_stream_of_json_lines(home: TargetHome) -> None:
    home.describe("{uri: ./in, format: jsonl}")
    path = home.root / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", None]}), path)
    said = batch(str(path), encoding={"format": "parquet"})
    open_schema = {"properties": {"id": {"type": "integer"}, "name": {"type": ["null", "string"]}}}
    assert home.run(schema(schema=open_schema), said, state(1)) == [{"at": 1}]
    assert home.records() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert home.files()[0].name.endswith(".jsonl.gz")


def test_stream_map_is_applied_to_the_files_of_a_batch(home: TargetHome) -> None:
    """Expect no masked column in clear: files are rewritten where a map changes records."""
    path = batch_file(home.root / "a.gz", 1, 2)
    maps = {"orders": {"name": None, "__filter__": "id != 2"}}
    home.run(schema(), batch(str(path)), state(1), stream_maps=maps)
    assert home.records() == [{"id": 1}]
    assert path not in home.files()


def test_stream_that_a_map_removes_takes_no_batch(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    printed = home.run(schema(), batch(str(path)), state(1), stream_maps={"orders": None})
    assert printed == [{"at": 1}]
    assert home.files() == []


def test_metadata_columns_are_added_to_the_files_of_a_batch(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    home.run(schema(), batch(str(path), version=3), add_record_metadata=True)
    (found,) = home.records()
    assert (found["id"], found["_sdc_table_version"]) == (1, 3)


def test_batch_file_without_records_is_left_out(home: TargetHome) -> None:
    path = home.root / "a.gz"
    path.write_bytes(gzip.compress(b""))
    assert home.run(schema(), batch(str(path)), state(1)) == [{"at": 1}]
    assert home.files() == []


class _LoudSink(LandingSink):
    """Reads the files of a BATCH in a way of its own, as SDK sinks may."""

    def process_batch_files(self, encoding: Any, files: Sequence[str]) -> None:
        for file in files:
            text = gzip.decompress(Path(file).read_bytes()).decode().upper()
            rows = [{"id": json.loads(line)["ID"]} for line in text.splitlines()]
            self.process_batch({"records": rows})


class _LoudTarget(TargetBatchPipeline):
    default_sink_class = _LoudSink


def test_sink_of_ones_own_reads_batches_in_its_own_way(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1, 2)
    loud = TargetHome(root=home.root, database_url=home.database_url, target_class=_LoudTarget)
    assert loud.run(schema(), batch(str(path)), state(1)) == [{"at": 1}]
    assert loud.records() == [{"id": 1}, {"id": 2}]
