"""Events of a bucket in a queue: what is registered, what is deleted then, what is left alone."""

import json
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import pytest

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.errors import InvalidValueError, LandingUnavailableError
from batch_pipeline.model.item import Registered
from batch_pipeline.model.location import split_object
from batch_pipeline.model.stream import Arrivals
from batch_pipeline.storage import s3_events
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline.storage.s3_events import events_in, region_of
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.seeds import query
from batch_pipeline_tests.storage.bucket_landing import BucketLanding, Clock, looked
from batch_pipeline_tests.store_faults import Faults, proxy


@dataclass
class Queued:
    """A bucket and the queue that its events go to, whose messages come again at once."""

    place: BucketLanding
    sqs: Any
    queue: str

    def polled(self, clock: Clock | None = None, **source: Any) -> PolledLanding:
        """Return the landing whose new objects the queue announces."""
        arrivals = Arrivals(queue=self.queue, relist=timedelta(hours=1))
        landing = self.place.landing(arrivals=arrivals, **source)
        return PolledLanding(landing, now=clock or Clock())

    def announce(
        self, *keys: str, name: str = "ObjectCreated:Put", bucket: str | None = None
    ) -> None:
        """Send one message with an event of each key."""
        own = split_object(self.place.bucket)[0]
        records = [
            {
                "eventSource": "aws:s3",
                "eventName": name,
                "s3": {"bucket": {"name": bucket or own}, "object": {"key": quote_plus(key)}},
            }
            for key in keys
        ]
        self.send(json.dumps({"Records": records}))

    def send(self, body: str) -> None:
        """Send a message."""
        self.sqs.send_message(QueueUrl=self.queue, MessageBody=body)

    def waiting(self) -> int:
        """Count the messages in the queue."""
        name = "ApproximateNumberOfMessages"
        asked = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=[name])
        return int(asked["Attributes"][name])


@pytest.fixture
def queued(bucket: str, object_store: ObjectStore) -> Queued:
    """A new bucket with a queue of its own."""
    sqs = object_store.client("sqs")
    attributes = {"VisibilityTimeout": "0"}
    made = sqs.create_queue(QueueName=f"landed-{uuid4().hex}", Attributes=attributes)
    return Queued(BucketLanding(bucket), sqs, made["QueueUrl"])


def _locations(database: Database) -> list[str]:
    rows = query(database, "SELECT location FROM batch_pipeline.item ORDER BY id")
    return [location.partition("/in/")[2] for (location,) in rows]


def test_object_of_an_event_is_registered_and_its_message_deleted(
    queued: Queued, database: Database
) -> None:
    polled = queued.polled()
    looked(polled, database)
    queued.place.asked.clear()
    location = queued.place.put("in/a b+%.csv", b"12345")
    queued.announce("in/a b+%.csv")
    assert looked(polled, database) == Registered(found=1, new_items=1)
    assert queued.place.asked == {"HeadObject": 1}
    assert queued.waiting() == 0
    [item] = database.meta_table("orders").find(location)
    assert item.file == next(queued.place.landing().found_files())


def test_quiet_look_asks_the_bucket_for_nothing(queued: Queued, database: Database) -> None:
    clock = Clock()
    polled = queued.polled(clock)
    looked(polled, database)
    queued.place.asked.clear()
    clock.seconds = 3_599
    looked(polled, database)
    assert queued.place.asked == {}
    queued.place.put("in/untold.csv")
    clock.seconds = 3_600
    assert looked(polled, database).new_items == 1
    assert queued.place.asked == {"ListObjectsV2": 1}


def test_message_stays_until_its_files_are_registered(queued: Queued, database: Database) -> None:
    looked(queued.polled(), database)
    queued.place.put("in/a.csv")
    queued.announce("in/a.csv")
    polled = queued.polled()
    list(polled.found_files())
    assert queued.waiting() == 1
    assert database.meta_table("orders").register(polled.found_files()).new_items == 1
    assert queued.waiting() == 1
    assert looked(queued.polled(), database).new_items == 0
    assert queued.waiting() == 0
    assert _locations(database) == ["a.csv"]


def test_event_of_an_object_that_is_gone_is_dropped(queued: Queued, database: Database) -> None:
    polled = queued.polled()
    looked(polled, database)
    queued.place.put("in/a.csv")
    queued.place.put("in/b.csv")
    queued.announce("in/gone.csv", "in/a.csv")
    queued.announce("in/b.csv", name="ObjectRemoved:Delete")
    assert looked(polled, database).new_items == 1
    assert queued.waiting() == 0


def test_event_of_an_unwanted_key_is_dropped(queued: Queued, database: Database) -> None:
    polled = queued.polled(include=("*.csv", "*.tmp"))
    looked(polled, database)
    for key in ("in/a.csv", "in/a.txt", "in/a.tmp", "in/sub/"):
        queued.place.put(key, b"")
        queued.announce(key)
    looked(polled, database)
    assert _locations(database) == ["a.csv"]
    assert queued.waiting() == 0


@pytest.mark.parametrize(
    "body",
    [
        "hello",
        '{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}',
        '{"Records": []}',
    ],
    ids=["broken", "test", "empty"],
)
def test_message_that_is_not_understood_is_told_and_left(
    queued: Queued, database: Database, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    queued.send(body)
    queued.place.put("in/a.csv")
    queued.announce("in/a.csv")
    polled = queued.polled()
    with caplog.at_level(logging.WARNING, "batch_pipeline"):
        looked(polled, database)
    assert _locations(database) == ["a.csv"]
    assert queued.waiting() == 1
    assert f"is left in the queue {queued.queue}" in caplog.text


def test_message_of_another_bucket_or_prefix_is_left(
    queued: Queued, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    queued.place.put("in/a.csv")
    queued.place.put("out/b.csv")
    queued.announce("in/a.csv", bucket="another-bucket")
    queued.announce("in/a.csv", "out/b.csv")
    polled = queued.polled()
    with caplog.at_level(logging.WARNING, "batch_pipeline"):
        looked(polled, database)
    assert _locations(database) == ["a.csv"]
    assert queued.waiting() == 2
    assert "tells of s3://another-bucket/in/a.csv" in caplog.text


def test_listing_receives_a_bounded_number_of_messages(
    queued: Queued,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(s3_events, "MAX_MESSAGES", 30)
    queued.send("hello")
    looked(queued.polled(), database)
    assert caplog.text.count("it is not an event notification of S3") == 3


def test_events_after_many_objects_are_all_taken(queued: Queued, database: Database) -> None:
    hidden = {"VisibilityTimeout": "300"}
    queued.sqs.set_queue_attributes(QueueUrl=queued.queue, Attributes=hidden)
    polled = queued.polled()
    looked(polled, database)
    queued.place.put_many(1, 25)
    for number in range(1, 26):
        queued.announce(f"in/{number:05}.csv")
    assert looked(polled, database) == Registered(found=25, new_items=25)
    assert queued.waiting() == 0


def test_queue_that_is_not_there_is_told_while_the_bucket_is_listed(
    queued: Queued, database: Database
) -> None:
    queued.place.put("in/a.csv")
    polled = queued.polled()
    queued.sqs.delete_queue(QueueUrl=queued.queue)
    assert looked(polled, database).new_items == 1
    [trouble] = polled.troubles
    assert isinstance(trouble, LandingUnavailableError)
    assert f"{queued.queue} cannot be listed or read (there is no such queue)" in str(trouble)
    queued.sqs.create_queue(QueueName=queued.queue.rpartition("/")[2])
    looked(polled, database)
    assert polled.troubles == ()


def test_object_that_is_refused_keeps_its_own_message_alone(
    queued: Queued, database: Database, faults: Faults
) -> None:
    polled = Queued(BucketLanding(queued.place.bucket), queued.sqs, queued.queue).polled()
    looked(polled, database)
    for name in ("a", "b", "c"):
        queued.place.put(f"in/{name}.csv")
        queued.announce(f"in/{name}.csv")
    faults.refuse(403, "AccessDenied", method="HEAD", target="in/b.csv")
    assert looked(polled, database).new_items == 2
    assert queued.waiting() == 1
    assert "/in/b.csv cannot be listed or read (the store refuses s3:GetObject" in str(
        polled.troubles[0]
    )


def test_message_of_an_unfit_key_stays(queued: Queued, database: Database) -> None:
    polled = queued.polled()
    looked(polled, database)
    queued.place.put("in/a.csv")
    queued.announce("in/a.csv", "in/a.csv#bytes=0-4", "in/nul\0.csv")
    assert looked(polled, database).new_items == 1
    assert queued.waiting() == 1
    assert "a.csv#bytes=0-4" in str(polled.troubles[0])


def test_messages_that_cannot_be_deleted_are_told_after_registration(
    queued: Queued, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(queued.sqs.meta.endpoint_url) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", between.endpoint)
        polled = queued.polled()
        looked(polled, database)
        queued.sqs.set_queue_attributes(
            QueueUrl=queued.queue, Attributes={"VisibilityTimeout": "300"}
        )
        queued.place.put("in/a.csv")
        queued.announce("in/a.csv")
        between.refuse(403, "AccessDenied", skip=2)
        assert looked(polled, database).new_items == 1
    assert "(the store refuses sqs:DeleteMessage (403))" in str(polled.troubles[0])


def test_queue_that_does_not_accept_the_credentials_says_so(
    queued: Queued, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(queued.sqs.meta.endpoint_url) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", between.endpoint)
        polled = queued.polled()
        code = {"x-amzn-query-error": "InvalidClientTokenId;Sender"}
        between.refuse(403, "InvalidClientTokenId", times=1, headers=code)
        looked(polled, database)
        assert "the store does not accept the credentials" in str(polled.troubles[0])
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", queued.sqs.meta.endpoint_url)
        before = len(between.requests)
        looked(polled, database)
        assert polled.troubles == ()
        assert len(between.requests) == before


def _record(key: str = "in/a.csv", name: str = "ObjectCreated:Put") -> dict[str, Any]:
    found = {"bucket": {"name": "bucket"}, "object": {"key": key, "size": 3, "eTag": "ab"}}
    return {"eventSource": "aws:s3", "eventName": name, "s3": found}


def _sns(message: str) -> str:
    topic = "arn:aws:sns:eu-central-1:123456789012:landed"
    return json.dumps({"Type": "Notification", "TopicArn": topic, "Message": message})


def _bridge(kind: str = "Object Created") -> str:
    detail = {"bucket": {"name": "bucket"}, "object": {"key": "in/a+b c%20.csv", "size": 3}}
    return json.dumps({"source": "aws.s3", "detail-type": kind, "detail": detail})


DIRECT = json.dumps({"Records": [_record()]})
CREATED = ("s3://bucket/in/a.csv", True)


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (DIRECT, [CREATED]),
        (_sns(DIRECT), [CREATED]),
        (_bridge(), [("s3://bucket/in/a+b c%20.csv", True)]),
        (_sns(_bridge()), [("s3://bucket/in/a+b c%20.csv", True)]),
        (_bridge("Object Deleted"), [("s3://bucket/in/a+b c%20.csv", False)]),
        (
            json.dumps({"Records": [_record("in/a+b%2Bc%C3%A9%2520.csv"), _record("b")]}),
            [
                ("s3://bucket/in/a b+cé%20.csv", True),
                ("s3://bucket/b", True),
            ],
        ),
        (
            json.dumps({"Records": [_record(name="ObjectRemoved:Delete")]}),
            [("s3://bucket/in/a.csv", False)],
        ),
        (
            json.dumps({"Records": [_record(name="s3:ObjectCreated:Copy")]}),
            [CREATED],
        ),
    ],
    ids=["s3", "sns", "bridge", "sns-bridge", "bridge-deleted", "escaped", "removed", "prefixed"],
)
def test_event_notification_tells_bucket_and_key(body: str, events: list[tuple[str, bool]]) -> None:
    assert events_in(body) == events


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        "[]",
        "7",
        '{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "bucket"}',
        '{"Records": 7}',
        '{"Records": []}',
        '{"Records": [{"eventSource": "aws:s3"}]}',
        json.dumps({"Records": [_record() | {"eventSource": "aws:ses"}]}),
        json.dumps({"Records": [_record("%FF")]}),
        json.dumps({"source": "aws.s3", "detail-type": "Object Created", "detail": {}}),
        _sns("hello"),
        '{"Type": "SubscriptionConfirmation", "TopicArn": "t", "Message": "m"}',
    ],
    ids=range(13),
)
def test_message_of_another_kind_is_no_event_notification(body: str) -> None:
    with pytest.raises(InvalidValueError, match="expected an event notification of S3"):
        events_in(body)


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-central-1.amazonaws.com/123456789012/landed", "eu-central-1"),
        ("https://eu-central-1.queue.amazonaws.com/123456789012/landed", "eu-central-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/landed", "cn-north-1"),
        ("http://127.0.0.1:5000/123456789012/landed", None),
    ],
)
def test_region_of_a_queue_stands_in_its_url(url: str, region: str | None) -> None:
    assert region_of(url) == region
