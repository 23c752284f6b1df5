"""Pointer files read back: what was written comes out, and what anybody may write is refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.origin import Origin, OriginItem, OriginJob
from batch_pipeline.domain.pointed import read_pointer, stream_of
from batch_pipeline.domain.restored import ManifestUnfitError
from batch_pipeline.domain.stream import Storage
from batch_pipeline.files.pointers import pointer_text
from batch_pipeline_tests.factories import NOON, batch, manifest, part_file, record_schema

STORAGE = Storage(root="file:///batches")
NAME = "orders-000000000001-000000000003.g1.json"
TOKEN = UUID("12345678-1234-4234-8234-123456789012")
PART = "orders-000000000001-000000000003-a1-12345678-00000000-abcdef01.jsonl.gz"
Harm = Callable[[dict[str, Any]], object]


def item(item_id: int, **overrides: Any) -> OriginItem:
    """A file of 10 bytes with five records."""
    facts: dict[str, Any] = {
        "id": item_id,
        "read": 5,
        "written": 5,
        "filtered": 0,
        "quarantined": 0,
        "location": f"file:///landing/{item_id}.csv",
        "size_bytes": 10,
        "modified_at": NOON,
    }
    return OriginItem(**(facts | overrides))


def origin(**overrides: Any) -> Origin:
    """Where the manifest of `written` comes from."""
    facts: dict[str, Any] = {
        "job": OriginJob(
            stream="orders",
            kind=JobKind.INCREMENTAL,
            meta_table="batch_pipeline.item",
            config={},
            max_attempts=3,
            bisect=False,
        ),
        "publish_number": 7,
        "run_id": "run-1",
        "started_at": NOON,
        "published_at": NOON,
        "planned_with": {"max_count": "10"},
        "facts": {"items": 1, "read": 5, "written": 5},
        "weight_read": 10,
        "schema": record_schema(),
        "items": (item(2, etag="abc", bad_file="torn"),),
    }
    return Origin(**(facts | overrides))


def written(**overrides: Any) -> Manifest:
    """A manifest with its origin, whose files are named as its attempt names them."""
    one = batch(id=0, oversized=True)
    facts = {"batch": one, "part_files": (part_file(PART),), "origin": origin()}
    return manifest(**(facts | overrides))


def refused(harm: Harm, name: str = NAME) -> str:
    """Read the file of `written` after something was done to it, and give what is wrong."""
    values = json.loads(pointer_text(written()))
    harm(values)
    with pytest.raises(ManifestUnfitError) as caught:
        read_pointer(json.dumps(values).encode(), name, STORAGE)
    return caught.value.problem


def test_pointer_file_read_back_is_the_manifest_that_was_written() -> None:
    """Expect manifest and origin, value by value."""
    one = written()
    read = read_pointer(pointer_text(one).encode(), NAME, STORAGE)
    assert (read, read.origin) == (one, one.origin)


def test_pointer_file_of_a_list_read_back_has_its_ids() -> None:
    """Expect the ids of late arrivals, and a range that begins and ends with them."""
    ids = IdRange(first_id=1, last_id=3)
    one = written(batch=batch(id=0, id_range=ids, item_ids=(1, 2, 3), count=3))
    read = read_pointer(pointer_text(one).encode(), NAME, STORAGE)
    assert read.batch.item_ids == (1, 2, 3)


def test_pointer_file_is_for_people_but_for_one_line() -> None:
    """Expect the form that it has always had, and one line more in the end."""
    plain, whole = pointer_text(manifest()), pointer_text(replace(manifest(), origin=origin()))
    head = plain.removesuffix("\n}\n")
    assert whole.startswith(f'{head},\n  "inventory": {{"version": 1, ')
    assert whole.count("\n") == plain.count("\n") + 1
    assert json.loads(whole)["inventory"]["publish_number"] == 7


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "no JSON"),
        (b"[]", "no JSON object"),
        (b"[" * 100_000, "no JSON"),
        (b'{"inventory": NaN}', "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b'{"stream": "orders"}', "a release that did not say enough"),
        (b'{"inventory": 7}', "inventory is no JSON object"),
    ],
    ids=["empty", "list", "deep", "NaN", "bytes", "earlier release", "number"],
)
def test_pointer_file_that_is_none_is_refused(text: bytes, problem: str) -> None:
    """Expect a word on what it is instead."""
    with pytest.raises(ManifestUnfitError, match=problem):
        read_pointer(text, NAME, STORAGE)


def put(*path: str | int, value: object) -> Harm:
    """Give what writes a value at a place of the file."""

    def harm(values: Any) -> None:
        for step in path[:-1]:
            values = values[step]
        values[path[-1]] = value

    return harm


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (put("generation", value=2), "another batch or generation than its name"),
        (put("batch_id", value="000000000001-000000000004"), "than its name"),
        (put("stream", value="clicks"), "than its name"),
        (put("batch_id", value="../../etc"), "partition key"),
        (put("token", value="x"), "its token or its encoding is none"),
        (put("token", value=str(UUID(int=7))), "none of its attempt"),
        (put("encoding", "format", value="exe"), "its encoding is none"),
        (put("part_files", 0, "uri", value="file:///etc/passwd"), "none of its attempt"),
        (put("part_files", 0, "uri", value=f"file:///batches/../{PART}"), "none of its attempt"),
        (put("part_files", 0, "uri", value=f"http://evil/{PART}"), "none of its attempt"),
        (put("part_files", 0, "sha256", value="abc"), "sha256 is none"),
        (put("part_files", 0, "size_bytes", value=-1), "size_bytes is no whole number"),
        (put("part_files", 0, "records", value=True), "records is no whole number"),
        (put("part_files", value={}), "part_files is no list"),
        (put("attempt", value=2**31), "attempt is no whole number"),
        (put("records", "read", value=1.5), "records.read is no whole number"),
        (put("inventory", "version", value=2), "a newer release wrote it"),
        (put("inventory", "publish_number", value=0), "publish_number is no whole number"),
        (put("inventory", "started_at", value="yesterday"), "started_at is no time"),
        (put("inventory", "started_at", value="2026-01-01"), "started_at has no zone"),
        (put("inventory", "columns", value=[["a", "money"]]), "its columns are none"),
        (put("inventory", "columns", value=[1]), "its columns are none"),
        (put("inventory", "job", "kind", value="secret"), "its job is of no kind"),
        (put("inventory", "job", "bisect", value=0), "neither true nor false"),
        (put("inventory", "items", 0, "id", value=4), "not of its batch"),
        (put("inventory", "items", value=[]), "not so many"),
        (put("inventory", "items", 0, "read", value=6), "6"),
        (put("inventory", "items", 0, "location", value="ftp://x/y"), "location"),
        (put("inventory", "items", 0, "location", value="file:///a/%2e./b"), "not written as"),
        (put("inventory", "items", 0, "location", value="file:///a/../b"), "not written as"),
        (put("inventory", "items", 0, "size_bytes", value=None), "size or time are missing"),
        (put("inventory", "batch", "item_ids", value=[3, 1]), "no rising numbers"),
        (put("inventory", "batch", "item_ids", value=[1, 2]), "begin and end"),
        (put("stream", value="x\0"), "stream is no text"),
    ],
)
def test_pointer_file_that_contradicts_itself_is_refused(harm: Harm, problem: str) -> None:
    """Expect a word on where."""
    assert problem in refused(harm)


def test_pointer_file_tells_its_stream_or_nothing() -> None:
    """Expect the name in the file, and None where it is not one of ours."""
    assert stream_of(pointer_text(written()).encode(), NAME) == "orders"
    assert stream_of(b'{"inventory": {"job": {"stream": 7}}}', NAME) is None
    assert stream_of(b"no JSON", NAME) is None


def test_times_read_back_are_those_of_one_zone() -> None:
    """Expect UTC, whatever zone was written."""
    values = json.loads(pointer_text(written()))
    values["inventory"]["started_at"] = "2026-03-01T14:00:00+02:00"
    read = read_pointer(json.dumps(values).encode(), NAME, STORAGE)
    assert read.origin is not None
    assert read.origin.started_at == datetime(2026, 3, 1, 12, tzinfo=UTC)
