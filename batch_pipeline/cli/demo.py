"""The command `demo`: the whole pipeline on generated files, explained step by step."""

import csv
import io
import json
import os
import shlex
import shutil
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

import click

from batch_pipeline.cli.console import print_next, progress, say
from batch_pipeline.cli.options import opened
from batch_pipeline.cli.run import manifests, print_result, report_failures, run_streams

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline

_NEXT = (
    ("demo", "again: nothing is left to do"),
    ("messages demo_orders", "SCHEMA, BATCH and STATE lines for a target"),
    ("explain orders-2026-01-24.csv", "state and history of one file"),
    ("dev", "the same in Dagster's UI"),
    ("demo --reset", "start over"),
)


@click.command()
@click.option("--reset", is_flag=True, help="Delete the previous demo and start over.")
def demo(reset: bool) -> None:
    """Run the whole pipeline on generated order files and explain each step.

    The files, the stream demo_orders and its output are in `demo` below the home folder. A second
    run finds nothing to do. For use in programs, call `run --json`.

    Exit codes: 3 if some batches failed.

    \b
    Example:
      batch-pipeline demo --reset
    """
    from batch_pipeline.config.stream_file import read_stream_file
    from batch_pipeline.singer.messages import batch_message

    started = time.monotonic()
    with opened() as pipeline:
        folder = pipeline.home.path / "demo"
        if reset:
            _forget(pipeline)
        stream = read_stream_file(write_demo(folder))
        say(f"{_FILES} daily order files are in {folder / 'landing'}; one has a malformed")
        say("line, one has only a header, one is empty; from the middle on there is a new column.")
        with progress():
            [result] = run_streams(pipeline, [stream], command="batch-pipeline demo")
        print_result(pipeline, stream, result)
        done = manifests(pipeline, result)
        if done:
            say("  8 emit      the first BATCH message:")
            say(json.dumps(batch_message(done[0]), ensure_ascii=False, indent=2))
        if not result.tried and result.error is None:
            say("Every file is published already, so there was nothing to do.")
        _print_next(folder / "streams")
        say(f"{time.monotonic() - started:.1f} s")
        code = report_failures([result])
    sys.exit(code)


def _print_next(streams: Path) -> None:
    from batch_pipeline.config.environment import load_settings

    if load_settings(environment=os.environ).streams != streams:
        name = shlex.quote(str(streams))
        say(f"Select the demo's stream first: export BATCH_PIPELINE_STREAMS={name}")
    print_next(_NEXT)


def _forget(pipeline: "Pipeline") -> None:
    """Delete the stream of the demo and its files, and no others in the demo's folder."""
    from batch_pipeline.config.stream_file import read_stream_file
    from batch_pipeline.defs.instance.dagster_home import forget_stream

    folder = pipeline.home.path / "demo"
    with pipeline.home.lock("batch-pipeline demo --reset"):
        forget_stream(pipeline, read_stream_file(_write_stream_file(folder)))
        for one in ("landing", "batches", _STREAM_PATH.parent):
            shutil.rmtree(folder / one, ignore_errors=True)


_T = TypeVar("_T")

_SEED = 20260101
_FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
_FILES = 60
_DISCOUNTS_FROM = 30  # files before this one have no column `discount_code`
_MALFORMED, _HEADER_ONLY, _EMPTY = 23, 17, 44  # file numbers, counted from 0

_CUSTOMERS = (
    *("Zoë Lindström", "José Muñoz", "François Lefèvre", "Łukasz Żak", "Siobhán O'Neill"),
    *("山田 太郎", "王小明", "김민준", "Мария Иванова", "Νίκος Παπαδόπουλος", "ليلى حسن"),
    *("Müller, Jürgen", "Anna Smith", "Ngozi Okafor", "Ødegård Åse", "नेहा शर्मा"),
)
_CITIES = (
    *("Malmö", "São Paulo", "Kraków", "東京", "Москва", "Αθήνα", "القاهرة", "Lagos", "Cork"),
    *("Zürich", "Montréal", "Washington, D.C.", "İzmir", "서울"),
)
_PRODUCTS = (
    ("Teapot, 1 l", 24.5),
    ('Frame 8" x 10"', 12.0),
    ("Café cup", 7.25),
    ("Notebook A5", 3.9),
    ("Lamp „Nord“", 89.0),
    ("Wool blanket", 54.99),
    ("抹茶 100 g", 18.4),
)
_NOTES = (
    "Please ring twice.\nSecond floor.",
    'He said "leave it at the door".',
    "Gift wrapping, please; no invoice",
    "Call first:\n+46 40 123 45\n(after five)",
    "Sans sucre — merci !",
    '"',
)
_DISCOUNTS = ("WELCOME10", "SPRING", "TEAM-25")

DEMO = "demo_orders"
_STREAM_PATH = Path("streams", DEMO, "defs.yaml")
_STREAM_FILE = """\
type: batch_pipeline.BatchStream
attributes:
  stream: demo_orders
  source:
    uri: ../../landing
    include: ["orders-*.csv"]
    format: csv
  batch: {max_weight: 56KiB, max_count: 7}
  key_properties: [order_id]
  encoding: {format: jsonl, compression: gzip}
  storage: {root: ../../batches}
  on_bad_record: {max_bad_records: 10}
  dagster: {max_quarantined_ratio: 0.01}
"""


def write_demo(folder: Path) -> Path:
    """Write 60 order files into `<folder>/landing`, and the stream file, whose path is returned.

    Order files of the same size and an existing stream file are not changed; files appear under
    their names only when complete.
    """
    draw = Random(_SEED)  # noqa: S311 - repeatable, not secret
    order_id = 1
    for number in range(_FILES):
        day = _FIRST_DAY + timedelta(days=number)
        busy = 70 if day.weekday() < 5 else 130
        is_filled = number not in {_HEADER_ONLY, _EMPTY}
        count = busy + _below(draw, 40) if is_filled else 0
        text = _day_file(draw, number, range(order_id, order_id + count))
        closed_at = day + timedelta(hours=23, minutes=30)
        name = f"orders-{day:%Y-%m-%d}.csv"
        _write(folder / "landing" / name, "" if number == _EMPTY else text, closed_at)
        order_id += count
    return _write_stream_file(folder)


def _write_stream_file(folder: Path) -> Path:
    stream_file = folder / _STREAM_PATH
    if not stream_file.exists():
        _write(stream_file, _STREAM_FILE, _FIRST_DAY)
    return stream_file


def _day_file(draw: Random, number: int, order_ids: range) -> str:
    header = ["order_id", "ordered_at", "customer", "city", "product", "quantity", "unit_price"]
    header += ["note", "discount_code"] if number >= _DISCOUNTS_FROM else ["note"]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for order_id in order_ids:
        cells = _order(draw, _FIRST_DAY + timedelta(days=number), order_id)[: len(header)]
        if number == _MALFORMED and order_id == order_ids[len(order_ids) // 2]:
            cells[7] = ""  # keeps the record on one line, so that an editor shows the error
            del cells[3]
        writer.writerow(cells)
    return text.getvalue()


def _order(draw: Random, day: datetime, order_id: int) -> list[str]:
    """Draw the cells of an order, with the discount code last."""
    product, price = _one_of(draw, _PRODUCTS)
    quantity = 1 + _below(draw, 5)
    hour, minute = 7 + _below(draw, 15), _below(draw, 60)
    return [
        str(order_id),
        f"{day:%Y-%m-%d}T{hour:02}:{minute:02}:00Z",
        _one_of(draw, _CUSTOMERS),
        _one_of(draw, _CITIES),
        product,
        str(quantity),
        f"{price:.2f}",
        _one_of(draw, _NOTES) if _below(draw, 8) == 0 else "",
        _one_of(draw, _DISCOUNTS) if _below(draw, 5) == 0 else "",
    ]


def _below(draw: Random, bound: int) -> int:
    """Draw with `random()` only: it returns the same numbers in every Python version."""
    return int(draw.random() * bound)


def _one_of(draw: Random, choices: tuple[_T, ...]) -> _T:
    return choices[_below(draw, len(choices))]


def _write(path: Path, text: str, modified_at: datetime) -> None:
    content = text.encode()
    if path.exists() and path.stat().st_size == len(content):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(content)
    os.utime(unfinished, (modified_at.timestamp(), modified_at.timestamp()))
    unfinished.replace(path)
