"""Listing a landing in a bucket: what counts as landed, with which facts, and what stops it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import ConfigurationError, LandingUnavailableError
from batch_pipeline.model.item import LandedFile, Registered
from batch_pipeline.model.stream import Source
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.landing import SourceLanding, compare
from batch_pipeline.storage.s3 import S3, S3FileSystem
from batch_pipeline_tests.factories import found_file, stream
from batch_pipeline_tests.storage.bucket_landing import BucketLanding, names


def test_found_object_has_the_facts_that_a_look_at_it_gives(place: BucketLanding) -> None:
    location = place.put("in/a b%20é+.csv", b"12345")
    [found] = place.landing().found_files()
    facts = S3.head(location)
    assert found.location == f"{place.bucket}/in/a b%20é+.csv"
    assert found.size_bytes == 5
    assert (found.modified_at, found.etag) == (facts.modified_at, facts.etag)
    assert found.etag is not None


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ({}, ["a.csv", "a.txt", "sub/b.csv"]),
        ({"include": ("*.csv",)}, ["a.csv", "sub/b.csv"]),
        ({"include": ("sub/*",)}, ["sub/b.csv"]),
        ({"include": ("*.csv",), "exclude": ("sub/*",)}, ["a.csv"]),
        ({"exclude": ("a*",)}, ["sub/b.csv"]),
    ],
    ids=["all", "name", "path", "exclude-path", "exclude-name"],
)
def test_found_objects_follow_include_and_exclude(
    place: BucketLanding, source: dict[str, Any], found: list[str]
) -> None:
    for key in ("in/a.csv", "in/a.txt", "in/sub/b.csv", "inside.csv", "other/a.csv"):
        place.put(key)
    assert names(place.landing(**source)) == found


def test_found_objects_leave_folders_and_unfinished_names_out(place: BucketLanding) -> None:
    for key in ("in/", "in/sub/", "in/a.tmp", "in/.hidden/a.csv", "in/_b.part", "in/c~"):
        place.put(key, b"")
    place.put("in/empty.csv", b"")
    assert names(place.landing()) == ["empty.csv"]


def test_found_objects_of_a_whole_bucket_have_any_key(place: BucketLanding) -> None:
    for key in ("b.csv", "a/1.csv", "é.csv", "Z.csv"):
        place.put(key)
    landing = place.landing(uri=place.bucket)
    assert [file.location for file in landing.found_files()] == [
        f"{place.bucket}/{key}" for key in ("Z.csv", "a/1.csv", "b.csv", "é.csv")
    ]


@pytest.mark.parametrize(
    "key", ["in/a.csv#bytes=0-9", "in/a.csv#bytes=0-9,size=10", "in/#bytes=9-1"]
)
def test_key_that_looks_like_a_range_is_told_unless_it_is_excluded(
    place: BucketLanding, key: str
) -> None:
    for one in ("in/+.csv", key, "in/b.csv"):
        place.put(one)
    landing = place.landing()
    assert [names(landing), names(landing)] == [["+.csv", "b.csv"]] * 2
    [told] = landing.troubles
    assert isinstance(told, ConfigurationError)
    assert key in str(told)
    assert "leave it out by `source.exclude`" in str(told)
    landing = place.landing(exclude=("*#bytes*",))
    assert (names(landing), landing.troubles) == (["+.csv", "b.csv"], [])


@pytest.mark.parametrize(("all_or_none", "registered"), [(False, 2), (True, None)])
def test_listing_that_breaks_off_registers_what_came_before(
    database: Database, all_or_none: bool, registered: int | None
) -> None:
    def broken() -> Iterator[LandedFile]:
        yield from (found_file(1), found_file(2))
        raise LandingUnavailableError("orders", "s3://bucket/in", "it does not answer")

    table = database.meta_table("orders")
    with pytest.raises(LandingUnavailableError):
        table.register(broken(), accept_changed=False, all_or_none=all_or_none)
    assert table.high_watermark() == registered


def test_key_with_other_marks_in_it_is_a_usual_one(place: BucketLanding) -> None:
    place.put("in/a#bytes=.csv")
    assert names(place.landing()) == ["a#bytes=.csv"]


def test_object_that_was_put_again_with_other_bytes_is_changed(
    place: BucketLanding, database: Database
) -> None:
    location = place.put("in/a.csv", b"id\n1\n")
    table, landing = database.meta_table("orders"), place.landing()
    table.register(landing.found_files(), accept_changed=False)
    place.put("in/a.csv", b"id\n1\n")
    assert table.register(landing.found_files(), accept_changed=False).changed == ()
    place.put("in/a.csv", b"id\n2\n")
    assert table.register(landing.found_files(), accept_changed=False).changed == (location,)
    assert table.register(landing.found_files(), accept_changed=True) == Registered(
        found=1, new_items=0, accepted=1
    )
    [item] = table.find("a.csv")
    assert item.file.etag == S3.head(location).etag


def test_object_with_a_hash_in_its_key_is_known_again(
    place: BucketLanding, database: Database
) -> None:
    ten = b'{"id":1}\n' * 10
    for key, octets in (("a", b"1"), ("a#1", b"2"), ("c#2.jsonl", ten), ("b#bytes=", b"4")):
        place.put(f"in/{key}", octets)
    table, landing = database.meta_table("orders"), place.landing()
    news = [_registered(database, landing).new_items for _ in range(2)]
    assert news == [6, 0]
    found = {name: [one.id for one in table.find(name)] for name in ("a", "a#1", "b#bytes=")}
    assert found == {"a": [1], "a#1": [2], "b#bytes=": [3]}
    assert [one.id for one in table.find(f"{place.uri}/c#2.jsonl")] == [4, 5, 6]
    location = place.put("in/a#1", b"3")
    assert _registered(database, landing).changed == (location,)


def _registered(database: Database, landing: SourceLanding) -> Registered:
    cutter = ItemCutter(stream=landing.stream, most_bytes=40)
    files = landing.found_files()
    return database.meta_table("orders").register(files, accept_changed=False, cutter=cutter)


def test_compare_tells_how_a_registered_object_stands_now(place: BucketLanding) -> None:
    place.put("in/a.csv", b"123")
    landing = place.landing()
    [found] = landing.found_files()
    assert compare(found) == "unchanged since"
    place.put("in/a.csv", b"456")
    assert compare(found) == "changed since: now 3 B"
    place.delete("in/a.csv")
    assert compare(found) == "now it cannot be read (no such file or directory)"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("a.csv", "there and not registered yet"),
        ("{bucket}/in/sub/a.csv", "there and not registered yet"),
        ("{s3a}/in/a.csv", "there and not registered yet"),
        ("a.csv.tmp", "unfinished"),
        ("a.txt", "left out by"),
        ("sub/", "stand for folders"),
        ("missing.csv", "no such file"),
        ("a.csv#bytes=0-1", "ranges of bytes"),
        ("{bucket}/elsewhere.csv", "outside"),
        ("/in/a.csv", "outside"),
        ("file:///in/a.csv", "outside"),
    ],
)
def test_why_not_tells_what_keeps_an_object_out(
    place: BucketLanding, file: str, reason: str
) -> None:
    for key in ("in/a.csv", "in/sub/a.csv", "in/a.csv.tmp", "in/a.txt", "elsewhere.csv"):
        place.put(key)
    place.put("in/sub/", b"")
    landing = place.landing(include=("*.csv", "*.tmp", "sub/"))
    s3a = place.bucket.replace("s3://", "s3a://")
    assert reason in landing.why_not(file.format(bucket=place.bucket, s3a=s3a))


def test_landing_in_a_missing_bucket_is_an_error(bucket: str) -> None:
    assert names(BucketLanding(bucket).landing()) == []
    with pytest.raises(LandingUnavailableError, match="there is no such bucket") as caught:
        names(BucketLanding(f"{bucket}-other").landing())
    assert "correct `source` in the stream file" in str(caught.value)


def test_landing_whose_store_does_not_answer_is_an_error(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    described = stream(source=Source(uri=bucket))
    landing = SourceLanding(stream=described, filesystem=S3FileSystem(s3_client.new_client))
    with pytest.raises(LandingUnavailableError, match="it does not answer"):
        list(landing.found_files())


def test_landing_without_credentials_is_an_error(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    described = stream(source=Source(uri=f"{bucket}/in"))
    landing = SourceLanding(stream=described, filesystem=S3FileSystem(s3_client.new_client))
    with pytest.raises(LandingUnavailableError, match="AWS_ACCESS_KEY_ID") as caught:
        list(landing.found_files())
    assert f"{bucket}/in" in str(caught.value)
