"""Locations: conversions between paths and URIs."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.location import shown, to_location, to_path, to_uri

names = st.binary(min_size=1, max_size=20).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in {b".", b".."}
)


@given(st.lists(names, min_size=1, max_size=4))
def test_path_of_any_bytes_round_trips_through_uri(parts: list[bytes]) -> None:
    path = os.fsdecode(b"/" + b"/".join(parts))
    uri = to_uri(path)
    assert uri.isascii()
    assert " " not in uri
    assert to_path(uri) == path


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("/landing/orders.csv", "file:///landing/orders.csv"),
        ("/a b/100%.csv", "file:///a%20b/100%25.csv"),
        ("/é/#1?.csv", "file:///%C3%A9/%231%3F.csv"),
        ("//double/slash", "file:///double/slash"),
        ("/", "file:///"),
    ],
)
def test_uri_of_path_is_percent_encoded(path: str, uri: str) -> None:
    assert to_uri(path) == to_uri(Path(path)) == uri


@pytest.mark.parametrize("path", ["orders.csv", "", "./orders.csv", "/a\0b"])
def test_uri_of_relative_or_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(InvalidValueError):
        to_uri(path)


@pytest.mark.parametrize(
    "uri",
    [
        *("", "/landing/orders.csv", "s3://bucket/orders.csv", "http:///landing"),
        *("file://host/orders.csv", "file://orders.csv", "file:///a%00b"),
    ],
)
def test_path_of_other_uri_is_rejected(uri: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        to_path(uri)
    assert caught.value.value == uri


def test_shown_location_is_path_on_disk_and_uri_in_object_store() -> None:
    assert shown("FILE:///in/a%20b.csv") == "/in/a b.csv"
    assert shown("s3://bucket/a b%20.csv") == "s3://bucket/a b%20.csv"
    with pytest.raises(InvalidValueError):
        shown("http://host/a.csv")


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/data/my orders 100%.csv", "file:///data/my%20orders%20100%25.csv"),
        ("/data/a%20b.csv", "file:///data/a%2520b.csv"),
        ("file:///data/a%20b.csv", "file:///data/a%20b.csv"),
        ("file:///data/a b.csv", "file:///data/a%20b.csv"),
        ("FILE:///data/orders.csv", "file:///data/orders.csv"),
        ("/data/a?b#c.csv", "file:///data/a%3Fb%23c.csv"),
        ("file:///data/a%3Fb%23c.csv", "file:///data/a%3Fb%23c.csv"),
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
        "~/a.csv",
        "s3://bucket",
        "s3://key:hunter2@bucket/a.csv",
        "gs://bucket/a.csv",
        "https://bucket.s3.amazonaws.com/a.csv",
        "file://host/a.csv",
        "file:/a.csv",
        "file:///a?b.csv",
        "C:\\a.csv",
        "/a\0b",
        " /a.csv",
        None,
        b"/a.csv",
    ],
)
def test_to_location_rejects_other_values(text: object) -> None:
    with pytest.raises(InvalidValueError, match="expected an absolute path, an absolute file"):
        to_location(text)
