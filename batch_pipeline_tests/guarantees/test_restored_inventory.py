"""An inventory restored from an older backup (G13): noticed before harm, and settled either way."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.errors import (
    OLDER,
    ConfigurationError,
    InventoryOlderError,
    JobPausedError,
)
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.pipeline.restore_check import (
    CheckedInventory,
    ensure_inventory_current,
    find_unknown_manifests,
)
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.guarantees.restorable_stream import (
    Consumer,
    RestorableStream,
    open_stream,
)
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.storage_roots import content

pytestmark = pytest.mark.guarantee("G13")
MANIFESTS = ["orders-00000005-00000006.g1.json", "orders-00000007-00000008.g1.json"]


@pytest.fixture(params=["disk", "s3"])
def stream(
    request: pytest.FixtureRequest, tmp_path: Path, server_url: str, database_url: str
) -> Iterator[RestorableStream]:
    """A stream whose storage is on a disk, or in S3."""
    root = str(tmp_path / "batches")
    if request.param == "s3":
        root = f"{request.getfixturevalue('bucket')}/batches"
    with open_stream(tmp_path, server_url, database_url, root) as opened:
        yield opened


@pytest.fixture
def disk(tmp_path: Path, server_url: str, database_url: str) -> Iterator[RestorableStream]:
    """A stream whose storage is on a disk."""
    with open_stream(tmp_path, server_url, database_url, str(tmp_path / "batches")) as opened:
        yield opened


@pytest.fixture
def loading(
    tmp_path: Path, server_url: str, database_url: str, empty_database_url: str
) -> Iterator[RestorableStream]:
    """A stream whose storage is on a disk, and which is loaded into a table of Postgres."""
    with open_stream(
        tmp_path,
        server_url,
        database_url,
        str(tmp_path / "batches"),
        targets={"warehouse": {"postgres": {"conn": "$WAREHOUSE"}}},
        environment={"WAREHOUSE": empty_database_url},
    ) as opened:
        yield opened


def publish_around_a_backup(stream: RestorableStream) -> str:
    """Publish two batches, take a backup, publish two more, and return the backup."""
    stream.land(1, 4)
    stream.publish()
    backup = stream.back_up()
    stream.land(5, 8)
    stream.publish()
    return backup


def backfilled(stream: RestorableStream) -> Manifest:
    """Publish a backfill of the first two items."""
    selection = Selection(ids=IdRange(first_id=1, last_id=2))
    request = Backfill.of_stream("orders", "2023", selection, limits(max_count=2))
    table = stream.database.meta_table("orders")
    stream.database.backfills.plan(request, table)
    [status] = stream.database.backfills.statuses("orders.2023", table.name)
    return stream.encode(status.batch)


def states(stream: RestorableStream) -> list[str]:
    """Return the states of the stream's batches in id order."""
    return [one.state.value for one in stream.database.batches.statuses("orders")]


def test_restored_inventory_is_noticed_before_anything_is_planned(
    stream: RestorableStream, figures: Figures
) -> None:
    backup = publish_around_a_backup(stream)
    stream.land(9, 10)
    stream.restore(backup)
    before = stream.rows()
    with pytest.raises(InventoryOlderError) as caught:
        stream.publish()
    message = str(caught.value)
    assert f"manifests unknown to it: 2, {MANIFESTS[0]} first" in message
    assert "`batch-pipeline reconcile orders --discard` sets the manifests aside" in message
    assert "restore the inventory to a later point in time" in message
    assert stream.rows() == before
    paused = stream.database.jobs.paused("orders")
    assert paused is not None
    assert paused.startswith(OLDER)
    figures(restores=1, manifests_newer=2, noticed=1)


def test_restored_inventory_of_one_stream_lets_another_go_on(disk: RestorableStream) -> None:
    """The other stream has the same storage root and a name that begins alike."""
    backup = publish_around_a_backup(disk)
    disk.write_stream("orders.eu")
    disk.restore(backup)
    with pytest.raises(InventoryOlderError):
        disk.publish()
    ensure_inventory_current(disk.pipeline.database, disk.pipeline.stream("orders.eu"))
    assert disk.database.jobs.paused("orders.eu") is None


def test_empty_inventory_beside_manifests_is_noticed(
    disk: RestorableStream, figures: Figures
) -> None:
    backup = disk.back_up()
    disk.land(1, 4)
    disk.publish()
    disk.restore(backup)
    with pytest.raises(InventoryOlderError, match="manifests unknown to it: 2"):
        disk.publish()
    figures(restores=1, manifests_newer=2, noticed=1)


def test_manifests_of_a_backfill_that_the_inventory_lacks_are_noticed(
    disk: RestorableStream, figures: Figures
) -> None:
    disk.land(1, 2)
    disk.publish()
    backup = disk.back_up()
    name = f"{backfilled(disk).job}-00000001-00000002.g1.json"
    disk.restore(backup)
    assert find_unknown_manifests(disk.pipeline.database, disk.stream) == {name: "orders.2023"}
    done = disk.discard()
    assert (done.manifests, done.records, done.unread) == (1, 2, 0)
    figures(restores=1, manifests_newer=1, noticed=1, discarded=1)


def test_load_is_refused_while_the_inventory_is_older(
    loading: RestorableStream, figures: Figures
) -> None:
    backup = publish_around_a_backup(loading)
    loading.restore(backup)
    with pytest.raises(InventoryOlderError):
        loading.publish()
    [target] = loading.stream.targets
    with pytest.raises(JobPausedError, match=OLDER):
        list(loading.pipeline.load_pending(loading.stream, target, run_id="load-1"))
    figures(restores=1, manifests_newer=2, noticed=1)


def test_consumer_that_is_ahead_of_a_restored_inventory_is_refused(disk: RestorableStream) -> None:
    backup, consumer = publish_around_a_backup(disk), Consumer()
    consumer.read(disk)
    disk.restore(backup)
    with pytest.raises(ConfigurationError, match="read up to publish number 4"):
        consumer.read(disk)
    assert consumer.received == [1, 2, 3, 4, 5, 6, 7, 8]


def test_discarded_manifests_are_set_aside_and_published_once_more(
    stream: RestorableStream, figures: Figures
) -> None:
    """No file is deleted, no publish number is reused, and the consumer misses nothing."""
    backup, consumer = publish_around_a_backup(stream), Consumer()
    consumer.read(stream)
    texts = {name: content(f"{stream.storage.uri}/manifests/{name}") for name in MANIFESTS}
    parts = [name for name in stream.storage.names() if "/" not in name]
    stream.restore(backup)
    done = stream.discard()
    assert (done.manifests, done.records, done.unread) == (2, 4, 0)
    assert {name: content(f"{done.folder}/manifests/{name}") for name in MANIFESTS} == texts
    stream.land(9, 9)
    stream.publish()
    assert set(parts) <= set(stream.storage.names())
    consumer.read(stream)
    assert sorted(consumer.received) == [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9]
    assert states(stream) == ["published"] * 5
    sent_again = len(consumer.received) - len({*consumer.received})
    figures(restores=1, discarded=2, lost=consumer.lost(9), sent_again=sent_again)


def without_origin(path: Path) -> None:
    """Write a manifest as earlier releases did."""
    path.write_text(path.read_text().partition(',\n  "inventory"')[0] + "\n}\n")


def without_part_files(path: Path) -> None:
    """Write JSON that is not a manifest."""
    path.write_text("{}")


def without_content(path: Path) -> None:
    """Truncate a manifest."""
    path.write_text("")


@pytest.mark.parametrize(
    ("harm", "unread"),
    [(without_origin, 0), (without_part_files, 1), (without_content, 1)],
    ids=["of an earlier release", "not a manifest", "empty"],
)
def test_discarded_manifests_without_publish_number_count_as_one_more(
    disk: RestorableStream, harm: Callable[[Path], None], unread: int, figures: Figures
) -> None:
    backup, consumer = publish_around_a_backup(disk), Consumer()
    consumer.read(disk)
    disk.restore(backup)
    for name in MANIFESTS:
        harm(Path(disk.root, "manifests", name))
    done = disk.discard()
    assert (done.manifests, done.unread) == (2, 2 * unread)
    disk.publish()
    assert disk.publish_numbers() == [1, 2, 5, 6]
    consumer.read(disk)
    assert sorted(consumer.received) == [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8]
    figures(restores=1, discarded=2, lost=consumer.lost(8))


def test_dry_runs_tell_the_same_and_change_nothing(disk: RestorableStream) -> None:
    backup = publish_around_a_backup(disk)
    disk.restore(backup)
    before, names = disk.rows(), disk.storage.names()
    discarded = disk.discard(dry_run=True)
    assert (discarded.manifests, discarded.records) == (2, 4)
    assert (disk.rows(), disk.storage.names()) == (before, names)
    with pytest.raises(InventoryOlderError):
        disk.publish()


def test_attempt_whose_manifest_is_there_already_encodes_nothing(disk: RestorableStream) -> None:
    """A run that no sensor launched is stopped by the name alone, without using up an attempt."""
    disk.land(1, 2)
    backup = disk.back_up()
    disk.publish()
    disk.restore(backup)
    disk.plan()
    [one] = [status.batch for status in disk.database.batches.statuses("orders")]
    parts = disk.storage.names()
    for _ in range(4):
        with pytest.raises(InventoryOlderError, match=r"00000001-00000002\.g1\.json"):
            disk.encode(one)
    assert states(disk) == ["interrupted"]
    assert disk.storage.names() == parts


def test_names_are_listed_once_for_each_process_and_database(disk: RestorableStream) -> None:
    """Manifest names are listed again only after the database was restored."""
    checked = CheckedInventory()
    backup = publish_around_a_backup(disk)
    ensure_inventory_current(disk.database, disk.stream, checked)
    stranger = "orders-00000091-00000092.g1.json"
    disk.storage.put(f"manifests/{stranger}", b"{}")
    ensure_inventory_current(disk.database, disk.stream, checked)
    disk.restore(backup)
    with pytest.raises(InventoryOlderError, match="manifests unknown to it: 3"):
        ensure_inventory_current(disk.database, disk.stream, checked)


def test_stream_that_is_resumed_without_being_settled_is_paused_again(
    disk: RestorableStream,
) -> None:
    backup = publish_around_a_backup(disk)
    disk.restore(backup)
    for _ in range(2):
        with pytest.raises(InventoryOlderError):
            disk.publish()
        assert disk.database.jobs.paused("orders") is not None
        disk.database.jobs.resume("orders")


@pytest.mark.parametrize("reason", [None, "lunch"])
def test_settling_ends_the_pause_and_leaves_that_of_a_person(
    disk: RestorableStream, reason: str | None
) -> None:
    backup = publish_around_a_backup(disk)
    disk.restore(backup)
    if reason is not None:
        disk.database.jobs.pause("orders", reason)
    with pytest.raises(InventoryOlderError):
        disk.publish()
    assert disk.database.jobs.paused("orders") is not None
    disk.discard()
    assert disk.database.jobs.paused("orders") == reason


@pytest.mark.parametrize("point", ["discard.counted", "discard.moved"])
def test_discarding_that_is_stopped_can_be_done_again(
    disk: RestorableStream, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = publish_around_a_backup(disk)
    disk.restore(backup)
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        disk.discard()
    monkeypatch.delenv(VARIABLE)
    disk.discard()
    disk.publish()
    assert disk.publish_numbers() == [1, 2, 5, 6]
