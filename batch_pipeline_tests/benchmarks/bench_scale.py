"""What a billion items of 100 TB would cost: a model, fitted small, checked at another size.

Each line is fitted to the lowest and the highest of three sizes and compared with what is measured
at the middle one; then it is read off at the full size, for several weights of a batch. Times are
of processors, the client's and the server's. Prices and the time of one listing are assumptions
(`scale_model`).

Run `python -m batch_pipeline_tests.benchmarks scale [--items 100000 300000 1000000]
[--partitions 10000 30000 100000] [--in-a-batch 1000 3000 10000]`; the default
sizes need about four minutes and 3 GB of disk.
"""

import argparse
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from batch_pipeline.inventory.database import Database, open_database
from batch_pipeline_tests.benchmarks.scale_model import (
    DOLLARS_PER_LISTING,
    SECONDS_PER_LISTING,
    Checked,
    Line,
    Scenario,
    tasks,
)
from batch_pipeline_tests.benchmarks.scale_partitions import Partitions, partitions
from batch_pipeline_tests.benchmarks.scale_payloads import payloads
from batch_pipeline_tests.benchmarks.scale_rows import (
    ITEMS_PER_BATCH,
    PER_ITEM,
    TABLES,
    multiply,
    publish_first,
    sizes,
    steps,
)
from batch_pipeline_tests.benchmarks.server import server

ITEMS = (100_000, 300_000, 1_000_000)
PARTITIONS = (10_000, 30_000, 100_000)
IN_A_BATCH = (1_000, 3_000, 10_000)
WHOLE, WEIGHT = 10**9, 100 * 10**12
SCENARIOS = tuple(
    Scenario(name=name, items=WHOLE, weight=WEIGHT, max_weight=weight, max_count=count)
    for name, weight, count in (
        ("64 MiB, 100 (defaults)", 64 * 2**20, 100),
        ("1 GiB, 10,000", 2**30, 10_000),
        ("4 GiB, 50,000", 4 * 2**30, 50_000),
        ("16 GiB, 200,000", 16 * 2**30, 200_000),
    )
)
Found = dict[str, Checked]


def main() -> None:
    """Measure, check and extrapolate."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--items", type=int, nargs=3, default=ITEMS)
    parser.add_argument("--partitions", type=int, nargs=3, default=PARTITIONS)
    parser.add_argument("--in-a-batch", type=int, nargs=3, default=IN_A_BATCH, help="items")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    try:
        with server(max_wal_size="'4GB'", autovacuum="off") as url:
            database = open_database(url, migrated=True)
            try:
                found = _measured(database, url, folder, asked)
            finally:
                database.close()
    finally:
        shutil.rmtree(folder)
    _tell(_checks(found))
    for scenario in SCENARIOS:
        _tell(_read_off(scenario, found))


def _measured(database: Database, url: str, folder: Path, asked: argparse.Namespace) -> Found:
    manifest = publish_first(database)
    found = _rows(database, asked.items)
    with partitions(folder, url, database.engine, manifest) as opened:
        found |= _partitions(opened, asked.partitions)
    return found | _batch_steps(database, asked.in_a_batch) | _payloads(asked.in_a_batch)


def _rows(database: Database, items: Iterable[int]) -> Found:
    points: dict[str, dict[int, float]] = defaultdict(dict)
    for count in items:
        batches = count // ITEMS_PER_BATCH
        multiply(database, batches)
        for table, (heap, indexes) in sizes(database).items():
            rows = count if table in PER_ITEM else batches
            points[f"{table}: table"][rows] = heap
            points[f"{table}: indexes"][rows] = indexes
    named = [f"{table}: {part}" for table in TABLES for part in ("table", "indexes")]
    return {name: Checked.of(name, points[name]) for name in named}


def _partitions(opened: Partitions, counts: Iterable[int]) -> Found:
    points: dict[str, dict[int, float]] = defaultdict(dict)
    for count in counts:
        for name, seconds in opened.grow(count).items():
            points[f"{name}, ms"][count] = seconds * 1_000
        for table, size in opened.bytes().items():
            points[f"{table}: all"][count] = size
    return {name: Checked.of(name, points[name]) for name in points}


def _batch_steps(database: Database, counts: Iterable[int]) -> Found:
    points: dict[str, dict[int, float]] = defaultdict(dict)
    for items in counts:
        for name, seconds in steps(database, items):
            points[f"{name} a batch, ms"][items] = seconds * 1_000
    return {name: Checked.of(name, points[name]) for name in points}


def _payloads(counts: Iterable[int]) -> Found:
    points: dict[str, dict[int, float]] = defaultdict(dict)
    counted: dict[int, int] = {}
    for items in counts:
        counted[items], sent, received = payloads(items)
        points["sent to tasks of a batch, bytes"][items] = sent
        points["received from tasks of a batch, bytes"][items] = received
    middle = sorted(counted)[1]
    formula = Line(base=tasks(middle, 6 * WEIGHT / WHOLE), slope=0)
    name = "tasks of a batch (formula)"
    found = {name: Checked(name=name, line=formula, count=middle, measured=counted[middle])}
    return found | {name: Checked.of(name, points[name]) for name in points}


def _checks(found: Mapping[str, Checked]) -> Iterator[str]:
    yield "| what | of each | at | predicted | measured | ratio |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name, one in found.items():
        yield (
            f"| {name} | {one.line.slope:.4g} | {one.count:,} | {one.predicted:,.0f} | "
            f"{one.measured:,.0f} | {one.ratio:.2f} |"
        )
    yield ""


def _read_off(scenario: Scenario, found: Mapping[str, Checked]) -> Iterator[str]:
    batches, inside = scenario.batches, scenario.items_per_batch
    counts = {
        **dict.fromkeys(PER_ITEM, WHOLE),
        **dict.fromkeys(("batch", "batch_state", "attempt"), batches),
        "part_file": scenario.part_files,
    }
    yield f"{scenario.name}: {batches:,} batches of {inside:,} items"
    for table, count in counts.items():
        parts = [found[f"{table}: {part}"].line.at(count) / 1e9 for part in ("table", "indexes")]
        yield f"  {table:20} {count:>16,} rows {parts[0]:9.1f} GB + {parts[1]:7.1f} GB of indexes"
    for table in ("dynamic_partitions", "event_logs"):
        size = found[f"{table}: all"].line.at(batches) / 1e9
        yield f"  {table:20} {batches:>16,} rows {size:9.1f} GB"
    for name in ("read all keys, ms", "read all states, ms"):
        yield f"  {name:37} {max(0, found[name].line.at(batches)):12,.0f}"
    for verb in ("register", "plan"):  # in passes over whatever is new
        hours = found[f"{verb} a batch, ms"].line.slope * WHOLE / 3.6e6
        yield f"  {verb + ' all items, h':37} {hours:12,.1f}"
    each = found["publish a batch, ms"].line.at(inside)
    yield f"  {'publish a batch, ms':37} {each:12,.0f}, all of them {each * batches / 3.6e6:,.0f} h"
    count = scenario.tasks_per_batch
    yield f"  {'Spark tasks of a batch':37} {count:12,}, all of them {count * batches:,}"
    for way in ("sent to", "received from"):
        size = found[f"{way} tasks of a batch, bytes"].line.at(inside) / 1e6
        yield f"  {way + ' tasks of a batch, MB':37} {size:12.1f}"
    hours = scenario.listings * SECONDS_PER_LISTING / 3_600
    dollars = scenario.listings * DOLLARS_PER_LISTING
    yield (
        f"  one listing of everything: {scenario.listings:,} requests, {hours:.0f} h one after the "
        f"other, ${dollars:,.0f}; all reads and writes ${scenario.request_dollars:,.0f}"
    )
    yield ""


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
