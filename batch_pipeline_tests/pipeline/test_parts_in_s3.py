"""Part files in S3, and who reads them again: checks, the tap, targets, a Postgres table."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.load.singer_capabilities import Capabilities
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.errors import BatchDataError, PartFileChangedError, RetryableError
from batch_pipeline.model.load import MessageMode, PostgresTarget
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.pipeline.load import load
from batch_pipeline.singer.part_records import record_blocks, records
from batch_pipeline.storage.s3 import PART_BYTES, S3, ObjectUpload
from batch_pipeline.storage.verification import (
    content_problem,
    problem_before_reading,
    size_problem,
    verify_contents,
)
from batch_pipeline_tests.encode.writers.part_factories import ALL_TYPES, schema, typed
from batch_pipeline_tests.encode.writers.published_parts import (
    ENCODINGS,
    encoding_id,
    published_lines,
    published_table,
)
from batch_pipeline_tests.factories import encoded, item_report, part_file
from batch_pipeline_tests.load import target_scripts as scripts
from batch_pipeline_tests.load.warehouse import ID, NAME, Warehouse, schema_of
from batch_pipeline_tests.pipeline.load_fixture import dock, due, orders, rows
from batch_pipeline_tests.seeds import claimed, planned
from batch_pipeline_tests.singer.tap.tap_fixture import ListedSource, printed, sent, tap_class
from batch_pipeline_tests.store_faults import Faults

ANN, BOB, CAT = ({"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}, {"id": 3, "name": "Cat"})
ONE, TWO, THREE = b'{"order_id":1}', b'{"order_id":2}', b'{"order_id":3}'
LARGE = bytes(range(251)) * (2 * PART_BYTES // 251 + 1)


def moved(part: PartFile, root: str) -> PartFile:
    """Move a part file from its folder into S3, as a task would have written it there."""
    path = Path(to_path(part.uri))
    uri = written(f"{root}/{path.name}", path.read_bytes())
    path.unlink()
    return replace(part, uri=uri)


def written(uri: str, octets: bytes) -> str:
    """Write an object, a large one in several parts, and give its URI."""
    upload = ObjectUpload(uri)
    upload.write(octets)
    upload.finish()
    upload.commit()
    return uri


def in_s3(manifest: Manifest, root: str) -> Manifest:
    """Move the part files of a manifest into S3."""
    return replace(manifest, part_files=tuple(moved(part, root) for part in manifest.part_files))


def part_of(uri: str, octets: bytes) -> PartFile:
    """Write a part file of any bytes."""
    digest = hashlib.sha256(octets).hexdigest()
    return part_file(
        uri=written(uri, octets),
        records=len(octets.split(b"\n")),
        size_bytes=len(octets),
        sha256=digest,
    )


@pytest.fixture(params=["small", "large"])
def part(request: pytest.FixtureRequest, bucket: str) -> PartFile:
    """A part file in S3: one whose SHA-256 the store keeps, and one that was sent in parts."""
    return part_of(f"{bucket}/a.jsonl", LARGE if request.param == "large" else b"12345")


LOOKS = [size_problem, verify_contents, content_problem, problem_before_reading]


def test_object_as_it_was_published_has_no_problem(part: PartFile) -> None:
    """Expect all looks to be content."""
    assert [look(part) for look in LOOKS] == [None] * 4


def test_object_of_other_bytes_shows_to_who_compares_them(part: PartFile) -> None:
    """Expect the SHA-256 that S3 keeps to tell without reading; of parts it keeps none."""
    is_small = part.size_bytes == 5
    written(part.uri, b"X" + (b"2345" if is_small else LARGE[1:]))
    found = [look(part) for look in LOOKS]
    assert all(f"{part.uri} has the SHA-256" in str(found[at]) for at in (1, 2))
    assert [problem is not None for problem in found] == [is_small, True, True, is_small]


def test_object_that_is_missing_or_shorter_shows_to_all(part: PartFile) -> None:
    """Expect the URI, and both sizes."""
    written(part.uri, b"123")
    told = f"{part.uri} has 3 B, published: {part.size_bytes:,} B"
    assert [look(part) for look in LOOKS] == [told] * 4
    S3.delete(part.uri)
    assert [look(part) for look in LOOKS] == [f"{part.uri} is missing"] * 4


def test_look_fetches_only_what_the_store_does_not_vouch_for(
    part: PartFile, faults: Faults
) -> None:
    """Expect one HEAD for a look before reading, and a GET only of what was sent in parts."""
    assert [size_problem(part), problem_before_reading(part)] == [None, None]
    assert (faults.count("HEAD"), faults.count("GET")) == (2, 0)
    assert content_problem(part) is None
    assert faults.count("GET") == (0 if part.size_bytes == 5 else 1)
    assert verify_contents(part) is None
    assert faults.count("GET") == (1 if part.size_bytes == 5 else 2)


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied"])
def test_store_that_refuses_says_nothing_of_its_files(
    part: PartFile, faults: Faults, code: str
) -> None:
    """Expect an error that asks to come again, and the file not to be called missing."""
    faults.refuse(403, code)
    for look in LOOKS:
        with pytest.raises(RetryableError, match="refuses s3:GetObject"):
            look(part)


def test_check_of_files_is_not_answered_without_the_store(bucket: str, faults: Faults) -> None:
    """Expect no verdict on files of which nothing was learned."""
    part = part_of(f"{bucket}/a.jsonl", b"12345")
    faults.refuse(403, "AccessDenied", method="GET")
    assert size_problem(part) is None
    with pytest.raises(RetryableError, match=r"refuses s3:GetObject \(AccessDenied\)"):
        verify_contents(part)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=encoding_id)
def test_records_are_the_same_from_s3(tmp_path: Path, bucket: str, encoding: Encoding) -> None:
    """Expect the same values as from a disk, of each encoding."""
    local = published_table(tmp_path, typed(), schema(**ALL_TYPES), encoding)
    expected = list(records(local))
    assert list(records(in_s3(local, bucket))) == expected
    assert len(expected) == 2


def test_records_are_fetched_once_and_nothing_is_left(
    tmp_path: Path, bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect one GET for each file, and no copy when the reader is done or has enough."""
    one = in_s3(published_lines(tmp_path / "a", ONE, TWO, THREE), bucket)
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert b"".join(record_blocks(one, "orders")).count(b"\n") == 3
    assert faults.count("GET") == 2
    some = record_blocks(one, "orders")
    assert b'"order_id":1' in next(some)
    assert len(list(folder.iterdir())) == 2
    del some
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("octets", [None, b"other bytes", b""])
def test_records_of_a_bad_object_are_refused_before_the_first(
    tmp_path: Path, bucket: str, octets: bytes | None
) -> None:
    """Expect the URI of the file, and no record of those before it."""
    one = in_s3(published_lines(tmp_path, ONE, TWO, THREE), bucket)
    bad = one.part_files[1].uri
    if octets is None:
        S3.delete(bad)
    else:
        written(bad, octets)
    with pytest.raises(BatchDataError, match=r"a part file of batch .* cannot be sent") as caught:
        next(record_blocks(one, "orders"))
    assert bad in str(caught.value)


def test_tap_sends_uris_of_objects_as_they_are(tmp_path: Path, bucket: str) -> None:
    """Expect `s3://bucket/key` with nothing escaped, which is what the Singer SDK opens."""
    one = in_s3(published_lines(tmp_path, ONE, TWO, THREE), f"{bucket}/a b+é%20")
    [_, batch, _] = sent(ListedSource([one]), config={"mode": "batch"})
    assert batch["manifest"] == [part.uri for part in one.part_files]
    assert batch["manifest"][0].startswith(f"{bucket}/a b+é%20/orders-1-")


@pytest.mark.parametrize("mode", ["batch", "record"])
def test_tap_without_an_answer_ends_and_can_go_on(
    tmp_path: Path, bucket: str, faults: Faults, mode: str
) -> None:
    """Expect neither BATCH nor STATE for what cannot be looked at now, and a retryable error."""
    one = in_s3(published_lines(tmp_path, ONE), bucket)
    faults.refuse(403, "ExpiredToken")
    tap = tap_class(ListedSource([one]))(config={"mode": mode})
    lines = printed(tap, until=RetryableError)
    assert all(b'"BATCH"' not in line and b'"RECORD"' not in line for line in lines)
    assert all(b'publish_number":1' not in line.replace(b" ", b"") for line in lines)


@pytest.mark.parametrize(
    ("stores", "mode"), [(("s3",), MessageMode.BATCH), ((), MessageMode.RECORD)]
)
def test_target_gets_batches_from_s3_where_it_can_open_them(
    tmp_path: Path, bucket: str, stores: tuple[str, ...], mode: MessageMode
) -> None:
    """Expect one without the SDK's extra for S3 to get records."""
    loading = scripts.loading(tmp_path)
    loading = replace(loading, manifest=in_s3(loading.manifest, bucket))
    loader = scripts.loader(tmp_path, scripts.GOOD)
    loader.capabilities = Capabilities(encodings=("jsonl+gzip",), stores=stores, reason="")
    assert loader.load(loading).mode == mode
    kinds = [message["type"] for message in scripts.read(tmp_path)]
    middle = ["BATCH"] if mode is MessageMode.BATCH else ["RECORD", "RECORD"]
    assert kinds == ["SCHEMA", *middle, "STATE"]


@pytest.fixture
def warehouse(empty_database_url: str, tmp_path: Path) -> Warehouse:
    """An empty warehouse that is appended to."""
    target = PostgresTarget(name="warehouse", conn="$WAREHOUSE")
    return Warehouse(url=empty_database_url, folder=tmp_path, target=target)


def test_table_is_loaded_from_s3_with_one_request_a_file(
    warehouse: Warehouse, bucket: str, faults: Faults
) -> None:
    """Expect all rows of both files, each fetched once although its SHA-256 is compared."""
    loading = warehouse.loading([ANN, BOB], [CAT], schema=schema_of(ID, NAME))
    loading = replace(loading, manifest=in_s3(loading.manifest, bucket))
    assert warehouse.load(loading).records == 3
    assert warehouse.rows("id", "name") == [(1, "Ann"), (2, "Bob"), (3, "Cat")]
    assert (faults.count("GET"), faults.count("HEAD")) == (2, 0)


def test_table_whose_store_ends_half_way_has_nothing_and_is_loaded_later(
    warehouse: Warehouse, bucket: str, faults: Faults
) -> None:
    """Expect no row of the first file to stay, an error that asks to come again, and then all."""
    loading = warehouse.loading([ANN, BOB], [CAT], schema=schema_of(ID, NAME))
    loading = replace(loading, manifest=in_s3(loading.manifest, bucket))
    faults.refuse(403, "ExpiredToken", skip=1, times=1)
    with pytest.raises(RetryableError, match=r"The part file .* cannot be read now") as caught:
        warehouse.load(loading)
    assert loading.manifest.part_files[1].uri in str(caught.value)
    assert warehouse.rows("id") == []
    assert warehouse.load(loading).records == 3
    written(loading.manifest.part_files[0].uri, b"other")
    with pytest.raises(PartFileChangedError, match="SHA-256 differs"):
        warehouse.load(replace(loading, again=True))


def publish(database: Database, folder: Path, root: str) -> None:
    """Publish two batches of two records each, in S3."""
    for one in planned(database, 2):
        first_id = one.id_range.first_id
        local = scripts.part_of(folder / f"{first_id}.jsonl.gz", (first_id, first_id + 1))
        reports = (item_report(first_id, read=2, written=2),)
        with claimed(database, one) as attempt:
            what = encoded(attempt.stem, part_files=(moved(local, root),), items=reports)
            database.attempts.publish(attempt, what, orders())


def test_load_without_an_answer_of_the_store_blames_no_batch(
    database: Database, tmp_path: Path, bucket: str, faults: Faults
) -> None:
    """Expect the load to end as one to be repeated, nothing recorded, and all loaded then."""
    publish(database, tmp_path, bucket)
    one = dock(database, tmp_path, scripts.EAGER, problem_of=content_problem)
    faults.refuse(403, "ExpiredToken", method="HEAD", times=1)
    with pytest.raises(RetryableError, match=r"The part file .* cannot be read now"):
        list(load(one))
    assert (rows(database), len(due(database))) == ([], 2)
    outcomes = list(load(one))
    assert [outcome.loaded is not None for outcome in outcomes] == [True, True]
    assert due(database) == []


def test_load_that_loses_the_store_is_tried_again_by_the_next(
    database: Database, tmp_path: Path, bucket: str, faults: Faults
) -> None:
    """Expect a load that had begun to be closed as failed, and not to count against the batch."""
    publish(database, tmp_path, bucket)
    one = dock(database, tmp_path, scripts.EAGER, problem_of=problem_before_reading)
    faults.refuse(403, "ExpiredToken", method="GET", times=1)
    with pytest.raises(RetryableError, match=r"The part file .* cannot be read now"):
        list(load(one))
    assert [status for _, _, status, _ in rows(database)] == ["failed"]
    outcomes = list(load(one))
    assert [outcome.loaded is not None for outcome in outcomes] == [True, True]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Put back what the SDK does with signals when a tap is made."""
    import signal

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
