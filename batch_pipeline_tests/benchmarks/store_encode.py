"""The encode of generated files between a disk and a store, each way in turn.

What is written must be the same bytes everywhere. Nothing is known of other programs here.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from batch_pipeline.domain.encode import EncodeResult
from batch_pipeline.domain.item import FoundFile, Item
from batch_pipeline.domain.location import split_object, to_uri
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.stores import s3
from batch_pipeline.stores.listing import objects, remove_all
from batch_pipeline.stores.transfer import send
from batch_pipeline_tests.benchmarks.encode_conversion import CONVERSIONS, Conversion
from batch_pipeline_tests.benchmarks.encode_ours import Ours, items, opened
from batch_pipeline_tests.benchmarks.encode_workload import Made, Workload, made
from batch_pipeline_tests.object_store import ObjectStore
from batch_pipeline_tests.store_faults import proxy

MB = 1_000_000
DISK, STORE = "disk", "S3"
WAYS = [(DISK, DISK), (STORE, DISK), (DISK, STORE), (STORE, STORE)]
HEADER = (
    "| conversion | files | from | to | seconds | MB/s | beside disk to disk |\n" + "|---" * 7 + "|"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A conversion of files that lie at both ends."""

    conversion: Conversion
    files: Made
    sources: Mapping[str, tuple[Item, ...]]  # by end
    targets: Mapping[str, str]  # roots
    schema: RecordSchema


def encodes(store: ObjectStore, given: argparse.Namespace) -> Iterator[str]:
    """Measure all ways of all conversions; gives lines of a table."""
    bucket = f"s3://{store.new_bucket()}"
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        cases = []
        with opened() as ours:
            for name in given.only:
                for count in given.files:
                    workload = Workload(
                        source=CONVERSIONS[name].source, records=given.records, files=count
                    )
                    files = made(workload, given.cache)
                    cases.append(_case(ours, CONVERSIONS[name], files, bucket, folder))
            yield f"{given.records:,} records, median of {given.rounds} rounds\n\n{HEADER}"
            for case in cases:
                yield from _measured(ours, case, given.rounds)
        yield ""
        with _counted(store) as requests, opened() as ours:
            for case in cases:
                requests.clear()
                _run(ours, case, (STORE, STORE))
                yield _counts(case, Counter(requests))


def _measured(ours: Ours, case: Case, rounds: int) -> Iterator[str]:
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    sums = set()
    _run(ours, case, (STORE, STORE))  # so that all workers have their clients
    _empty(case.targets)
    for number in range(rounds):
        for way in WAYS[number % 4 :] + WAYS[: number % 4]:  # none is always the first one
            began = time.perf_counter()
            result = _run(ours, case, way)
            seconds[way].append(time.perf_counter() - began)
            sums.add(tuple(part.sha256 for part in result.part_files))
            _empty(case.targets)
    assert len(sums) == 1, "the bytes of part files differ"
    base = statistics.median(seconds[DISK, DISK])
    for way in WAYS:
        median = statistics.median(seconds[way])
        rate = case.files.facts.text_bytes / MB / median
        yield (
            f"| {case.conversion.name} | {len(case.files.paths):,} | {way[0]} | {way[1]} "
            f"| {median:.2f} | {rate:.0f} | {median / base:.2f} × |"
        )


def _case(ours: Ours, conversion: Conversion, files: Made, bucket: str, folder: str) -> Case:
    local = Path(folder, "learn")
    local.mkdir(exist_ok=True)
    schema, _ = ours.learn(files.paths, local, conversion.encoding)
    shutil.rmtree(local)
    prefix = f"{bucket}/{files.paths[0].parent.name}"
    if not any(True for _ in objects(f"{prefix}/")):
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda path: send(to_uri(path), f"{prefix}/{path.name}"), files.paths))
    found = tuple(
        Item(
            id=number,
            file=FoundFile(
                location=f"{bucket}/{one.key}",
                size_bytes=one.facts.size_bytes,
                modified_at=one.facts.modified_at,
                etag=one.facts.etag,
            ),
        )
        for number, one in enumerate(objects(f"{prefix}/"), start=1)
    )
    target = Path(folder, "out")
    target.mkdir(exist_ok=True)
    return Case(
        conversion=conversion,
        files=files,
        sources={DISK: items(files.paths), STORE: found},
        targets={DISK: to_uri(target), STORE: f"{bucket}/out-{uuid4().hex[:8]}"},
        schema=schema,
    )


def _run(ours: Ours, case: Case, way: tuple[str, str]) -> EncodeResult:
    source, target = way
    return ours.encode_items(
        case.sources[source], case.targets[target], case.conversion.encoding, case.schema
    )


def _empty(targets: Mapping[str, str]) -> None:
    folder = Path(targets[DISK].removeprefix("file://"))
    shutil.rmtree(folder)
    folder.mkdir()
    keys = [one.key for one in objects(f"{targets[STORE]}/")]
    remove_all(split_object(targets[STORE])[0], keys)


@contextmanager
def _counted(store: ObjectStore) -> Iterator[list[str]]:
    """Let all requests of this process and of those that it starts be counted on their way."""
    with proxy(store.endpoint) as between:
        os.environ["AWS_ENDPOINT_URL"] = between.endpoint
        s3.forget()
        try:
            yield between.requests
        finally:
            os.environ["AWS_ENDPOINT_URL"] = store.endpoint
            s3.forget()


def _counts(case: Case, requests: Counter[str]) -> str:
    methods: Counter[str] = Counter()
    for request, times in requests.items():
        methods[request.partition(" ")[0]] += times
    told = ", ".join(f"{times:,} {method}" for method, times in sorted(methods.items()))
    return f"{case.conversion.name}, {len(case.files.paths):,} files, S3 to S3: {told}"
