"""Listing a landing in a bucket: which objects are listed, their facts, and errors."""

from collections.abc import Iterator

import pytest

from batch_pipeline.encode.readers.decoded_file import ItemCutter
from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import ConfigurationError, LandingUnavailableError
from batch_pipeline.model.item import LandedFile, Registered
from batch_pipeline.storage.landing import SourceLanding, compare
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.factories import found_file
from batch_pipeline_tests.storage.bucket_landing import BucketLanding, names


def test_listed_object_has_the_facts_of_head(s3_landing: BucketLanding) -> None:
    location = s3_landing.put("in/a b%20é+.csv", b"12345")
    [found] = s3_landing.landing().found_files()
    facts = S3.head(location)
    assert found.location == f"{s3_landing.bucket}/in/a b%20é+.csv"
    assert found.size_bytes == 5
    assert (found.modified_at, found.etag) == (facts.modified_at, facts.etag)
    assert found.etag is not None


def test_listing_applies_rules_of_the_source(s3_landing: BucketLanding) -> None:
    """Folder markers and unfinished names are never listed."""
    for key in ("in/a.csv", "in/a.txt", "in/sub/b.csv", "inside.csv", "other/a.csv"):
        s3_landing.put(key)
    for key in ("in/", "in/sub/", "in/a.tmp", "in/.hidden/a.csv", "in/_b.part", "in/c~"):
        s3_landing.put(key, b"")

    def listed(**rules: tuple[str, ...]) -> list[str]:
        return names(s3_landing.landing(**rules))

    assert listed() == ["a.csv", "a.txt", "sub/b.csv"]
    assert listed(include=("*.csv",)) == ["a.csv", "sub/b.csv"]
    assert listed(include=("sub/*",)) == ["sub/b.csv"]
    assert listed(include=("*.csv",), exclude=("sub/*",)) == ["a.csv"]
    assert listed(exclude=("a*",)) == ["sub/b.csv"]
    s3_landing.put("in/empty.csv", b"")
    assert listed(include=("empty*",)) == ["empty.csv"]


def test_landing_of_whole_bucket_lists_all_keys(s3_landing: BucketLanding) -> None:
    for key in ("b.csv", "a/1.csv", "é.csv", "Z.csv"):
        s3_landing.put(key)
    landing = s3_landing.landing(uri=s3_landing.bucket)
    assert [file.location for file in landing.found_files()] == [
        f"{s3_landing.bucket}/{key}" for key in ("Z.csv", "a/1.csv", "b.csv", "é.csv")
    ]


def test_key_that_looks_like_a_range_is_a_warning_unless_excluded(
    s3_landing: BucketLanding,
) -> None:
    ranges = ("in/#bytes=9-1", "in/a.csv#bytes=0-9", "in/a.csv#bytes=0-9,size=10")
    for key in ("in/+.csv", *ranges, "in/b.csv"):
        s3_landing.put(key)
    landing = s3_landing.landing()
    assert [names(landing), names(landing)] == [["+.csv", "b.csv"]] * 2
    [warning] = landing.troubles  # of the first key
    assert isinstance(warning, ConfigurationError)
    assert ranges[0] in str(warning)
    assert "exclude it with `source.exclude`" in str(warning)
    landing = s3_landing.landing(exclude=("*#bytes*",))
    assert (names(landing), landing.troubles) == (["+.csv", "b.csv"], [])


@pytest.mark.parametrize(("all_or_none", "registered"), [(False, 2), (True, None)])
def test_interrupted_listing_registers_preceding_files(
    database: Database, all_or_none: bool, registered: int | None
) -> None:
    def broken() -> Iterator[LandedFile]:
        yield from (found_file(1), found_file(2))
        raise LandingUnavailableError("orders", "s3://bucket/in", "it does not answer")

    table = database.meta_table("orders")
    with pytest.raises(LandingUnavailableError):
        table.register(broken(), accept_changed=False, all_or_none=all_or_none)
    assert table.high_watermark() == registered


def test_overwritten_object_is_changed_only_if_bytes_differ(
    s3_landing: BucketLanding, database: Database
) -> None:
    location = s3_landing.put("in/a.csv", b"id\n1\n")
    table, landing = database.meta_table("orders"), s3_landing.landing()
    table.register(landing.found_files(), accept_changed=False)
    s3_landing.put("in/a.csv", b"id\n1\n")
    assert table.register(landing.found_files(), accept_changed=False).changed == ()
    s3_landing.put("in/a.csv", b"id\n2\n")
    assert table.register(landing.found_files(), accept_changed=False).changed == (location,)
    assert table.register(landing.found_files(), accept_changed=True) == Registered(
        found=1, new_items=0, accepted=1
    )
    [item] = table.find("a.csv")
    assert item.file.etag == S3.head(location).etag


def test_object_with_number_sign_in_key_is_recognized(
    s3_landing: BucketLanding, database: Database
) -> None:
    ten = b'{"id":1}\n' * 10
    for key, data in (("a", b"1"), ("a#1", b"2"), ("c#2.jsonl", ten), ("b#bytes=", b"4")):
        s3_landing.put(f"in/{key}", data)
    table, landing = database.meta_table("orders"), s3_landing.landing()
    new_items = [_register(database, landing).new_items for _ in range(2)]
    assert new_items == [6, 0]
    found = {name: [one.id for one in table.find(name)] for name in ("a", "a#1", "b#bytes=")}
    assert found == {"a": [1], "a#1": [2], "b#bytes=": [3]}
    assert [one.id for one in table.find(f"{s3_landing.uri}/c#2.jsonl")] == [4, 5, 6]
    location = s3_landing.put("in/a#1", b"3")
    assert _register(database, landing).changed == (location,)


def _register(database: Database, landing: SourceLanding) -> Registered:
    cutter = ItemCutter(stream=landing.stream, most_bytes=40)
    files = landing.found_files()
    return database.meta_table("orders").register(files, accept_changed=False, cutter=cutter)


def test_compare_registered_object_with_current_state(s3_landing: BucketLanding) -> None:
    s3_landing.put("in/a.csv", b"123")
    landing = s3_landing.landing()
    [found] = landing.found_files()
    assert compare(found) == "unchanged since"
    s3_landing.put("in/a.csv", b"456")
    assert compare(found) == "changed since: now 3 B"
    s3_landing.delete("in/a.csv")
    assert compare(found) == "now it cannot be read (no such file or directory)"


def test_why_not_explains_why_object_is_not_listed(s3_landing: BucketLanding) -> None:
    for key in ("in/a.csv", "in/sub/a.csv", "in/a.csv.tmp", "in/a.txt", "elsewhere.csv"):
        s3_landing.put(key)
    s3_landing.put("in/sub/", b"")
    landing = s3_landing.landing(include=("*.csv", "*.tmp", "sub/"))
    bucket, not_yet = s3_landing.bucket, "not registered yet: `batch-pipeline run`"
    reasons = {
        "a.csv": not_yet,
        f"{bucket}/in/sub/a.csv": not_yet,
        f"{bucket}/in/a.csv".replace("s3://", "s3a://"): not_yet,
        "a.csv.tmp": "unfinished",
        "a.txt": "excluded by",
        "sub/": "folder markers",
        "missing.csv": "no such file",
        "a.csv#bytes=0-1": "like a byte range",
        f"{bucket}/elsewhere.csv": "outside",
        "/in/a.csv": "outside",
        "file:///in/a.csv": "outside",
    }
    for file, reason in reasons.items():
        assert reason in landing.why_not(file), file


def test_landing_in_missing_bucket_is_an_error(bucket: str) -> None:
    assert names(BucketLanding(bucket).landing()) == []
    with pytest.raises(LandingUnavailableError, match="there is no such bucket") as caught:
        names(BucketLanding(f"{bucket}-other").landing())
    assert "correct `source` in the stream file" in str(caught.value)
