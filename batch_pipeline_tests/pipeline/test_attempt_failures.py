"""Failing encode steps: the attempt is closed, its files are deleted, and a retry succeeds."""

import shutil
from dataclasses import replace
from typing import Any

import pytest

from batch_pipeline.model.batch import Attempt, BatchState
from batch_pipeline.model.encode_request import BadRecord
from batch_pipeline.model.errors import (
    BadFileError,
    BatchDataError,
    ConfigurationError,
    ConflictError,
    DatabaseUnreachableError,
    FencedError,
    InvariantError,
    RetryableError,
    SourceRefusedError,
    SourceUnavailableError,
    SparkUnavailableError,
    StorageUnavailableError,
    TasksLostError,
)
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import Manifest, PartFile
from batch_pipeline.model.record_rules import BadFileKind, BadFileRules, BadRecordRules, OnBadFile
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.factories import encoded, item_report, part_file
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.pipeline.attempt_fixture import (
    ID,
    EncodeHarness,
    LostReplies,
    UnreadableMetaTable,
    assert_retry_succeeds,
    encode_error,
)
from batch_pipeline_tests.seeds import claimed, expire, query

CORRUPT: dict[str, Any] = {"bad_file": "it is no gzip file", "bad_kind": BadFileKind.CORRUPT}


def test_corrupt_file_fails_the_batch(harness: EncodeHarness) -> None:
    bad = item_report(2, read=0, written=0, **CORRUPT)
    harness.encoder.script = [{"items": (item_report(1), bad)}]
    error = encode_error(harness, BadFileError)
    assert "orders-0002.csv: it is no gzip file" in str(error)
    assert harness.database.batches.statuses("orders")[0].state is BatchState.FAILED
    assert_retry_succeeds(harness)


def test_corrupt_file_is_quarantined_if_allowed(harness: EncodeHarness) -> None:
    bad = item_report(2, read=0, written=0, **CORRUPT)
    harness.root.mkdir()
    path = harness.root / "p"
    path.write_bytes(b"1")
    part = PartFile(uri=to_uri(path), records=5, size_bytes=1, sha256="ab" * 32)
    harness.encoder.script = [{"items": (item_report(1), bad), "part_files": (part,)}]
    manifest = harness.encode(
        stream=replace(harness.context.stream, on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE))
    )
    assert (manifest.items, manifest.records) == (2, 5)
    assert harness.database.history.of_item(harness.batch, 2)[0].bad_file == "it is no gzip file"


def _with_bad_records(count: int) -> dict[str, Any]:
    bad_record = BadRecord(
        item_id=1, location="file:///landing/orders-0001.csv", line=3, reason="2 cells, expected 3"
    )
    items = (item_report(1, read=5 + count, quarantined=count), item_report(2))
    return {"items": items, "bad_records": (bad_record,)}


def test_too_many_bad_records_fail_the_batch(harness: EncodeHarness) -> None:
    harness.encoder.script = [_with_bad_records(4)]
    error = encode_error(
        harness,
        BatchDataError,
        stream=replace(harness.context.stream, on_bad_record=BadRecordRules(max_bad_records=3)),
    )
    assert "orders-0001.csv, line 3: 2 cells, expected 3. Bad records: 4, 3 allowed" in str(error)
    assert_retry_succeeds(harness)


def test_bad_records_up_to_the_limit_are_quarantined(harness: EncodeHarness) -> None:
    harness.encoder.script = [_with_bad_records(3)]
    manifest = harness.encode(
        stream=replace(harness.context.stream, on_bad_record=BadRecordRules(max_bad_records=3))
    )
    assert (manifest.records, manifest.records_quarantined, manifest.records_read) == (10, 3, 13)


def test_missing_part_file_fails_the_attempt(harness: EncodeHarness) -> None:
    """Executors may have written the file to another disk."""

    def delete_part_file() -> None:
        (path,) = harness.root.glob("*.jsonl.gz")
        path.unlink()

    harness.encoder.script = [delete_part_file]
    error = encode_error(harness, ConfigurationError)
    assert "with 12 B, and from the driver it does not exist. Executors write to" in str(error)
    assert_retry_succeeds(harness)


def test_quarantine_file_of_another_size_fails_the_attempt(harness: EncodeHarness) -> None:
    folder = harness.root / "quarantine"
    folder.mkdir(parents=True)
    (folder / "q").write_bytes(b"1")
    harness.encoder.script = [{"quarantine_files": (part_file(uri=to_uri(folder / "q")),)}]
    with pytest.raises(ConfigurationError, match=r"with 100 B, .* it has 1 B\."):
        harness.encode()
    assert harness.attempts()[0][0] == "failed"


def test_record_counts_that_disagree_fail_the_attempt(harness: EncodeHarness) -> None:
    harness.encoder.script = [{"items": (item_report(1), item_report(2, read=6, written=6))}]
    error = encode_error(harness, InvariantError)
    assert "filtered or quarantined" in str(error)
    assert_retry_succeeds(harness)


@pytest.mark.parametrize("point", ["encode.after_claim", "encode.before_publish"])
def test_failed_encode_can_be_retried(
    harness: EncodeHarness, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The points are before the items are read and after all files are written."""
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    error = encode_error(harness, RuntimeError)
    assert str(error) == f"failpoint {point}"
    monkeypatch.delenv(VARIABLE)
    assert_retry_succeeds(harness)


def test_encode_that_cannot_read_its_items_can_be_retried(harness: EncodeHarness) -> None:
    encode_error(harness, RetryableError, meta_table=UnreadableMetaTable())
    assert harness.encoder.requests == []
    assert_retry_succeeds(harness)


def test_unwritable_storage_is_detected_before_the_claim(harness: EncodeHarness) -> None:
    harness.root.write_text("")
    with pytest.raises(StorageUnavailableError):
        harness.encode()
    assert harness.attempts() == []


def test_error_is_kept_if_its_files_cannot_be_deleted(harness: EncodeHarness) -> None:
    def lose_storage() -> None:
        shutil.rmtree(harness.root)
        harness.root.write_text("")
        raise StorageUnavailableError(to_uri(harness.root), "no space left on device")

    harness.encoder.script = [lose_storage]
    with pytest.raises(StorageUnavailableError, match="no space left on device"):
        harness.encode()
    ((status, error, *_),) = harness.attempts()
    assert status == "abandoned"  # not a data error
    assert "no space left on device" in error


def test_interrupted_encode_abandons_its_attempt(harness: EncodeHarness) -> None:
    harness.encoder.script = [KeyboardInterrupt()]
    encode_error(harness, KeyboardInterrupt)
    assert harness.attempts()[0][:2] == ("abandoned", "interrupted")
    assert harness.database.batches.statuses("orders")[0].state is BatchState.INTERRUPTED
    assert_retry_succeeds(harness)


def test_encode_of_a_running_batch_is_rejected(harness: EncodeHarness) -> None:
    with claimed(harness.database, harness.batch), pytest.raises(ConflictError, match="is running"):
        harness.encode()
    assert harness.encoder.requests == []
    assert harness.attempts() == [("running", None, None, None)]


def test_fenced_encode_publishes_nothing_and_deletes_its_files(harness: EncodeHarness) -> None:
    published: list[Manifest] = []

    def take_over() -> None:
        id_, token = query(harness.database, "SELECT id, token FROM batch_pipeline.attempt")[0]
        expire(harness.database, Attempt(id=id_, batch=harness.batch, number=1, token=token))
        with claimed(harness.database, harness.batch) as attempt:
            (harness.root / f"{attempt.stem}-1.jsonl.gz").write_bytes(b"five records")
            harness.database.schemas.widen("orders", [ID], text_source=True)
            result = encoded(attempt.stem)
            published.append(
                harness.database.attempts.publish(attempt, result, harness.context.stream)
            )

    harness.encoder.script = [take_over]
    with pytest.raises(FencedError):
        harness.encode()
    assert [row[0] for row in harness.attempts()] == ["abandoned", "succeeded"]
    assert [name.split("-a")[1][0] for name in harness.parts()] == ["2"]
    assert harness.database.manifests.of_batch(harness.batch) == published[0]


def test_encode_fenced_before_its_start_raises_fenced_error(harness: EncodeHarness) -> None:
    """The manifest file of the later attempt is not taken as a sign of a restored inventory."""

    class SlowStorage(PartFileStorage):
        def check_unpointed(self, attempt: Attempt) -> None:
            expire(harness.database, attempt)
            with claimed(harness.database, harness.batch) as later:
                harness.database.schemas.widen("orders", [ID], text_source=True)
                result = encoded(later.stem)
                manifest = harness.database.attempts.publish(later, result, harness.context.stream)
            self.point_to(manifest)
            super().check_unpointed(attempt)

    with pytest.raises(FencedError):
        harness.encode(storage=SlowStorage(harness.context.stream.storage))
    assert [row[0] for row in harness.attempts()] == ["abandoned", "succeeded"]
    assert harness.encoder.requests == []


@pytest.mark.parametrize("lost", ["publish_before", "publish_after"])
def test_publish_with_lost_request_or_reply_counts_once(harness: EncodeHarness, lost: str) -> None:
    manifest = harness.encode(attempts=LostReplies(harness.database.attempts, **{lost: 1}))
    assert harness.attempts() == [("succeeded", None, 1, 1)]
    assert harness.database.manifests.of_batch(harness.batch) == manifest
    assert len(harness.parts()) == len(harness.pointers()) == 1


def test_publish_lost_twice_before_commit_fails_the_attempt(harness: EncodeHarness) -> None:
    attempts = LostReplies(harness.database.attempts, publish_before=2)
    encode_error(harness, DatabaseUnreachableError, attempts=attempts)
    assert_retry_succeeds(harness)


def test_publish_lost_twice_after_commit_keeps_its_files(harness: EncodeHarness) -> None:
    with pytest.raises(DatabaseUnreachableError):
        harness.encode(attempts=LostReplies(harness.database.attempts, publish_after=2))
    assert harness.attempts() == [("succeeded", None, 1, 1)]
    assert len(harness.parts()) == 1


@pytest.mark.parametrize(
    ("lost", "status"), [("publish_before", "running"), ("publish_after", "succeeded")]
)
def test_publish_of_unknown_outcome_keeps_its_files(
    harness: EncodeHarness, lost: str, status: str
) -> None:
    attempts = LostReplies(harness.database.attempts, failing=1, **{lost: 2})
    with pytest.raises(DatabaseUnreachableError):
        harness.encode(attempts=attempts)
    assert [row[0] for row in harness.attempts()] == [status]
    assert len(harness.parts()) == 1


def test_encode_without_manifest_file_is_published(
    harness: EncodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inventory row is the commit point, not the manifest file."""
    monkeypatch.setenv(VARIABLE, "encode.before_pointer=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        harness.encode()
    assert harness.attempts() == [("succeeded", None, 1, 1)]
    assert (len(harness.parts()), harness.pointers()) == (1, [])
    assert len(list(harness.database.manifests.without_pointer("orders"))) == 1


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (SparkUnavailableError("the Connect server", "it is gone"), BatchState.INTERRUPTED),
        (SourceUnavailableError("s3://in/a", "it does not answer"), BatchState.INTERRUPTED),
        (SourceRefusedError("s3://in/a", "the store refuses"), BatchState.INTERRUPTED),
        (StorageUnavailableError("s3://out", "it does not answer"), BatchState.INTERRUPTED),
        (KeyboardInterrupt(), BatchState.INTERRUPTED),
        (TasksLostError("local", "Python worker exited unexpectedly"), BatchState.DEAD),
    ],
    ids=["no Spark", "no source", "source refused", "no storage", "interrupted", "crashed"],
)
def test_outages_do_not_count_as_attempts_but_crashes_do(
    harness: EncodeHarness, error: BaseException, state: BatchState
) -> None:
    """Outages never make a batch dead; three crashes of its tasks or three data errors do."""
    for _ in range(4 if state is BatchState.INTERRUPTED else 3):
        harness.encoder.script = [error]
        with pytest.raises(type(error)):
            harness.encode()
    assert {status for status, *_ in harness.attempts()} == {"abandoned"}
    assert harness.database.batches.statuses("orders")[0].state is state
    check_invariants(harness.database)
    if state is BatchState.INTERRUPTED:
        for _ in range(3):
            harness.encoder.script = [RuntimeError("bad data")]
            with pytest.raises(RuntimeError):
                harness.encode()
        assert harness.database.batches.statuses("orders")[0].state is BatchState.DEAD
        check_invariants(harness.database)


def test_unavailable_spark_is_detected_before_the_claim(harness: EncodeHarness) -> None:
    harness.encoder.unavailable = SparkUnavailableError("spark://master", "connection refused")
    with pytest.raises(SparkUnavailableError):
        harness.encode()
    assert harness.attempts() == []
