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
    SourceRefusedError,
    SourceUnavailableError,
    SparkUnavailableError,
    StorageUnavailableError,
    TasksLostError,
)
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.record_rules import BadFileKind, BadFileRules, BadRecordRules, OnBadFile
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.factories import encoded, item_report, part_file
from batch_pipeline_tests.inventory.invariants import check_invariants
from batch_pipeline_tests.pipeline.attempt_fixture import (
    ID,
    EncodeHarness,
    LostReplies,
    assert_retry_succeeds,
    encode_error,
)
from batch_pipeline_tests.seeds import claimed, execute


def test_corrupt_file_fails_the_batch_unless_it_is_quarantined(harness: EncodeHarness) -> None:
    good = item_report(1, read=10, written=10)
    reason, kind = "it is no gzip file", BadFileKind.CORRUPT
    bad = item_report(2, read=0, written=0, bad_file=reason, bad_kind=kind)
    harness.encoder.script = [{"items": (good, bad)}] * 2
    error = encode_error(harness, BadFileError)
    assert f"orders-0002.csv: {reason}" in str(error)
    assert harness.database.batches.statuses("orders")[0].state is BatchState.FAILED
    rules = BadFileRules.all(OnBadFile.QUARANTINE)
    manifest = harness.encode(stream=replace(harness.context.stream, on_bad_file=rules))
    assert (manifest.attempt, manifest.items, manifest.records) == (2, 2, 10)
    assert harness.database.history.of_item(harness.batch, 2)[-1].bad_file == reason


def _with_bad_records(count: int) -> dict[str, Any]:
    bad_record = BadRecord(
        item_id=1, location="file:///landing/orders-0001.csv", line=3, reason="2 cells, expected 3"
    )
    items = (item_report(1, read=5 + count, quarantined=count), item_report(2))
    return {"items": items, "bad_records": (bad_record,)}


def test_bad_records_above_the_limit_fail_the_batch(harness: EncodeHarness) -> None:
    rules = BadRecordRules(max_bad_records=3)
    stream = replace(harness.context.stream, on_bad_record=rules)
    harness.encoder.script = [_with_bad_records(4), _with_bad_records(3)]
    error = encode_error(harness, BatchDataError, stream=stream)
    assert "orders-0001.csv, line 3: 2 cells, expected 3. Bad records: 4, 3 allowed" in str(error)
    manifest = harness.encode(stream=stream)
    assert (manifest.attempt, manifest.records_read) == (2, 13)
    assert (manifest.records, manifest.records_quarantined) == (10, 3)


def test_missing_part_file_or_short_quarantine_file_fails_the_attempt(
    harness: EncodeHarness,
) -> None:
    """Executors may have written the file to another disk."""

    def delete_part_file() -> None:
        (path,) = harness.root.glob("*.jsonl.gz")
        path.unlink()

    harness.encoder.script = [delete_part_file]
    error = encode_error(harness, ConfigurationError)
    assert "with 12 B, and from the driver it does not exist. Executors write to" in str(error)
    assert_retry_succeeds(harness)
    short = harness.root / "quarantine/q"
    short.write_bytes(b"1")
    harness.encoder.script = [{"quarantine_files": (part_file(uri=to_uri(short)),)}]
    with pytest.raises(ConfigurationError, match=r"with 100 B, .* it has 1 B\."):
        harness.encode()
    assert harness.attempts()[-1][0] == "failed"


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


def test_unavailable_spark_or_storage_is_detected_before_the_claim(harness: EncodeHarness) -> None:
    harness.root.write_text("")
    with pytest.raises(StorageUnavailableError):
        harness.encode()
    harness.root.unlink()
    harness.encoder.unavailable = SparkUnavailableError("spark://master", "connection refused")
    with pytest.raises(SparkUnavailableError):
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


def test_encode_of_a_running_batch_is_rejected(harness: EncodeHarness) -> None:
    with claimed(harness.database, harness.batch), pytest.raises(ConflictError, match="is running"):
        harness.encode()
    assert harness.encoder.requests == []
    assert harness.attempts() == [("running", None, None, None)]


def _take_over(harness: EncodeHarness) -> Manifest:
    """Let the lease of the running attempt expire, and publish another one."""
    execute(
        harness.database,
        "UPDATE batch_pipeline.attempt SET lease_until = clock_timestamp() - interval '1 second'",
    )
    with claimed(harness.database, harness.batch) as later:
        (harness.root / f"{later.stem}-1.jsonl.gz").write_bytes(b"five records")
        harness.database.schemas.widen("orders", [ID], text_source=True)
        result = encoded(later.stem)
        return harness.database.attempts.publish(later, result, harness.context.stream)


def test_fenced_encode_publishes_nothing_and_deletes_its_files(harness: EncodeHarness) -> None:
    published: list[Manifest] = []
    harness.encoder.script = [lambda: published.append(_take_over(harness))]
    with pytest.raises(FencedError):
        harness.encode()
    assert [row[0] for row in harness.attempts()] == ["abandoned", "succeeded"]
    assert [name.split("-a")[1][0] for name in harness.parts()] == ["2"]
    assert harness.database.manifests.of_batch(harness.batch) == published[0]


def test_encode_fenced_before_its_start_raises_fenced_error(harness: EncodeHarness) -> None:
    """The manifest file of the later attempt is not taken as a sign of a restored inventory."""

    class SlowStorage(PartFileStorage):
        def check_unpointed(self, attempt: Attempt, stream: str) -> None:
            self.point_to(_take_over(harness))
            super().check_unpointed(attempt, stream)

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


@pytest.mark.parametrize(
    ("lost", "failing", "status"),
    [
        ("publish_after", 0, "succeeded"),
        ("publish_before", 1, "running"),
        ("publish_after", 1, "succeeded"),
    ],
)
def test_publish_that_may_have_been_committed_keeps_its_files(
    harness: EncodeHarness, lost: str, failing: int, status: str
) -> None:
    attempts = LostReplies(harness.database.attempts, failing=failing, **{lost: 2})
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
    reason = str(error) if isinstance(error, Exception) else "interrupted"
    assert {row[:2] for row in harness.attempts()} == {("abandoned", reason)}
    assert harness.parts() == []
    assert harness.database.batches.statuses("orders")[0].state is state
    check_invariants(harness.database)
    if state is BatchState.INTERRUPTED:
        for _ in range(3):
            harness.encoder.script = [RuntimeError("bad data")]
            with pytest.raises(RuntimeError):
                harness.encode()
        assert harness.database.batches.statuses("orders")[0].state is BatchState.DEAD
        check_invariants(harness.database)
