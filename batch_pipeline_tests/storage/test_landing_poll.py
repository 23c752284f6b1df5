"""Polled landings on a disk and in a bucket: returned files, requests, state."""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import LandingUnavailableError
from batch_pipeline.model.item import LandedFile, Registered
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.stream import Arrivals, KeyOrder, Source
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding, SeenFiles, fingerprint
from batch_pipeline_tests.factories import stream
from batch_pipeline_tests.seeds import execute, query
from batch_pipeline_tests.storage.bucket_landing import BucketLanding, Clock, names, poll

NOON = 1_750_000_000


def _land(path: Path, text: str = "a\n", *, seconds: int = NOON) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (seconds, seconds))
    return path


def test_polled_landing_returns_link_with_new_target(tmp_path: Path) -> None:
    targets = _land(tmp_path / "real" / "old"), _land(tmp_path / "real" / "new", "longer\n")
    link = tmp_path / "landing" / "a.csv"
    link.parent.mkdir()
    source = Source(uri=to_uri(link.parent), roots=(to_uri(tmp_path / "real"),))
    polled = PolledLanding(SourceLanding(stream=stream(source=source)))
    for target in targets:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        [file] = polled.found_files()
        assert file.location == to_uri(link)
        polled.settled(Registered(found=1, new_items=1))


def test_postponed_file_is_returned_again(tmp_path: Path) -> None:
    location = to_uri(_land(tmp_path / "a.csv"))
    polled = PolledLanding(SourceLanding(stream=stream(source=Source(uri=to_uri(tmp_path)))))
    returned, known = [], []
    for result in (Registered(postponed=(location,)), Registered(new_items=1), Registered()):
        returned.append([file.location for file in polled.found_files()])
        known.append(polled.settled(result).found)
    assert (returned, known) == ([[location], [location], []], [0, 1, 1])


_CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["a.csv", "b.csv", "s/c.csv"]),
        st.sampled_from(["", "1", "22", None]),
        st.integers(0, 2),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(polls=st.lists(_CHANGES, min_size=1, max_size=4))
def test_polled_landing_misses_nothing_that_a_full_listing_has(
    polls: list[list[tuple[str, str | None, int]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source = Source(uri=to_uri(root))
        landing = SourceLanding(stream=stream(source=source), wait=False)
        polled, returned = PolledLanding(landing), dict[str, LandedFile]()
        for changes in polls:
            for name, text, seconds in changes:
                if text is None:
                    (root / name).unlink(missing_ok=True)
                else:
                    _land(root / name, text, seconds=NOON + seconds)
            everything = list(landing.found_files())
            for file in polled.found_files():
                returned[file.location] = file
            polled.settled(Registered(found=0, new_items=0))
            assert {file.location: file for file in everything}.items() <= returned.items()


def test_seen_file_is_recognized_only_if_unchanged() -> None:
    fingerprints = [fingerprint("a", size_bytes, "x") for size_bytes in range(2_000)]
    seen = SeenFiles(fingerprints)
    assert len(seen) == 2_000
    assert all(one in seen for one in fingerprints)
    for other in (("c", 10, "x"), ("a", 2_000, "x"), ("a", 10, "y"), ("a", 10, 0)):
        assert fingerprint(*other) not in seen
    assert (len(SeenFiles()), fingerprints[0] in SeenFiles()) == (0, False)


ASCENDING = Arrivals(order=KeyOrder.ASCENDING, relist=timedelta(hours=1))


def _locations(database: Database) -> list[str]:
    rows = query(database, "SELECT location FROM batch_pipeline.item ORDER BY id")
    return [location.rpartition("/")[2] for (location,) in rows]


def test_unaccepted_change_is_returned_by_every_poll(
    s3_landing: BucketLanding, database: Database
) -> None:
    location = s3_landing.put("in/a.csv", b"id\n1\n")
    polled = PolledLanding(s3_landing.landing())
    poll(polled, database)
    s3_landing.put("in/a.csv", b"id\n2\n")
    assert [poll(polled, database).changed for _ in range(2)] == [(location,), (location,)]
    database.meta_table("orders").register(s3_landing.landing().found_files(), accept_changed=True)
    assert poll(polled, database).changed == ()
    assert names(polled) == []


def test_unregistered_objects_are_returned_again(s3_landing: BucketLanding) -> None:
    s3_landing.put_many(1, 3)
    polled = PolledLanding(s3_landing.landing(), limit=2)
    assert [names(polled) for _ in range(2)] == [["00001.csv", "00002.csv"]] * 2


def test_deleted_object_that_is_put_again_is_returned(
    s3_landing: BucketLanding, database: Database
) -> None:
    s3_landing.put("in/a.csv")
    polled = PolledLanding(s3_landing.landing())
    poll(polled, database)
    s3_landing.delete("in/a.csv")
    assert poll(polled, database).found == 0
    s3_landing.put("in/a.csv")
    assert names(polled) == ["a.csv"]


def test_limited_polls_continue_the_listing(s3_landing: BucketLanding, database: Database) -> None:
    s3_landing.put_many(1, 5)
    polled = PolledLanding(s3_landing.landing(), limit=2)
    assert [poll(polled, database).new_items for _ in range(6)] == [2, 2, 1, 0, 0, 0]
    s3_landing.put("in/00000.csv")
    assert [poll(polled, database).new_items for _ in range(3)] == [1, 0, 0]
    assert poll(polled, database).found == 6


@pytest.mark.long
def test_ascending_keys_are_listed_from_the_highest_known(
    s3_landing: BucketLanding, database: Database
) -> None:
    s3_landing.put_many(1, 2_500)
    polled = PolledLanding(s3_landing.landing(arrivals=ASCENDING), now=Clock())
    assert poll(polled, database).new_items == 2_500
    assert _locations(database) == [f"{number:05}.csv" for number in range(1, 2_501)]
    assert s3_landing.requests == {"ListObjectsV2": 3}
    s3_landing.requests.clear()
    assert poll(polled, database) == Registered(found=2_500, new_items=0)
    s3_landing.put_many(2_501, 2_503)
    assert poll(polled, database) == Registered(found=2_503, new_items=3)
    assert poll(polled, database) == Registered(found=2_503, new_items=0)
    assert s3_landing.requests == {"ListObjectsV2": 3}


def test_key_out_of_order_is_found_by_relisting(
    s3_landing: BucketLanding, database: Database
) -> None:
    changed = s3_landing.put("in/2.csv", b"id\n1\n")
    clock = Clock()
    polled = PolledLanding(s3_landing.landing(arrivals=ASCENDING), now=clock)
    poll(polled, database)
    s3_landing.put("in/1.csv")
    s3_landing.put("in/2.csv", b"id\n2\n")
    s3_landing.put("in/3.csv")
    clock.seconds = 3_599
    assert poll(polled, database).new_items == 1
    assert _locations(database) == ["2.csv", "3.csv"]
    clock.seconds = 3_600
    assert poll(polled, database) == Registered(found=3, new_items=1, changed=(changed,))
    assert _locations(database) == ["2.csv", "3.csv", "1.csv"]
    assert poll(polled, database) == Registered(found=3, new_items=0)


def test_new_keys_are_found_during_relisting(s3_landing: BucketLanding, database: Database) -> None:
    s3_landing.put_many(1, 4)
    clock = Clock()
    polled = PolledLanding(s3_landing.landing(arrivals=ASCENDING), limit=2, now=clock)
    for _ in range(3):
        poll(polled, database)
    clock.seconds = 3_600
    poll(polled, database)
    s3_landing.put_many(9, 9)
    assert poll(polled, database).new_items == 1


def test_limited_polls_continue_after_the_highest_key(
    s3_landing: BucketLanding, database: Database
) -> None:
    """Even if all keys of a poll are excluded; those behind the others hide no new key."""
    landing = s3_landing.landing(arrivals=ASCENDING, include=("*.csv*",))
    polled = PolledLanding(landing, limit=2, now=Clock())
    s3_landing.put("in/zz.txt")
    poll(polled, database)
    s3_landing.put("in/00002a.txt")
    s3_landing.put("in/00002b.txt")
    s3_landing.put_many(1, 5)
    assert [poll(polled, database).new_items for _ in range(5)] == [2, 0, 2, 1, 0]
    for number in range(2):
        s3_landing.put(f"in/z{number}.txt")
    assert [poll(polled, database).new_items for _ in range(2)] == [0, 0]
    s3_landing.put("in/00006.csv#bytes=0-9")
    s3_landing.put_many(7, 7)
    assert [poll(polled, database).new_items for _ in range(2)] == [1, 0]
    assert "00006.csv#bytes=0-9" in str(polled.troubles[0])


def test_postponed_key_is_listed_again(s3_landing: BucketLanding) -> None:
    polled = PolledLanding(s3_landing.landing(arrivals=ASCENDING), now=Clock())
    returned = [list(polled.found_files())]
    polled.settled(Registered())
    s3_landing.put_many(1, 2)
    for _ in range(2):
        [*_, last] = found = list(polled.found_files())
        polled.settled(Registered(found=2, new_items=1, postponed=(last.location,)))
        returned.append(found)
    assert list(map(len, returned)) == [0, 2, 2]
    found = list(polled.found_files())
    polled.settled(Registered(found=2, new_items=1))
    assert (len(found), list(polled.found_files())) == (2, [])


def test_failed_poll_is_retried_by_the_next(s3_landing: BucketLanding, database: Database) -> None:
    s3_landing.put("in/1.csv")
    client = s3_landing.client
    errors = ["ListObjectsV2"]

    def fail(model: object, **_: object) -> None:
        if errors:
            raise ConnectionResetError(errors.pop())

    client.meta.events.register("before-call.s3.ListObjectsV2", fail)
    polled = PolledLanding(s3_landing.landing(arrivals=ASCENDING), now=Clock())
    with pytest.raises(LandingUnavailableError):
        poll(polled, database)
    assert poll(polled, database).new_items == 1


def test_full_polls_do_not_restart_a_long_pass(
    s3_landing: BucketLanding, database: Database
) -> None:
    s3_landing.put_many(1, 10)
    polled, new_items = PolledLanding(s3_landing.landing(), limit=2), []
    for number in range(20):
        if number % 3 == 0:
            polled.forget()
        new_items.append(poll(polled, database).new_items)
        if number == 8:
            execute(database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    assert new_items[:8] == [2, 2, 2, 2, 2, 0, 0, 0]
    assert sum(new_items) == 11
    assert len(_locations(database)) == 10


def test_unsupported_key_is_a_warning_until_deleted(
    s3_landing: BucketLanding, database: Database
) -> None:
    s3_landing.put_many(1, 3)
    s3_landing.put("in/00000.csv#bytes=0-9")
    polled = PolledLanding(s3_landing.landing(), limit=2)
    seen = [(poll(polled, database).new_items, len(polled.troubles)) for _ in range(4)]
    assert seen == [(1, 1), (2, 1), (0, 1), (0, 1)]
    assert "00000.csv#bytes=0-9" in str(polled.troubles[0])
    s3_landing.delete("in/00000.csv#bytes=0-9")
    for _ in range(2):
        poll(polled, database)
    assert polled.troubles == ()
