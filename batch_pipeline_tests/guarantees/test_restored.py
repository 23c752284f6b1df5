"""An inventory restored from an older backup (G13): noticed before harm, and settled either way."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.errors import ConfigurationError, JobPausedError
from batch_pipeline.model.failpoint import VARIABLE
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.manifest_file import HELD, InventoryOlderError
from batch_pipeline.pipeline.restore_check import (
    CheckedInventory,
    discard_unknown_manifests,
    ensure_inventory_current,
    find_unknown_manifests,
)
from batch_pipeline_tests.factories import NOON, limits
from batch_pipeline_tests.guarantees.restored_site import Consumer, Site, open_site, tally
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.storage_roots import content

pytestmark = pytest.mark.guarantee("G13")
MANIFESTS = [
    "orders-00000005-00000006.g1.json",
    "orders-00000007-00000008.g1.json",
]


@pytest.fixture(params=["disk", "s3"])
def site(
    request: pytest.FixtureRequest, tmp_path: Path, server_url: str, database_url: str
) -> Iterator[Site]:
    """A stream whose storage is on a disk, or in S3."""
    root = str(tmp_path / "batches")
    if request.param == "s3":
        root = f"{request.getfixturevalue('bucket')}/batches"
    with open_site(tmp_path, server_url, database_url, root) as opened:
        yield opened


@pytest.fixture
def disk(tmp_path: Path, server_url: str, database_url: str) -> Iterator[Site]:
    """A stream whose storage is on a disk."""
    with open_site(tmp_path, server_url, database_url, str(tmp_path / "batches")) as opened:
        yield opened


@pytest.fixture
def loading(
    tmp_path: Path, server_url: str, database_url: str, empty_database_url: str
) -> Iterator[Site]:
    """A stream whose storage is on a disk, and which is loaded into a table of Postgres."""
    with open_site(
        tmp_path,
        server_url,
        database_url,
        str(tmp_path / "batches"),
        targets={"warehouse": {"postgres": {"conn": "$WAREHOUSE"}}},
        environment={"WAREHOUSE": empty_database_url},
    ) as opened:
        yield opened


def yesterday_and_today(site: Site) -> str:
    """Publish two batches, take a backup, and publish two more; gives the backup."""
    site.land(1, 4)
    site.work()
    backup = site.back_up()
    site.land(5, 8)
    site.work()
    return backup


def backfilled(site: Site) -> Manifest:
    """Publish a backfill of the first two items."""
    selection = Selection(ids=IdRange(first_id=1, last_id=2))
    request = Backfill.of_stream("orders", "2023", selection, limits(max_count=2))
    table = site.database.meta_table("orders")
    site.database.backfills.plan(request, table)
    [status] = site.database.backfills.statuses("orders.2023", table.name)
    return site.encode(status.batch)


def states(site: Site) -> list[str]:
    """Return the states of the stream's batches in id order."""
    return [one.state.value for one in site.database.batches.statuses("orders")]


def test_restored_inventory_is_noticed_before_anything_is_planned(
    site: Site, figures: Figures
) -> None:
    backup = yesterday_and_today(site)
    site.land(9, 10)
    site.restore(backup)
    before = site.said()
    with pytest.raises(InventoryOlderError) as caught:
        site.work()
    said = str(caught.value)
    assert f"manifests unknown to it: 2, {MANIFESTS[0]} first" in said
    assert "`batch-pipeline reconcile orders --discard` sets the manifests aside" in said
    assert "restore the inventory to a later point in time" in said
    assert site.said() == before
    paused = site.database.jobs.paused("orders")
    assert paused is not None
    assert paused.startswith(HELD)
    figures(restores=1, manifests_newer=2, noticed=1)


def test_restored_inventory_of_one_stream_lets_another_go_on(disk: Site) -> None:
    """The other stream has the same storage root and a name that begins alike."""
    backup = yesterday_and_today(disk)
    disk.describe("orders.eu")
    disk.restore(backup)
    with pytest.raises(InventoryOlderError):
        disk.work()
    ensure_inventory_current(disk.pipeline.database, disk.pipeline.stream("orders.eu"))
    assert disk.database.jobs.paused("orders.eu") is None


def test_empty_inventory_beside_manifests_is_noticed(disk: Site, figures: Figures) -> None:
    backup = disk.back_up()
    disk.land(1, 4)
    disk.work()
    disk.restore(backup)
    with pytest.raises(InventoryOlderError, match="manifests unknown to it: 2"):
        disk.work()
    figures(restores=1, manifests_newer=2, noticed=1)


def test_manifests_of_a_backfill_that_the_inventory_lacks_are_noticed(
    disk: Site, figures: Figures
) -> None:
    disk.land(1, 2)
    disk.work()
    backup = disk.back_up()
    name = f"{backfilled(disk).job}-00000001-00000002.g1.json"
    disk.restore(backup)
    assert find_unknown_manifests(disk.pipeline.database, disk.stream).jobs == {name: "orders.2023"}
    done = discard_unknown_manifests(disk.pipeline.database, disk.stream, now=NOON, dry_run=False)
    assert (done.manifests, done.records, done.unread) == (1, 2, 0)
    figures(restores=1, manifests_newer=1, noticed=1, discarded=1)


def test_load_is_refused_while_the_inventory_is_older(loading: Site, figures: Figures) -> None:
    backup = yesterday_and_today(loading)
    loading.restore(backup)
    with pytest.raises(InventoryOlderError):
        loading.work()
    [target] = loading.stream.targets
    with pytest.raises(JobPausedError, match=HELD):
        list(loading.pipeline.load_pending(loading.stream, target, run_id="load-1"))
    figures(restores=1, manifests_newer=2, noticed=1)


def test_consumer_that_is_ahead_of_a_restored_inventory_is_refused(disk: Site) -> None:
    backup, consumer = yesterday_and_today(disk), Consumer()
    consumer.read(disk)
    disk.restore(backup)
    with pytest.raises(ConfigurationError, match="read up to publish number 4"):
        consumer.read(disk)
    assert consumer.received == [1, 2, 3, 4, 5, 6, 7, 8]


def test_discarded_manifests_are_set_aside_and_published_once_more(
    site: Site, figures: Figures
) -> None:
    """No file is deleted, no publish number is reused, and the consumer misses nothing."""
    backup, consumer = yesterday_and_today(site), Consumer()
    consumer.read(site)
    texts = {name: content(f"{site.storage.uri}/manifests/{name}") for name in MANIFESTS}
    parts = [name for name in site.storage.names() if "/" not in name]
    site.restore(backup)
    done = discard_unknown_manifests(site.pipeline.database, site.stream, now=NOON, dry_run=False)
    assert (done.manifests, done.records, done.unread) == (2, 4, 0)
    assert {name: content(f"{done.folder}/manifests/{name}") for name in MANIFESTS} == texts
    site.land(9, 9)
    site.work()
    assert set(parts) <= set(site.storage.names())
    consumer.read(site)
    assert sorted(consumer.received) == [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9]
    assert states(site) == ["published"] * 5
    counted = tally(consumer.received, 9)
    figures(restores=1, discarded=2, lost=counted["lost"], sent_again=counted["twice"])


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
    disk: Site, harm: Callable[[Path], None], unread: int, figures: Figures
) -> None:
    backup, consumer = yesterday_and_today(disk), Consumer()
    consumer.read(disk)
    disk.restore(backup)
    for name in MANIFESTS:
        harm(Path(disk.root, "manifests", name))
    done = discard_unknown_manifests(disk.pipeline.database, disk.stream, now=NOON, dry_run=False)
    assert (done.manifests, done.unread) == (2, 2 * unread)
    disk.work()
    assert sorted(row[7] for row in disk.said()["attempts"]) == [1, 2, 5, 6]
    consumer.read(disk)
    assert sorted(consumer.received) == [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8]
    figures(restores=1, discarded=2, lost=tally(consumer.received, 8)["lost"])


def test_dry_runs_tell_the_same_and_change_nothing(disk: Site) -> None:
    backup = yesterday_and_today(disk)
    disk.restore(backup)
    before, names = disk.said(), disk.storage.names()
    discarded = discard_unknown_manifests(
        disk.pipeline.database, disk.stream, now=NOON, dry_run=True
    )
    assert (discarded.manifests, discarded.records) == (2, 4)
    assert (disk.said(), disk.storage.names()) == (before, names)
    with pytest.raises(InventoryOlderError):
        disk.work()


def test_attempt_whose_manifest_is_there_already_encodes_nothing(disk: Site) -> None:
    """A run that no sensor launched is stopped by the name alone, without using up an attempt."""
    disk.land(1, 2)
    backup = disk.back_up()
    disk.work()
    disk.restore(backup)
    disk.plan()
    [one] = [status.batch for status in disk.database.batches.statuses("orders")]
    parts = disk.storage.names()
    for _ in range(4):
        with pytest.raises(InventoryOlderError, match=r"00000001-00000002\.g1\.json"):
            disk.encode(one)
    assert states(disk) == ["interrupted"]
    assert disk.storage.names() == parts


def test_names_are_listed_once_for_each_process_and_database(disk: Site) -> None:
    """Manifest names are listed again only after the database was restored."""
    checked = CheckedInventory()
    backup = yesterday_and_today(disk)
    ensure_inventory_current(disk.pipeline.database, disk.stream, checked)
    stranger = "orders-00000091-00000092.g1.json"
    disk.storage.put(f"manifests/{stranger}", b"{}")
    ensure_inventory_current(disk.pipeline.database, disk.stream, checked)
    disk.restore(backup)
    with pytest.raises(InventoryOlderError, match="manifests unknown to it: 3"):
        ensure_inventory_current(disk.pipeline.database, disk.stream, checked)


def test_stream_that_is_resumed_without_being_settled_is_paused_again(disk: Site) -> None:
    backup = yesterday_and_today(disk)
    disk.restore(backup)
    for _ in range(2):
        with pytest.raises(InventoryOlderError):
            disk.work()
        assert disk.database.jobs.paused("orders") is not None
        disk.database.jobs.resume("orders")


@pytest.mark.parametrize("reason", [None, "lunch"])
def test_settling_ends_the_pause_and_leaves_that_of_a_person(
    disk: Site, reason: str | None
) -> None:
    backup = yesterday_and_today(disk)
    disk.restore(backup)
    if reason is not None:
        disk.database.jobs.pause("orders", reason)
    with pytest.raises(InventoryOlderError):
        disk.work()
    assert disk.database.jobs.paused("orders") is not None
    discard_unknown_manifests(disk.pipeline.database, disk.stream, now=NOON, dry_run=False)
    assert disk.database.jobs.paused("orders") == reason


@pytest.mark.parametrize("point", ["discard.counted", "discard.moved"])
def test_discarding_that_is_stopped_can_be_done_again(
    disk: Site, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = yesterday_and_today(disk)
    disk.restore(backup)
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    with pytest.raises(RuntimeError, match="failpoint"):
        discard_unknown_manifests(disk.pipeline.database, disk.stream, now=NOON, dry_run=False)
    monkeypatch.delenv(VARIABLE)
    discard_unknown_manifests(disk.pipeline.database, disk.stream, now=NOON, dry_run=False)
    disk.work()
    assert sorted(row[7] for row in disk.said()["attempts"]) == [1, 2, 5, 6]
