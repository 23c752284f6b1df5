"""Encoding generated files on a disk and in a store, in alternation.

The output must have the same bytes everywhere.
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
from batch_pipeline_tests.benchmarks.encode_ours import ProductEncoder, items, open_encoder
from batch_pipeline_tests.benchmarks.measures import MB, rotations
from batch_pipeline_tests.benchmarks.workload import (
    CONVERSIONS,
    Conversion,
    GeneratedFiles,
    Workload,
    generate,
)
from batch_pipeline_tests.object_store import ObjectStore

DISK, STORE = "disk", "S3"
PLACES = [DISK, STORE]
HEADER = "| conversion | files | from and to | seconds | MB/s | beside disk |\n" + "|---" * 6 + "|"


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
    yield f"{args.records:,} records, median of {args.rounds} rounds\n\n{HEADER}"
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
