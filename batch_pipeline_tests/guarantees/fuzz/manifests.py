"""Pointer files of which records and publish number are read, or which are refused."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from batch_pipeline.domain.job import JobKind
from batch_pipeline.domain.origin import Origin, OriginItem, OriginJob
from batch_pipeline.domain.pointed import read_pointer, stream_of
from batch_pipeline.domain.restored import ManifestUnfitError
from batch_pipeline.files.pointers import pointer_text
from batch_pipeline_tests.factories import NOON, manifest, part_file, record_schema
from batch_pipeline_tests.guarantees.fuzz.harness.targets import Check, Outcome, expect

NAME = "orders-000000000001-000000000003.g1.json"
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
    """Return a check that compares what is read with the JSON."""

    def check(data: bytes) -> Outcome:
        try:
            found = read_pointer(data, NAME)
        except ManifestUnfitError as error:
            said = str(error)
            expect(NAME in said and len(said) < 20_000, said[:200])
            stream_of(data, NAME)
            return Outcome.REFUSED
        values = json.loads(data)
        expect(found.records == sum(one["records"] for one in values["part_files"]), found.records)
        origin = values.get("inventory")
        expect(found.number == (origin and origin["publish_number"]), found.number)
        return Outcome.READ

    return check
