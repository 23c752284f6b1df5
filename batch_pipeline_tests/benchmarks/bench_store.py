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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline.model.encoding import Encoding
from batch_pipeline.model.item import Item, LandedFile, Registered
from batch_pipeline.model.location import to_path, to_uri
from batch_pipeline.model.stream import Arrivals, KeyOrder, Source
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.landing import SourceLanding
from batch_pipeline.storage.landing_poll import PolledLanding
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.benchmarks.encode_ours import ProductEncoder, items, open_encoder
from batch_pipeline_tests.benchmarks.measures import rotations
from batch_pipeline_tests.benchmarks.servers import server
from batch_pipeline_tests.benchmarks.workload import (
    CACHE,
    CONVERSIONS,
    Workload,
    generate,
)
from batch_pipeline_tests.factories import stream
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
ENCODE_HEADER = "| conversion | files | from and to | seconds | beside disk |\n" + "|---" * 5 + "|"


def compare_encodes(store: ObjectStore, args: argparse.Namespace) -> Iterator[str]:
    """Measure all conversions in both places; yield the lines of a table."""
    bucket = f"s3://{store.new_bucket()}"
    yield f"{args.records:,} records, median of {args.rounds} rounds\n\n{ENCODE_HEADER}"
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, open_encoder() as ours:
        roots = {DISK: to_uri(Path(folder, "out")), STORE: f"{bucket}/out"}
        for conversion in (CONVERSIONS[name] for name in args.only):
            for count in args.files:
                workload = Workload(source=conversion.source, records=args.records, files=count)
                paths = generate(workload, args.cache).paths
                sources = {DISK: items(paths), STORE: _stored(paths, bucket)}
                medians = _medians(ours, sources, roots, conversion.encoding, args.rounds)
                for place, seconds in medians.items():
                    ratio = seconds / medians[DISK]
                    row = f"{conversion.name} | {count:,} | {place} | {seconds:.2f} | {ratio:.2f} ×"
                    yield f"| {row} |"


def _stored(paths: Sequence[Path], bucket: str) -> tuple[Item, ...]:
    """Put files into a bucket, unless they are there, and return them as registered items."""
    prefix = f"{bucket}/{paths[0].parent.name}"

    def put(path: Path) -> None:
        S3.put(f"{prefix}/{path.name}", path.read_bytes())

    if not any(True for _ in S3.list(f"{prefix}/")):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(put, paths))
    return tuple(
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


def _medians(
    ours: ProductEncoder,
    sources: Mapping[str, tuple[Item, ...]],
    roots: Mapping[str, str],
    encoding: Encoding,
    rounds: int,
) -> dict[str, float]:
    """Encode alternately in both places; return the median seconds by place."""
    seconds: dict[str, list[float]] = {DISK: [], STORE: []}
    digests = set()
    _empty(roots)
    schema = ours.infer_schema(sources[STORE], roots[STORE], encoding)  # workers have a client now
    for places in rotations(list(sources), rounds):
        for place in places:
            _empty(roots)
            started = time.perf_counter()
            result = ours.encode(sources[place], roots[place], encoding, schema)
            seconds[place].append(time.perf_counter() - started)
            digests.add(tuple(part.sha256 for part in result.part_files))
    assert len(digests) == 1, "the bytes of part files differ"
    return {place: statistics.median(each) for place, each in seconds.items()}


def _empty(roots: Mapping[str, str]) -> None:
    folder = Path(to_path(roots[DISK]))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    S3.delete(*(f"{roots[STORE]}/{entry.name}" for entry in S3.list(f"{roots[STORE]}/")))


ASCENDING = Arrivals(order=KeyOrder.ASCENDING, relist=timedelta(hours=1))
POLL_HEADER = "| what | seconds | new items |\n" + "|---" * 3 + "|"


def poll_bucket(store: ObjectStore, keys: int, rounds: int) -> Iterator[str]:
    """Fill a bucket and poll it; yield the lines of a table."""
    bucket = store.new_bucket()
    started = time.perf_counter()
    _fill(bucket, keys)
    yield f"\n{keys:,} keys, put in {time.perf_counter() - started:.0f} s\n\n{POLL_HEADER}"
    with server() as url:
        database = open_database(url, migrated=True)
        for name, arrivals in (("every key", Arrivals()), ("ascending", ASCENDING)):
            source = Source(uri=f"s3://{bucket}/in", arrivals=arrivals)
            polled = stream(name=name.replace(" ", "_"), source=source)
            landing = PolledLanding(SourceLanding(stream=polled), limit=100_000)
            yield from _polls(landing, database, name, keys, rounds)
        database.close()


def _polls(
    landing: PolledLanding, database: Database, name: str, keys: int, rounds: int
) -> Iterator[str]:
    table = database.meta_table(name.replace(" ", "_"))
    polls: list[Registered] = []

    def poll() -> None:
        polls.append(landing.settled(table.register(landing.found_files())))

    while not polls or polls[-1].found < keys:
        line = _line(f"{name}, poll {len(polls) + 1}", poll, 1)
        assert polls[-1].new_items, "a poll found no new keys before all were registered"
        yield f"{line} {polls[-1].new_items:,} |"
    yield _line(f"{name}, quiet poll", poll, rounds) + " 0 |"
    assert not polls[-1].new_items


def _line(title: str, call: Callable[[], object], rounds: int) -> str:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return f"| {title} | {statistics.median(seconds):.3f} |"


def _fill(bucket: str, keys: int) -> None:
    def put(number: int) -> None:
        s3_client.client().put_object(Bucket=bucket, Key=f"in/{number:09}.csv", Body=b"id\n1\n")

    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(put, range(keys)):
            pass


if __name__ == "__main__":
    main()
