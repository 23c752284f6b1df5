"""A bucket that is looked at again and again: what a look asks for, gives and remembers."""

from datetime import timedelta

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import LandingUnavailableError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.stream import Arrivals, KeyOrder
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline_tests.seeds import execute, query
from batch_pipeline_tests.storage.bucket_landing import BucketLanding, Clock, looked, names

ASCENDING = Arrivals(order=KeyOrder.ASCENDING, relist=timedelta(hours=1))


def _locations(database: Database) -> list[str]:
    rows = query(database, "SELECT location FROM batch_pipeline.item ORDER BY id")
    return [location.rpartition("/")[2] for (location,) in rows]


def test_watched_object_that_differs_from_its_row_is_given_by_every_look(
    place: BucketLanding, database: Database
) -> None:
    location = place.put("in/a.csv", b"id\n1\n")
    watched = PolledLanding(place.landing())
    looked(watched, database)
    place.put("in/a.csv", b"id\n2\n")
    assert [looked(watched, database).changed for _ in range(2)] == [(location,), (location,)]
    database.meta_table("orders").register(place.landing().found_files(), accept_changed=True)
    assert looked(watched, database).changed == ()
    assert names(watched) == []


def test_watched_objects_that_were_not_registered_are_given_again(place: BucketLanding) -> None:
    place.put_many(1, 3)
    watched = PolledLanding(place.landing(), limit=2)
    assert [names(watched) for _ in range(2)] == [["00001.csv", "00002.csv"]] * 2


def test_watched_object_that_comes_back_is_given_again(
    place: BucketLanding, database: Database
) -> None:
    place.put("in/a.csv")
    watched = PolledLanding(place.landing())
    looked(watched, database)
    place.delete("in/a.csv")
    assert looked(watched, database).found == 0
    place.put("in/a.csv")
    assert names(watched) == ["a.csv"]


def test_many_watched_objects_take_several_looks(place: BucketLanding, database: Database) -> None:
    place.put_many(1, 5)
    watched = PolledLanding(place.landing(), limit=2)
    assert [looked(watched, database).new_items for _ in range(6)] == [2, 2, 1, 0, 0, 0]
    place.put("in/00000.csv")
    assert [looked(watched, database).new_items for _ in range(3)] == [1, 0, 0]
    assert looked(watched, database).found == 6


@pytest.mark.long
def test_ascending_keys_are_asked_for_behind_the_highest_one(
    place: BucketLanding, database: Database
) -> None:
    place.put_many(1, 2_500)
    watched = PolledLanding(place.landing(arrivals=ASCENDING), now=Clock())
    assert looked(watched, database).new_items == 2_500
    assert _locations(database) == [f"{number:05}.csv" for number in range(1, 2_501)]
    assert place.asked == {"ListObjectsV2": 3}
    place.asked.clear()
    assert looked(watched, database) == Registered(found=2_500, new_items=0)
    place.put_many(2_501, 2_503)
    assert looked(watched, database) == Registered(found=2_503, new_items=3)
    assert looked(watched, database) == Registered(found=2_503, new_items=0)
    assert place.asked == {"ListObjectsV2": 3}


def test_key_out_of_order_is_found_when_all_are_listed_again(
    place: BucketLanding, database: Database
) -> None:
    changed = place.put("in/2.csv", b"id\n1\n")
    clock = Clock()
    watched = PolledLanding(place.landing(arrivals=ASCENDING), now=clock)
    looked(watched, database)
    place.put("in/1.csv")
    place.put("in/2.csv", b"id\n2\n")
    place.put("in/3.csv")
    clock.seconds = 3_599
    assert looked(watched, database).new_items == 1
    assert _locations(database) == ["2.csv", "3.csv"]
    clock.seconds = 3_600
    assert looked(watched, database) == Registered(found=3, new_items=1, changed=(changed,))
    assert _locations(database) == ["2.csv", "3.csv", "1.csv"]
    assert looked(watched, database) == Registered(found=3, new_items=0)


def test_new_keys_are_found_while_all_are_listed_again(
    place: BucketLanding, database: Database
) -> None:
    place.put_many(1, 4)
    clock = Clock()
    watched = PolledLanding(place.landing(arrivals=ASCENDING), limit=2, now=clock)
    for _ in range(3):
        looked(watched, database)
    clock.seconds = 3_600
    looked(watched, database)
    place.put_many(9, 9)
    assert looked(watched, database).new_items == 1


def test_key_that_no_pattern_takes_hides_no_other(place: BucketLanding, database: Database) -> None:
    place.put("in/1.csv")
    place.put("in/zzz.txt")
    watched = PolledLanding(place.landing(arrivals=ASCENDING, include=("*.csv",)), now=Clock())
    looked(watched, database)
    place.put("in/2.csv")
    assert looked(watched, database).new_items == 1


def test_look_at_a_bucket_that_cannot_be_listed_is_made_good_by_the_next(
    place: BucketLanding, database: Database
) -> None:
    place.put("in/1.csv")
    client = place.client
    refusals = ["ListObjectsV2"]

    def cut(model: object, **_: object) -> None:
        if refusals:
            raise ConnectionResetError(refusals.pop())

    client.meta.events.register("before-call.s3.ListObjectsV2", cut)
    watched = PolledLanding(place.landing(arrivals=ASCENDING), now=Clock())
    with pytest.raises(LandingUnavailableError):
        looked(watched, database)
    assert looked(watched, database).new_items == 1


def test_full_looks_let_a_long_pass_come_to_its_end(
    place: BucketLanding, database: Database
) -> None:
    place.put_many(1, 10)
    watched, news = PolledLanding(place.landing(), limit=2), []
    for number in range(20):
        if number % 3 == 0:
            watched.forget()
        news.append(looked(watched, database).new_items)
        if number == 8:
            execute(database, "DELETE FROM batch_pipeline.item WHERE id = 2")
    assert news[:8] == [2, 2, 2, 2, 2, 0, 0, 0]
    assert sum(news) == 11
    assert len(_locations(database)) == 10


def test_watched_key_that_is_unfit_is_told_until_it_is_gone(
    place: BucketLanding, database: Database
) -> None:
    place.put_many(1, 3)
    place.put("in/00000.csv#bytes=0-9")
    watched = PolledLanding(place.landing(), limit=2)
    seen = [(looked(watched, database).new_items, len(watched.troubles)) for _ in range(4)]
    assert seen == [(1, 1), (2, 1), (0, 1), (0, 1)]
    assert "00000.csv#bytes=0-9" in str(watched.troubles[0])
    place.delete("in/00000.csv#bytes=0-9")
    for _ in range(2):
        looked(watched, database)
    assert watched.troubles == ()


def test_unfit_key_behind_the_highest_one_is_told(place: BucketLanding, database: Database) -> None:
    place.put("in/1.csv")
    watched = PolledLanding(place.landing(arrivals=ASCENDING), now=Clock())
    looked(watched, database)
    place.put("in/2.csv#bytes=0-9")
    place.put("in/3.csv")
    assert looked(watched, database).new_items == 1
    assert looked(watched, database).new_items == 0
    assert "2.csv#bytes=0-9" in str(watched.troubles[0])
