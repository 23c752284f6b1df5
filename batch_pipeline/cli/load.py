"""The command `load`: load published batches into the targets of their stream."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import click

from batch_pipeline.cli.console import EXIT_SOME_FAILED, exit_with, print_json, progress
from batch_pipeline.cli.options import as_json, one_stream, opened, removed_option, some_batches
from batch_pipeline.model.errors import (
    ConfigurationError,
    PipelineError,
    UnknownBatchError,
)
from batch_pipeline.model.progress import is_enabled, start_step, track

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.model.load import Target
    from batch_pipeline.model.stream import Stream
    from batch_pipeline.pipeline.load import Outcome


class _Result(NamedTuple):
    """Result for one target; `stopped` is the error that ended it before all batches were tried."""

    target: str
    outcomes: "list[Outcome]"
    stopped: PipelineError | None = None


@click.command()
@one_stream
@click.option(
    "--target", "names", metavar="NAME", multiple=True, help="Only this target; may be repeated."
)
@some_batches
@removed_option("--reload", "Use --batch.", is_flag=False)
@as_json
def load(stream: str, names: tuple[str, ...], batch: tuple[str, ...], as_json: bool) -> None:
    """Load published batches of STREAM into its targets, if they are not loaded yet.

    A batch counts as loaded when the target has acknowledged it. If batches that are loaded
    together fail, each is tried alone, three times. Batches named with --batch are loaded even if
    they are already loaded.

    Exit codes: 3 if some batches failed.

    \b
    Example:
      batch-pipeline load orders --target warehouse
    """
    from batch_pipeline.pipeline.reconcile import ensure_inventory_current

    run_id = f"load-{uuid4().hex[:12]}"
    with opened() as pipeline, progress() as print_line:
        one = pipeline.stream(stream)
        targets = _chosen(one, names)
        ensure_inventory_current(pipeline.database, one)
        labels = [_published(pipeline, one, name) for name in batch]
        labels = pipeline.database.loads.with_later(one.name, labels)
        for target in targets if labels else ():  # makes the batches due again
            pipeline.database.loads.void(one.name, target.name, labels)
        only = labels or None
        line_printer: Callable[[str], None] = (lambda _: None) if as_json else print_line
        results = [_load(pipeline, one, target, run_id, only, line_printer) for target in targets]
    if as_json:
        print_json({"stream": stream, "run_id": run_id, "targets": [_report(r) for r in results]})
    stopped = [result.stopped for result in results if result.stopped is not None]
    failed = any(outcome.loaded is None for result in results for outcome in result.outcomes)
    exit_with(stopped, *([EXIT_SOME_FAILED] if failed else []))


def _chosen(stream: "Stream", names: tuple[str, ...]) -> "list[Target]":
    known = [target.name for target in stream.targets]
    unknown = [f" {name!r}" for name in names if name not in known]
    if unknown or not known:
        raise ConfigurationError(
            f"The stream {stream.name} has no target{''.join(unknown[:1])} (targets of its stream "
            f"file: {', '.join(known) or 'none'}). Nothing was loaded. Define the target under "
            f"`targets` in the stream file."
        )
    return [target for target in stream.targets if not names or target.name in names]


def _published(pipeline: "Pipeline", stream: "Stream", name: str) -> str:
    """Return the name under which loads of a batch are stored.

    Raises:
        ConfigurationError: there is no published batch of this name.
    """
    not_published = ConfigurationError(
        f"{stream.name} has no published batch {name!r}. Nothing was loaded. Name a batch by "
        f"its partition key, which `batch-pipeline explain FILE` prints, its id range or number."
    )
    try:
        batch = pipeline.database.batches.find(stream.name, name)
    except UnknownBatchError as error:
        raise not_published from error
    if pipeline.database.manifests.of_batch(batch) is None:
        raise not_published
    return pipeline.database.batches.status(batch).key


def _load(
    pipeline: "Pipeline",
    stream: "Stream",
    target: "Target",
    run_id: str,
    only: list[str] | None,
    print_line: Callable[[str], None],
) -> _Result:
    """Load the pending batches into one target, and print the outcome of each."""
    name, outcomes = target.name, []
    print_line(f"{stream.name} into {name}")
    start_step(stream.name, f"loading into {name}")
    loads = pipeline.database.loads
    due = None if only is None else len(only)
    if due is None and is_enabled():
        due = loads.target_statuses(stream.name, [name])[0].due
    pending = pipeline.load_pending(stream, target, run_id=run_id, only=only)
    try:
        for outcome in track(pending, f"loading into {name}", total=due):
            outcomes.append(outcome)
            print_line(f"  {_line(outcome)}")
    except PipelineError as error:  # the other targets are still loaded
        return _Result(name, outcomes, error)
    if outcomes:
        return _Result(name, outcomes)
    gone = loads.target_statuses(stream.name, [name])[0].gone
    if gone:
        print_line(
            "  Nothing to load. Batches that were never loaded and whose files are deleted: "
            f"{gone};"
        )
        print_line("  materialize their partitions again to load them.")
    else:
        print_line("  Nothing to load: the target has all published batches.")
    return _Result(name, outcomes)


def _line(outcome: "Outcome") -> str:
    loading, loaded = outcome.loading, outcome.loaded
    what = f"{loading.label} generation {loading.manifest.generation}"
    if loaded is not None:
        had = "loaded already" if loaded.already else "loaded"
        by = f" by {loaded.mode.upper()} messages" if loaded.mode in {"batch", "record"} else ""
        return f"{what}: records {had}{by}: {loaded.records:,}"
    if outcome.waits:
        return f"{what}: waits for an earlier batch"
    stops = " Stopped: the target seems to be broken." if outcome.gives_up else ""
    return f"{what}: FAILED. {outcome.error}{stops}"


def _report(result: _Result) -> dict[str, Any]:
    return {
        "target": result.target,
        "error": result.stopped and str(result.stopped),
        "batches": [_batch(outcome) for outcome in result.outcomes],
    }


def _batch(outcome: "Outcome") -> dict[str, Any]:
    loading, loaded = outcome.loading, outcome.loaded
    return {
        "batch_id": loading.label,
        "job": loading.manifest.batch.job,
        "generation": loading.manifest.generation,
        "loaded": loaded is not None,
        "already": loaded is not None and loaded.already,
        "records": loaded and loaded.records,
        "messages": (loaded and loaded.mode) or None,
        "waits": outcome.waits,
        "error": outcome.error and str(outcome.error),
    }
