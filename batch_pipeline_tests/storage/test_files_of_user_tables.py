"""Files of user tables that record only the location."""

import os
from pathlib import Path

import pytest

from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.model.errors import BadFileError, InvalidValueError
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import to_location, to_uri
from batch_pipeline.storage.landing import compare
from batch_pipeline_tests.factories import found_file, stream


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/data/orders.csv", "file:///data/orders.csv"),
        ("/data/my orders 100%.csv", "file:///data/my%20orders%20100%25.csv"),
        ("/data/a%20b.csv", "file:///data/a%2520b.csv"),
        ("/data/commandé.csv", "file:///data/command%C3%A9.csv"),
        ("file:///data/orders.csv", "file:///data/orders.csv"),
        ("file:///data/a%20b.csv", "file:///data/a%20b.csv"),
        ("file:///data/a b.csv", "file:///data/a%20b.csv"),
        ("FILE:///data/orders.csv", "file:///data/orders.csv"),
        ("file:///data/a%3Fb%23c.csv", "file:///data/a%3Fb%23c.csv"),
        ("/data/a?b#c.csv", "file:///data/a%3Fb%23c.csv"),
        ("/data/%2e%2e/a.csv", "file:///data/%252e%252e/a.csv"),
        ("file:///data/%252e%252e/a.csv", "file:///data/%252e%252e/a.csv"),
        ("file:///data/a b.csv#bytes=0-99", "file:///data/a%20b.csv#bytes=0-99"),
        ("file:///data/a.csv#bytes=5-99,size=100", "file:///data/a.csv#bytes=5-99,size=100"),
        ("/data/a.csv#bytes=0-99", "file:///data/a.csv%23bytes%3D0-99"),
        ("s3://bucket/a b%20c#d?.csv", "s3://bucket/a b%20c#d?.csv"),
        ("s3a://bucket/a.csv", "s3://bucket/a.csv"),
        ("S3N://bucket/a.csv", "s3://bucket/a.csv"),
        ("s3://bucket/a.csv#bytes=0-99", "s3://bucket/a.csv#bytes=0-99"),
    ],
)
def test_to_location_of_path_or_uri(text: str, location: str) -> None:
    assert to_location(text) == location


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders.csv",
        "./a.csv",
        "~/a.csv",
        "s3://bucket",
        "s3://bucket/",
        "s3://key:hunter2@bucket/a.csv",
        "gs://bucket/a.csv",
        "abfs://container@account.dfs.core.windows.net/a.csv",
        "https://bucket.s3.amazonaws.com/a.csv",
        "file://host/a.csv",
        "file:/a.csv",
        "C:\\a.csv",
        "/a\0b",
        " /a.csv",
        None,
        7,
        b"/a.csv",
    ],
)
def test_to_location_rejects_other_values(text: object) -> None:
    with pytest.raises(InvalidValueError, match="expected an absolute path, an absolute file"):
        to_location(text)


def test_item_weight_is_taken_from_row() -> None:
    assert Item(id=1, file=LandedFile(location="file:///a"), row_weight=7).weight == 7
    assert Item(id=1, file=LandedFile(location="file:///a"), row_weight=0).weight == 0
    assert Item(id=1, file=found_file(size_bytes=10)).weight == 10
    with pytest.raises(InvalidValueError, match="row_weight is None"):
        Item(id=1, file=LandedFile(location="file:///a"))


def test_location_of_no_file_is_bad_file() -> None:
    file = LandedFile(location="relative.csv")
    with (
        pytest.raises(BadFileError, match="is not an absolute file URI"),
        open_source(file, stream()),
    ):
        pass


def test_compare_without_recorded_facts_shows_current_facts(tmp_path: Path) -> None:
    landed = tmp_path / "orders.csv"
    landed.write_text("id\n1\n2\n")
    os.utime(landed, (1_750_000_000, 1_750_000_000))
    comparison = compare(LandedFile(location=to_uri(landed)))
    assert comparison == "now 7 B, modified 2025-06-15T15:06:40+00:00"
    assert compare(LandedFile(location="relative.csv")).startswith("which is not an absolute")


def test_bad_file_message_of_user_table_does_not_mention_registration() -> None:
    message = str(BadFileError("orders", "file:///a.csv", 3, "is bad", is_registered=False))
    assert "Repair the file, or set `on_bad_file: quarantine`" in message
    assert "--accept-changed" in str(BadFileError("orders", "file:///a.csv", 3, "is bad"))
