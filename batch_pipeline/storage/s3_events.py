"""S3's event notifications, received from a queue of SQS, and the new objects of a landing.

AWS sends them in three forms: directly from S3, wrapped by SNS, and from EventBridge. A message is
deleted once all its objects are registered, or irrelevant to this landing. A message that is not
understood, or that names other buckets or prefixes, or an object that is refused, is left to the
queue's own rules. Problems are recorded, not raised: the next full listing finds missed files.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from urllib.parse import unquote_plus

from batch_pipeline.model.errors import InvalidValueError, LandingUnavailableError, PipelineError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import to_object_uri
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import reason_of
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.s3_client import translate_store_errors

MAX_MESSAGES = 1_000
_PER_REQUEST = 10  # SQS returns and deletes at most this many messages per request
_REGION = re.compile(r"https://(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com")
_EXPECTED = "an event notification of S3"


class S3EventListing:
    """A landing and the SQS queue of its events; `queue` is the queue's URL.

    `trouble` is the first error of the last listing.
    """

    def __init__(self, landing: SourceLanding, queue: str) -> None:
        self.trouble: PipelineError | None = None
        self._landing = landing
        self._queue = queue
        self._client = partial(s3_client.client, "sqs", region_of(queue))
        # Receipts of messages whose files the listing returned, with the names of the files.
        self._answered: list[tuple[str, list[str]]] = []

    def found_files(self) -> Iterator[LandedFile]:
        """Receive the available messages and check each object that they name."""
        self._answered, self.trouble = [], None
        received = [(one["ReceiptHandle"], *self._new_names(one)) for one in self._messages()]
        names = dict.fromkeys(name for _, new, _ in received for name in new)
        answered: set[str] = set()
        try:
            for name, examined in self._landing.present(names):
                if isinstance(examined, PipelineError):
                    self._note(examined)
                    continue
                answered.add(name)
                if examined is not None:
                    yield self._landing.found(name, examined)
        except LandingUnavailableError as error:
            self._note(error)
        self._answered = [
            (one, new) for one, new, is_ours in received if is_ours and answered >= {*new}
        ]

    def settled(self, postponed: Iterable[str]) -> None:
        """Delete the answered messages, now that their files are registered.

        A message that is not deleted, as one with a postponed file, is delivered again.
        """
        names = {self._landing.name_of(uri) for uri in postponed}
        answered = [one for one, new in self._answered if names.isdisjoint(new)]
        self._answered = []
        try:
            for first in range(0, len(answered), _PER_REQUEST):
                some = enumerate(answered[first : first + _PER_REQUEST])
                entries = [{"Id": str(number), "ReceiptHandle": one} for number, one in some]
                with translate_store_errors(self._queue):
                    self._client().delete_message_batch(QueueUrl=self._queue, Entries=entries)
        except OSError as error:
            self._note(self._landing.unavailable(reason_of(error), self._queue))

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Receive the available messages, about `MAX_MESSAGES`, without waiting.

        Unless they are deleted, they are delivered again after the queue's visibility timeout. A
        failure of the queue is recorded and ends the iteration.
        """
        try:
            for _ in range(0, MAX_MESSAGES, _PER_REQUEST):
                with translate_store_errors(self._queue):
                    response = self._client().receive_message(
                        QueueUrl=self._queue, MaxNumberOfMessages=_PER_REQUEST, WaitTimeSeconds=0
                    )
                if not response.get("Messages"):
                    return
                yield from response["Messages"]
        except OSError as error:
            self._note(self._landing.unavailable(reason_of(error), self._queue))

    def _new_names(self, message: dict[str, Any]) -> tuple[list[str], bool]:
        """Return the names of new files in a message, and whether it only concerns this landing.

        If it does not, it is left in the queue, with a warning.
        """
        new, why = [], None
        try:
            for uri, is_creation in events_in(message["Body"]):
                name = self._landing.name_of(uri)
                if name is None:
                    why = why or f"it reports {uri}"
                elif is_creation:
                    new.append(name)
        except InvalidValueError as error:
            why = f"it is not {error.expected}"
        if why is not None:
            log = logging.getLogger("batch_pipeline")
            left = f"message {message['MessageId']} is left in the queue {self._queue}"
            after = "The queue's redrive policy handles it."
            log.warning("%s: %s: %s. %s", self._landing.stream.name, left, why, after)
        return new, why is None

    def _note(self, trouble: PipelineError) -> None:
        self.trouble = self.trouble or trouble


def region_of(url: str) -> str | None:
    """Return the region in the URL of an AWS queue."""
    match = _REGION.match(url)
    return None if match is None else match[1] or match[2]


def events_in(body: str) -> list[tuple[str, bool]]:
    """Return the URI of each object in the text of a message, and whether it was written.

    Raises:
        InvalidValueError: it is not an event notification of S3; neither is S3's test message.
    """
    try:
        events = _events(json.loads(body))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidValueError("message", body[:200], _EXPECTED) from error
    if not events:
        raise InvalidValueError("message", body[:200], _EXPECTED)
    return events


def _events(values: Any) -> list[tuple[str, bool]]:
    if values.get("Type") == "Notification" and "TopicArn" in values:
        return _events(json.loads(values["Message"]))
    if values.get("source") == "aws.s3":  # EventBridge, whose keys are not encoded
        detail, is_creation = values["detail"], _text(values["detail-type"]) == "Object Created"
        return [(_uri(detail, detail["object"]["key"]), is_creation)]
    events = []
    for one in values["Records"]:
        if one["eventSource"] != "aws:s3":
            raise ValueError(one["eventSource"])
        # Here the key is encoded as in the query string of a URL.
        key = unquote_plus(_text(one["s3"]["object"]["key"]), errors="strict")
        kind = _text(one["eventName"]).removeprefix("s3:")
        events.append((_uri(one["s3"], key), kind.startswith("ObjectCreated:")))
    return events


def _uri(place: Any, key: object) -> str:
    return to_object_uri(_text(place["bucket"]["name"]), _text(key))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()  # JSON can have lone surrogates, keys cannot
    return value
