"""The Singer target with BATCH files and landings in S3."""

import gzip
import json
from dataclasses import replace
from hashlib import sha256

import psycopg
import pytest

from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, RetryableError
from batch_pipeline.model.location import Roots
from batch_pipeline.singer.parser import BatchEncoding, BatchMessage, MessageError
from batch_pipeline.singer.target.batches import fetch, locate
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.singer.target.target_fixture import (
    TargetHome,
    batch,
    batch_file,
    packed,
    record,
    schema,
    state,
)
from batch_pipeline_tests.storage_roots import Root, content
from batch_pipeline_tests.store_faults import Faults


@pytest.fixture
def home(home: TargetHome, bucket: str) -> TargetHome:
    """A home where BATCH files of the bucket are allowed."""
    return replace(home, config={"batch_roots": [str(home.root), bucket]})


def batch_object(uri: str, *numbers: int) -> str:
    S3.put(uri, packed(*numbers))
    return uri


def items(home: TargetHome) -> list[tuple[str, int, str | None]]:
    """Return location, size and ETag of the registered items in the order of their ids."""
    query = "SELECT location, size_bytes, etag FROM batch_pipeline.item ORDER BY id"
    with psycopg.connect(home.database_url) as connection:
        return connection.execute(query).fetchall()


def ids(locations: list[str]) -> list[int]:
    """Return the ids of the records in gzipped files."""
    texts = (gzip.decompress(content(location)).decode() for location in locations)
    return [json.loads(line)["id"] for text in texts for line in text.splitlines()]


def test_batch_in_s3_is_registered_in_place(home: TargetHome, bucket: str) -> None:
    uris = [batch_object(f"{bucket}/external/{name}", 1) for name in ("a b%20é.gz", "b.gz")]
    sums = [sha256(content(uri)).hexdigest() for uri in uris]
    assert home.run(schema(), batch(*uris, sha256=sums), state(1)) == [{"at": 1}]
    registered = [(uri, S3.head(uri).size_bytes, S3.head(uri).etag) for uri in uris]
    assert items(home) == registered
    assert home.run(schema(), batch(*uris), state(2)) == [{"at": 2}]
    batch_object(uris[0], 2)
    again = schema(), batch(uris[0]), state(3)
    assert home.assert_error(ConfigurationError, "was already registered", *again) == []
    assert items(home) == registered


def test_batch_in_s3_is_fetched_once(home: TargetHome, bucket: str, faults: Faults) -> None:
    uri = batch_object(f"{bucket}/a.gz", 1, 2)
    home.run(schema(), batch(uri))
    assert (faults.count("HEAD"), faults.count("GET")) == (1, 1)
    home.run(schema(), batch(uri), stream_maps={"orders": {"__filter__": "id != 2"}})
    assert (faults.count("HEAD"), faults.count("GET")) == (2, 2)
    assert home.landed() != []


def test_batch_files_are_found_in_storage_root_in_s3(home: TargetHome, bucket: str) -> None:
    uri = batch_object(f"{bucket}/here/a b.gz", 1)
    config = {"storage": {"root": f"{bucket}/here/"}}
    for written in ("file:///elsewhere/a%20b.gz", "s3://elsewhere/a b.gz"):
        home.run(schema(), batch(written), batch_config=config)
        assert [location for location, _, _ in items(home)] == [uri]


def test_invalid_batch_in_s3_is_rejected(home: TargetHome, bucket: str) -> None:
    """The content of objects is checked like that of files."""
    S3.put(f"{bucket}/bad.gz", gzip.compress(b'{"name":"a"}\n', mtime=0))
    good = batch_object(f"{bucket}/a.gz", 1)
    for name, problem in (
        ("none.gz", "does not exist"),
        ("a.gz#bytes=0-9", "has a name that looks like a range"),
        ("bad.gz", "line 1 lacks the key 'id'"),
    ):
        message = batch(good, f"{bucket}/{name}")
        expected = f"{bucket}/{name} {problem}"
        assert home.assert_error(MessageError, expected, schema(), message, state(1)) == []
        assert items(home) == []


def test_batch_in_s3_overwritten_while_read_is_rejected(bucket: str) -> None:
    uri = batch_object(f"{bucket}/a.gz", 1)
    encoding = BatchEncoding(format=Format.JSONL, compression=Compression.GZIP)
    said = BatchMessage(line=2, stream="orders", encoding=encoding, manifest=(uri,))
    [located] = locate(said, None, Roots(uris=(bucket,), key="batch_roots"))
    batch_object(uri, 2)
    with pytest.raises(MessageError, match="another version"), fetch(said, located):
        pass


def test_batch_can_be_repeated_after_store_error(
    home: TargetHome, bucket: str, faults: Faults
) -> None:
    uri = batch_object(f"{bucket}/a.gz", 1)
    faults.refuse(403, "ExpiredToken", method="GET", times=1)
    printed = home.assert_error(
        RetryableError, "does not accept the credentials", schema(), batch(uri), state(1)
    )
    assert (printed, items(home)) == ([], [])
    assert home.run(schema(), batch(uri), state(1)) == [{"at": 1}]


def test_records_are_landed_in_s3(home: TargetHome, bucket: str) -> None:
    home.write_stream_file(f"{{uri: '{bucket}/landing', format: jsonl}}")
    said = [schema(), record(1), record(2), record(3), state(1)]
    assert home.run(*said, max_records=2) == [{"at": 1}]
    registered = items(home)
    assert [etag for _, _, etag in registered] == [S3.head(uri).etag for uri, _, _ in registered]
    uris = [uri for uri, _, _ in registered]
    assert ids(uris) == [1, 2, 3]
    assert uris == [f"{bucket}/landing/{name}" for name in Root(f"{bucket}/landing").names()]


def test_batch_on_disk_is_copied_to_s3(home: TargetHome, bucket: str) -> None:
    home.write_stream_file(f"{{uri: '{bucket}/landing', format: jsonl}}")
    path = batch_file(home.root / "a.gz", 1, 2)
    home.run(schema(), batch(str(path)), batch_files="copy")
    [(location, size_bytes, _)] = items(home)
    assert location.startswith(f"{bucket}/landing/orders-")
    assert (content(location), size_bytes) == (path.read_bytes(), path.stat().st_size)


def test_unwritable_landing_in_s3_is_reported(
    home: TargetHome, bucket: str, faults: Faults
) -> None:
    home.write_stream_file(f"{{uri: '{bucket}/landing', format: jsonl}}")
    faults.refuse(403, "AccessDenied", method="PUT", times=1)
    faults.refuse(403, "ExpiredToken", method="PUT", times=1)
    for kind in (ConfigurationError, RetryableError):
        printed = home.assert_error(
            kind, f"{bucket}/landing cannot be written", schema(), record(1), state(1)
        )
        assert (printed, items(home)) == ([], [])
    assert home.run(schema(), record(1), state(1)) == [{"at": 1}]


def test_landing_root_in_bucket_is_rejected(home: TargetHome) -> None:
    with pytest.raises(InvalidValueError, match=r"source\.uri: s3://"):
        home.run(schema(), landing_root="s3://bucket/landing")
