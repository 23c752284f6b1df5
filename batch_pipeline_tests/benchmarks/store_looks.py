"""Polls of a bucket with many keys: the first ones, and ones without new keys.

A poll ("look" in the table) is a sensor tick without Dagster: new keys are registered in the
inventory.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.model.item import Registered
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.stream import Arrivals, KeyOrder, Source, Storage, Stream
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.benchmarks.servers import server
from batch_pipeline_tests.benchmarks.workload import JSONL_GZIP
from batch_pipeline_tests.object_store import ObjectStore

ASCENDING = Arrivals(order=KeyOrder.ASCENDING, relist=timedelta(hours=1))
HEADER = "| what | seconds | requests | new items |\n" + "|---" * 4 + "|"


class Requests:
    """Counts the requests of this process to the store."""

    def __init__(self) -> None:
        self.number = 0
        s3_client.client().meta.events.register("before-send.s3", self._count)

    def _count(self, **_: object) -> None:
        self.number += 1


def poll_bucket(store: ObjectStore, keys: int, rounds: int) -> Iterator[str]:
    """Fill a bucket and poll it; yield the lines of a table."""
    bucket = store.new_bucket()
    started = time.perf_counter()
    _fill(bucket, keys)
    yield f"\n{keys:,} keys, put in {time.perf_counter() - started:.0f} s\n\n{HEADER}"
    requests = Requests()
    yield (
        _line("listing alone", requests, lambda: len(list(S3.list(f"s3://{bucket}/in/"))), 1) + " |"
    )
    with server() as url:
        database = open_database(url, migrated=True)
        for name, arrivals in (("every key", Arrivals()), ("ascending", ASCENDING)):
            landing = PolledLanding(
                SourceLanding(stream=_stream(name.replace(" ", "_"), bucket, arrivals)),
                limit=100_000,
            )
            yield from _polls(landing, database, requests, name, keys, rounds)
        database.close()


def _polls(
    landing: PolledLanding,
    database: Database,
    requests: Requests,
    name: str,
    keys: int,
    rounds: int,
) -> Iterator[str]:
    table = database.meta_table(name.replace(" ", "_"))
    polls: list[Registered] = []

    def poll() -> None:
        polls.append(landing.settled(table.register(landing.found_files())))

    while not polls or polls[-1].found < keys:
        line = _line(f"{name}, look {len(polls) + 1}", requests, poll, 1)
        assert polls[-1].new_items, "a poll found no new keys before all were registered"
        yield f"{line} {polls[-1].new_items:,} |"
    yield _line(f"{name}, quiet look", requests, poll, rounds) + " 0 |"
    assert not polls[-1].new_items


def _line(title: str, requests: Requests, call: Callable[[], object], rounds: int) -> str:
    seconds, before = [], requests.number
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    request_count = (requests.number - before) / rounds
    return f"| {title} | {statistics.median(seconds):.3f} | {request_count:.0f} |"


def _fill(bucket: str, keys: int) -> None:
    def put(number: int) -> None:
        s3_client.client().put_object(Bucket=bucket, Key=f"in/{number:09}.csv", Body=b"id\n1\n")

    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(put, range(keys)):
            pass


def _stream(name: str, bucket: str, arrivals: Arrivals) -> Stream:
    return Stream(
        name=name,
        source=Source(uri=f"s3://{bucket}/in", arrivals=arrivals),
        limits=Limits(max_weight=1, max_count=1),
        encoding=JSONL_GZIP,
        storage=Storage(root=f"s3://{bucket}/out"),
    )
