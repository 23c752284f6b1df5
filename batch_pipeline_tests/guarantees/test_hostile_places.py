"""Locations that others write reach no file and no host but those below the roots of a stream."""

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
from batch_pipeline.encode.task import run_tasks
from batch_pipeline.encode.task_values import TaskReport, TaskSpec
from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.errors import (
    BadFileError,
    InvalidValueError,
    SourceUnavailableError,
    StreamFileError,
)
from batch_pipeline.model.item import Item, LandedFile, modified_at
from batch_pipeline.model.location import S3, Roots, scheme_of, to_location, to_uri
from batch_pipeline.model.record_rules import BadFileRules, BadRecordRules, OnBadFile
from batch_pipeline.model.schema import Column, RecordSchema
from batch_pipeline.model.stream import Source, Storage, Stream, TableSource
from batch_pipeline.singer.parser import BatchEncoding, BatchMessage, MessageError
from batch_pipeline.singer.target.batches import locate
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.local import OutsideError, open_within
from batch_pipeline_tests.factories import CONTEXT, stream
from batch_pipeline_tests.guarantees.inputs.listener import Listener, listening
from batch_pipeline_tests.guarantees.inputs.places import SECRET, Ground
from batch_pipeline_tests.proofs import Figures

pytestmark = pytest.mark.guarantee("S1")

STREAM_FILE = """\
type: batch_pipeline.BatchStream
attributes:
  stream: orders
"""


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Exports, and what lies beside them."""
    made = Ground(tmp_path / "ground")
    made.build()
    return made


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch, figures: Figures) -> Iterator[Listener]:
    """A port that is the S3 endpoint, too; that nobody connected is checked in the end."""
    with listening() as made:
        _use(made, monkeypatch)
        yield made
    s3_client.forget()
    assert made.connections == 0
    figures(requests_seen=made.connections)


def _use(endpoint: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{endpoint.address}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobody")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3_client.forget()


def fed_by_rows(ground: Ground) -> Stream:
    """A stream over a user's table, with the exports and a prefix as its roots."""
    roots = (to_uri(ground.exports), "s3://bucket/exports")
    return stream(source=TableSource(table="files", roots=roots))


def content(location: str, described: Stream) -> str:
    """Read a file as a task does."""
    with open_source(LandedFile(location=location), described) as source:
        return source.read(2**20).decode()


def test_rows_reach_no_file_outside_of_the_roots(
    ground: Ground, listener: Listener, figures: Figures
) -> None:
    """Expect each location to be refused by its text, or when its file is opened; and the text as
    it stands, which is what is opened where bad rows are set aside, to give no secret either.
    """
    described, reached, refused = fed_by_rows(ground), 0, 0
    hostile = list(ground.hostile(listener.address))
    for written in hostile:
        with suppress(InvalidValueError, BadFileError):
            reached += content(to_location(written), described) != "id\n1\n"
        with suppress(BadFileError):
            reached += content(written, described) != "id\n1\n"
            continue
        refused += 1
    assert len(hostile) > 150
    assert reached == 0
    assert refused > len(hostile) - 10  # some lead back to a file that may be read
    for written in ground.honest():
        assert content(to_location(written), described).startswith("id\n1")
    figures(hostile_locations=2 * len(hostile), files_reached=reached)


def test_tasks_of_executors_set_such_files_aside(
    ground: Ground, listener: Listener, tmp_path: Path, figures: Figures
) -> None:
    """Expect a task, which has its stream as JSON, to open none of them, and no secret to be in
    what it writes, quarantine and reasons too.
    """
    (tmp_path / "batches").mkdir()
    described = replace(
        fed_by_rows(ground),
        storage=Storage(root=to_uri(tmp_path / "batches")),
        on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE),
        on_bad_record=BadRecordRules(max_bad_ratio=1),
    )
    written = [*ground.honest(), *ground.hostile(listener.address)]
    items = [
        Item(id=number, file=LandedFile(location=one), row_weight=1)
        for number, one in enumerate(written)
    ]
    spec = TaskSpec(
        number=0,
        stem="orders-1",
        stream=described,
        schema=RecordSchema((Column.from_text("id", "string"),)),
        items=tuple(items),
        context=CONTEXT,
    )
    asked = pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(spec)])], ["spec"])
    [answer] = run_tasks(iter([asked]))
    report = msgspec.json.decode(answer.column("report")[0].as_py(), type=TaskReport)
    assert report.failure is None
    good = [item.location for item in report.items if item.bad_file is None]
    assert f"file://{ground.exports}/a.csv" in good
    assert len(good) < 10
    outside = [one for one in report.items if "lies outside of `source.me" in str(one.bad_file)]
    assert len(outside) > 100
    octets = b"".join(
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in (tmp_path / "batches").rglob("*")
        if path.is_file()
    )
    assert octets
    assert b'"secret"' not in octets
    assert b"root:" not in octets
    figures(hostile_locations=len(written), files_reached=0)


def test_object_below_the_roots_is_asked_for(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the port of these tests to hear what is allowed."""
    with listening() as endpoint:
        _use(endpoint, monkeypatch)
        with pytest.raises(SourceUnavailableError):
            content("s3://bucket/exports/a.csv", fed_by_rows(ground))
    s3_client.forget()
    assert endpoint.connections > 0


def test_landings_read_no_file_that_a_link_leads_to(ground: Ground) -> None:
    """Expect a file that is replaced by a link, or whose folder is, once it is registered, not to
    be read, though size and time are the same.
    """
    described = stream(source=Source(uri=to_uri(ground.exports)))
    for name, swapped in (("a.csv", "a.csv"), ("deep/a.csv", "deep")):
        path, other = ground.exports / name, ground.folder / "secret" / "a.csv"
        path.write_text("id\npublic\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        os.utime(other, (1_700_000_000, 1_700_000_000))
        status = path.stat()
        found = LandedFile(
            location=to_uri(path), size_bytes=status.st_size, modified_at=modified_at(status)
        )
        assert status.st_size == other.stat().st_size
        (ground.exports / swapped).rename(ground.folder / f"old-{swapped}")
        target = other if swapped == name else other.parent
        (ground.exports / swapped).symlink_to(target)
        with pytest.raises(BadFileError, match=r"lies outside of `source\.roots`"):
            content_of(found, described)
        allowed = Source(uri=to_uri(ground.exports), roots=(to_uri(other.parent),))
        assert content_of(found, replace(described, source=allowed)) == SECRET


def content_of(found: LandedFile, described: Stream) -> str:
    """Read a registered file as a task does."""
    with open_source(found, described) as source:
        return source.read(2**20).decode()


def test_what_was_registered_elsewhere_is_read_there_and_through_no_link(ground: Ground) -> None:
    """Expect a file of a BATCH message, which lies outside of the landing, to be read at its real
    path alone.
    """
    described = stream(source=Source(uri=to_uri(ground.exports)))
    real = ground.folder / "secret" / "a.csv"
    assert content(to_uri(real), described) == SECRET
    (ground.folder / "alias").symlink_to(real.parent)
    with pytest.raises(BadFileError, match=r"lies outside of `source\.roots`"):
        content(to_uri(ground.folder / "alias" / "a.csv"), described)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_link_that_is_swapped_all_the_time_never_leads_out(
    ground: Ground, what: str, figures: Figures, *, long_form: bool
) -> None:
    """Expect what is opened to be what is checked, however the moment is chosen."""
    times = 50_000 if long_form else 1_500
    roots = Roots(uris=(to_uri(ground.exports),), key="roots")
    folder = ground.exports / "swapped"
    inner, outer = ground.exports / "deep", ground.folder / "secret"
    (inner / "a.csv").write_text("id\npublic\n")
    if what == "file":
        folder.mkdir()
        turned, ends = folder / "a.csv", (inner / "a.csv", outer / "a.csv")
    else:
        turned, ends = folder, (inner, outer)
    over = threading.Event()

    def swap() -> None:
        aside = ground.folder / "aside"
        while not over.is_set():
            for end in ends:
                aside.symlink_to(end)
                aside.rename(turned)

    aside = ground.folder / "first"
    aside.symlink_to(ends[0])
    aside.rename(turned)
    thread = threading.Thread(target=swap)
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
        over.set()
        thread.join()
    assert leaked == 0
    assert read > 0
    assert refused > 0
    figures(races=times, files_reached=leaked)


def test_batch_messages_reach_no_file_outside_of_the_roots(
    ground: Ground, listener: Listener, figures: Figures
) -> None:
    """Expect each entry of a manifest to be refused with its line, or to be a file of the roots by
    its real path.
    """
    roots = Roots(uris=(to_uri(ground.exports), "s3://bucket/exports"), key="batch_roots")
    hostile, inside = list(ground.hostile(listener.address)), 0
    for written in hostile:
        message = BatchMessage(
            line=2,
            stream="orders",
            encoding=BatchEncoding(format=Format.JSONL, compression=Compression.GZIP),
            manifest=(written,),
        )
        try:
            [place] = locate(message, None, roots)
        except MessageError:
            continue
        assert place.path is not None
        assert place.path == place.path.resolve()
        assert place.path.is_relative_to(ground.exports.resolve())
        inside += 1
    assert inside < 10
    figures(hostile_locations=len(hostile))


@pytest.mark.parametrize("key", ["source.uri", "storage.root", "source.meta_table.roots"])
def test_stream_files_name_folders_and_buckets_of_s3_only(
    ground: Ground, tmp_path: Path, listener: Listener, key: str, figures: Figures
) -> None:
    """Expect every place of a stream to be refused, or to be one of a disk or of S3."""
    hostile = list(ground.hostile(listener.address))
    path = tmp_path / "orders" / "defs.yaml"
    path.parent.mkdir()
    for written in hostile:
        text = json.dumps(written)
        described = {
            "source.uri": f"  source: {{uri: {text}}}\n",
            "storage.root": f"  source: {{uri: ./in}}\n  storage: {{root: {text}}}\n",
            "source.meta_table.roots": f"  source: {{meta_table: {{table: t, roots: [{text}]}}}}\n",
        }
        path.write_text(STREAM_FILE + described[key], encoding="utf-8")
        try:
            read = read_stream_file(path)
        except StreamFileError:
            continue
        for uri in (*read.source.within.uris, read.storage.root):
            assert scheme_of(uri) in {"file", S3}, written
    figures(hostile_locations=len(hostile))
