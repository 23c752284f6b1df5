"""A landing in a bucket, and what tests do with it."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from batch_pipeline.inventory.database import Database
from batch_pipeline.model.item import Registered
from batch_pipeline.model.location import split_object
from batch_pipeline.model.stream import Source
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline.storage.s3 import S3FileSystem
from batch_pipeline_tests.factories import stream


@dataclass
class BucketLanding:
    """The prefix `in` of a bucket; `asked` counts the requests of the landing's client."""

    bucket: str
    asked: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store = s3_client.client()
        self.client = s3_client.new_client()
        self.client.meta.events.register("before-call.s3", self._count)

    def _count(self, model: Any, **_: Any) -> None:
        self.asked[model.name] += 1

    @property
    def uri(self) -> str:
        """The landing's own URI."""
        return f"{self.bucket}/in"

    def landing(self, **source: Any) -> SourceLanding:
        """Return the landing."""
        described = stream(source=Source(**{"uri": self.uri} | source))
        files = S3FileSystem(lambda: self.client)
        return SourceLanding(stream=described, filesystem=files)

    def put(self, key: str, octets: bytes = b"id\n1\n") -> str:
        """Put an object anywhere in the bucket, and give its location."""
        self.store.put_object(Bucket=self._name, Key=key, Body=octets)
        return f"{self.bucket}/{key}"

    def put_many(self, first: int, last: int) -> None:
        """Put empty objects whose keys ascend with their numbers."""
        keys = [f"in/{number:05}.csv" for number in range(first, last + 1)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self.put, keys, [b""] * len(keys)))

    def delete(self, key: str) -> None:
        """Delete an object."""
        self.store.delete_object(Bucket=self._name, Key=key)

    @property
    def _name(self) -> str:
        return split_object(self.bucket)[0]


@dataclass
class Clock:
    """A clock that goes when it is told to."""

    seconds: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def looked(watched: PolledLanding, database: Database) -> Registered:
    """Look once and register what is there, as a tick does."""
    return watched.settled(database.meta_table("orders").register(watched.found_files()))


def names(watched: PolledLanding | SourceLanding) -> list[str]:
    """List the files' names below the prefix; nothing is registered."""
    return [file.location.partition("/in/")[2] for file in watched.found_files()]
