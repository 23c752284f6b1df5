"""The whole way of wide records into a table of Postgres: Singer SDK programs beside ours.

Records of 150 columns, as those of the test tap with which BATCH messages were once compared with
RECORD messages. Peers: a small tap of the SDK, which generates them, into `target-postgres` of
MeltanoLabs with COPY, both from PyPI in environments of their own; `batch-10` is BATCH messages of
ten files. Ours: source files of such records, encoded on a warm Spark session with their columns
known and then loaded; or (`landed`) the same tap into `target-batch-pipeline`, then `batch-pipeline
run` and `load`. The starts of programs count, that of the session does not.The floor is a COPY of
a prepared CSV into a table with the storage parameters of ours, or (`floor-default`) with those of
the server; `generate` is what the tap takes for the records alone.

All ways use the same two cores and the same embedded server, whose processor seconds are told
apart. After each, the rows are counted, a sum and a text compared, and the last STATE (of `files-…`
the records in the acknowledgement) has to be that of the last record. A way that fails is a row of
the table, and the benchmark fails in the end. Peak MB are those of the step that needs most, with
all of its processes.

Run `python -m batch_pipeline_tests.benchmarks singer [--records 50000] [--rounds 1] [--only
record,…] [--million]`; with `--million` also ten times as many records in one file.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batch_pipeline.domain.target import WriteMode
from batch_pipeline_tests.benchmarks.bench_encode import CORES, MB, names
from batch_pipeline_tests.benchmarks.encode_workload import CACHE
from batch_pipeline_tests.benchmarks.server import server
from batch_pipeline_tests.benchmarks.singer_ours import FromFiles, floor, floor_default, from_tap
from batch_pipeline_tests.benchmarks.singer_peers import Peer, generation
from batch_pipeline_tests.benchmarks.singer_runs import Run
from batch_pipeline_tests.benchmarks.singer_stage import Stage, database, server_seconds

RECORD = "record"
WAYS: dict[str, Callable[[Stage], Run]] = {
    "generate": generation,
    RECORD: Peer().run,
    "record-unchecked": Peer(validated=False).run,
    "batch-10": Peer(files=10).run,
    "batch-1": Peer(files=1).run,
    "parquet-10": Peer(files=10, format="parquet").run,
    "files-append": FromFiles(mode=WriteMode.APPEND).run,
    "files-upsert": FromFiles(mode=WriteMode.UPSERT).run,
    "landed": from_tap,
    "floor": floor,
    "floor-default": floor_default,
}
STATELESS = ("generate", "floor", "floor-default")
TENFOLD = ["batch-1", "files-append", "files-upsert", "floor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one run of a way."""

    run: Run | None = None
    server_seconds: float = 0.0
    failure: str = ""


def main() -> None:
    """Measure what the arguments ask for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--files", type=int, default=10, help="source files of files-…")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", type=names(WAYS), default=list(WAYS))
    parser.add_argument("--million", action="store_true", help="also 10 × the records")
    parser.add_argument("--cache", type=Path, default=CACHE)
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    with suppress(AttributeError):  # not every system can pin a process
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    sizes = [(given.records, given.only)]
    if given.million:
        sizes.append((10 * given.records, [name for name in TENFOLD if name in given.only]))
    per_record, failed = None, []
    with server() as url:
        for records, ways in sizes:
            print(
                f"{records:,} records of 150 columns, {given.rounds} rounds\n{HEADER}", flush=True
            )
            results = measured(url, ways, given, records)
            if (typical := middle(results.get(RECORD, []))) and typical.run:
                per_record = typical.run.seconds / records
            for name, each in results.items():
                print(row(name, each, records, per_record))
                failed += [name] if any(one.failure for one in each) else []
            print(flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def measured(
    url: str, ways: Sequence[str], given: argparse.Namespace, records: int
) -> dict[str, list[Result]]:
    """Run ways in turn, round after round."""
    results: dict[str, list[Result]] = defaultdict(list)
    for number in range(given.rounds):
        first = number % max(len(ways), 1)  # none is always the first one
        for name in [*ways[first:], *ways[:first]]:
            result = attempted(url, name, given, records)
            results[name].append(result)
            told = f"{result.run.seconds:.2f} s" if result.run else result.failure
            sys.stderr.write(f"{name} {told}\n")  # progress
    return {name: results[name] for name in ways}


def attempted(url: str, name: str, given: argparse.Namespace, records: int) -> Result:
    """Run a way in an empty folder and an empty database."""
    place = Path(tempfile.mkdtemp(prefix="bp-"))
    try:
        with database(url, "warehouse") as warehouse:
            stage = Stage(
                url=warehouse,
                folder=place / "work",
                cache=given.cache,
                records=records,
                files=given.files,
            )
            before = server_seconds(url)
            run = WAYS[name](stage)
            used = server_seconds(url) - before
    except Exception as error:  # noqa: BLE001 - a way that fails is a row of the table, too
        return Result(failure=f"{type(error).__name__}: {error}".replace("\n", " "))
    finally:
        shutil.rmtree(place)
    if name not in STATELESS and run.state != records:
        return Result(failure=f"the last STATE is {run.state}, not {records}")
    return Result(run=run, server_seconds=used)


def middle(each: Sequence[Result]) -> Result | None:
    """Give the run that took the median time; None when none came to its end."""
    runs = [one for one in each if one.run]
    if not runs:
        return None
    wanted = statistics.median_low([one.run.seconds for one in runs if one.run])
    return next(one for one in runs if one.run and one.run.seconds == wanted)


def row(name: str, each: Sequence[Result], records: int, per_record: float | None) -> str:
    """Write the line of a way, and what its steps took."""
    result = middle(each)
    failures = [one.failure for one in each if one.failure]
    if result is None or result.run is None:
        return f"{name:18} failed: {failures[-1]}"
    run = result.run
    ratio = f"{per_record * records / run.seconds:.2f} ×" if per_record else ""
    steps = ", ".join(
        f"{step.name} {step.seconds:.1f} s, {step.processor_seconds:.1f} CPU s, "
        f"{step.peak_bytes / MB:.0f} MB"
        for step in run.steps
    )
    processor = sum(step.processor_seconds for step in run.steps)
    peak = max(step.peak_bytes for step in run.steps) / MB
    state = "" if run.state is None else f"{run.state}"
    failed = f" ({len(failures)} failed: {failures[-1]})" if failures else ""
    return (
        f"{name:18} {run.seconds:8.1f} {ratio:>8} {processor:7.1f} {result.server_seconds:8.1f} "
        f"{peak:8.0f} {state:>9}  {steps}{failed}"
    )


HEADER = (
    f"{'way':18} {'wall s':>8} {'record':>8} {'CPU s':>7} {'server s':>8} {'peak MB':>8} "
    f"{'STATE':>9}  steps"
)


if __name__ == "__main__":
    main()
