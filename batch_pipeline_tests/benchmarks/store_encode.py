"""The encode of generated files between a disk and a store, each way in turn.

What is written must be the same bytes everywhere.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.model.encode_request import EncodeResult
from batch_pipeline.model.item import Item, LandedFile
from batch_pipeline.model.location import to_uri
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.storage.s3 import S3
from batch_pipeline_tests.benchmarks.encode_ours import Ours, items, opened
from batch_pipeline_tests.benchmarks.measures import MB
from batch_pipeline_tests.benchmarks.workload import (
    CONVERSIONS,
    Conversion,
    Made,
    Workload,
    made,
)
from batch_pipeline_tests.object_store import ObjectStore

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
    """Measure all ways of all conversions and yield the lines of a table."""
    bucket = f"s3://{store.new_bucket()}"
    yield f"{given.records:,} records, median of {given.rounds} rounds\n\n{HEADER}"
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, opened() as ours:
        for conversion in (CONVERSIONS[name] for name in given.only):
            for count in given.files:
                workload = Workload(source=conversion.source, records=given.records, files=count)
                files = made(workload, given.cache)
                case = _case(ours, conversion, files, bucket, Path(folder))
                yield from _measured(ours, case, given.rounds)


def _case(ours: Ours, conversion: Conversion, files: Made, bucket: str, folder: Path) -> Case:
    prefix = f"{bucket}/{files.paths[0].parent.name}"
    if not any(True for _ in S3.list(f"{prefix}/")):
        with ThreadPoolExecutor(8) as threads:
            list(
                threads.map(
                    lambda path: S3.put(f"{prefix}/{path.name}", path.read_bytes()), files.paths
                )
            )
    stored = tuple(
        Item(
            id=number,
            file=LandedFile(
                location=f"{prefix}/{one.name}",
                size_bytes=one.facts.size_bytes,
                modified_at=one.facts.modified_at,
                etag=one.facts.etag,
            ),
        )
        for number, one in enumerate(S3.list(f"{prefix}/"), start=1)
        if one.facts is not None
    )
    targets = {DISK: to_uri(folder / "out"), STORE: f"{bucket}/out"}
    _empty(targets)
    local = items(files.paths)
    schema = ours.learn(local, targets[DISK], conversion.encoding)
    return Case(
        conversion=conversion,
        files=files,
        sources={DISK: local, STORE: stored},
        targets=targets,
        schema=schema,
    )


def _measured(ours: Ours, case: Case, rounds: int) -> Iterator[str]:
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    sums = set()
    _run(ours, case, (STORE, STORE))  # so that all workers have their clients
    for number in range(rounds):
        for way in WAYS[number % 4 :] + WAYS[: number % 4]:  # none is always the first one
            _empty(case.targets)
            began = time.perf_counter()
            result = _run(ours, case, way)
            seconds[way].append(time.perf_counter() - began)
            sums.add(tuple(part.sha256 for part in result.part_files))
    assert len(sums) == 1, "the bytes of part files differ"
    base = statistics.median(seconds[DISK, DISK])
    for way in WAYS:
        median = statistics.median(seconds[way])
        rate = case.files.facts.text_bytes / MB / median
        yield (
            f"| {case.conversion.name} | {len(case.files.paths):,} | {way[0]} | {way[1]} "
            f"| {median:.2f} | {rate:.0f} | {median / base:.2f} × |"
        )


def _run(ours: Ours, case: Case, way: tuple[str, str]) -> EncodeResult:
    source, target = way
    return ours.encode(
        case.sources[source], case.targets[target], case.conversion.encoding, case.schema
    )


def _empty(targets: Mapping[str, str]) -> None:
    folder = Path(targets[DISK].removeprefix("file://"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    S3.delete(*(f"{targets[STORE]}/{one.name}" for one in S3.list(f"{targets[STORE]}/")))
