"""An inventory restored from an older backup is detected before harm, and can be fixed (G13).

Sensors, jobs and commands refuse streams whose inventory is older than the storage.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.errors import (
    OLDER,
    ConfigurationError,
    InventoryOlderError,
    JobPausedError,
)
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.item import ItemIdSet
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.pipeline.reconcile import (
    CheckedInventory,
    ensure_inventory_current,
    find_unknown_manifests,
)
from batch_pipeline.storage.part_storage import PartFileStorage
from batch_pipeline_tests.cli.commands import Run, invoke
from batch_pipeline_tests.defs.defs_fixture import DefsHarness
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.guarantees.restorable_stream import (
    Consumer,
    RestorableStream,
    open_stream,
)
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.seeds import execute, planned_backfill, query
from batch_pipeline_tests.storage_roots import content

pytestmark = pytest.mark.guarantee("G13")
MANIFESTS = ["orders-00000005-00000006.g1.json", "orders-00000007-00000008.g1.json"]
UNKNOWN_MANIFEST = "orders-00000091-00000092.g1.json"
COUNTS = """
SELECT (SELECT count(*) FROM batch_pipeline.batch), (SELECT count(*) FROM batch_pipeline.attempt)
"""


@pytest.fixture
def stream(
    request: pytest.FixtureRequest, tmp_path: Path, server_url: str, database_url: str
) -> Iterator[RestorableStream]:
    """A stream with storage on a disk or, with the parameter `s3`, in S3.

    With the parameter `loaded` it has a target.
    """
    kind, root = getattr(request, "param", "disk"), str(tmp_path / "batches")
    facts: dict[str, Any] = {}
    if kind == "s3":
        root = f"{request.getfixturevalue('bucket')}/batches"
    if kind == "loaded":
        facts = {
            "targets": {"warehouse": {"postgres": {"conn": "$WAREHOUSE"}}},
            "environment": {"WAREHOUSE": request.getfixturevalue("empty_database_url")},
        }
    with open_stream(tmp_path, server_url, database_url, root, **facts) as opened:
        yield opened


@pytest.fixture
def restored(stream: RestorableStream) -> RestorableStream:
    """A stream with four published batches, restored from a backup that has two of them."""
    stream.restore(publish_before_and_after_backup(stream))
    return stream


def publish_before_and_after_backup(stream: RestorableStream) -> str:
    """Publish two batches, take a backup, publish two more, and return the backup."""
    stream.land(1, 4)
    stream.publish()
    backup = stream.back_up()
    stream.land(5, 8)
    stream.publish()
    return backup


def publish_backfill(stream: RestorableStream) -> Manifest:
    """Plan a backfill of the first two items, publish it, and return its manifest."""
    [batch] = planned_backfill(stream.database, ids=IdRange(first_id=1, last_id=2))
    return stream.encode(batch)


def states(stream: RestorableStream) -> list[str]:
    return [status.state.value for status in stream.database.batches.statuses("orders")]


def test_restored_inventory_is_detected_before_planning(
    stream: RestorableStream, figures: Figures
) -> None:
    """Consumers are refused. A job that is resumed without discarding is paused again.

    Another stream, with the same storage root and a name with the same prefix, is not paused.
    """
    backup, consumer = publish_before_and_after_backup(stream), Consumer()
    consumer.read(stream)
    stream.land(9, 10)
    stream.restore(backup)
    before = stream.rows()
    for _ in range(2):
        with pytest.raises(InventoryOlderError) as caught:
            stream.publish()
        message = str(caught.value)
        assert f"manifests unknown to it: 2, {MANIFESTS[0]} first" in message
        assert "`batch-pipeline reconcile orders --discard` moves the manifests away" in message
        assert "restore the inventory to a later point in time" in message
        assert stream.rows() == before
        paused = stream.database.jobs.paused("orders")
        assert paused is not None
        assert paused.startswith(OLDER)
        stream.database.jobs.resume("orders")
    with pytest.raises(ConfigurationError, match="read up to publish number 4"):
        consumer.read(stream)
    assert consumer.received == [1, 2, 3, 4, 5, 6, 7, 8]
    stream.write_stream("orders.eu")
    stream.close()
    ensure_inventory_current(stream.database, stream.pipeline.stream("orders.eu"))
    assert stream.database.jobs.paused("orders.eu") is None
    figures(restores=1, manifests_newer=2, detected=1)


def test_empty_inventory_with_manifests_is_detected(
    stream: RestorableStream, figures: Figures
) -> None:
    backup = stream.back_up()
    stream.land(1, 4)
    stream.publish()
    stream.restore(backup)
    with pytest.raises(InventoryOlderError, match="manifests unknown to it: 2"):
        stream.publish()
    stream.discard()
    stream.publish()
    assert stream.publish_numbers() == [3, 4]
    figures(restores=1, manifests_newer=2, detected=1)


def test_unknown_manifest_of_backfill_is_detected(
    stream: RestorableStream, figures: Figures
) -> None:
    stream.land(1, 2)
    stream.publish()
    backup = stream.back_up()
    name = f"{publish_backfill(stream).job}-00000001-00000002.g1.json"
    stream.restore(backup)
    assert find_unknown_manifests(stream.pipeline.database, stream.stream) == {name: "orders.2023"}
    discarded = stream.discard()
    assert (discarded.manifests, discarded.records, discarded.unread) == (1, 2, 0)
    publish_backfill(stream)
    assert stream.publish_numbers() == [1, 2]
    figures(restores=1, manifests_newer=1, detected=1, discarded=1)


def test_publish_numbers_of_unknown_late_arrivals_are_not_assigned_again(
    stream: RestorableStream,
) -> None:
    stream.land(1, 3)
    [first, _] = stream.publish()
    backup = stream.back_up()
    audit = stream.database.late_arrivals.audit
    for late_ids in ({2}, {1, 2}):
        seen = ItemIdSet.of({1, 2} - late_ids, weight=1).to_json()
        attempts = "UPDATE batch_pipeline.attempt SET seen = :seen WHERE token = :token"
        execute(stream.database, attempts, seen=json.dumps(seen), token=first.token)
        audit("orders", stream.database.meta_table("orders").reflected(), limits=limits())
        [late] = stream.database.batches.late_statuses("orders")
        stream.encode(late.batch)
        if late_ids == {2}:
            stream.restore(backup)
            stream.discard()
            audit = stream.database.late_arrivals.audit
    counts = "SELECT name, publish_count FROM batch_pipeline.job ORDER BY 1"
    assert query(stream.database, counts) == [("orders", 2), ("orders.late", 2)]


def test_job_that_publishes_its_first_batch_during_the_listing_is_known(
    stream: RestorableStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.land(1, 2)
    stream.publish()
    names = PartFileStorage.manifest_names

    def publish_and_list(storage: PartFileStorage, prefix: str) -> Iterator[str]:
        yield from names(storage, prefix)
        yield f"{publish_backfill(stream).job}-00000001-00000002.g1.json"

    monkeypatch.setattr(PartFileStorage, "manifest_names", publish_and_list)
    assert find_unknown_manifests(stream.pipeline.database, stream.stream) == {}


@pytest.mark.parametrize("stream", ["loaded"], indirect=True)
def test_load_is_refused_while_inventory_is_older(
    restored: RestorableStream, figures: Figures
) -> None:
    with pytest.raises(InventoryOlderError):
        restored.publish()
    [target] = restored.stream.targets
    with pytest.raises(JobPausedError, match=OLDER):
        list(restored.pipeline.load_pending(restored.stream, target, run_id="load-1"))
    figures(restores=1, manifests_newer=2, detected=1)


@pytest.mark.parametrize("stream", ["disk", "s3"], indirect=True)
def test_discarded_manifests_are_moved_and_published_again(
    stream: RestorableStream, figures: Figures
) -> None:
    """No file is deleted, no publish number is reused, and the consumer misses no record.

    A dry run reports the same counts and changes nothing.
    """
    backup, consumer = publish_before_and_after_backup(stream), Consumer()
    consumer.read(stream)
    contents = {name: content(f"{stream.storage.uri}/manifests/{name}") for name in MANIFESTS}
    stream.restore(backup)
    before, names = stream.rows(), stream.storage.names()
    planned = stream.discard(dry_run=True)
    assert (planned.manifests, planned.records) == (2, 4)
    assert (stream.rows(), stream.storage.names()) == (before, names)
    discarded = stream.discard()
    assert (discarded.manifests, discarded.records, discarded.unread) == (2, 4, 0)
    assert {name: content(f"{discarded.folder}/manifests/{name}") for name in MANIFESTS} == contents
    stream.land(9, 9)
    stream.publish()
    assert {name for name in names if "/" not in name} <= {*stream.storage.names()}
    consumer.read(stream)
    assert sorted(consumer.received) == [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9]
    assert states(stream) == ["published"] * 5
    sent_again = len(consumer.received) - len({*consumer.received})
    figures(restores=1, discarded=2, lost=consumer.lost(9), sent_again=sent_again)


@pytest.mark.parametrize(
    ("damage", "unread"),
    [
        (lambda text: text.partition(',\n  "inventory"')[0] + "\n}\n", 0),
        (lambda _text: "{}", 1),
        (lambda _text: "", 1),
    ],
    ids=["earlier release", "not a manifest", "empty"],
)
def test_discarded_manifest_without_publish_number_reserves_one(
    stream: RestorableStream, damage: Callable[[str], str], unread: int, figures: Figures
) -> None:
    backup, consumer = publish_before_and_after_backup(stream), Consumer()
    consumer.read(stream)
    stream.restore(backup)
    for name in MANIFESTS:
        path = Path(stream.root, "manifests", name)
        path.write_text(damage(path.read_text()))
    discarded = stream.discard()
    assert (discarded.manifests, discarded.unread) == (2, 2 * unread)
    stream.publish()
    assert stream.publish_numbers() == [1, 2, 5, 6]
    consumer.read(stream)
    assert sorted(consumer.received) == [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8]
    figures(restores=1, discarded=2, lost=consumer.lost(8))


def test_attempt_with_existing_manifest_file_encodes_nothing(
    stream: RestorableStream,
) -> None:
    """The file name alone stops a manually launched run, without using up an attempt."""
    stream.land(1, 2)
    backup = stream.back_up()
    stream.publish()
    stream.restore(backup)
    stream.plan()
    [batch] = [status.batch for status in stream.database.batches.statuses("orders")]
    parts = stream.storage.names()
    for _ in range(4):
        with pytest.raises(InventoryOlderError, match=r"00000001-00000002\.g1\.json"):
            stream.encode(batch)
    assert states(stream) == ["interrupted"]
    assert stream.storage.names() == parts


def test_manifest_names_are_listed_once_per_process_and_database(
    stream: RestorableStream,
) -> None:
    """Manifest names are listed again only after the database was restored."""
    checked = CheckedInventory()
    backup = publish_before_and_after_backup(stream)
    ensure_inventory_current(stream.database, stream.stream, checked)
    stream.storage.put(f"manifests/{UNKNOWN_MANIFEST}", b"{}")
    ensure_inventory_current(stream.database, stream.stream, checked)
    stream.restore(backup)
    with pytest.raises(InventoryOlderError, match="manifests unknown to it: 3"):
        ensure_inventory_current(stream.database, stream.stream, checked)


@pytest.mark.parametrize("reason", [None, "lunch"])
def test_discard_ends_its_own_pause_but_not_that_of_a_user(
    restored: RestorableStream, reason: str | None
) -> None:
    if reason is not None:
        restored.database.jobs.pause("orders", reason)
    with pytest.raises(InventoryOlderError):
        restored.publish()
    assert restored.database.jobs.paused("orders") is not None
    restored.discard()
    assert restored.database.jobs.paused("orders") == reason


@pytest.mark.parametrize("point", ["discard.counted", "discard.moved"])
def test_interrupted_discard_can_be_repeated(
    restored: RestorableStream, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        restored.discard()
    monkeypatch.delenv(VARIABLE)
    restored.discard()
    restored.publish()
    assert restored.publish_numbers() == [1, 2, 5, 6]


@pytest.fixture
def run(restored: RestorableStream) -> Run:
    """The command line, with the settings of the restored stream."""
    return lambda *words: invoke(*words, env=restored.environment)


@pytest.fixture
def targets() -> dict[str, Any]:
    """The targets of `project`."""
    return {"warehouse": {"command": ["target-that-never-runs"]}}


@pytest.fixture
def older(project: DefsHarness) -> DefsHarness:
    """Four planned batches, and an unknown manifest in the storage."""
    path = Path(to_path(project.stream.storage.root), "manifests", UNKNOWN_MANIFEST)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    return project


@pytest.mark.parametrize("name", ["orders_new_files", "orders_backfill", "orders_load"])
def test_sensors_skip_stream_with_older_inventory(
    older: DefsHarness, name: str, figures: Figures
) -> None:
    """Each sensor skips with the reason, even if it ticks first."""
    for _ in range(2):
        assert f"manifests unknown to it: 1, {UNKNOWN_MANIFEST} first" in older.skipped(name)
    assert query(older.database, COUNTS) == [(4, 0)]
    assert older.database.jobs.paused("orders") is not None
    figures(entry_points=1)


@pytest.mark.parametrize(
    ("job", "op"),
    [
        ("batch_pipeline_reconcile", "reconcile_streams"),
        ("batch_pipeline_collect_garbage", "collect_of_streams"),
    ],
)
def test_jobs_fail_with_reason_for_stream_with_older_inventory(
    older: DefsHarness, job: str, op: str, figures: Figures
) -> None:
    result = older.definitions.resolve_job_def(job).execute_in_process(
        instance=older.instance, raise_on_error=False
    )
    assert not result.success
    [failed] = [event for event in result.all_events if event.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None
    assert "--discard" in str(failure.description)
    assert failed.step_key == op
    figures(entry_points=1)


def test_commands_fail_with_next_step_until_manifests_are_discarded(
    restored: RestorableStream, run: Run, figures: Figures
) -> None:
    """`gc` skips only the stream whose inventory is older."""
    next_step, before = "`batch-pipeline reconcile orders --discard`", restored.rows()
    planned = run("plan", "orders")
    assert planned.exit_code == 1
    assert next_step in str(planned.exception)
    reconciled = run("reconcile", "orders")
    assert reconciled.exit_code == 1
    assert next_step in reconciled.stderr
    assert restored.rows() == before

    restored.write_stream("clicks")
    collected = run("gc", "orders", "clicks")
    assert collected.exit_code == 1
    assert next_step in collected.stderr
    assert collected.stdout.splitlines() == ["clicks", "  Nothing to delete."]

    discarded = run("reconcile", "orders", "--discard", "--no-audit")
    assert discarded.exit_code == 0, discarded.output
    head, moved, sent_again, attempts_closed = discarded.stdout.splitlines()
    folder = moved.removeprefix("  manifests moved below ").removesuffix(": 2")
    assert (head, sent_again, attempts_closed) == (
        "orders",
        "    records that may be in targets, which receive them again: 4",
        "  attempts closed: 0, manifest files written: 0",
    )
    assert sorted(path.name for path in Path(to_path(folder), "manifests").iterdir()) == MANIFESTS
    figures(entry_points=3)


def test_reconcile_discard_replaces_foreign_manifest_file(
    restored: RestorableStream, run: Run
) -> None:
    for name in MANIFESTS:
        Path(restored.root, "manifests", name).unlink()
    [first, _] = sorted(Path(restored.root, "manifests").glob("*.json"))
    text = first.read_text()
    first.write_text("{}")
    with restored.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_pipeline.attempt SET pointer_uri = NULL")
    result = run("reconcile", "orders")
    assert (result.exit_code, first.read_text()) == (1, "{}")
    assert "`batch-pipeline reconcile STREAM --discard`" in result.stderr
    result = run("reconcile", "orders", "--discard")
    assert (result.exit_code, first.read_text()) == (0, text)


def test_reconcile_refuses_options_that_were_removed_or_lack_discard() -> None:
    assert invoke("reconcile", "--dry-run").exit_code == 2
    result = invoke("reconcile", "orders", "--adopt")
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert (
        "The option --adopt was removed. Restore the inventory to a later point in time" in message
    )
    assert "--discard" in message
