"""Encode tasks between two roots, and the S3 requests that they send."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from batch_pipeline.encode.task import TaskReport, encode_items
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.stream import Source, Storage, Stream
from batch_pipeline.storage import s3_client
from batch_pipeline_tests.encode.task_fixture import task_spec
from batch_pipeline_tests.storage_roots import Root


class Requests:
    """A context manager that records the operations that this process's client requests."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def __enter__(self) -> "Requests":
        s3_client.client().meta.events.register("before-send.s3.*", self._record)
        return self

    def __exit__(self, *_error: object) -> None:
        s3_client.client().meta.events.unregister("before-send.s3.*", self._record)

    def _record(self, event_name: str, **_given: object) -> None:
        self.sent.append(event_name.rpartition(".")[2])


def between(stream: Stream, landing: Root, storage: Root, **changes: Any) -> Stream:
    """Return a stream that reads from one root and writes to another, with other changes."""
    assert isinstance(stream.source, Source)
    return replace(
        stream,
        source=replace(stream.source, uri=landing.uri),
        storage=Storage(root=storage.uri, prefix=stream.storage.prefix),
        **changes,
    )


def task(stream: Stream, files: Iterable[LandedFile], **types: str) -> TaskReport:
    """Run one encode task for files numbered from 1, with a schema given as name=type."""
    items = (Item(id=number, file=file) for number, file in enumerate(files, 1))
    return encode_items(task_spec(stream, items, types), execution="00c0ffee")
