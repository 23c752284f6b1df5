"""Buckets in stream files: which locations are taken, and how new objects are noticed."""

from datetime import timedelta
from pathlib import Path

import pytest

from batch_pipeline.config.stream_file import read_stream_file
from batch_pipeline.model.stream import Arrivals, KeyOrder, Source
from batch_pipeline_tests.config.test_stream_file_mistakes import MINIMAL, refusal_of, stream_file

BUCKET = "uri: s3://bucket/landing"
QUARTER = timedelta(minutes=15)
QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/landed"
TARGETS = "targets: {dw: {postgres: {conn: $DW}}}"


def _with_source(source: str, *lines: str) -> str:
    more = "".join(f"  {line}\n" for line in lines)
    return MINIMAL.replace("uri: ./landing", source) + more


def _source(folder: Path, text: str) -> Source:
    source = read_stream_file(stream_file(folder, _with_source(text))).source
    assert isinstance(source, Source)
    return source


@pytest.mark.parametrize(
    ("written", "uri"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://bucket/a", "s3://bucket/a"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("s3n://bucket/a", "s3://bucket/a"),
        ("s3://bucket/a b/é%20c", "s3://bucket/a b/é%20c"),
        ("s3://my.bucket-1/a//b", "s3://my.bucket-1/a//b"),
    ],
)
def test_bucket_as_landing_is_kept_as_a_prefix_without_a_slash(
    tmp_path: Path, written: str, uri: str
) -> None:
    """Expect the key as it stands: nothing is escaped, or taken out."""
    assert _source(tmp_path, f'uri: "{written}"').uri == uri


def test_bucket_may_be_storage(tmp_path: Path) -> None:
    """Expect the same locations for what is written."""
    storage = "storage: {root: s3a://bucket/out/, keep_loaded: 1d}"
    stream = read_stream_file(stream_file(tmp_path, _with_source(BUCKET, TARGETS, storage)))
    assert stream.storage.root == "s3://bucket/out"


@pytest.mark.parametrize(
    ("source", "order", "queue", "relist"),
    [
        ("", KeyOrder.ANY, None, None),
        (", listing: {order: ascending}", KeyOrder.ASCENDING, None, None),
        (", listing: {order: ascending, relist: 15m}", KeyOrder.ASCENDING, None, QUARTER),
        (f", events: {{queue: '{QUEUE}'}}, listing: {{relist: 15m}}", KeyOrder.ANY, QUEUE, QUARTER),
    ],
    ids=["usual", "ascending", "ascending-15m", "events"],
)
def test_bucket_is_listed_as_the_file_says(
    tmp_path: Path, source: str, order: KeyOrder, queue: str | None, relist: timedelta | None
) -> None:
    """Expect everything at each look, or once in an hour where something else tells of news."""
    found = _source(tmp_path, BUCKET + source).arrivals
    assert found == Arrivals(order=order, queue=queue, relist=relist)
    assert found.relist_every == (relist or timedelta(hours=1) if source else None)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("uri: ./landing, listing: {order: ascending}", "`.listing` is there for buckets only"),
        (f"uri: ./landing, events: {{queue: '{QUEUE}'}}", "`.events` is there for buckets only"),
        ("listing: {relist: 1h}", "`.listing.relist` is '1:00:00'; expected none without `order:"),
        ("listing: {order: ascending, relist: 0}", "`.listing.relist` is '0:00:00'; expected more"),
        (
            f"listing: {{order: ascending}}, events: {{queue: '{QUEUE}'}}",
            "`.listing.order` is 'ascending'; expected none beside `.events`",
        ),
        (
            "events: {queue: landed}",
            "`.events.queue` is not a usable queue; expected the URL of an",
        ),
        (
            "events: {queue: 'https://me:hunter2@sqs/1/landed'}",
            "`.events.queue` is not a usable queue",
        ),
    ],
    ids=range(7),
)
def test_listing_that_makes_no_sense_is_refused(tmp_path: Path, source: str, problem: str) -> None:
    place = "" if source.startswith("uri") else f"{BUCKET}, "
    refusal = refusal_of(tmp_path, _with_source(place + source))
    assert refusal.problem.replace("source.", ".").startswith(problem)
    assert "hunter2" not in str(refusal)
