"""The memory of one Spark worker that encodes one large file: flat in the size of the file.

Files of jsonl.gz, of half a gigabyte and of a whole one uncompressed unless other sizes are named,
are encoded in a session of their own each; the peak is the resident memory of the largest Python
worker, its share of what the workers were forked from included. It fails when a peak is above
512 MB, never because of a time.

Run `python -m batch_pipeline_tests.benchmarks memory [--gigabytes 0.5 5] [--only jsonl-jsonl,…]`.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from batch_pipeline_tests.benchmarks.bench_encode import MB, names
from batch_pipeline_tests.benchmarks.encode_conversion import CONVERSIONS, Conversion
from batch_pipeline_tests.benchmarks.encode_ours import opened
from batch_pipeline_tests.benchmarks.encode_workload import CACHE, Made, Source, Workload, made
from batch_pipeline_tests.benchmarks.process_meter import Meter, Spent

GB = 1_000_000_000
GIGABYTES = [0.5, 1.0]
LIMIT_MB = 512
RECORD_BYTES = 6_213
_PIECES = 10
_FROM_LINES = [name for name, one in CONVERSIONS.items() if one.source is Source.JSONL]


def main() -> None:
    """Measure all sizes of every conversion and fail when a peak is too high."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=GIGABYTES)
    parser.add_argument("--only", type=names(_FROM_LINES), default=_FROM_LINES)
    parser.add_argument("--cache", type=Path, default=CACHE)
    given = parser.parse_args()
    print(f"{'conversion':16} {'GB':>6} {'seconds':>8} {'MB/s':>6} {'peak MB':>8}")
    is_too_much = False
    for name in given.only:
        for gigabytes in given.gigabytes:
            files = one_file(int(gigabytes * GB / RECORD_BYTES), given.cache)
            spent = encoded(CONVERSIONS[name], files, given.cache)
            rate = files.facts.text_bytes / MB / spent.seconds
            peak = spent.peak_bytes / MB
            is_too_much |= peak > LIMIT_MB
            size = files.facts.text_bytes / GB
            line = f"{name:16} {size:6.2f} {spent.seconds:8.1f} {rate:6.0f} {peak:8.0f}"
            print(line, flush=True)
    if is_too_much:
        sys.exit(f"a worker took more than {LIMIT_MB} MB")


def one_file(records: int, cache: Path) -> Made:
    """Give so many records in one file: gzip members behind each other are gzip again."""
    pieces = made(Workload(source=Source.JSONL, records=records, files=_PIECES), cache)
    whole = pieces.paths[0].parent / "whole.gz"
    if not whole.exists():
        aside = whole.with_suffix(".tmp")
        with aside.open("wb") as target:
            for path in pieces.paths:
                with path.open("rb") as piece:
                    shutil.copyfileobj(piece, target)
        aside.rename(whole)
    return Made(paths=(whole,), facts=pieces.facts)


def encoded(conversion: Conversion, files: Made, cache: Path) -> Spent:
    """Encode files in a session of its own; the columns were found in a small sample."""
    sample = made(Workload(source=conversion.source, records=1_000, files=1), cache)
    with tempfile.TemporaryDirectory(prefix="bp-") as folder, opened() as ours:
        schema, _ = ours.learn(sample.paths, Path(folder), conversion.encoding)
        meter = Meter()
        result = ours.encode(files.paths, Path(folder), conversion.encoding, schema)
        spent = meter.spent()
        assert sum(part.records for part in result.part_files) == files.facts.records
    return spent


if __name__ == "__main__":
    main()
