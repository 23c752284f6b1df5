"""S3's event notifications, received from a queue of SQS, and the new objects of a landing.

AWS has three forms of them: as S3 sends them, wrapped by SNS, and as EventBridge sends them. A
message is deleted once all its objects are registered, or of no interest to this landing. What is
not understood, names other buckets or prefixes, or an object that is refused, is left to the
queue's own rules. Problems are kept, not raised: the next full listing finds what was missed.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from batch_pipeline.model.errors import InvalidValueError, LandingUnavailableError, PipelineError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import to_object_uri
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.s3_client import translate_store_errors

MAX_MESSAGES = 1_000
_PER_REQUEST = 10  # SQS returns and deletes so many messages in one request
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
    """Something that happened to an object; `is_creation` if it was written."""

    bucket: str
    key: str
    is_creation: bool

    @property
    def uri(self) -> str:
        """The URI of the object."""
        return to_object_uri(self.bucket, self.key)


class Queue:
    """A queue of SQS, by its URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = s3_client.kept(lambda: s3_client.new_client("sqs", region=region_of(url)))

    def receive(self, most: int) -> Iterator[Message]:
        """Receive the messages that are there now, about `most` of them, without waiting.

        They come again, once the queue's visibility timeout is over, unless they are deleted.

        Raises:
            OSError: the queue is not there, is unreachable, or refuses.
        """
        for _ in range(0, most, _PER_REQUEST):
            with translate_store_errors(self.url):
                response = self._client().receive_message(
                    QueueUrl=self.url, MaxNumberOfMessages=_PER_REQUEST, WaitTimeSeconds=0
                )
            received = response.get("Messages", ())
            if not received:
                return
            for one in received:
                yield Message(one["MessageId"], one["Body"], one["ReceiptHandle"])

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete messages; one that the queue does not delete comes again.

        Raises:
            OSError: the queue is unreachable, or refuses.
        """
        for first in range(0, len(messages), _PER_REQUEST):
            some = messages[first : first + _PER_REQUEST]
            entries = [
                {"Id": str(number), "ReceiptHandle": one.receipt} for number, one in enumerate(some)
            ]
            with translate_store_errors(self.url):
                self._client().delete_message_batch(QueueUrl=self.url, Entries=entries)


def region_of(url: str) -> str | None:
    """Return the region that the URL of a queue of AWS names."""
    match = _REGION.match(url)
    return None if match is None else match[1] or match[2]


def events_in(body: str) -> list[Event]:
    """Parse the text of a message.

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


def _events(values: Mapping[str, Any]) -> list[Event]:
    if values.get("Type") == "Notification" and "TopicArn" in values:
        return _events(json.loads(values["Message"]))
    if values.get("source") == "aws.s3":
        return [_of_event_bridge(values)]
    return [_of_record(one) for one in values["Records"]]


def _of_event_bridge(one: Mapping[str, Any]) -> Event:
    """Parse an event of EventBridge, in which the key is plain."""
    detail, kind = one["detail"], one["detail-type"]
    is_creation = _text(kind) == "Object Created"
    return Event(_text(detail["bucket"]["name"]), _text(detail["object"]["key"]), is_creation)


def _of_record(one: Mapping[str, Any]) -> Event:
    """Parse a record of S3, in which the key is encoded as in the query of a URL."""
    source, name, found = one["eventSource"], _text(one["eventName"]), one["s3"]
    if source != "aws:s3":
        raise ValueError(source)
    key = unquote_plus(_text(found["object"]["key"]), errors="strict")
    is_creation = name.removeprefix("s3:").startswith("ObjectCreated:")
    return Event(_text(found["bucket"]["name"]), key, is_creation)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # JSON can have lone surrogates, keys cannot
    return value


@dataclass(slots=True)
class S3EventListing:
    """A landing and its queue.

    `answered` are messages whose files the last listing returned, `trouble` is the first thing that
    went wrong in it.
    """

    landing: SourceLanding
    queue: Queue
    answered: list[Message] = field(default_factory=list)
    trouble: PipelineError | None = None

    def found_files(self) -> Iterator[LandedFile]:
        """Receive the messages that are there and look at each object that they name."""
        self.answered, self.trouble = [], None
        names: dict[str, None] = {}
        answerable: list[tuple[Message, set[str]]] = []
        for message in self._received():
            events = self._events(message)
            own = [(one, self.landing.name_of(one.uri)) for one in events]
            new = [name for one, name in own if name is not None and one.is_creation]
            names |= dict.fromkeys(new)
            if own and all(name is not None for _, name in own):
                answerable.append((message, set(new)))
        answered: set[str] = set()
        try:
            for name, examined in self.landing.present(names):
                if isinstance(examined, PipelineError):
                    self._note(examined)
                    continue
                answered.add(name)
                if examined is not None:
                    yield self.landing.found(name, examined)
        except LandingUnavailableError as error:
            self._note(error)
        self.answered = [message for message, new in answerable if new <= answered]

    def settled(self) -> None:
        """Delete the answered messages, now that their files are registered.

        A message that the queue does not delete comes again.
        """
        answered, self.answered = self.answered, []
        try:
            self.queue.delete(answered)
        except OSError as error:
            self._note(self.landing.unavailable(error, self.queue.url))

    def _received(self) -> Iterator[Message]:
        """Receive messages; trouble with the queue ends them."""
        try:
            yield from self.queue.receive(MAX_MESSAGES)
        except OSError as error:
            self._note(self.landing.unavailable(error, self.queue.url))

    def _note(self, trouble: PipelineError) -> None:
        self.trouble = self.trouble or trouble

    def _events(self, message: Message) -> list[Event]:
        """Parse a message, and warn of one that is to be left."""
        try:
            events = events_in(message.body)
        except InvalidValueError as error:
            self._warn(message, f"it is not {error.expected}")
            return []
        for one in events:
            if self.landing.name_of(one.uri) is None:
                self._warn(message, f"it tells of {one.uri}")
                break
        return events

    def _warn(self, message: Message, why: str) -> None:
        logging.getLogger("batch_pipeline").warning(
            "%s: message %s is left in the queue %s: %s. The queue's dead-letter rules take it.",
            self.landing.stream.name,
            message.id,
            self.queue.url,
            why,
        )
