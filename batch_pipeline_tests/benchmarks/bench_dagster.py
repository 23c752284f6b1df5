"""The Dagster surface: idle ticks, pages, latency in `dev`, and the size of events.

Run `python -m batch_pipeline_tests.benchmarks dagster [--part ticks|pages|latency|events …]
[--files 100000] [--batches 1000 10000] [--landing 10] [--partitions 50] [--repeats 3]` on an
otherwise idle machine.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Iterable

import dagster as dg

from batch_pipeline_tests.benchmarks.dagster_latency import latency, latency_table
from batch_pipeline_tests.benchmarks.dagster_ticks import event_bytes, ticks_and_pages

PARTS = ("ticks", "pages", "latency", "events")


def main() -> None:
    """Measure the selected parts and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--files", type=int, default=100_000, help="registered, for ticks")
    parser.add_argument("--batches", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--landing", type=int, default=10, help="files, for latency")
    parser.add_argument("--partitions", type=int, default=50, help="materialized, for events")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("ignore", category=dg.BetaWarning)
    print_lines([f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", ""])
    if {"ticks", "pages"} & {*args.part}:
        print_lines(
            ["| batches | what | first s | then s | own CPU s |", "|---:|---|---:|---:|---:|"]
        )
        for batches in args.batches:
            pages = "pages" in args.part
            print_lines(ticks_and_pages(args.files, batches, args.repeats, pages=pages))
        print_lines([""])
    if "latency" in args.part:
        print_lines([f"{args.landing} files, from landed to published:", ""])
        print_lines([*latency_table(latency(args.landing, args.seed)), ""])
    if "events" in args.part:
        print_lines([event_bytes(args.partitions)])


def print_lines(lines: Iterable[str]) -> None:
    """Print lines and flush each."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
