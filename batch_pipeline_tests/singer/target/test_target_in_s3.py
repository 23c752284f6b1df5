"""The Singer target and S3: files of BATCH messages that lie there, and landings there."""

import gzip
import json
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest

from batch_pipeline.model.encoding import Compression, Format
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, RetryableError
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.location import Roots
from batch_pipeline.singer.parser import BatchEncoding, BatchMessage, MessageError
from batch_pipeline.singer.target.batches import fetch, locate
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.singer.target.target_fixture import (
    TargetHome,
    batch,
    record,
    schema,
    state,
)
from batch_pipeline_tests.storage_roots import Root, content
from batch_pipeline_tests.store_faults import Faults


@pytest.fixture
def home(
    tmp_path: Path, database_url: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> TargetHome:
    """A home that the environment names, whose target reads BATCH files of the bucket, too."""
    roots = {"batch_roots": [str(tmp_path), bucket]}
    made = TargetHome(root=tmp_path, database_url=database_url, config=roots)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def lines(*numbers: int) -> bytes:
    """A gzipped file of records."""
    text = "".join(json.dumps(record(number)["record"]) + "\n" for number in numbers)
    return gzip.compress(text.encode(), mtime=0)


def batch_object(uri: str, *numbers: int) -> str:
    """Write a BATCH file of records."""
    S3.put(uri, lines(*numbers))
    return uri


def items(home: TargetHome) -> list[tuple[str, int, str | None]]:
    """The registered locations with size and ETag, in the order of their ids."""
    query = "SELECT location, size_bytes, etag FROM batch_pipeline.item ORDER BY id"
    with psycopg.connect(home.database_url) as connection:
        return connection.execute(query).fetchall()


def ids(locations: list[str]) -> list[int]:
    """The ids of the records in files of gzipped lines."""
    texts = (gzip.decompress(content(location)).decode() for location in locations)
    return [json.loads(line)["id"] for text in texts for line in text.splitlines()]


def test_batch_in_s3_is_registered_where_it_lies(home: TargetHome, bucket: str) -> None:
    uris = [batch_object(f"{bucket}/theirs/{name}", 1) for name in ("a b%20é.gz", "b.gz")]
    sums = [sha256(content(uri)).hexdigest() for uri in uris]
    assert home.run(schema(), batch(*uris, sha256=sums), state(1)) == [{"at": 1}]
    facts = [S3.head(uri) for uri in uris]
    assert items(home) == [
        (uri, one.size_bytes, one.etag) for uri, one in zip(uris, facts, strict=True)
    ]
    assert home.run(schema(), batch(*uris), state(2)) == [{"at": 2}]
    assert len(items(home)) == 2


def test_batch_in_s3_is_fetched_once(home: TargetHome, bucket: str, faults: Faults) -> None:
    uri = batch_object(f"{bucket}/a.gz", 1, 2)
    home.run(schema(), batch(uri))
    assert (faults.count("HEAD"), faults.count("GET")) == (1, 1)
    home.run(schema(), batch(uri), stream_maps={"orders": {"__filter__": "id != 2"}})
    assert (faults.count("HEAD"), faults.count("GET")) == (2, 2)
    assert home.landed() != []


def test_batch_in_s3_is_copied_where_that_is_asked_for(home: TargetHome, bucket: str) -> None:
    uri = batch_object(f"{bucket}/a.gz", 1)
    home.run(schema(), batch(uri), batch_files="copy")
    (landed,) = home.files()
    assert landed.read_bytes() == content(uri)
    assert landed.parent == home.root / "home/landing/orders"


@pytest.mark.parametrize("written", ["file:///elsewhere/a%20b.gz", "s3://elsewhere/a b.gz"])
def test_batch_files_are_found_below_a_root_in_s3(
    home: TargetHome, bucket: str, written: str
) -> None:
    uri = batch_object(f"{bucket}/here/a b.gz", 1)
    config = {"storage": {"root": f"{bucket}/here/"}}
    home.run(schema(), batch(written), batch_config=config)
    assert [location for location, _, _ in items(home)] == [uri]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.gz", "is not there"),
        ("a.gz#bytes=0-9", "looks like a range"),
        ("bad.gz", "line 1 lacks the key 'id'"),
        ("plain.gz", "has compression none"),
    ],
)
def test_batch_in_s3_that_is_not_what_it_says_is_refused(
    home: TargetHome, bucket: str, name: str, said: str
) -> None:
    S3.put(f"{bucket}/bad.gz", gzip.compress(b'{"name":"a"}\n', mtime=0))
    S3.put(f"{bucket}/plain.gz", b'{"id":1}\n')
    uris = batch_object(f"{bucket}/a.gz", 1), f"{bucket}/{name}"
    printed, error = home.run_until_refused(schema(), batch(*uris), state(1))
    assert isinstance(error, MessageError)
    assert f"{uris[1]} " in str(error)
    assert said in str(error)
    assert (printed, items(home)) == ([], [])


def test_batch_in_s3_that_was_written_anew_is_not_taken_twice(
    home: TargetHome, bucket: str
) -> None:
    uri = batch_object(f"{bucket}/a.gz", 1)
    home.run(schema(), batch(uri))
    batch_object(uri, 2)
    home.refuses(ConfigurationError, "was registered before", schema(), batch(uri), state(1))
    assert len(items(home)) == 1


def test_batch_in_s3_that_is_written_anew_while_it_is_read_is_refused(bucket: str) -> None:
    uri = batch_object(f"{bucket}/a.gz", 1)
    said = BatchMessage(
        line=2,
        stream="orders",
        encoding=BatchEncoding(format=Format.JSONL, compression=Compression.GZIP),
        manifest=(uri,),
    )
    [place] = locate(said, None, Roots(uris=(bucket,), key="batch_roots"))
    batch_object(uri, 2)
    with pytest.raises(MessageError, match="another version"), fetch(said, place):
        pass


def test_batch_of_a_store_that_refuses_can_come_again(
    home: TargetHome, bucket: str, faults: Faults
) -> None:
    uri = batch_object(f"{bucket}/a.gz", 1)
    faults.refuse(403, "ExpiredToken", method="GET", times=1)
    printed = home.refuses(
        RetryableError, "does not accept the credentials", schema(), batch(uri), state(1)
    )
    assert (printed, items(home)) == ([], [])
    assert home.run(schema(), batch(uri), state(1)) == [{"at": 1}]


def test_records_land_in_s3(home: TargetHome, bucket: str) -> None:
    home.describe(f"{{uri: '{bucket}/landing', format: jsonl}}")
    said = [schema(), record(1), record(2), record(3), state(1)]
    assert home.run(*said, max_records=2) == [{"at": 1}]
    found = items(home)
    assert [etag for _, _, etag in found] == [S3.head(uri).etag for uri, _, _ in found]
    assert ids([location for location, _, _ in found]) == [1, 2, 3]
    assert [f"{bucket}/landing/{name}" for name in Root(f"{bucket}/landing").names()] == [
        location for location, _, _ in found
    ]


def test_batch_on_a_disk_is_copied_into_s3(home: TargetHome, bucket: str) -> None:
    home.describe(f"{{uri: '{bucket}/landing', format: jsonl}}")
    path = home.root / "a.gz"
    path.write_bytes(lines(1, 2))
    home.run(schema(), batch(str(path)), batch_files="copy")
    [(location, size_bytes, _)] = items(home)
    assert location.startswith(f"{bucket}/landing/orders-")
    assert (content(location), size_bytes) == (path.read_bytes(), path.stat().st_size)


def test_landing_in_s3_that_cannot_be_written_is_told(
    home: TargetHome, bucket: str, faults: Faults
) -> None:
    home.describe(f"{{uri: '{bucket}/landing', format: jsonl}}")
    faults.refuse(403, "AccessDenied", method="PUT", times=1)
    faults.refuse(403, "ExpiredToken", method="PUT", times=1)
    for kind in (ConfigurationError, RetryableError):
        printed = home.refuses(
            kind, f"{bucket}/landing cannot be written", schema(), record(1), state(1)
        )
        assert (printed, items(home)) == ([], [])
    assert home.run(schema(), record(1), state(1)) == [{"at": 1}]


def test_target_that_ends_before_an_object_is_sent_leaves_nothing(
    home: TargetHome, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.describe(f"{{uri: '{bucket}/landing', format: jsonl}}")
    monkeypatch.setenv(VARIABLE, "target.before_rename=raise")
    printed, error = home.run_until_refused(schema(), record(1), state(1))
    assert isinstance(error, RuntimeError)
    assert str(error).startswith("failpoint ")
    assert (printed, Root(f"{bucket}/landing").names()) == ([], [])


def test_landing_root_in_a_bucket_is_refused(home: TargetHome) -> None:
    with pytest.raises(InvalidValueError, match=r"source\.uri: s3://"):
        home.run(schema(), landing_root="s3://bucket/landing")
