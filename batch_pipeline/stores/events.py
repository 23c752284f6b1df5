"""What a bucket tells of itself: S3's event notifications, read from a queue of SQS.

The three forms that AWS has: as S3 sends them, wrapped by SNS, and as EventBridge sends them.
Which objects matter is not known here; nothing is deleted from a queue unless it is asked for.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote_plus

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.stores import s3
from batch_pipeline.stores.failures import told

_AT_ONCE = 10  # SQS gives and deletes so many messages in one request
_REGION = re.compile(r"https://(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com")
_EXPECTED = "an event notification of S3"


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was received; `receipt` is what deletes it."""

    id: str
    body: str
    receipt: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an object; `is_creation` where it was put there."""

    bucket: str
    key: str
    is_creation: bool


@dataclass(frozen=True)
class Queue:
    """A queue of SQS, by its URL; `connect` makes the client for a region, None for the usual."""

    url: str
    connect: Callable[[str | None], Any] = lambda region: s3.new_client("sqs", region=region)

    def receive(self, most: int) -> Iterator[Message]:
        """Receive the messages that are there now, about `most` of them; it waits for none.

        They come again, once the queue's visibility timeout is over, unless they are deleted.

        Raises:
            OSError: the queue is not there, cannot be asked, or refuses.
        """
        for _ in range(0, most, _AT_ONCE):
            with told(self.url):
                answer = self._client.receive_message(
                    QueueUrl=self.url, MaxNumberOfMessages=_AT_ONCE, WaitTimeSeconds=0
                )
            received = answer.get("Messages", ())
            if not received:
                return
            for one in received:
                yield Message(one["MessageId"], one["Body"], one["ReceiptHandle"])

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete messages; one that the queue does not delete comes again.

        Raises:
            OSError: the queue cannot be asked, or refuses.
        """
        for first in range(0, len(messages), _AT_ONCE):
            some = messages[first : first + _AT_ONCE]
            entries = [
                {"Id": str(number), "ReceiptHandle": one.receipt} for number, one in enumerate(some)
            ]
            with told(self.url):
                self._client.delete_message_batch(QueueUrl=self.url, Entries=entries)

    @property
    def _client(self) -> Any:
        return self._kept()

    @cached_property
    def _kept(self) -> Callable[[], Any]:
        return s3.kept(lambda: self.connect(region_of(self.url)))


def region_of(url: str) -> str | None:
    """Give the region that the URL of a queue of AWS's names."""
    match = _REGION.match(url)
    return None if match is None else match[1] or match[2]


def events_in(body: str) -> list[Event]:
    """Read the text of a message.

    Raises:
        InvalidValueError: it is none of S3's notifications; the test that S3 sends is none either.
    """
    try:
        found = _events(json.loads(body))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidValueError("message", body[:200], _EXPECTED) from error
    if not found:
        raise InvalidValueError("message", body[:200], _EXPECTED)
    return found


def _events(told_things: Mapping[str, Any]) -> list[Event]:
    if told_things.get("Type") == "Notification" and "TopicArn" in told_things:
        return _events(json.loads(told_things["Message"]))
    if told_things.get("source") == "aws.s3":
        return [_of_event_bridge(told_things)]
    return [_of_record(one) for one in told_things["Records"]]


def _of_event_bridge(one: Mapping[str, Any]) -> Event:
    """Read an event of EventBridge, in which the key stands as it is."""
    detail, kind = one["detail"], one["detail-type"]
    return Event(_text(detail["bucket"]["name"]), _text(detail["object"]["key"]), _is_new(kind))


def _of_record(one: Mapping[str, Any]) -> Event:
    """Read a record of S3's own, in which the key is written as in the query of a URL."""
    source, name, found = one["eventSource"], _text(one["eventName"]), one["s3"]
    if source != "aws:s3":
        raise ValueError(source)
    key = unquote_plus(_text(found["object"]["key"]), errors="strict")
    is_creation = name.removeprefix("s3:").startswith("ObjectCreated:")
    return Event(_text(found["bucket"]["name"]), key, is_creation)


def _is_new(kind: object) -> bool:
    return _text(kind) == "Object Created"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # JSON can have halves of characters, keys cannot
    return value
