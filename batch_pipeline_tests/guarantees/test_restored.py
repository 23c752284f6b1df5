"""An inventory restored from an older backup (G13): noticed before harm, and settled either way."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import psycopg
import pytest

from batch_pipeline.domain.backfill import Backfill, Selection
from batch_pipeline.domain.batch import Attempt, AttemptStatus
from batch_pipeline.domain.encode import Encoded, EncodeRequest
from batch_pipeline.domain.errors import JobPausedError
from batch_pipeline.domain.failpoint import VARIABLE, FailpointError
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.restored import (
    HELD,
    Adopted,
    InventoryOlderError,
    NotAdoptedError,
)
from batch_pipeline.domain.schema import Column, ColumnType, RecordSchema
from batch_pipeline.inventory.work.manifests import OtherInventoryError
from batch_pipeline.settings.loading import load_due
from batch_pipeline.settings.restored import (
    Checked,
    adopt,
    check_not_older,
    discard,
    newer_of,
)
from batch_pipeline.spark.read.item_cuts import ItemCutter
from batch_pipeline.steps.reconcile import reconcile
from batch_pipeline_tests.factories import CONTEXT, NOON, limits
from batch_pipeline_tests.guarantees.restored_site import Consumer, Site, lines, open_site, tally
from batch_pipeline_tests.integration.invariants import check_invariants
from batch_pipeline_tests.integration.seeds import LEASE
from batch_pipeline_tests.proofs import Figures
from batch_pipeline_tests.storage_roots import content

pytestmark = pytest.mark.guarantee("G13")
MANIFESTS = [
    "orders-000000000005-000000000006.g1.json",
    "orders-000000000007-000000000008.g1.json",
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


def loaded(site: Site) -> list[bool]:
    """Load what is due, and tell of each batch whether the table had it already."""
    [target] = site.stream.targets
    outcomes = list(load_due(site.pipeline, site.stream, target, run_id="load-1"))
    assert [str(one.error) for one in outcomes if one.error is not None] == []
    return [one.loaded.already for one in outcomes if one.loaded is not None]


def rows(site: Site) -> list[int]:
    """Read the table."""
    with psycopg.connect(site.environment["WAREHOUSE"]) as connection:
        found = connection.execute("SELECT order_id FROM orders ORDER BY 1").fetchall()
    return [int(order_id) for (order_id,) in found]


def yesterday_and_today(site: Site) -> str:
    """Publish two batches, take a backup, and publish two more; gives the backup."""
    site.land(1, 4)
    site.work()
    backup = site.back_up()
    site.land(5, 8)
    site.work()
    return backup


def settle(site: Site) -> None:
    """Do what the command does once it is settled: close and point."""
    database = site.database
    done = reconcile(
        "orders", database.attempts, database.manifests, site.pipeline.storage(site.stream)
    )
    assert done.troubles == ()


def backfilled(site: Site) -> Manifest:
    """Plan a backfill of the first two items, encode it, and give its manifest."""
    selection = Selection(ids=IdRange(first_id=1, last_id=2))
    request = Backfill.of_stream("orders", "2023", selection, limits(max_count=2))
    table = site.database.meta_table("orders")
    site.database.backfills.plan(request, table)
    [status] = site.database.backfills.statuses("orders.2023", table.name)
    return site.encode(status.batch)


def published_by(site: Site, attempt: Attempt) -> Manifest:
    """Publish what an attempt makes, as the process does that has claimed it."""
    workshop = site.workshop()
    items = workshop.meta_table.items(attempt.batch)
    schema = RecordSchema((Column(name="order_id", type=ColumnType.INTEGER),))
    version, schema = workshop.schemas.widen("orders", schema.columns, text_source=True)
    request = EncodeRequest(
        stream=site.stream, items=items, schema=schema, stem=attempt.stem, context=CONTEXT
    )
    result = workshop.encoder.encode(request)
    encoded = Encoded(result=result, schema=schema, schema_version=version, weight=1)
    manifest = site.database.attempts.publish(attempt, encoded, site.stream)
    site.pipeline.storage(site.stream).point_to(manifest)
    return manifest


def states(site: Site) -> list[str]:
    """Give the states of the stream's batches in id order."""
    return [one.state.value for one in site.database.batches.statuses("orders")]


def test_restored_inventory_is_noticed_before_anything_is_planned(
    site: Site, figures: Figures
) -> None:
    """Expect the first look to name what is newer, nothing to be registered, and a paused job."""
    backup = yesterday_and_today(site)
    site.land(9, 10)
    site.restore(backup)
    before = site.said()
    with pytest.raises(InventoryOlderError) as caught:
        site.work()
    said = str(caught.value)
    assert f"manifests unknown to it: 2, {MANIFESTS[0]} first" in said
    assert "`batch-pipeline reconcile orders --adopt`" in said
    assert "`--discard`" in said
    assert site.said() == before
    paused = site.database.jobs.paused("orders")
    assert paused is not None
    assert paused.startswith(HELD)
    figures(restores=1, manifests_newer=2, noticed=1)


def test_restored_inventory_of_one_stream_lets_another_go_on(disk: Site) -> None:
    """Expect a stream beside it, in the same storage root, whose name begins alike, to be fine."""
    backup = yesterday_and_today(disk)
    disk.describe("orders.eu")
    disk.restore(backup)
    with pytest.raises(InventoryOlderError):
        disk.work()
    check_not_older(disk.pipeline, disk.pipeline.stream("orders.eu"))
    assert disk.database.jobs.paused("orders.eu") is None


def test_consumer_that_is_ahead_of_a_restored_inventory_is_refused(disk: Site) -> None:
    """Expect its state to be told as that of another inventory, and nothing to be sent."""
    backup, consumer = yesterday_and_today(disk), Consumer()
    consumer.read(disk)
    disk.restore(backup)
    with pytest.raises(OtherInventoryError, match="read up to publish number 4"):
        consumer.read(disk)
    assert consumer.received == [1, 2, 3, 4, 5, 6, 7, 8]


def test_adopted_manifests_bring_the_inventory_to_what_it_was(site: Site, figures: Figures) -> None:
    """Expect every row as before the restore, and a consumer that gets each line once."""
    backup, consumer = yesterday_and_today(site), Consumer()
    consumer.read(site)
    before = site.said()
    site.land(9, 10)
    site.restore(backup)
    done = adopt(site.pipeline, site.stream, dry_run=False)
    assert done == Adopted(stream="orders", manifests=2, records=4, items=4, batches=2)
    settle(site)
    assert site.said() == before
    check_invariants(site.database)
    site.work()
    consumer.read(site)
    assert consumer.received == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert sorted(row[0] for row in site.said()["items"]) == list(range(1, 11))
    check_invariants(site.database)
    figures(restores=1, manifests_newer=2, adopted=2, **tally(consumer.received, 10))


def test_adopted_manifests_are_known_to_the_table_that_has_them(
    loading: Site, figures: Figures
) -> None:
    """Expect a load to find its batches there, and no row to come twice."""
    backup = yesterday_and_today(loading)
    assert loaded(loading) == [False] * 4
    loading.restore(backup)
    with pytest.raises(InventoryOlderError):
        loading.work()
    with pytest.raises(JobPausedError, match=HELD):
        loaded(loading)
    adopt(loading.pipeline, loading.stream, dry_run=False)
    assert loaded(loading) == [True] * 4
    assert rows(loading) == [1, 2, 3, 4, 5, 6, 7, 8]
    figures(restores=1, manifests_newer=2, adopted=2, **tally(rows(loading), 8))


def test_adopting_takes_over_tries_generations_backfills_and_versions(
    disk: Site, figures: Figures
) -> None:
    """Expect a reprocessed batch, one that needed two tries, and a backfill as they were."""
    disk.land(1, 4)
    first = disk.work()[0]
    backup = disk.back_up()
    again = disk.encode(first.batch)
    disk.land(5, 6)
    disk.plan()
    [*_, one] = [status.batch for status in disk.database.batches.statuses("orders")]
    with disk.database.attempts.claim(one, run_id="run-0", lease=LEASE) as attempt:
        disk.database.attempts.fail(attempt, "no", AttemptStatus.FAILED)
    second = disk.encode(one)
    part = backfilled(disk)
    assert (again.generation, second.attempt, part.stream) == (2, 2, "orders.2023")
    before = disk.said()
    disk.restore(backup)
    done = adopt(disk.pipeline, disk.stream, dry_run=False)
    assert done == Adopted(
        stream="orders", manifests=3, records=6, items=2, batches=2, attempts_lost=1
    )
    settle(disk)
    assert disk.said() == before
    check_invariants(disk.database)
    figures(restores=1, manifests_newer=3, adopted=3)


def test_adopting_after_days_of_any_kind_loses_nothing(
    disk: Site, long_form: bool, figures: Figures
) -> None:
    """Expect the inventory as it was, and each line live once, whatever was done since a backup."""
    chance, last = Random(13), 0  # noqa: S311 - days that are the same in every run
    for _ in range(40 if long_form else 3):
        last = day(disk, chance, last)
        backup = disk.back_up()
        last = day(disk, chance, last)
        disk.work()
        before = disk.said()
        disk.restore(backup)
        newer = len(newer_of(disk.pipeline, disk.stream).jobs)
        done = adopt(disk.pipeline, disk.stream, dry_run=False)
        settle(disk)
        assert disk.said() == before
        check_invariants(disk.database)
        consumer = Consumer()
        consumer.read(disk)
        counted = tally(consumer.received, last)
        assert counted == {"lost": 0, "twice": 0}
        figures(restores=1, manifests_newer=newer, adopted=done.manifests, **counted)


def day(site: Site, chance: Random, last: int) -> int:
    """Let files land and publish some of them, or some batches anew; gives the last file."""
    for _ in range(chance.randint(1, 3)):
        first, last = last + 1, last + chance.randint(1, 5)
        site.land(first, last)
        site.work(most=chance.choice([None, 0, 1, 2]))
        done = [one for one in site.database.batches.statuses("orders") if one.generation]
        if done and chance.random() < 0.5:
            site.encode(chance.choice(done).batch)
    return last


def test_adopting_into_an_empty_inventory_brings_all_of_it_back(
    disk: Site, figures: Figures
) -> None:
    """Expect the manifests alone to be enough, where no backup has ever been taken."""
    backup = disk.back_up()
    disk.land(1, 6)
    disk.work()
    before = disk.said()
    disk.restore(backup)
    with pytest.raises(InventoryOlderError):
        disk.work()
    done = adopt(disk.pipeline, disk.stream, dry_run=False)
    assert (done.manifests, done.batches, done.items) == (3, 3, 6)
    settle(disk)
    assert disk.said() == before
    disk.land(7, 7)
    assert [lines(one) for one in disk.work()] == [[7]]
    check_invariants(disk.database)
    figures(restores=1, manifests_newer=3, adopted=3)


def test_adopting_what_a_backup_has_open_publishes_that_attempt(disk: Site) -> None:
    """Expect an attempt that ran at the time of the backup, and was closed since, to count."""
    disk.land(1, 2)
    disk.plan()
    [one] = [status.batch for status in disk.database.batches.statuses("orders")]
    with disk.database.attempts.claim(one, run_id="run-1", lease=LEASE) as attempt:
        pass
    backup = disk.back_up()
    manifest = published_by(disk, attempt)
    disk.restore(backup)
    disk.database.attempts.close_dead("orders")
    done = adopt(disk.pipeline, disk.stream, dry_run=False)
    assert (done.manifests, done.batches, done.attempts_lost) == (1, 0, 0)
    assert disk.database.manifests.of_batch(one) == manifest
    check_invariants(disk.database)


def test_adopting_a_part_of_a_cut_file_reads_its_other_parts_again(disk: Site) -> None:
    """Expect lines of ranges that were never published to be published, each line once."""
    backup = disk.back_up()
    disk.land_file("large.csv", list(range(100, 160)))
    cutter = ItemCutter(stream=disk.stream, most_bytes=40)
    disk.work(most=1, cutter=cutter)
    disk.restore(backup)
    done = adopt(disk.pipeline, disk.stream, dry_run=False)
    assert (done.manifests, done.items_again) == (1, 1)
    disk.work(cutter=ItemCutter(stream=disk.stream, most_bytes=40))
    consumer = Consumer()
    consumer.read(disk)
    assert sorted(consumer.received) == list(range(100, 160))
    check_invariants(disk.database)


def test_discarded_manifests_are_set_aside_and_published_once_more(
    site: Site, figures: Figures
) -> None:
    """Expect no file to be deleted, no number given twice, and a consumer that misses nothing."""
    backup, consumer = yesterday_and_today(site), Consumer()
    consumer.read(site)
    texts = {name: content(f"{site.storage.uri}/manifests/{name}") for name in MANIFESTS}
    parts = [name for name in site.storage.names() if "/" not in name]
    site.restore(backup)
    done = discard(site.pipeline, site.stream, now=NOON, dry_run=False)
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


def test_dry_runs_tell_the_same_and_change_nothing(disk: Site) -> None:
    """Expect what would be adopted and discarded, and neither rows nor files to move."""
    backup = yesterday_and_today(disk)
    disk.restore(backup)
    before, names = disk.said(), disk.storage.names()
    adopted = adopt(disk.pipeline, disk.stream, dry_run=True)
    discarded = discard(disk.pipeline, disk.stream, now=NOON, dry_run=True)
    assert (adopted.manifests, discarded.manifests, discarded.records) == (2, 2, 4)
    assert (disk.said(), disk.storage.names()) == (before, names)
    with pytest.raises(InventoryOlderError):
        disk.work()


def worked_on(site: Site) -> None:
    """Register and plan other files with the ids of those that were published."""
    site.land_file("0004a.csv", [41])
    site.plan()


def damaged(site: Site) -> None:
    """Change a byte of a part file that is newer."""
    [path, *_] = sorted(Path(site.root).glob("orders-000000000005-*.jsonl.gz"))
    octets = bytearray(path.read_bytes())
    octets[-1] ^= 1
    path.write_bytes(octets)


def gone(site: Site) -> None:
    """Delete a part file that is newer."""
    [path, *_] = sorted(Path(site.root).glob("orders-000000000005-*.jsonl.gz"))
    path.unlink()


def hostile(site: Site) -> None:
    """Let a manifest name a file of somebody else."""
    path = Path(site.root, "manifests", MANIFESTS[0])
    text = path.read_text()
    start = text.index("file://")
    path.write_text(text[:start] + "file:///etc/passwd" + text[text.index('"', start) :])


def of_another_release(site: Site) -> None:
    """Leave out of a manifest what earlier releases did not write."""
    path = Path(site.root, "manifests", MANIFESTS[0])
    path.write_text(path.read_text().partition(',\n  "inventory"')[0] + "\n}\n")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (worked_on, "item 5 is .*0004a.csv here"),
        (damaged, "has the SHA-256"),
        (gone, "is missing"),
        (hostile, "its file file:///etc/passwd is none of its attempt"),
        (of_another_release, "a release that did not say enough"),
    ],
    ids=["worked on", "damaged", "gone", "hostile", "another release"],
)
def test_manifests_that_cannot_be_adopted_are_refused_and_nothing_changes(
    disk: Site, harm: object, reason: str, figures: Figures
) -> None:
    """Expect the reason, no row changed, and the way by setting them aside to be open."""
    assert callable(harm)
    backup = yesterday_and_today(disk)
    disk.restore(backup)
    harm(disk)
    before = disk.said()
    with pytest.raises(NotAdoptedError, match=reason):
        adopt(disk.pipeline, disk.stream, dry_run=False)
    assert disk.said() == before
    assert len(newer_of(disk.pipeline, disk.stream).jobs) == 2
    discard(disk.pipeline, disk.stream, now=NOON, dry_run=False)
    disk.work()
    consumer = Consumer()
    consumer.read(disk)
    assert set(consumer.received) >= {1, 2, 3, 4, 5, 6, 7, 8}
    figures(restores=1, refused=2, discarded=2, lost=tally(consumer.received, 8)["lost"])


def test_attempt_whose_manifest_is_there_already_encodes_nothing(disk: Site) -> None:
    """Expect a run that asks no sensor to be stopped by the name alone, at no cost to its batch."""
    disk.land(1, 2)
    backup = disk.back_up()
    disk.work()
    disk.restore(backup)
    disk.plan()
    [one] = [status.batch for status in disk.database.batches.statuses("orders")]
    parts = disk.storage.names()
    for _ in range(4):
        with pytest.raises(InventoryOlderError, match=r"000000000001-000000000002\.g1\.json"):
            disk.encode(one)
    assert states(disk) == ["interrupted"]
    assert disk.storage.names() == parts


def test_names_are_listed_once_for_each_process_and_database(disk: Site) -> None:
    """Expect one listing while the database stays what it is, and another once it is put back."""
    checked = Checked()
    backup = yesterday_and_today(disk)
    check_not_older(disk.pipeline, disk.stream, checked)
    stranger = "orders-000000000091-000000000092.g1.json"
    disk.storage.put(f"manifests/{stranger}", b"{}")
    check_not_older(disk.pipeline, disk.stream, checked)
    disk.restore(backup)
    with pytest.raises(InventoryOlderError, match="manifests unknown to it: 3"):
        check_not_older(disk.pipeline, disk.stream, checked)


def test_stream_that_is_resumed_without_being_settled_is_paused_again(disk: Site) -> None:
    """Expect a person's resume not to be enough."""
    backup = yesterday_and_today(disk)
    disk.restore(backup)
    for _ in range(2):
        with pytest.raises(InventoryOlderError):
            disk.work()
        assert disk.database.jobs.paused("orders") is not None
        disk.database.jobs.resume("orders")


def test_settling_ends_the_pause_and_leaves_that_of_a_person(disk: Site) -> None:
    """Expect the reason of a person to stay."""
    backup = yesterday_and_today(disk)
    disk.restore(backup)
    with pytest.raises(InventoryOlderError):
        disk.work()
    adopt(disk.pipeline, disk.stream, dry_run=False)
    assert disk.database.jobs.paused("orders") is None
    disk.restore(backup)
    disk.database.jobs.pause("orders", "lunch")
    with pytest.raises(InventoryOlderError):
        disk.work()
    adopt(disk.pipeline, disk.stream, dry_run=False)
    assert disk.database.jobs.paused("orders") == "lunch"


@pytest.mark.parametrize("point", ["adopt.read", "adopt.before_commit"])
def test_adopting_that_is_stopped_leaves_the_backup_as_it_was(
    disk: Site, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect all or nothing, and the next try to do all."""
    backup = yesterday_and_today(disk)
    whole = disk.said()
    disk.restore(backup)
    before = disk.said()
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    with pytest.raises(FailpointError):
        adopt(disk.pipeline, disk.stream, dry_run=False)
    monkeypatch.delenv(VARIABLE)
    assert disk.said() == before
    adopt(disk.pipeline, disk.stream, dry_run=False)
    settle(disk)
    assert disk.said() == whole


@pytest.mark.parametrize("point", ["discard.counted", "discard.moved"])
def test_discarding_that_is_stopped_can_be_done_again(
    disk: Site, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect no publish number to be given twice, wherever it stopped."""
    backup = yesterday_and_today(disk)
    disk.restore(backup)
    monkeypatch.setenv(VARIABLE, f"{point}=raise")
    with pytest.raises(FailpointError):
        discard(disk.pipeline, disk.stream, now=NOON, dry_run=False)
    monkeypatch.delenv(VARIABLE)
    discard(disk.pipeline, disk.stream, now=NOON, dry_run=False)
    disk.work()
    assert sorted(row[7] for row in disk.said()["attempts"]) == [1, 2, 5, 6]
