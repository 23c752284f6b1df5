"""Encoding from and to S3 compared with local disk, and the cost of listing many keys.

The same files are in a folder and in a bucket, and the part files must have the same bytes wherever
they are written. Then a bucket is filled with keys and polled as by a sensor, including the
registration in a database of its own: the first polls, and polls without new keys.

The store is moto's server, which uses the same cores, or the one in
`BATCH_PIPELINE_TEST_S3_ENDPOINT`. Run `python -m batch_pipeline_tests.benchmarks store
[--records 100000] [--files 10 2000] [--rounds 2] [--only jsonl-jsonl …] [--keys 10000]`; 0 keys
skip the listing, 0 records the encode. moto sorts all keys for each page, so use a real server for
many keys: `uv run .ci/real_s3 python -m batch_pipeline_tests.benchmarks store`.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.model.encode_request import EncodeResult
from batch_pipeline.model.item import Item, LandedFile, Registered
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import Arrivals, KeyOrder, Source, Storage, Stream
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.benchmarks.encode_ours import ProductEncoder, items, open_encoder
from batch_pipeline_tests.benchmarks.measures import MB, rotations
from batch_pipeline_tests.benchmarks.servers import server
from batch_pipeline_tests.benchmarks.workload import (
    CACHE,
    CONVERSIONS,
    JSONL_GZIP,
    Conversion,
    GeneratedFiles,
    Workload,
    generate,
)
from batch_pipeline_tests.object_store import ENDPOINT, ObjectStore, open_store


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--files", type=int, nargs="+", default=[10, 2_000])
    parser.add_argument("--rounds", type=int, default=2)
    default = ["jsonl-jsonl", "jsonl-parquet"]
    parser.add_argument("--only", choices=CONVERSIONS, nargs="+", default=default)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--cache", type=Path, default=CACHE)
    args = parser.parse_args()
    with open_store() as store:
        os.environ.update(store.environment)
        s3_client.forget()
        kind = "the server that the variable names" if ENDPOINT in os.environ else "moto's server"
        print(f"{kind}, {os.cpu_count()} cores", flush=True)
        if args.records:
            for line in compare_encodes(store, args):
                print(line, flush=True)
        if args.keys:
            for line in poll_bucket(store, args.keys, args.rounds):
                print(line, flush=True)


DISK, STORE = "disk", "S3"
PLACES = [DISK, STORE]
ENCODE_HEADER = (
    "| conversion | files | from and to | seconds | MB/s | beside disk |\n" + "|---" * 6 + "|"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A conversion of files that are in both places."""

    conversion: Conversion
    files: GeneratedFiles
    sources: Mapping[str, tuple[Item, ...]]  # by place
    targets: Mapping[str, str]  # storage roots by place
    schema: RecordSchema


def compare_encodes(store: ObjectStore, args: argparse.Namespace) -> Iterator[str]:
    """Measure all conversions in both places; yield the lines of a table."""
    bucket = f"s3://{store.new_bucket()}"
    yield f"{args.records:,} records, median of {args.rounds} rounds\n\n{ENCODE_HEADER}"
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, open_encoder() as ours:
        for conversion in (CONVERSIONS[name] for name in args.only):
            for count in args.files:
                workload = Workload(source=conversion.source, records=args.records, files=count)
                files = generate(workload, args.cache)
                case = _case(ours, conversion, files, bucket, Path(folder))
                yield from _measure(ours, case, args.rounds)


def _case(
    ours: ProductEncoder, conversion: Conversion, files: GeneratedFiles, bucket: str, folder: Path
) -> Case:
    prefix = f"{bucket}/{files.paths[0].parent.name}"

    def put(path: Path) -> None:
        S3.put(f"{prefix}/{path.name}", path.read_bytes())

    if not any(True for _ in S3.list(f"{prefix}/")):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(put, files.paths))
    stored = tuple(
        Item(
            id=number,
            file=LandedFile(
                location=f"{prefix}/{entry.name}",
                size_bytes=entry.facts.size_bytes,
                modified_at=entry.facts.modified_at,
                etag=entry.facts.etag,
            ),
        )
        for number, entry in enumerate(S3.list(f"{prefix}/"), start=1)
        if entry.facts is not None
    )
    targets = {DISK: to_uri(folder / "out"), STORE: f"{bucket}/out"}
    _empty(targets)
    local = items(files.paths)
    schema = ours.infer_schema(local, targets[DISK], conversion.encoding)
    return Case(
        conversion=conversion,
        files=files,
        sources={DISK: local, STORE: stored},
        targets=targets,
        schema=schema,
    )


def _measure(ours: ProductEncoder, case: Case, rounds: int) -> Iterator[str]:
    seconds: dict[str, list[float]] = defaultdict(list)
    digests = set()
    _run(ours, case, STORE)  # so that all workers have a client
    for places in rotations(PLACES, rounds):
        for place in places:
            _empty(case.targets)
            started = time.perf_counter()
            result = _run(ours, case, place)
            seconds[place].append(time.perf_counter() - started)
            digests.add(tuple(part.sha256 for part in result.part_files))
    assert len(digests) == 1, "the bytes of part files differ"
    for place in PLACES:
        median = statistics.median(seconds[place])
        rate = case.files.facts.text_bytes / MB / median
        yield (
            f"| {case.conversion.name} | {len(case.files.paths):,} | {place} | {median:.2f} "
            f"| {rate:.0f} | {median / statistics.median(seconds[DISK]):.2f} × |"
        )


def _run(ours: ProductEncoder, case: Case, place: str) -> EncodeResult:
    root, encoding = case.targets[place], case.conversion.encoding
    return ours.encode(case.sources[place], root, encoding, case.schema)


def _empty(targets: Mapping[str, str]) -> None:
    folder = Path(targets[DISK].removeprefix("file://"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    S3.delete(*(f"{targets[STORE]}/{entry.name}" for entry in S3.list(f"{targets[STORE]}/")))


ASCENDING = Arrivals(order=KeyOrder.ASCENDING, relist=timedelta(hours=1))
POLL_HEADER = "| what | seconds | requests | new items |\n" + "|---" * 4 + "|"


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
    yield f"\n{keys:,} keys, put in {time.perf_counter() - started:.0f} s\n\n{POLL_HEADER}"
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


if __name__ == "__main__":
    main()
