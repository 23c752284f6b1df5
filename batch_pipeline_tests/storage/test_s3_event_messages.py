"""Event notifications of S3: what is read from each of their forms, and what is none."""

import json
from typing import Any

import pytest

from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.storage.s3_events import events_in, region_of


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
