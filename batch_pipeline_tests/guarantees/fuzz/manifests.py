"""Pointer files that an inventory is brought up to: read as they were written, or refused."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.origin import Origin, OriginItem, OriginJob
from batch_pipeline.domain.pointed import read_pointer, stream_of
from batch_pipeline.domain.restored import ManifestUnfitError
from batch_pipeline.domain.stream import Storage
from batch_pipeline.files.pointers import pointer_text
from batch_pipeline_tests.factories import NOON, manifest, part_file, record_schema
from batch_pipeline_tests.guarantees.fuzz.harness.targets import Check, Outcome, expect

NAME = "orders-000000000001-000000000003.g1.json"
STORAGE = Storage(root="file:///batches")
_TOKEN = UUID("12345678-1234-4234-8234-123456789012")
_PART = "orders-000000000001-000000000003-a1-12345678-00000000-0123abcd.jsonl.gz"
_ITEMS = (
    OriginItem(
        id=1,
        read=5,
        written=5,
        filtered=0,
        quarantined=0,
        location="file:///landing/a%20b.csv",
        size_bytes=10,
        modified_at=NOON,
        etag="x",
    ),
    OriginItem(id=3, read=1, written=0, filtered=0, quarantined=1, bad_file="is not there"),
)
_JOB = OriginJob(
    stream="orders",
    kind=JobKind.INCREMENTAL,
    meta_table="orders",
    config={"limits": {"max_count": 5}},
    max_attempts=3,
    bisect=True,
)
_ORIGIN = Origin(
    job=_JOB,
    publish_number=7,
    run_id="r",
    started_at=NOON,
    published_at=NOON,
    planned_with={},
    facts={"spilled": 1},
    weight_read=10,
    schema=record_schema("order_id", "price"),
    items=_ITEMS,
)
_MANIFEST = manifest(
    token=_TOKEN,
    part_files=(part_file(_PART),),
    items=2,
    records_read=6,
    records_quarantined=1,
    schema=_ORIGIN.schema,
    origin=_ORIGIN,
)
POINTERS: list[Any] = [json.loads(pointer_text(_MANIFEST))]


def open_check(_folder: Path) -> Check:
    """What is read says the same when it is written again."""

    def check(data: bytes) -> Outcome:
        try:
            found = read_pointer(data, NAME, STORAGE)
        except ManifestUnfitError as error:
            told = str(error)
            expect(NAME in told and len(told) < 20_000, told[:200])
            stream_of(data, NAME)
            return Outcome.REFUSED
        again = read_pointer(pointer_text(found).encode(), NAME, STORAGE)
        expect(again == found, again, found)
        said = json.loads(data)
        expect(found.batch.key == said["batch_id"], found.batch.key)
        expect(str(found.token) == str(UUID(said["token"])), found.token)
        expect([one.uri for one in found.part_files] == [one["uri"] for one in said["part_files"]])
        return Outcome.READ

    return check
