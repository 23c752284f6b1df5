"""A tap over a list of manifests, without an inventory."""

import io
import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import pytest

from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Stream
from batch_pipeline.singer.messages import Bookmark
from batch_pipeline.singer.tap import OfferedStream, PublishedStream, PublishedTap
from batch_pipeline_tests.conformance.rules import parsed
from batch_pipeline_tests.factories import record_schema, stream


@dataclass
class ListedSource:
    """A source of one stream with these manifests."""

    manifests: Sequence[Manifest]
    stream: Stream = field(default_factory=stream)

    def offered_streams(self) -> Sequence[OfferedStream]:
        """Return the stream with the schema of the last manifest."""
        newest = self.manifests[-1].schema if self.manifests else record_schema()
        return [OfferedStream(stream=self.stream, schema=newest)]

    def published(
        self, stream: str, bookmark: Bookmark, *, backfills: bool
    ) -> Iterator[tuple[int, Manifest]]:
        """Yield the manifests after the bookmark, numbered from 1 for each job."""
        counts: dict[str, int] = {}
        for one in self.manifests:
            job = one.batch.job
            counts[job] = counts.get(job, 0) + 1
            if counts[job] > bookmark.numbers.get(job, 0) and (backfills or job == stream):
                yield counts[job], one


def tap_class(source: ListedSource, streams: type[PublishedStream] = PublishedStream) -> Any:
    class ListedTap(PublishedTap):
        """A tap over a list."""

        stream_class = streams

        def offered_streams(self) -> Sequence[OfferedStream]:
            return source.offered_streams()

        def published(
            self, stream: str, bookmark: Bookmark, *, backfills: bool
        ) -> Iterator[tuple[int, Manifest]]:
            return source.published(stream, bookmark, backfills=backfills)

    return ListedTap


def printed(tap: Any, *, until: type[Exception] | None = None) -> list[bytes]:
    """Return the lines that a tap prints, until it has sent everything or raises `until`."""
    ends: Any = nullcontext() if until is None else pytest.raises(until)
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8") as out:
        with redirect_stdout(out), ends:
            tap.sync_all()
        out.flush()
        data: bytes = out.buffer.getvalue()
        return data.splitlines(keepends=True)


def sent(source: ListedSource, **options: Any) -> list[dict[str, Any]]:
    """Return the messages of the tap over a source, with options of the SDK's `Tap`."""
    return parsed(printed(tap_class(source)(**options)))


@contextmanager
def signals_restored() -> Iterator[None]:
    """Restore the signal handlers and the root logger, which the SDK changes."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    root = logging.getLogger()
    level, log_handlers = root.level, root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = log_handlers
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
