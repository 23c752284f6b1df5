"""The demo: the main job on generated files, explained station by station."""

import csv
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

import click

from batch_pipeline.cli.console import print_next, progress, say
from batch_pipeline.cli.options import opened
from batch_pipeline.cli.run import manifests, print_error, print_result, run_streams

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline

_NEXT = (
    ("demo", "again: there is nothing left to do"),
    ("messages demo_orders", "SCHEMA, BATCH and STATE lines for a target"),
    ("explain orders-2026-01-24.csv", "where one file is and what became of it"),
    ("dev", "the same in Dagster's UI"),
    ("demo --reset", "start over"),
)


@click.command()
@click.option("--reset", is_flag=True, help="Forget the last demo and start over.")
def demo(reset: bool) -> None:
    """Run the main job on generated order files and explain each step.

    The files, the stream demo_orders and what becomes of them are below `demo` in the home. Run
    again, it finds nothing to do. `run --json` is for programs.

    Exit codes: 3 when some batches failed.

    \b
    Example:
      batch-pipeline demo --reset
    """
    from batch_pipeline.config.stream_file import load_streams
    from batch_pipeline.singer.messages import batch_message

    started = time.monotonic()
    with opened() as pipeline:
        folder = pipeline.home.path / "demo"
        if reset:
            _forget(pipeline)
        files = write_demo(folder)
        [stream] = load_streams(folder / "streams").values()
        say(
            f"{len(files.files)} daily order files are in {folder / 'landing'}; one has a malformed"
        )
        say("line, one only a header, one is empty; from the middle on there is one more column.")
        with progress():
            [drained] = run_streams(pipeline, [stream], command="batch-pipeline demo")
        print_result(pipeline, stream, drained)
        done = manifests(pipeline, drained)
        if done:
            say("  8 emit      the first BATCH message:")
            say(json.dumps(batch_message(done[0]), ensure_ascii=False, indent=2))
        if not drained.tried and drained.error is None:
            say("Every file is published already, so there was nothing to do.")
        print_next(_NEXT)
        say(f"{time.monotonic() - started:.1f} s")
        code = print_error([drained])
    sys.exit(code)


def _forget(pipeline: "Pipeline") -> None:
    from batch_pipeline.config.stream_file import load_streams
    from batch_pipeline.defs.instance.home import forget_stream

    folder = pipeline.home.path / "demo"
    with pipeline.home.lock("batch-pipeline demo --reset"):
        if (folder / "streams").exists():
            for stream in load_streams(folder / "streams").values():
                forget_stream(pipeline, stream)
        shutil.rmtree(folder, ignore_errors=True)


_T = TypeVar("_T")

_SEED = 20260101
_FIRST_DAY = date(2026, 1, 1)
_FILES = 60
_DISCOUNTS_FROM = 30  # files before this one have no column `discount_code`
_MALFORMED, _HEADER_ONLY, _EMPTY = 23, 17, 44  # numbers of files, counted from 0

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
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFiles:
    """What was written, and what has to come out of it.

    `records` counts the well-formed ones and `quantity` is their sum of that column; the malformed
    records are apart from both. `malformed_line` is the line, from 1, where the only one starts.
    """

    folder: Path
    landing: Path
    streams: Path
    files: tuple[Path, ...]
    records: int
    bad_records: int
    quantity: int
    malformed_file: Path
    malformed_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _DayFile:
    """One order file; `malformed_line` is None where all records are well-formed."""

    day: date
    text: str
    records: int
    quantity: int
    malformed_line: int | None = None

    @property
    def name(self) -> str:
        return f"orders-{self.day.isoformat()}.csv"


def write_demo(folder: Path) -> DemoFiles:
    """Write 60 order files into `<folder>/landing` and `<folder>/streams/demo_orders/defs.yaml`.

    An order file that is there with the same size, and a stream file that is there at all, are left
    alone; files appear under their names only when complete.
    """
    landing, days = folder / "landing", tuple(_day_files())
    for one in days:
        closed_at = datetime(one.day.year, one.day.month, one.day.day, 23, 30, tzinfo=UTC)
        _write(landing / one.name, one.text.encode(), closed_at)
    stream_file = folder / "streams" / "demo_orders" / "defs.yaml"
    if not stream_file.exists():
        first = datetime(_FIRST_DAY.year, _FIRST_DAY.month, _FIRST_DAY.day, tzinfo=UTC)
        _write(stream_file, _STREAM_FILE.encode(), first)
    malformed = days[_MALFORMED]
    return DemoFiles(
        folder=folder,
        landing=landing,
        streams=folder / "streams",
        files=tuple(landing / one.name for one in days),
        records=sum(one.records for one in days),
        bad_records=sum(one.malformed_line is not None for one in days),
        quantity=sum(one.quantity for one in days),
        malformed_file=landing / malformed.name,
        malformed_line=malformed.malformed_line or 0,
    )


def _day_files() -> Iterator[_DayFile]:
    draw = Random(_SEED)  # noqa: S311 - repeatable, not secret
    order_id = 1
    for number in range(_FILES):
        day = _FIRST_DAY + timedelta(days=number)
        if number == _EMPTY:
            yield _DayFile(day=day, text="", records=0, quantity=0)
            continue
        busy = 70 if day.weekday() < 5 else 130
        count = 0 if number == _HEADER_ONLY else busy + _below(draw, 40)
        yield _day_file(draw, number, day, range(order_id, order_id + count))
        order_id += count


def _day_file(draw: Random, number: int, day: date, order_ids: range) -> _DayFile:
    header = ["order_id", "ordered_at", "customer", "city", "product", "quantity", "unit_price"]
    header += ["note", "discount_code"] if number >= _DISCOUNTS_FROM else ["note"]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    records, total, malformed_line = 0, 0, None
    malformed_id = order_ids[len(order_ids) // 2] if number == _MALFORMED else None
    for order_id in order_ids:
        quantity, row = _order(draw, day, order_id)
        cells = row[: len(header)]
        if order_id == malformed_id:
            malformed_line = text.getvalue().count("\n") + 1
            cells[7] = ""  # one line, so that an editor shows what is wrong with it
            del cells[3]
        else:
            records, total = records + 1, total + quantity
        writer.writerow(cells)
    return _DayFile(
        day=day,
        text=text.getvalue(),
        records=records,
        quantity=total,
        malformed_line=malformed_line,
    )


def _order(draw: Random, day: date, order_id: int) -> tuple[int, list[str]]:
    """Draw one order: its quantity, and its cells with the discount code last."""
    product, price = _one_of(draw, _PRODUCTS)
    quantity = 1 + _below(draw, 5)
    hour, minute = 7 + _below(draw, 15), _below(draw, 60)
    return quantity, [
        str(order_id),
        f"{day.isoformat()}T{hour:02}:{minute:02}:00Z",
        _one_of(draw, _CUSTOMERS),
        _one_of(draw, _CITIES),
        product,
        str(quantity),
        f"{price:.2f}",
        _one_of(draw, _NOTES) if _below(draw, 8) == 0 else "",
        _one_of(draw, _DISCOUNTS) if _below(draw, 5) == 0 else "",
    ]


def _below(draw: Random, bound: int) -> int:
    """Draw by `random()` alone: it gives the same numbers in every Python version."""
    return int(draw.random() * bound)


def _one_of(draw: Random, choices: tuple[_T, ...]) -> _T:
    return choices[_below(draw, len(choices))]


def _write(path: Path, content: bytes, modified_at: datetime) -> None:
    if path.exists() and path.stat().st_size == len(content):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(content)
    os.utime(unfinished, (modified_at.timestamp(), modified_at.timestamp()))
    unfinished.replace(path)
