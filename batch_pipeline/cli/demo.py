"""The demo: the main job on generated files, explained station by station."""

import json
import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from batch_pipeline.cli.console import print_next, say
from batch_pipeline.cli.demo_files import write_demo
from batch_pipeline.cli.progress import progress
from batch_pipeline.cli.streams import opened

if TYPE_CHECKING:
    from batch_pipeline.model.manifest import Manifest
    from batch_pipeline.settings.pipeline import Pipeline

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
    from batch_pipeline.cli.walk import complain_of, drain_streams, manifests, print_drained
    from batch_pipeline.settings.stream_file import load_streams

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
            [drained] = drain_streams(pipeline, [stream], command="batch-pipeline demo")
        print_drained(pipeline, stream, drained)
        done = manifests(pipeline, drained)
        if done:
            _print_message(done[0])
        _print_next(nothing_new=not drained.tried and drained.error is None)
        say(f"{time.monotonic() - started:.1f} s")
        code = complain_of([drained])
    sys.exit(code)


def _forget(pipeline: "Pipeline") -> None:
    from batch_pipeline.defs.instance.forget import forget_stream
    from batch_pipeline.settings.stream_file import load_streams

    folder = pipeline.home.path / "demo"
    with pipeline.home.lock("batch-pipeline demo --reset"):
        if (folder / "streams").exists():
            for stream in load_streams(folder / "streams").values():
                forget_stream(pipeline, stream)
        shutil.rmtree(folder, ignore_errors=True)


def _print_message(manifest: "Manifest") -> None:
    from batch_pipeline.singer.messages import batch_message

    say("  8 emit      the first BATCH message:")
    say(json.dumps(batch_message(manifest), ensure_ascii=False, indent=2))


def _print_next(*, nothing_new: bool) -> None:
    if nothing_new:
        say("Every file is published already, so there was nothing to do.")
    print_next(_NEXT)
