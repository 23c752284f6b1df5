"""The command `load`: what is published goes into the targets of its stream (station 9)."""

import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import click

from batch_pipeline.cli.console import complain, head, print_json, say
from batch_pipeline.cli.exits import EXIT_SOME_FAILED, exit_code
from batch_pipeline.cli.streams import as_json
from batch_pipeline.domain.errors import NotLoadedError, PipelineError, UnknownTargetError
from batch_pipeline.domain.stream import Stream
from batch_pipeline.domain.target import Target
from batch_pipeline.settings.loading import load_due
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.settings.restored import check_not_older
from batch_pipeline.steps.load import Outcome


@dataclass(slots=True)
class _Result:
    """What came of one target; `stopped` is why it ended before everything was tried."""

    target: str
    outcomes: list[Outcome] = field(default_factory=list)
    stopped: PipelineError | None = None


@click.command(short_help="Load what is published into the targets of its stream.")
@click.argument("stream")
@click.option("--target", "names", multiple=True, help="Only this target (may be repeated).")
@click.option("--reload", "again", metavar="BATCH_ID", help="Load a batch again that is loaded.")
@as_json
def load(stream: str, names: tuple[str, ...], again: str | None, as_json: bool) -> None:
    """Load the batches of STREAM that are published and not yet loaded, target by target.

    A batch counts as loaded when the target has acknowledged it; it is tried three times. Exits
    with 3 when some batches failed.
    """
    run_id = f"load-{uuid4().hex[:12]}"
    with closing(Pipeline.from_environment()) as pipeline:
        one = pipeline.stream(stream)
        targets = _chosen(one, names)
        check_not_older(pipeline, one)
        if again is not None:
            _void(pipeline, one, targets, again)
        results = [_load(pipeline, one, target, run_id, quiet=as_json) for target in targets]
    if as_json:
        print_json({"stream": stream, "run_id": run_id, "targets": [_report(r) for r in results]})
    stopped = [result.stopped for result in results if result.stopped is not None]
    for error in stopped:
        complain(str(error))
    if stopped:
        sys.exit(exit_code(stopped))
    if any(outcome.loaded is None for result in results for outcome in result.outcomes):
        sys.exit(EXIT_SOME_FAILED)


def _chosen(stream: Stream, names: tuple[str, ...]) -> list[Target]:
    known = tuple(target.name for target in stream.targets)
    for name in names or ([] if known else [None]):
        if name not in known:
            raise UnknownTargetError(stream.name, name, known)
    return [target for target in stream.targets if not names or target.name in names]


def _void(pipeline: Pipeline, stream: Stream, targets: list[Target], batch: str) -> None:
    loads = pipeline.database.loads
    found = [loads.void(stream.name, target.name, batch) for target in targets]
    if not any(found):
        raise NotLoadedError(stream.name, batch, tuple(target.name for target in targets))


def _load(
    pipeline: Pipeline, stream: Stream, target: Target, run_id: str, *, quiet: bool
) -> _Result:
    """Load into one target and tell of each batch as it is settled."""
    result = _Result(target.name)
    if not quiet:
        head(f"{stream.name} into {target.name}")
    try:
        for outcome in load_due(pipeline, stream, target, run_id=run_id):
            result.outcomes.append(outcome)
            if not quiet:
                say(f"  {_line(outcome)}")
    except PipelineError as error:  # the other targets have their own troubles
        result.stopped = error
    if not quiet and not result.outcomes and result.stopped is None:
        _say_nothing(pipeline, stream, target)
    return result


def _say_nothing(pipeline: Pipeline, stream: Stream, target: Target) -> None:
    [standing] = pipeline.database.loads.standing(stream.name, [target.name])
    if not standing.gone:
        say("  Nothing to load: the target has everything that is published.")
        return
    lacks = f"{standing.gone} batches that it never got have no files any more"
    say(f"  Nothing to load. {lacks}; materialize")
    say("  their partitions again to have them loaded.")


def _line(outcome: Outcome) -> str:
    loading, loaded = outcome.loading, outcome.loaded
    what = f"{loading.label} generation {loading.manifest.generation}"
    if loaded is not None:
        had = "was loaded already" if loaded.already else "loaded"
        by = f" by {loaded.mode.upper()} messages" if loaded.mode in {"batch", "record"} else ""
        return f"{what}: {loaded.records:,} records {had}{by}"
    if outcome.waits:
        return f"{what}: waits, since an earlier batch of its job has to be loaded first"
    stops = " No more batches are tried: the target seems to be broken." if outcome.gives_up else ""
    return f"{what}: FAILED. {outcome.error}{stops}"


def _report(result: _Result) -> dict[str, Any]:
    return {
        "target": result.target,
        "error": None if result.stopped is None else str(result.stopped),
        "batches": [_batch(outcome) for outcome in result.outcomes],
    }


def _batch(outcome: Outcome) -> dict[str, Any]:
    loading, loaded = outcome.loading, outcome.loaded
    return {
        "batch_id": loading.label,
        "job": loading.manifest.batch.job,
        "generation": loading.manifest.generation,
        "loaded": loaded is not None,
        "already": loaded is not None and loaded.already,
        "records": None if loaded is None else loaded.records,
        "messages": None if loaded is None or not loaded.mode else loaded.mode,
        "waits": outcome.waits,
        "error": None if outcome.error is None else str(outcome.error),
    }
