"""S3 event notifications in a queue: registered objects, deleted and kept messages."""

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
from batch_pipeline_tests.storage.bucket_landing import BucketLanding, Clock, poll
from batch_pipeline_tests.store_faults import Faults, proxy


@dataclass
class QueuedLanding:
    """A bucket and its event queue, which delivers a message only once."""

    s3_landing: BucketLanding
    sqs: Any
    queue: str

    def polled(self, clock: Clock | None = None, **source: Any) -> PolledLanding:
        """Return the polled landing that uses the queue."""
        arrivals = Arrivals(queue=self.queue, relist=timedelta(hours=1))
        landing = self.s3_landing.landing(arrivals=arrivals, **source)
        return PolledLanding(landing, now=clock or Clock())

    def announce(
        self, *keys: str, name: str = "ObjectCreated:Put", bucket: str | None = None
    ) -> None:
        """Send one message with an event for each key."""
        own = split_object(self.s3_landing.bucket)[0]
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
        self.sqs.send_message(QueueUrl=self.queue, MessageBody=body)

    def message_count(self) -> int:
        """Return the number of messages that have not been deleted."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        response = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)
        return sum(int(response["Attributes"][name]) for name in names)

    def deliver_repeatedly(self) -> None:
        """Deliver messages until they are deleted."""
        at_once = {"VisibilityTimeout": "0"}
        self.sqs.set_queue_attributes(QueueUrl=self.queue, Attributes=at_once)


@pytest.fixture
def queued(bucket: str, object_store: ObjectStore) -> QueuedLanding:
    """A new bucket with its own event queue."""
    sqs = object_store.client("sqs")
    attributes = {"VisibilityTimeout": "300"}
    created = sqs.create_queue(QueueName=f"landed-{uuid4().hex}", Attributes=attributes)
    return QueuedLanding(BucketLanding(bucket), sqs, created["QueueUrl"])


def _locations(database: Database) -> list[str]:
    rows = query(database, "SELECT location FROM batch_pipeline.item ORDER BY id")
    return [location.partition("/in/")[2] for (location,) in rows]


def test_only_listings_and_events_send_bucket_requests(
    queued: QueuedLanding, database: Database
) -> None:
    clock = Clock()
    polled = queued.polled(clock)
    poll(polled, database)
    queued.s3_landing.requests.clear()
    location = queued.s3_landing.put("in/a b+%.csv", b"12345")
    queued.announce("in/a b+%.csv")
    assert poll(polled, database) == Registered(found=1, new_items=1)
    assert queued.s3_landing.requests == {"HeadObject": 1}
    assert queued.message_count() == 0
    [item] = database.meta_table("orders").find(location)
    assert item.file == next(queued.s3_landing.landing().found_files())
    queued.s3_landing.requests.clear()
    queued.s3_landing.put("in/untold.csv")
    clock.seconds = 3_599
    poll(polled, database)
    assert queued.s3_landing.requests == {}
    clock.seconds = 3_600
    assert poll(polled, database).new_items == 1
    assert queued.s3_landing.requests == {"ListObjectsV2": 1}


def test_message_is_kept_until_its_objects_are_registered(
    queued: QueuedLanding, database: Database
) -> None:
    queued.deliver_repeatedly()
    poll(queued.polled(), database)
    location = queued.s3_landing.put("in/a.csv")
    queued.announce("in/a.csv")
    polled = queued.polled()
    list(polled.found_files())
    assert queued.message_count() == 1
    polled.settled(Registered(found=1, postponed=(location,)))
    assert queued.message_count() == 1
    assert database.meta_table("orders").register(polled.found_files()).new_items == 1
    assert queued.message_count() == 1
    assert poll(queued.polled(), database).new_items == 0
    assert queued.message_count() == 0
    assert _locations(database) == ["a.csv"]


def test_message_without_new_objects_is_deleted(queued: QueuedLanding, database: Database) -> None:
    """The objects are missing, removed, excluded, unfinished or folder markers."""
    polled = queued.polled(include=("*.csv", "*.tmp"))
    poll(polled, database)
    for key in ("in/a.csv", "in/b.csv", "in/a.txt", "in/a.tmp", "in/sub/"):
        queued.s3_landing.put(key, b"")
    queued.announce("in/gone.csv", "in/a.csv")
    queued.announce("in/b.csv", name="ObjectRemoved:Delete")
    for key in ("in/a.txt", "in/a.tmp", "in/sub/"):
        queued.announce(key)
    assert poll(polled, database).new_items == 1
    assert _locations(database) == ["a.csv"]
    assert queued.message_count() == 0


def test_message_for_others_is_logged_and_kept(
    queued: QueuedLanding, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    queued.s3_landing.put("in/a.csv")
    queued.s3_landing.put("out/b.csv")
    for body in ("hello", '{"Service": "Amazon S3", "Event": "s3:TestEvent"}', '{"Records": []}'):
        queued.send(body)
    queued.announce("in/a.csv", bucket="another-bucket")
    queued.announce("in/a.csv", "out/b.csv")
    queued.announce("in/a.csv")
    polled = queued.polled()
    with caplog.at_level(logging.WARNING, "batch_pipeline"):
        poll(polled, database)
    assert _locations(database) == ["a.csv"]
    assert queued.message_count() == 5
    assert caplog.text.count(f"is left in the queue {queued.queue}") == 5
    assert "reports s3://another-bucket/in/a.csv" in caplog.text
    queued.s3_landing.put("in/b.csv")
    queued.announce("in/b.csv", "in/a.csv#bytes=0-4", "in/nul\0.csv")
    assert poll(polled, database).new_items == 1
    assert queued.message_count() == 6
    assert "a.csv#bytes=0-4" in str(polled.troubles[0])


def test_listing_receives_a_bounded_number_of_messages(
    queued: QueuedLanding,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(s3_events, "MAX_MESSAGES", 30)
    queued.deliver_repeatedly()
    queued.send("hello")
    poll(queued.polled(), database)
    assert caplog.text.count("it is not an event notification of S3") == 3


def test_all_messages_are_received_in_one_poll(queued: QueuedLanding, database: Database) -> None:
    polled = queued.polled()
    poll(polled, database)
    queued.s3_landing.put_many(1, 25)
    for number in range(1, 26):
        queued.announce(f"in/{number:05}.csv")
    assert poll(polled, database) == Registered(found=25, new_items=25)
    assert queued.message_count() == 0


def test_missing_queue_is_a_warning_and_bucket_is_listed(
    queued: QueuedLanding, database: Database
) -> None:
    queued.s3_landing.put("in/a.csv")
    polled = queued.polled()
    queued.sqs.delete_queue(QueueUrl=queued.queue)
    assert poll(polled, database).new_items == 1
    [warning] = polled.troubles
    assert isinstance(warning, LandingUnavailableError)
    assert f"{queued.queue} cannot be listed or read (there is no such queue)" in str(warning)
    queued.sqs.create_queue(QueueName=queued.queue.rpartition("/")[2])
    poll(polled, database)
    assert polled.troubles == ()


def test_unreadable_object_keeps_only_its_own_message(
    queued: QueuedLanding, database: Database, faults: Faults
) -> None:
    landing = BucketLanding(queued.s3_landing.bucket)  # uses the proxy
    polled = QueuedLanding(landing, queued.sqs, queued.queue).polled()
    poll(polled, database)
    for name in ("a", "b", "c"):
        queued.s3_landing.put(f"in/{name}.csv")
        queued.announce(f"in/{name}.csv")
    faults.refuse(403, "AccessDenied", method="HEAD", target="in/b.csv")
    assert poll(polled, database).new_items == 2
    assert queued.message_count() == 1
    reason = "/in/b.csv cannot be listed or read (the store refuses s3:GetObject"
    assert reason in str(polled.troubles[0])


def test_failed_message_deletion_is_a_warning_after_registration(
    queued: QueuedLanding, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(queued.sqs.meta.endpoint_url) as sqs_proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs_proxy.endpoint)
        polled = queued.polled()
        poll(polled, database)
        queued.s3_landing.put("in/a.csv")
        queued.announce("in/a.csv")
        sqs_proxy.refuse(403, "AccessDenied", skip=2)
        assert poll(polled, database).new_items == 1
    assert "(the store refuses sqs:DeleteMessage (403))" in str(polled.troubles[0])


def test_queue_with_wrong_credentials_is_a_warning(
    queued: QueuedLanding, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy(queued.sqs.meta.endpoint_url) as sqs_proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs_proxy.endpoint)
        polled = queued.polled()
        code = {"x-amzn-query-error": "InvalidClientTokenId;Sender"}
        sqs_proxy.refuse(403, "InvalidClientTokenId", times=1, headers=code)
        poll(polled, database)
        assert "the store does not accept the credentials" in str(polled.troubles[0])
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", queued.sqs.meta.endpoint_url)
        before = len(sqs_proxy.requests)
        poll(polled, database)
        assert polled.troubles == ()
        assert len(sqs_proxy.requests) == before


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
            [("s3://bucket/in/a b+cé%20.csv", True), ("s3://bucket/b", True)],
        ),
        (
            json.dumps({"Records": [_record(name="ObjectRemoved:Delete")]}),
            [("s3://bucket/in/a.csv", False)],
        ),
        (json.dumps({"Records": [_record(name="s3:ObjectCreated:Copy")]}), [CREATED]),
    ],
    ids=["s3", "sns", "bridge", "sns-bridge", "bridge-deleted", "escaped", "removed", "prefixed"],
)
def test_events_in_notification(body: str, events: list[tuple[str, bool]]) -> None:
    assert events_in(body) == events


@pytest.mark.parametrize(
    "body",
    [
        "hello",
        "[]",
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
    ids=range(11),
)
def test_events_in_other_message_is_rejected(body: str) -> None:
    with pytest.raises(InvalidValueError, match="expected an event notification of S3"):
        events_in(body)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("https://sqs.eu-central-1.amazonaws.com", "eu-central-1"),
        ("https://eu-central-1.queue.amazonaws.com", "eu-central-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("http://127.0.0.1:5000", None),
    ],
)
def test_region_of_queue_url(host: str, region: str | None) -> None:
    assert region_of(f"{host}/123456789012/landed") == region
