"""BATCH messages of other taps: their files are validated and registered in place."""

import errno
import gzip
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from batch_pipeline.cli.target import TargetBatchPipeline
from batch_pipeline.model.errors import ConfigurationError
from batch_pipeline.singer.parser import MessageError
from batch_pipeline.singer.target import landing_files
from batch_pipeline.singer.target.sink import LandingSink
from batch_pipeline_tests.encode.landed_files import parquet
from batch_pipeline_tests.singer.target.target_fixture import (
    TargetHome,
    batch,
    batch_file,
    record,
    schema,
    state,
)


def test_batch_is_registered_after_preceding_records(home: TargetHome) -> None:
    path = batch_file(home.root / "external/a.jsonl.gz", 2, 3)
    printed = home.run(schema(), record(1), state(1), batch(f"file://{path}"), record(4), state(2))
    assert printed == [{"at": 1}, {"at": 2}]
    assert home.ids() == [1, 2, 3, 4]
    assert home.files()[1] == path


def test_batch_is_registered_before_its_state_is_printed(home: TargetHome) -> None:
    """The STATE is printed although an invalid message follows."""
    path = batch_file(home.root / "external/a.jsonl.gz", 1)
    printed, _ = home.run_until_error(schema(), batch(str(path)), state(1), b"nonsense")
    assert printed == [{"at": 1}]
    assert home.ids() == [1]


def test_batch_file_name_with_blanks_and_escapes(home: TargetHome) -> None:
    """As in the SDK, the name as it is written is preferred to the decoded one."""
    names = ["a b.gz", "b%20c.gz", "é.gz"]
    paths = [batch_file(home.root / name, 1) for name in names]
    home.run(schema(), batch(*(f"file://{path}" for path in paths)))
    assert home.files() == paths
    batch_file(home.root / "b c.gz", 2)
    home.run(schema(), batch(*(f"file://{home.root}/{quote(name)}" for name in names[::2])))
    home.run(schema(), batch(f"file://{home.root}/b%20c.gz"))
    assert home.files() == paths


def test_batch_file_name_that_is_too_long_before_it_is_decoded(home: TargetHome) -> None:
    path = batch_file(home.root / f"{'é' * 50}.gz", 1)
    encoded = quote(path.name)
    assert len(encoded) > 255
    assert home.run(schema(), batch(f"file://{home.root}/{encoded}"), state(1)) == [{"at": 1}]
    assert home.files() == [path]
    too_long = batch(f"{home.root}/{'x' * 300}")
    home.assert_error(MessageError, "does not exist, or is not a file", schema(), too_long)


def test_batch_file_in_a_folder_that_cannot_be_read(
    home: TargetHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = batch_file(home.root / "a.gz", 1)
    real = Path.is_file

    def is_file(self: Path) -> bool:
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "is_file", is_file)
    problem = f"{path} cannot be read (permission denied)"
    assert home.assert_error(MessageError, problem, schema(), batch(str(path)), state(1)) == []


def test_batch_files_are_found_in_storage_root(home: TargetHome) -> None:
    batch_file(home.root / "here/a b.gz", 1)
    batch_file(home.root / "outside.gz", 1)
    config = {"storage": {"root": f"file://{home.root}/here"}}
    home.run(schema(), batch("file:///elsewhere/deep/a%20b.gz"), batch_config=config)
    assert home.ids() == [1]
    outside = batch("file:///external/..%2Foutside.gz")
    home.assert_error(MessageError, "does not exist", schema(), outside, batch_config=config)
    for uris in (
        ("file:///external/one/a%20b.gz", "file:///external/two/a%20b.gz"),
        ("file:///external/a%20b.gz", "file:///external/a b.gz"),
    ):
        problem = f"is the file of two entries of `manifest`: {uris[0]} and {uris[1]}"
        messages = schema(), batch(*uris), state(1)
        assert home.assert_error(MessageError, problem, *messages, batch_config=config) == []
    assert home.ids() == [1]


@pytest.mark.guarantee("S1")
def test_batch_file_outside_of_the_roots_is_not_read(home: TargetHome) -> None:
    """Neither through a relative path nor through a link."""
    path = batch_file(home.root / "secret/a.gz", 1)
    (home.root / "external").mkdir()
    (home.root / "external/link.gz").symlink_to(path)
    inside = f"{home.root}/external"
    for spelling in (str(path), f"{inside}/../secret/a.gz", f"{inside}/link.gz"):
        problem = f"{spelling} is outside `batch_roots`, so it was not opened"
        messages = schema(), batch(spelling), state(1)
        assert home.assert_error(MessageError, problem, *messages, batch_roots=[inside]) == []
        assert home.files() == []
    home.assert_error(MessageError, "is outside", schema(), batch(str(path)), batch_roots=[])


def test_linked_batch_file_is_registered_by_its_real_path(home: TargetHome) -> None:
    path = batch_file(home.root / "external/a.gz", 1)
    (home.root / "link.gz").symlink_to(path)
    home.run(schema(), batch(str(home.root / "link.gz")), batch(str(path)))
    assert home.files() == [path]


def test_batch_file_with_line_over_size_limit_is_rejected(home: TargetHome) -> None:
    path = home.root / "a.gz"
    long = b'{"id": 2, "name": "' + b"x" * 3_000 + b'"}\n'
    path.write_bytes(gzip.compress(b'{"id": 1}\n' + long))
    messages, problem = (schema(), batch(str(path)), state(1)), "line 2 has more than 2000 bytes"
    home.assert_error(MessageError, problem, *messages, max_line_bytes=2_000)
    assert home.run(*messages, max_line_bytes=len(long) - 1) == [{"at": 1}]


def test_batch_with_missing_file_registers_none(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    message = batch(str(path), f"{home.root}/gone.gz")
    printed, error = home.run_until_error(schema(), state(1), message, state(2))
    assert isinstance(error, MessageError)
    assert (error.line, error.stream) == (3, "orders")
    assert "gone.gz does not exist" in str(error)
    assert (printed, home.files()) == ([{"at": 1}], [])
    other_store = batch("gs://bucket/a.gz")
    home.assert_error(MessageError, "is in gs storage; expected a file on", schema(), other_store)


_GOOD = b'{"id": 1}\n'
_PARQUET: dict[str, Any] = {"encoding": {"format": "parquet"}}


UNFIT: list[tuple[bytes, dict[str, Any], str]] = [
    (_GOOD, {}, "has compression none, while `encoding.compression` says gzip"),
    (gzip.compress(_GOOD), {"encoding": {"format": "jsonl"}}, "has compression gzip, while"),
    (gzip.compress(_GOOD * 99)[:-9], {}, "is damaged or truncated"),
    (gzip.compress(b'{"id": 1}\n{"a": 1}\n'), {}, "line 2 lacks the key 'id'"),
    (gzip.compress(_GOOD), {"sha256": ["00"]}, "has the SHA-256"),
    (b"PAR2", _PARQUET, "is not a parquet file"),
    (b"PAR1 broken PAR1", _PARQUET, "is not a parquet file that can be read"),
    # A column name that is not UTF-8.
    (
        parquet(pa.table({"name": [1]})).replace(b"name", b"n\xeame"),
        _PARQUET,
        "is not a parquet file that can",
    ),
]


def test_batch_file_that_does_not_match_its_message_is_rejected(home: TargetHome) -> None:
    path = home.root / "a.gz"
    for content, changes, problem in UNFIT:
        path.write_bytes(content)
        home.assert_error(MessageError, problem, schema(), batch(str(path), **changes))
    assert home.files() == []


def test_repeated_batch_is_registered_once(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    checksums = [sha256(path.read_bytes()).hexdigest()]
    assert home.run(schema(), batch(str(path), sha256=checksums), state(1)) == [{"at": 1}]
    assert home.run(schema(), batch(str(path)), state(2)) == [{"at": 2}]
    assert home.files() == [path]


def test_batch_with_an_overwritten_file_registers_none(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    home.run(schema(), batch(str(path)))
    batch_file(path, 2, 3)
    fresh = batch_file(home.root / "b.gz", 4)
    messages = schema(), batch(str(fresh), str(path)), state(2)
    assert home.assert_error(ConfigurationError, "was already registered", *messages) == []
    assert home.files() == [path]


def test_failed_copy_of_batch_file_leaves_no_copies(
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
    messages = schema(), batch(*map(str, paths))
    home.assert_error(ConfigurationError, "The landing folder", *messages, batch_files="copy")
    assert (home.landed(), home.files()) == ([], [])


@pytest.mark.parametrize("is_removable", [True, False])
def test_copies_land_all_or_none(
    home: TargetHome, monkeypatch: pytest.MonkeyPatch, *, is_removable: bool
) -> None:
    """A copy that landed would be ingested, and again when the tap sends its BATCH again."""
    paths = [batch_file(home.root / name, 1) for name in ("a.jsonl.gz", "b.jsonl.gz")]

    def fail_second(point: str) -> None:
        first = [*(home.root / "home/landing/orders").glob("[!.]*")]
        if point == "target.before_rename" and first:
            if not is_removable:
                first[0].unlink()
                first[0].mkdir()
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(landing_files, "failpoint", fail_second)
    messages = schema(), batch(*map(str, paths))
    text = "No partial file is left" if is_removable else "000001.jsonl.gz may be complete"
    home.assert_error(ConfigurationError, text, *messages, batch_files="copy")
    assert (home.landed(), home.files()) == ([], [])


def test_batch_files_are_copied_if_configured(home: TargetHome) -> None:
    path = batch_file(home.root / "a.jsonl.gz", 1)
    home.run(schema(), batch(str(path)), batch_files="copy")
    (landed,) = home.files()
    assert landed.read_bytes() == path.read_bytes()
    assert landed.parent == home.root / "home/landing/orders"


def test_batch_of_parquet_is_registered_in_place(home: TargetHome) -> None:
    path = home.root / "a.parquet"
    path.write_bytes(parquet(pa.table({"id": [1, 2]})))
    home.run(schema(), batch(str(path), encoding={"format": "parquet", "compression": "gzip"}))
    assert home.files() == [path]


def test_batch_of_parquet_is_rewritten_for_jsonl_stream(home: TargetHome) -> None:
    home.write_stream_file("{uri: ./in, format: jsonl}")
    path = home.root / "a.parquet"
    path.write_bytes(parquet(pa.table({"id": [1, 2], "name": ["a", None]})))
    message = batch(str(path), **_PARQUET)
    open_schema = {"properties": {"id": {"type": "integer"}, "name": {"type": ["null", "string"]}}}
    assert home.run(schema(schema=open_schema), message, state(1)) == [{"at": 1}]
    assert home.records() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert home.files()[0].name.endswith(".jsonl.gz")


def test_stream_map_is_applied_to_batch_files(home: TargetHome) -> None:
    """Files are rewritten, so that no masked value is landed."""
    path = batch_file(home.root / "a.gz", 1, 2)
    messages = schema(), batch(str(path)), state(1)
    assert home.run(*messages, stream_maps={"orders": None}) == [{"at": 1}]
    assert home.files() == []
    home.run(*messages, stream_maps={"orders": {"name": None, "__filter__": "id != 2"}})
    assert home.records() == [{"id": 1}]
    assert path not in home.files()


def test_error_after_records_of_batch_landed_does_not_deny_it(home: TargetHome) -> None:
    path = home.root / "a.gz"
    path.write_bytes(gzip.compress(b'{"id": 1}\n{"id": 2, "id": 3}\n'))
    config = {"add_record_metadata": True, "max_records": 1}
    printed, error = home.run_until_error(schema(), batch(str(path)), state(1), **config)
    assert isinstance(error, MessageError)
    assert "line 2 has id twice" in str(error)
    assert "was registered" not in str(error)
    assert (printed, home.ids()) == ([], [1])


def test_metadata_columns_are_added_to_batch_files(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1)
    home.run(schema(), batch(str(path), version=3), add_record_metadata=True)
    (landed_record,) = home.records()
    assert (landed_record["id"], landed_record["_sdc_table_version"]) == (1, 3)


def test_empty_batch_file_is_not_registered(home: TargetHome) -> None:
    path = home.root / "a.gz"
    path.write_bytes(gzip.compress(b""))
    assert home.run(schema(), batch(str(path)), state(1)) == [{"at": 1}]
    assert home.files() == []


class _UppercaseSink(LandingSink):
    """A sink that overrides how BATCH files are read, as SDK sinks may."""

    def process_batch_files(self, encoding: Any, files: Sequence[str]) -> None:
        for file in files:
            text = gzip.decompress(Path(file).read_bytes()).decode().upper()
            rows = [{"id": json.loads(line)["ID"]} for line in text.splitlines()]
            self.process_batch({"records": rows})


class _UppercaseTarget(TargetBatchPipeline):
    default_sink_class = _UppercaseSink


def test_sink_subclass_can_override_process_batch_files(home: TargetHome) -> None:
    path = batch_file(home.root / "a.gz", 1, 2)
    uppercase = replace(home, target_class=_UppercaseTarget)
    assert uppercase.run(schema(), batch(str(path)), state(1)) == [{"at": 1}]
    assert uppercase.records() == [{"id": 1}, {"id": 2}]
