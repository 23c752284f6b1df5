"""The Dagster surface: quiet ticks, pages, files to manifests in `dev`, a backfill.

Run `python -m batch_pipeline_tests.benchmarks dagster [--part ticks|pages|latency|backfill …]
[--files 100000] [--batches 1000 10000] [--landing 10] [--partitions 50] [--repeats 3]`.
Times are of the machine as it is: run nothing beside it.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterable

import dagster as dg

from batch_pipeline_tests.benchmarks.dagster_backfill import in_process, through_dev
from batch_pipeline_tests.benchmarks.dagster_latency import latency, told
from batch_pipeline_tests.benchmarks.dagster_ticks import ticks_and_pages

PARTS = ("ticks", "pages", "latency", "backfill")


def main() -> None:
    """Measure the parts that are asked for and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--files", type=int, default=100_000, help="registered, for ticks")
    parser.add_argument("--batches", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--landing", type=int, default=10, help="files, for latency")
    parser.add_argument("--partitions", type=int, default=50, help="of the backfill")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", category=dg.BetaWarning)
    say([f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", ""])
    if {"ticks", "pages"} & {*asked.part}:
        say(["| batches | what | first s | then s | own CPU s |", "|---:|---|---:|---:|---:|"])
        for batches in asked.batches:
            pages = "pages" in asked.part
            say(ticks_and_pages(asked.files, batches, asked.repeats, pages=pages))
        say([""])
    if "latency" in asked.part:
        say([f"{asked.landing} files, from landed to published:", ""])
        say([*told(latency(asked.landing, asked.seed)), ""])
    if "backfill" in asked.part:
        say(in_process(asked.partitions, max(asked.repeats, 1)))
        say([*through_dev(asked.partitions), ""])


def say(lines: Iterable[str]) -> None:
    """Print lines as they come."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
