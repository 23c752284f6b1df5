"""The encode step that fails: the attempt closed, its files gone, nothing else burnt."""

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
    LostReplies,
    Scene,
    UnreadableMetaTable,
    check_can_be_repeated,
    fails,
)
from batch_pipeline_tests.seeds import claimed, expire, query

CORRUPT: dict[str, Any] = {"bad_file": "it is no gzip file", "bad_kind": BadFileKind.CORRUPT}


def test_encode_of_a_bad_file_fails_the_batch(scene: Scene) -> None:
    """Expect file and reason to be named."""
    bad = item_report(2, read=0, written=0, **CORRUPT)
    scene.encoder.script = [{"items": (item_report(1), bad)}]
    error = fails(scene, BadFileError)
    assert "orders-0002.csv: it is no gzip file" in str(error)
    assert scene.database.batches.statuses("orders")[0].state is BatchState.FAILED
    check_can_be_repeated(scene)


def test_encode_of_a_bad_file_that_may_be_set_aside_publishes_the_rest(scene: Scene) -> None:
    """Expect the other item's records, and the reason beside the bad one."""
    bad = item_report(2, read=0, written=0, **CORRUPT)

    scene.root.mkdir()
    path = scene.root / "p"
    path.write_bytes(b"1")
    part = PartFile(uri=to_uri(path), records=5, size_bytes=1, sha256="ab" * 32)
    scene.encoder.script = [{"items": (item_report(1), bad), "part_files": (part,)}]
    manifest = scene.encode(
        stream=replace(scene.workshop.stream, on_bad_file=BadFileRules.all(OnBadFile.QUARANTINE))
    )
    assert (manifest.items, manifest.records) == (2, 5)
    assert scene.database.history.of_item(scene.batch, 2)[0].bad_file == "it is no gzip file"


def _with_bad_records(count: int) -> dict[str, Any]:
    found = BadRecord(
        item_id=1, location="file:///landing/orders-0001.csv", line=3, reason="2 cells, expected 3"
    )
    items = (item_report(1, read=5 + count, quarantined=count), item_report(2))
    return {"items": items, "bad_records": (found,)}


def test_encode_with_too_many_bad_records_fails_the_batch(scene: Scene) -> None:
    """Expect the first of them to be named, and both numbers."""
    scene.encoder.script = [_with_bad_records(4)]
    error = fails(
        scene,
        BatchDataError,
        stream=replace(scene.workshop.stream, on_bad_record=BadRecordRules(max_bad_records=3)),
    )
    assert "orders-0001.csv, line 3: 2 cells, expected 3. Bad records: 4, 3 allowed" in str(error)
    check_can_be_repeated(scene)


def test_encode_with_as_many_bad_records_as_allowed_publishes(scene: Scene) -> None:
    """Expect the limit itself to pass, and the bad records to be counted."""
    scene.encoder.script = [_with_bad_records(3)]
    manifest = scene.encode(
        stream=replace(scene.workshop.stream, on_bad_record=BadRecordRules(max_bad_records=3))
    )
    assert (manifest.records, manifest.records_quarantined, manifest.records_read) == (10, 3, 13)


def test_encode_whose_part_file_is_on_another_disk_publishes_nothing(scene: Scene) -> None:
    """Expect a file that a task has told of, and that is not there, to be refused."""

    def lose() -> None:
        (path,) = scene.root.glob("*.jsonl.gz")
        path.unlink()

    scene.encoder.script = [lose]
    error = fails(scene, ConfigurationError)
    assert "with 12 B, and seen from here it is not there. Executors write to" in str(error)
    check_can_be_repeated(scene)


def test_encode_whose_quarantine_file_is_another_one_publishes_nothing(scene: Scene) -> None:
    """Expect files of bad records to be looked at, too, with their size."""

    def other() -> dict[str, Any]:
        folder = scene.root / "quarantine"
        folder.mkdir(parents=True)
        (folder / "q").write_bytes(b"1")
        return {"quarantine_files": (part_file(uri=to_uri(folder / "q")),)}

    scene.encoder.script = [other()]
    with pytest.raises(ConfigurationError, match=r"with 100 B, .* it has 1 B\."):
        scene.encode()
    assert scene.attempts()[0][0] == "failed"


def test_encode_that_lost_a_record_publishes_nothing(scene: Scene) -> None:
    """Expect part files and items that disagree to stop the batch."""
    scene.encoder.script = [{"items": (item_report(1), item_report(2, read=6, written=6))}]
    error = fails(scene, InvariantError)
    assert "filtered or quarantined" in str(error)
    check_can_be_repeated(scene)


@pytest.mark.parametrize("point", ["encode.after_claim", "encode.before_publish"])
def test_encode_that_fails_at_a_point_burns_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Expect a failure before reading the items, or with all files written, to leave no trace."""
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    error = fails(scene, RuntimeError)
    assert str(error) == f"failpoint {point}"
    monkeypatch.delenv(VARIABLE)
    check_can_be_repeated(scene)


def test_encode_that_cannot_read_its_items_burns_nothing(scene: Scene) -> None:
    """Expect a locked meta table to close the attempt before anything is written."""
    fails(scene, RetryableError, meta_table=UnreadableMetaTable())
    assert scene.encoder.requests == []
    check_can_be_repeated(scene)


def test_encode_without_storage_makes_no_attempt(scene: Scene) -> None:
    """Expect a storage that cannot be written to be found before the claim."""
    scene.root.write_text("")
    with pytest.raises(StorageUnavailableError):
        scene.encode()
    assert scene.attempts() == []


def test_encode_whose_storage_goes_away_keeps_its_first_error(scene: Scene) -> None:
    """Expect files that cannot be removed not to hide why the attempt failed."""

    def lose_storage() -> None:
        shutil.rmtree(scene.root)
        scene.root.write_text("")
        raise StorageUnavailableError(to_uri(scene.root), "no space left on device")

    scene.encoder.script = [lose_storage]
    with pytest.raises(StorageUnavailableError, match="no space left on device"):
        scene.encode()
    ((status, error, *_),) = scene.attempts()
    assert status == "abandoned"  # no fault of the data
    assert "no space left on device" in error


def test_encode_that_is_interrupted_is_abandoned(scene: Scene) -> None:
    """Expect Ctrl-C to close the attempt, to remove its files and to be passed on."""
    scene.encoder.script = [KeyboardInterrupt()]
    fails(scene, KeyboardInterrupt)
    assert scene.attempts()[0][:2] == ("abandoned", "interrupted")
    assert scene.database.batches.statuses("orders")[0].state is BatchState.INTERRUPTED
    check_can_be_repeated(scene)


def test_encode_of_a_batch_in_work_touches_nothing(scene: Scene) -> None:
    """Expect the second worker to be sent away before it encodes."""
    with claimed(scene.database, scene.batch), pytest.raises(ConflictError, match="is running"):
        scene.encode()
    assert scene.encoder.requests == []
    assert scene.attempts() == [("running", None, None, None)]


def test_encode_that_was_fenced_publishes_nothing_and_removes_its_files(scene: Scene) -> None:
    """Expect the attempt that took over to be the only one that counts."""
    rivals: list[Manifest] = []

    def take_over() -> None:
        number = query(scene.database, "SELECT id, token FROM batch_pipeline.attempt")[0]
        expire(scene.database, Attempt(id=number[0], batch=scene.batch, number=1, token=number[1]))
        with claimed(scene.database, scene.batch) as attempt:
            (scene.root / f"{attempt.stem}-1.jsonl.gz").write_bytes(b"five records")
            scene.database.schemas.widen("orders", [ID], text_source=True)
            what = encoded(attempt.stem)
            rivals.append(scene.database.attempts.publish(attempt, what, scene.workshop.stream))

    scene.encoder.script = [take_over]
    with pytest.raises(FencedError):
        scene.encode()
    assert [row[0] for row in scene.attempts()] == ["abandoned", "succeeded"]
    assert [name.split("-a")[1][0] for name in scene.parts()] == ["2"]
    assert scene.database.manifests.of_batch(scene.batch) == rivals[0]


def test_encode_that_was_fenced_before_it_began_is_told_so(scene: Scene) -> None:
    """Expect the manifest file of the later attempt to be no sign of an older inventory."""

    class Slow(PartFileStorage):
        def check_unpointed(self, attempt: Attempt) -> None:
            expire(scene.database, attempt)
            with claimed(scene.database, scene.batch) as rival:
                scene.database.schemas.widen("orders", [ID], text_source=True)
                what = encoded(rival.stem)
                rivals = scene.database.attempts.publish(rival, what, scene.workshop.stream)
            self.point_to(rivals)
            super().check_unpointed(attempt)

    with pytest.raises(FencedError):
        scene.encode(storage=Slow(scene.workshop.stream.storage))
    assert [row[0] for row in scene.attempts()] == ["abandoned", "succeeded"]
    assert scene.encoder.requests == []


@pytest.mark.parametrize("lost", ["publish_before", "publish_after"])
def test_publish_whose_request_or_reply_is_lost_counts_once(scene: Scene, lost: str) -> None:
    manifest = scene.encode(attempts=LostReplies(scene.database.attempts, **{lost: 1}))
    assert scene.attempts() == [("succeeded", None, 1, 1)]
    assert scene.database.manifests.of_batch(scene.batch) == manifest
    assert len(scene.parts()) == len(scene.pointers()) == 1


def test_publish_that_stays_lost_before_its_commit_fails_the_attempt(scene: Scene) -> None:
    """Expect a second lost request to close the attempt, and its files to go."""
    attempts = LostReplies(scene.database.attempts, publish_before=2)
    fails(scene, DatabaseUnreachableError, attempts=attempts)
    check_can_be_repeated(scene)


def test_publish_that_stays_lost_after_its_commit_keeps_its_files(scene: Scene) -> None:
    """Expect the inventory, asked once more, to say that the files are published."""
    with pytest.raises(DatabaseUnreachableError):
        scene.encode(attempts=LostReplies(scene.database.attempts, publish_after=2))
    assert scene.attempts() == [("succeeded", None, 1, 1)]
    assert len(scene.parts()) == 1


@pytest.mark.parametrize(
    ("lost", "status"), [("publish_before", "running"), ("publish_after", "succeeded")]
)
def test_publish_that_nobody_can_ask_about_keeps_its_files(
    scene: Scene, lost: str, status: str
) -> None:
    """Expect files to stay as long as nobody knows whether they are published."""
    attempts = LostReplies(scene.database.attempts, failing=1, **{lost: 2})
    with pytest.raises(DatabaseUnreachableError):
        scene.encode(attempts=attempts)
    assert [row[0] for row in scene.attempts()] == [status]
    assert len(scene.parts()) == 1


def test_encode_that_ends_before_its_pointer_is_published_all_the_same(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect the inventory's row, not the pointer, to be the commit point."""
    monkeypatch.setenv(VARIABLE, "encode.before_pointer=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        scene.encode()
    assert scene.attempts() == [("succeeded", None, 1, 1)]
    assert (len(scene.parts()), scene.pointers()) == (1, [])
    assert len(list(scene.database.manifests.without_pointer("orders"))) == 1


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
    ids=["no Spark", "no store", "refused", "no storage", "interrupted", "crashed"],
)
def test_encode_that_is_kept_from_it_leaves_the_batch_its_tries(
    scene: Scene, error: BaseException, state: BatchState
) -> None:
    """Expect no number of outages to make a batch dead, three crashes of its tasks to do so, and
    those tries that were its own to count on."""
    for _ in range(4 if state is BatchState.INTERRUPTED else 3):
        scene.encoder.script = [error]
        with pytest.raises(type(error)):
            scene.encode()
    assert [one[0] for one in scene.attempts()] == ["abandoned"] * len(scene.attempts())
    assert scene.database.batches.statuses("orders")[0].state is state
    check_invariants(scene.database)
    if state is BatchState.INTERRUPTED:
        for _ in range(3):
            scene.encoder.script = [RuntimeError("bad data")]
            with pytest.raises(RuntimeError):
                scene.encode()
        assert scene.database.batches.statuses("orders")[0].state is BatchState.DEAD
        check_invariants(scene.database)


def test_encode_with_no_engine_to_be_had_makes_no_attempt(scene: Scene) -> None:
    """Expect Spark to be looked for before the claim."""
    scene.encoder.unready = SparkUnavailableError("spark://master", "connection refused")
    with pytest.raises(SparkUnavailableError):
        scene.encode()
    assert scene.attempts() == []
