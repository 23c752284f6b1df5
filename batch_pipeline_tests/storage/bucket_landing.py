"""A landing in a bucket, for tests."""

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
    """A landing at the prefix `in` of a bucket; `requests` counts the requests of its client."""

    bucket: str
    requests: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store = s3_client.client()
        self.client = s3_client.new_client()
        self.client.meta.events.register("before-call.s3", self._count)

    def _count(self, model: Any, **_: Any) -> None:
        self.requests[model.name] += 1

    @property
    def uri(self) -> str:
        return f"{self.bucket}/in"

    def landing(self, **source: Any) -> SourceLanding:
        """Return the landing with these options of the source."""
        described = stream(source=Source(**{"uri": self.uri} | source))
        files = S3FileSystem(lambda: self.client)
        return SourceLanding(stream=described, filesystem=files)

    def put(self, key: str, data: bytes = b"id\n1\n") -> str:
        """Put an object at any key of the bucket and return its location."""
        self.store.put_object(Bucket=self._name, Key=key, Body=data)
        return f"{self.bucket}/{key}"

    def put_many(self, first: int, last: int) -> None:
        """Put empty objects with ascending numbers as keys."""
        keys = [f"in/{number:05}.csv" for number in range(first, last + 1)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self.put, keys, [b""] * len(keys)))

    def delete(self, key: str) -> None:
        self.store.delete_object(Bucket=self._name, Key=key)

    @property
    def _name(self) -> str:
        return split_object(self.bucket)[0]


@dataclass
class Clock:
    """A manual clock."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


def poll(polled: PolledLanding, database: Database) -> Registered:
    """Poll once and register the files, as a sensor tick does."""
    return polled.settled(database.meta_table("orders").register(polled.found_files()))


def names(landing: PolledLanding | SourceLanding) -> list[str]:
    """List the names of the files below the prefix without registering them."""
    return [file.location.partition("/in/")[2] for file in landing.found_files()]
