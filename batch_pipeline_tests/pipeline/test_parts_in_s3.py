"""Part files in S3 and their readers: checks, the tap, targets, a Postgres table."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.load.singer_capabilities import Capabilities
from batch_pipeline.model.errors import PartFileChangedError, RetryableError
from batch_pipeline.model.load import MessageMode
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.pipeline.load import FileCheck, load
from batch_pipeline.singer.part_records import record_blocks
from batch_pipeline.storage.s3 import PART_BYTES, S3, ObjectUpload
from batch_pipeline.storage.verification import (
    content_problem,
    problem_before_reading,
    size_problem,
    verify_contents,
)
from batch_pipeline_tests.encode.writers.part_factories import published_lines
from batch_pipeline_tests.factories import encoded, item_report, part_file
from batch_pipeline_tests.load import target_scripts as scripts
from batch_pipeline_tests.load.warehouse import APPEND, ID, NAME, Warehouse, schema_of
from batch_pipeline_tests.pipeline.load_fixture import due, load_context, orders, rows
from batch_pipeline_tests.seeds import claimed, planned
from batch_pipeline_tests.singer.tap.tap_fixture import (
    ListedSource,
    printed,
    sent,
    signals_restored,
    tap_class,
)
from batch_pipeline_tests.store_faults import Faults

ANN, BOB, CAT = ({"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}, {"id": 3, "name": "Cat"})
ONE, TWO, THREE = b'{"order_id":1}', b'{"order_id":2}', b'{"order_id":3}'
LARGE = bytes(range(251)) * (2 * PART_BYTES // 251 + 1)


def move_part(part: PartFile, root: str) -> PartFile:
    """Move a part file from its folder to S3."""
    path = Path(to_path(part.uri))
    uri = upload_bytes(f"{root}/{path.name}", path.read_bytes())
    path.unlink()
    return replace(part, uri=uri)


def upload_bytes(uri: str, octets: bytes) -> str:
    """Upload an object, a large one in several parts, and return its URI."""
    upload = ObjectUpload(uri)
    upload.write(octets)
    upload.finish()
    upload.commit()
    return uri


def move_to_s3(manifest: Manifest, root: str) -> Manifest:
    """Move the part files of a manifest to S3."""
    return replace(
        manifest, part_files=tuple(move_part(part, root) for part in manifest.part_files)
    )


def upload_part(uri: str, octets: bytes) -> PartFile:
    """Upload a part file with arbitrary content."""
    digest = hashlib.sha256(octets).hexdigest()
    return part_file(
        uri=upload_bytes(uri, octets),
        records=len(octets.split(b"\n")),
        size_bytes=len(octets),
        sha256=digest,
    )


@pytest.fixture(params=["small", "large"])
def part(request: pytest.FixtureRequest, bucket: str) -> PartFile:
    """A part file in S3, with a SHA-256 in the store or uploaded in several parts."""
    return upload_part(f"{bucket}/a.jsonl", LARGE if request.param == "large" else b"12345")


CHECKS = [size_problem, verify_contents, content_problem, problem_before_reading]


def test_object_with_changed_content_is_detected_by_its_sha256(part: PartFile) -> None:
    """S3 knows the SHA-256 of small objects; objects uploaded in parts must be read."""
    is_small = part.size_bytes == 5
    upload_bytes(part.uri, b"X" + (b"2345" if is_small else LARGE[1:]))
    problems = [check(part) for check in CHECKS]
    assert all(f"{part.uri} has the SHA-256" in str(problem) for problem in problems[1:3])
    assert [problem is not None for problem in problems] == [is_small, True, True, is_small]


def test_missing_or_truncated_object_fails_all_checks(bucket: str) -> None:
    part = upload_part(f"{bucket}/a.jsonl", b"12345")
    upload_bytes(part.uri, b"123")
    truncated = f"{part.uri} has 3 B, published: 5 B"
    assert [check(part) for check in CHECKS] == [truncated] * 4
    S3.delete(part.uri)
    assert [check(part) for check in CHECKS] == [f"{part.uri} is missing"] * 4


def test_checks_only_download_objects_without_a_stored_sha256(
    part: PartFile, faults: Faults
) -> None:
    assert [size_problem(part), problem_before_reading(part)] == [None, None]
    assert (faults.count("HEAD"), faults.count("GET")) == (2, 0)
    assert content_problem(part) is None
    assert faults.count("GET") == (0 if part.size_bytes == 5 else 1)
    assert verify_contents(part) is None
    assert faults.count("GET") == (1 if part.size_bytes == 5 else 2)


def test_denied_access_is_retryable_and_not_a_missing_file(bucket: str, faults: Faults) -> None:
    """Without the right to read objects, only the size is checked."""
    part = upload_part(f"{bucket}/a.jsonl", b"12345")
    faults.refuse(403, "ExpiredToken", times=len(CHECKS))
    for check in CHECKS:
        with pytest.raises(RetryableError, match="refuses s3:GetObject"):
            check(part)
    faults.refuse(403, "AccessDenied", method="GET")
    assert size_problem(part) is None
    with pytest.raises(RetryableError, match=r"refuses s3:GetObject \(AccessDenied\)"):
        verify_contents(part)


def test_objects_are_downloaded_once_and_copies_are_deleted(
    tmp_path: Path, bucket: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = move_to_s3(published_lines(tmp_path / "a", ONE, TWO, THREE), bucket)
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert b"".join(record_blocks(manifest, "orders")).count(b"\n") == 3
    assert faults.count("GET") == 2
    blocks = record_blocks(manifest, "orders")
    assert b'"order_id":1' in next(blocks)
    [copies] = folder.iterdir()  # one folder, whose lock needs one file descriptor
    assert len(list(copies.rglob("*.gz"))) == 2
    del blocks
    assert list(folder.iterdir()) == []


def test_tap_sends_unescaped_object_uris(tmp_path: Path, bucket: str) -> None:
    """The Singer SDK opens them without decoding."""
    manifest = move_to_s3(published_lines(tmp_path, ONE, TWO, THREE), f"{bucket}/a b+é%20")
    [_, batch, _] = sent(ListedSource([manifest]), config={"mode": "batch"})
    assert batch["manifest"] == [part.uri for part in manifest.part_files]
    assert batch["manifest"][0].startswith(f"{bucket}/a b+é%20/orders-1-")


def test_tap_without_access_ends_with_a_retryable_error(
    tmp_path: Path, bucket: str, faults: Faults
) -> None:
    manifest = move_to_s3(published_lines(tmp_path, ONE), bucket)
    faults.refuse(403, "ExpiredToken")
    for mode in ("batch", "record"):
        tap = tap_class(ListedSource([manifest]))(config={"mode": mode})
        lines = printed(tap, until=RetryableError)
        assert all(b'"BATCH"' not in line and b'"RECORD"' not in line for line in lines)
        assert all(b'publish_number":1' not in line.replace(b" ", b"") for line in lines)


@pytest.mark.parametrize(
    ("stores", "mode"), [(("s3",), MessageMode.BATCH), ((), MessageMode.RECORD)]
)
def test_target_gets_batch_messages_only_if_it_can_read_s3(
    tmp_path: Path, bucket: str, stores: tuple[str, ...], mode: MessageMode
) -> None:
    loading = scripts.loading(tmp_path)
    loading = replace(loading, manifest=move_to_s3(loading.manifest, bucket))
    loader = scripts.loader(tmp_path, scripts.GOOD)
    loader.capabilities = Capabilities(encodings=("jsonl+gzip",), stores=stores, reason="")
    assert loader.load(loading).mode == mode
    kinds = [message["type"] for message in scripts.read(tmp_path)]
    middle = ["BATCH"] if mode is MessageMode.BATCH else ["RECORD", "RECORD"]
    assert kinds == ["SCHEMA", *middle, "STATE"]


def test_table_is_loaded_with_one_request_per_object(
    empty_database_url: str, tmp_path: Path, bucket: str, faults: Faults
) -> None:
    """A load interrupted by the store is rolled back and can be repeated."""
    warehouse = Warehouse(url=empty_database_url, folder=tmp_path, target=APPEND)
    loading = warehouse.loading([ANN, BOB], [CAT], schema=schema_of(ID, NAME))
    loading = replace(loading, manifest=move_to_s3(loading.manifest, bucket))
    assert warehouse.load(loading).records == 3
    assert warehouse.rows("id", "name") == [(1, "Ann"), (2, "Bob"), (3, "Cat")]
    assert (faults.count("GET"), faults.count("HEAD")) == (2, 0)
    warehouse.drop_tables()
    faults.refuse(403, "ExpiredToken", skip=1, times=1)
    with pytest.raises(RetryableError, match=r"The part file .* cannot be read now") as caught:
        warehouse.load(loading)
    assert loading.manifest.part_files[1].uri in str(caught.value)
    assert warehouse.rows("id") == []
    assert warehouse.load(loading).records == 3
    assert warehouse.rows("id") == [(1,), (2,), (3,)]
    upload_bytes(loading.manifest.part_files[0].uri, b"other")
    with pytest.raises(PartFileChangedError, match="has the SHA-256"):
        warehouse.load(replace(loading, again=True))


def publish(database: Database, folder: Path, root: str) -> None:
    """Publish two batches of two records each, in S3."""
    for batch in planned(database, 2):
        first_id = batch.id_range.first_id
        local = scripts.part_of(folder / f"{first_id}.jsonl.gz", (first_id, first_id + 1))
        reports = (item_report(first_id, read=2, written=2),)
        with claimed(database, batch) as attempt:
            result = encoded(attempt.stem, part_files=(move_part(local, root),), items=reports)
            database.attempts.publish(attempt, result, orders())


def test_load_without_access_does_not_count_against_the_batch(
    database: Database, tmp_path: Path, bucket: str, faults: Faults
) -> None:
    """It is recorded only if the access is lost after the files were checked."""
    publish(database, tmp_path, bucket)
    checks: list[FileCheck] = [content_problem, problem_before_reading]
    for check, method, recorded in zip(checks, ("HEAD", "GET"), ([], ["failed"]), strict=True):
        context = load_context(database, tmp_path, scripts.EAGER, problem_of=check)
        faults.refuse(403, "ExpiredToken", method=method, times=1)
        with pytest.raises(RetryableError, match=r"The part file .* cannot be read now"):
            list(load(context))
        assert [status for _, _, status, _ in rows(database)] == recorded
    outcomes = list(load(context))
    assert [outcome.loaded is not None for outcome in outcomes] == [True, True]
    assert due(database) == []


@pytest.fixture(autouse=True)
def _restore_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers that the SDK replaces when a tap is created."""
    with signals_restored():
        yield
