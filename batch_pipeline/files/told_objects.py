"""What a queue tells of new objects of a landing, and the messages that may be deleted then.

A message is deleted once all that it tells is registered, or of no interest to this landing. What
is not understood, tells of other buckets or prefixes, or of an object that is refused, is left to
the queue's own rules. Trouble is kept, not raised: a listing makes good what was not told.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from batch_pipeline.domain.errors import (
    InvalidValueError,
    LandingUnavailableError,
    PipelineError,
)
from batch_pipeline.domain.item import FoundFile
from batch_pipeline.files.object_landing import ObjectLanding
from batch_pipeline.stores.events import Event, Message, Queue, events_in

MOST_MESSAGES = 1_000


@dataclass(slots=True)
class ToldObjects:
    """A landing and its queue; `answered` are messages whose files were given by the last look.

    `trouble` is the first thing that went wrong in it.
    """

    landing: ObjectLanding
    queue: Queue
    answered: list[Message] = field(default_factory=list)
    trouble: PipelineError | None = None

    def found_files(self) -> Iterator[FoundFile]:
        """Receive what is there and look at each object that it tells of."""
        self.answered, self.trouble = [], None
        told: dict[str, None] = {}
        wanted: list[tuple[Message, set[str]]] = []
        for message in self._received():
            events = self._events(message)
            own = [one for one in events if self.landing.has(one.bucket, one.key)]
            keys = [one.key for one in own if one.is_creation]
            told |= dict.fromkeys(keys)
            if own and own == events:
                wanted.append((message, set(keys)))
        answered: set[str] = set()
        try:
            for key, looked in self.landing.present(told):
                if isinstance(looked, PipelineError):
                    self._note(looked)
                    continue
                answered.add(key)
                if looked is not None:
                    yield looked
        except LandingUnavailableError as error:
            self._note(error)
        self.answered = [message for message, keys in wanted if keys <= answered]

    def settled(self) -> None:
        """Delete the answered messages, now that their files are registered.

        Where the queue refuses they come again.
        """
        answered, self.answered = self.answered, []
        try:
            self.queue.delete(answered)
        except OSError as error:
            self._note(self.landing.unavailable(error, self.queue.url))

    def _received(self) -> Iterator[Message]:
        """Receive messages; trouble with the queue ends them."""
        try:
            yield from self.queue.receive(MOST_MESSAGES)
        except OSError as error:
            self._note(self.landing.unavailable(error, self.queue.url))

    def _note(self, trouble: PipelineError) -> None:
        self.trouble = self.trouble or trouble

    def _events(self, message: Message) -> list[Event]:
        """Read a message, and tell of one that is to be left."""
        try:
            events = events_in(message.body)
        except InvalidValueError as error:
            self._tell(message, f"it is not {error.expected}")
            return []
        for one in events:
            if not self.landing.has(one.bucket, one.key):
                self._tell(message, f"it tells of s3://{one.bucket}/{one.key}")
                break
        return events

    def _tell(self, message: Message, why: str) -> None:
        logging.getLogger("batch_pipeline").warning(
            "%s: message %s is left in the queue %s: %s. The queue's dead-letter rules take it.",
            self.landing.stream.name,
            message.id,
            self.queue.url,
            why,
        )
