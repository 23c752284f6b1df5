"""Untrusted locations reach only files and hosts below the roots of a stream."""

import gzip
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.encode.task import TaskReport, run_tasks
from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.errors import (
    BadFileError,
    InvalidValueError,
    SourceUnavailableError,
    StreamFileError,
)
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import S3, Roots, scheme_of, to_location, to_uri
from batch_pipeline.model.record_rules import BadFileRules, BadRecordRules, OnBadFile
from batch_pipeline.model.stream import Source, Storage, Stream, TableSource
from batch_pipeline.singer.parser import BatchEncoding, BatchMessage, MessageError
from batch_pipeline.singer.target.batches import locate
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.local import OutsideError, open_within
from batch_pipeline_tests.encode.task_fixture import task_spec
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.guarantees.inputs.hostile import SECRET, Exports, count_connections
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.storage_roots import content, landed_file

pytestmark = pytest.mark.guarantee("S1")

STREAM_FILE = """\
type: batch_pipeline.BatchStream
attributes:
  stream: orders
"""
SOURCES = {
    "source.uri": "  source: {{uri: {}}}\n",
    "storage.root": "  source: {{uri: ./in}}\n  storage: {{root: {}}}\n",
    "source.meta_table.roots": "  source: {{meta_table: {{table: t, roots: [{}]}}}}\n",
}


@pytest.fixture
def exports(tmp_path: Path) -> Exports:
    """A folder that may be read, beside files that may not."""
    exports = Exports(tmp_path / "parent")
    exports.build()
    return exports


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, figures: Figures) -> Iterator[str]:
    """Address of a port that is also the S3 endpoint, and must not get any connection."""
    with count_connections() as counter:
        use_as_endpoint(counter.address, monkeypatch)
        yield counter.address
    s3_client.forget()
    assert counter.connections == 0
    figures(requests_seen=counter.connections)


def use_as_endpoint(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobody")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3_client.forget()


def table_stream(exports: Exports) -> Stream:
    """Return a stream of a user's table, with the exports and an S3 prefix as roots."""
    roots = (to_uri(exports.folder), "s3://bucket/exports")
    return stream(source=TableSource(table="files", roots=roots))


def read(file: LandedFile | str, orders: Stream) -> str:
    file = LandedFile(location=file) if isinstance(file, str) else file
    with open_source(file, orders) as source:
        return source.read(2**20).decode()


def test_encode_task_quarantines_files_outside_roots(
    exports: Exports, host: str, tmp_path: Path, figures: Figures
) -> None:
    """Part files, quarantine files and reasons contain no secret.

    The raw text of a row is tried as well, because it is opened if bad rows are quarantined.
    """
    (tmp_path / "batches").mkdir()
    orders = replace(
        table_stream(exports),
        storage=Storage(root=to_uri(tmp_path / "batches")),
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE),
        on_bad_record=BadRecordRules(max_bad_ratio=1),
    )
    allowed = [to_location(text) for text in exports.allowed_locations()]
    hostile = list(exports.hostile_locations(host))
    locations = [*allowed, *hostile]
    for text in hostile:
        with suppress(InvalidValueError):
            locations.append(to_location(text))
    items = (
        Item(id=number, file=LandedFile(location=location), row_weight=1)
        for number, location in enumerate(locations)
    )
    spec = task_spec(orders, items, {"id": "string"})
    request = pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(spec)])], ["spec"])
    [response] = run_tasks(iter([request]))
    report = msgspec.json.decode(response.column("report")[0].as_py(), type=TaskReport)
    assert report.failure is None
    good = [item.location for item in report.items if item.bad_file is None]
    # Two of the hostile ones resolve to a file that may be read.
    resolved = [f"file://{exports.folder}/{name}" for name in ("//a.csv", "deep//b c.csv")]
    assert good == [*allowed, *resolved]
    outside = [item for item in report.items if "is outside `source.me" in str(item.bad_file)]
    assert len(hostile) > 150
    assert len(outside) > 200
    [part] = report.part_files
    assert gzip.decompress(content(part.uri)) == b'{"id":"1"}\n' * len(good)
    written = b"".join(
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in (tmp_path / "batches").rglob("*")
        if path.is_file()
    )
    assert b'"secret"' not in written
    assert b"root:" not in written
    figures(hostile_locations=len(locations), files_reached=0)


def test_object_below_roots_is_requested(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    with count_connections() as counter:
        use_as_endpoint(counter.address, monkeypatch)
        with pytest.raises(SourceUnavailableError):
            read("s3://bucket/exports/a.csv", table_stream(exports))
    s3_client.forget()
    assert counter.connections > 0


def test_landed_file_replaced_by_link_is_not_read(exports: Exports) -> None:
    """The link replaces the file or its folder after registration. Size and time are equal."""
    orders = stream(source=Source(uri=to_uri(exports.folder)))
    for name, swapped in (("a.csv", "a.csv"), ("deep/a.csv", "deep")):
        path, other = exports.folder / name, exports.parent / "secret" / "a.csv"
        path.write_text("id\npublic\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        os.utime(other, (1_700_000_000, 1_700_000_000))
        file = landed_file(path)
        assert file.size_bytes == other.stat().st_size
        (exports.folder / swapped).rename(exports.parent / f"old-{swapped}")
        (exports.folder / swapped).symlink_to(other if swapped == name else other.parent)
        with pytest.raises(BadFileError, match=r"is outside `source\.roots`"):
            read(file, orders)
        allowed = Source(uri=to_uri(exports.folder), roots=(to_uri(other.parent),))
        assert read(file, replace(orders, source=allowed)) == SECRET


def test_file_registered_outside_source_is_read_but_not_through_link(exports: Exports) -> None:
    orders = stream(source=Source(uri=to_uri(exports.folder)))
    real = exports.parent / "secret" / "a.csv"
    assert read(to_uri(real), orders) == SECRET
    (exports.parent / "alias").symlink_to(real.parent)
    with pytest.raises(BadFileError, match=r"is outside `source\.roots`"):
        read(to_uri(exports.parent / "alias" / "a.csv"), orders)


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_link_swapped_during_reads_never_leads_outside_roots(
    exports: Exports, linked: str, figures: Figures, *, long_form: bool
) -> None:
    times = 50_000 if long_form else 1_500
    roots = Roots(uris=(to_uri(exports.folder),), key="roots")
    folder = exports.folder / "swapped"
    inner, outer = exports.folder / "deep", exports.parent / "secret"
    (inner / "a.csv").write_text("id\npublic\n")
    link, targets = folder, (inner, outer)
    if linked == "file":
        folder.mkdir()
        link, targets = folder / "a.csv", (inner / "a.csv", outer / "a.csv")
    stop = threading.Event()

    def swap(target: Path) -> None:
        new_link = exports.parent / "aside"
        new_link.symlink_to(target)
        new_link.rename(link)

    def swap_repeatedly() -> None:
        while not stop.is_set():
            for target in targets:
                swap(target)

    swap(inner if linked == "folder" else inner / "a.csv")
    thread = threading.Thread(target=swap_repeatedly)
    thread.start()
    read = refused = leaked = 0
    try:
        for _ in range(times):
            try:
                with open_within(to_uri(folder / "a.csv"), roots) as opened:
                    leaked += opened.read() != b"id\npublic\n"
                    read += 1
            except OutsideError:
                refused += 1
    finally:
        stop.set()
        thread.join()
    assert leaked == 0
    assert read > 0
    assert refused > 0
    figures(races=times, files_reached=leaked)


def test_batch_messages_cannot_locate_files_outside_roots(
    exports: Exports, host: str, figures: Figures
) -> None:
    roots = Roots(uris=(to_uri(exports.folder), "s3://bucket/exports"), key="batch_roots")
    hostile, inside = list(exports.hostile_locations(host)), 0
    encoding = BatchEncoding(format=Format.JSONL, compression=Compression.GZIP)
    for text in hostile:
        message = BatchMessage(line=2, stream="orders", encoding=encoding, manifest=(text,))
        try:
            [file] = locate(message, None, roots)
        except MessageError:
            continue
        assert file.path is not None
        assert file.path == file.path.resolve()
        assert file.path.is_relative_to(exports.folder.resolve())
        inside += 1
    assert inside < 10
    figures(hostile_locations=len(hostile))


@pytest.mark.parametrize("key", SOURCES)
def test_stream_file_accepts_only_local_and_s3_locations(
    exports: Exports, tmp_path: Path, host: str, key: str, figures: Figures
) -> None:
    hostile = list(exports.hostile_locations(host))
    path = tmp_path / "orders" / "defs.yaml"
    path.parent.mkdir()
    for text in hostile:
        path.write_text(STREAM_FILE + SOURCES[key].format(json.dumps(text)), encoding="utf-8")
        try:
            parsed = read_stream_file(path)
        except StreamFileError:
            continue
        for uri in (*parsed.source.within.uris, parsed.storage.root):
            assert scheme_of(uri) in {"file", S3}, text
    figures(hostile_locations=len(hostile))
