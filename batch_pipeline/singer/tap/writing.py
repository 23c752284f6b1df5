"""Messages of the tap in the SDK's terms: BATCH with facts of ours, and lines as they are."""

import sys
from dataclasses import dataclass, field
from typing import Any

from singer_sdk.helpers._batch import SDKBatchMessage
from singer_sdk.io_base import SingerWriter

from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.singer.messages import batch_message

_OF_THE_SDK = ("type", "stream", "encoding", "manifest")


class PublishedFiles(list[str]):
    """The files of a published manifest, as the SDK hands them from `get_batches` to a message."""

    def __init__(self, publish_number: int, manifest: Manifest) -> None:
        message = batch_message(manifest)
        super().__init__(message["manifest"])
        self.published = (publish_number, manifest)
        self.facts = {name: fact for name, fact in message.items() if name not in _OF_THE_SDK}


@dataclass(slots=True)
class FactedBatchMessage(SDKBatchMessage):
    """A BATCH message with more keys at its top level."""

    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Write the message with its facts beside the SDK's keys."""
        written: dict[str, Any] = super(FactedBatchMessage, self).to_dict()
        facts = written.pop("facts")
        return {**written, **facts}


class LineWriter(SingerWriter):
    """The SDK's writer to standard output, which also takes lines that are composed already."""

    def write_lines(self, lines: bytes) -> None:
        """Write whole lines."""
        sys.stdout.flush()
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()
