"""The commands `run` and `reprocess`, which encode and publish batches."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import (
    EXIT_SOME_FAILED,
    exit_code,
    fact,
    head,
    note,
    print_error,
    print_json,
    progress,
    say,
)
from batch_pipeline.cli.options import (
    all_streams,
    as_json,
    chosen,
    dry_run,
    one_stream,
    opened,
    removed_option,
    some_batches,
)
from batch_pipeline.config.units import format_bytes, parse_time
from batch_pipeline.model.errors import JobPausedError, LandingTroubleError, PipelineError
from batch_pipeline.model.location import shown
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Source, Stream
from batch_pipeline.pipeline.pending_work import RunResult, Work, find_work

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.defs.in_process_runs import ReprocessResult, ReprocessSelection


@click.command()
@all_streams
@as_json
def run(stream: tuple[str, ...], as_json: bool) -> None:
    """Register, plan, encode and publish until nothing is left.

    Processes all streams, or the given ones. An error in one stream does not stop the others.
    Failed batches are tried again. Batches of backfills and of late items are encoded, too.

    Invalid stream files are reported and skipped. If streams are given, invalid files of other
    streams are only notes.

    Exit codes: 1 for a configuration error, 3 if some batches failed or a stream stopped
    unexpectedly, 75 if the remaining work is paused or must be retried later.

    \b
    Example:
      batch-pipeline run orders
    """
    with opened() as pipeline:
        streams = chosen(pipeline, stream)
        with progress():
            results = run_streams(pipeline, streams, command="batch-pipeline run")
        if as_json:
            print_json({"streams": [_result_json(pipeline, result) for result in results]})
        else:
            for result in results:
                print_result(pipeline, pipeline.stream(result.stream), result)
        code = report_failures(results)
    sys.exit(code)


def run_streams(
    pipeline: "Pipeline", streams: Sequence[Stream], *, command: str
) -> list[RunResult]:
    """Process streams until no work is left, while holding the home's lock.

    Raises:
        RetryableError: another command uses the home.
    """
    work, results = _find_work(pipeline, streams, command)
    if work is Work.NONE:
        return results
    if work is Work.BATCHES:
        _start_spark(pipeline)
    from batch_pipeline.defs.in_process_runs import open_exclusively, run_until_idle

    with open_exclusively(pipeline, command) as instance:
        return list(run_until_idle(pipeline, streams, instance))


def _start_spark(pipeline: "Pipeline") -> None:
    """Open Spark in the background, because it is needed after the imports that follow."""
    from batch_pipeline.spark.session import open_in_background, start_session

    start_session(pipeline.spark)
    open_in_background()


def _find_work(
    pipeline: "Pipeline", streams: Sequence[Stream], command: str
) -> tuple[Work, list[RunResult]]:
    """Return the remaining work, without importing Dagster, and the results if there is none."""
    most, results = Work.NONE, []
    with pipeline.home.lock(command):
        for stream in streams:
            landing = None if stream.user_table else pipeline.landing(stream, wait=True)
            try:
                work, result = find_work(
                    pipeline.database,
                    stream,
                    pipeline.meta_table(stream),
                    landing,
                    pipeline.home.reported(stream.name),
                )
            except PipelineError:
                work, result = Work.REPORTS, RunResult(stream=stream.name)  # `run` reports it
            if work is Work.BATCHES:
                return work, []
            if work is Work.REPORTS:
                most = work
            results.append(result)
    return most, results


def manifests(pipeline: "Pipeline", result: RunResult) -> list[Manifest]:
    """Read the manifests that a run published."""
    read = (pipeline.database.manifests.of_batch(one.batch) for one in result.published)
    return [manifest for manifest in read if manifest is not None]


def report_failures(results: Sequence[RunResult]) -> int:
    """Print each batch and stream that failed, and return the exit code.

    A paused stream is not an error: its code counts only if nothing else is wrong.
    """
    failed = [one for result in results for one in result.failed]
    ended = [result.error for result in results if result.error is not None]
    errors = [error for error in ended if not isinstance(error, JobPausedError)]
    reasons = [one.error or f"{one.batch.job}: batch {one.key} is {one.state}." for one in failed]
    for reason in dict.fromkeys([*map(str, errors), *reasons]):
        print_error(reason)
    paused = [error for error in ended if isinstance(error, JobPausedError)]
    for error in paused:
        note(str(error))
    codes = [*([exit_code(errors)] if errors else []), *([EXIT_SOME_FAILED] if failed else [])]
    return min(codes, default=exit_code(paused) if paused else 0)


def _result_json(pipeline: "Pipeline", result: RunResult) -> dict[str, Any]:
    return {
        "stream": result.stream,
        "files_found": result.files_found,
        "files_changed": result.files_changed,
        "items_registered": result.items_registered,
        "batches_planned": result.batches_planned,
        "published": [manifest.to_json() for manifest in manifests(pipeline, result)],
        "failed": [
            {
                "job": one.batch.job,
                "batch_id": one.key,
                "attempts": one.attempts,
                "error": one.error,
            }
            for one in result.failed
        ],
        "error": None if result.error is None else str(result.error),
    }


def print_result(pipeline: "Pipeline", stream: Stream, result: RunResult) -> None:
    """Print the result of a run, step by step."""
    head(result.stream)
    if not isinstance(stream.source, Source):
        fact("1 land", f"rows of {stream.source.place}, a meta table of your own")
    elif result.files_found is not None:  # else an error came first
        fact("1 land", f"files: {result.files_found}, in {shown(stream.source.uri)}")
        fact("2 register", f"new items: {result.items_registered}")
        if changed := result.files_changed:
            text = f"files changed after they were registered: {changed}; "
            fact("", f"{text}`batch-pipeline plan {result.stream}` lists them")
    if isinstance(result.error, JobPausedError):
        fact("stopped", "the job is paused")
    elif isinstance(result.error, LandingTroubleError):
        fact("skipped", "a file that landed (see the error below)")
    elif result.error is not None:
        fact("stopped", "by an error (see below)")
    elif not result.statuses:
        say("  nothing left to encode")
    if result.statuses:
        _print_batches(stream, result, manifests(pipeline, result))


def _record_counts(done: Sequence[Manifest]) -> str:
    """Return the counts of the records read; a transform may drop and add records."""
    read = sum(one.records_read for one in done)
    written = sum(one.records for one in done)
    filtered = sum(one.records_filtered for one in done)
    bad = sum(one.records_quarantined for one in done)
    kept, rest = f"{written} written", ""
    if any(one.records_transformed is not None for one in done):
        kept, rest = f"{read - filtered - bad} transformed", f"; {written} written"
    kept += f" + {filtered} filtered" if filtered else ""
    return f"records: {read} read = {kept} + {bad} quarantined{rest}"


def _print_batches(stream: Stream, result: RunResult, done: Sequence[Manifest]) -> None:
    """Print steps 3 to 7."""
    statuses = result.statuses
    fact("3 plan", f"new batches: {result.batches_planned}; encoded now:")
    listed = statuses if len(statuses) <= 12 else statuses[:10]
    for one in listed:
        weight = format_bytes(one.batch.weight)
        fact("", f"{one.key}  files: {one.batch.count:>4}  {weight:>10}")
    if len(listed) < len(statuses):
        fact("", f"… and {len(statuses) - len(listed)} more")
    fact("4 partition", f"each batch is a partition of the Dagster asset {result.stream}/batches")
    attempts = max((manifest.attempt for manifest in done), default=0)
    fact("5 claim", f"attempts succeeded: {len(done)} (highest attempt number: {attempts})")
    parts = sum(len(manifest.part_files) for manifest in done)
    size = format_bytes(sum(manifest.size_bytes for manifest in done))
    fact("6 encode", f"part files: {parts}, {size}")
    fact("", _record_counts(done))
    for one in result.failed:
        fact("failed", f"{one.key}, attempt {one.attempts} (see the error below)")
    fact("7 publish", f"manifests: {len(done)}, in {shown(stream.storage.root)}/manifests")


_SHOWN = 20


@click.command()
@one_stream
@some_batches
@click.option("--all", "everything", is_flag=True, help="All published batches.")
@click.option("--since", metavar="TIME", help="Only those published at this time or later.")
@click.option("--until", metavar="TIME", help="Only those published before this time.")
@removed_option("--before", "Use --until.", is_flag=False)
@dry_run
@as_json
def reprocess(
    stream: str,
    batch: tuple[str, ...],
    *,
    everything: bool,
    dry_run: bool,
    as_json: bool,
    **published: str | None,
) -> None:
    """Encode and publish batches of STREAM again, after a change of code, settings or sources.

    Each batch gets a new generation, which replaces the previous one in messages and targets. If it
    fails, the previous generation stays. After an interruption, the command prints the --until with
    which to continue. Select batches with --batch, --since and --until, which may be combined, or
    with --all. Times are ISO 8601 with a time zone; a date is midnight UTC. --dry-run works while
    `dev` or other commands are running.

    Exit codes: 3 if some batches failed.

    \b
    Example:
      batch-pipeline reprocess orders --all --dry-run
    """
    if everything == bool(batch or any(published.values())):
        raise click.UsageError("Choose: --batch BATCHES, --all, --since TIME or --until TIME.")
    times = {
        name: None if time is None else parse_time(time, name=f"--{name}")
        for name, time in published.items()
    }
    command = "batch-pipeline reprocess"
    results: list[ReprocessResult] = []
    with ExitStack() as stack:
        pipeline = stack.enter_context(opened())
        one = pipeline.stream(stream)
        if not dry_run:
            with pipeline.home.lock(command):
                pass  # if another command has it, Spark is not started
            _start_spark(pipeline)
        from batch_pipeline.defs.in_process_runs import (
            open_exclusively,
            open_shared,
            select_batches,
        )
        from batch_pipeline.defs.in_process_runs import reprocess as do_it

        dagster = open_shared(pipeline) if dry_run else open_exclusively(pipeline, command)
        instance = stack.enter_context(dagster)
        stack.enter_context(progress())
        selected = select_batches(pipeline, one, instance, keys=batch, **times)
        try:
            if not dry_run:
                results = do_it(pipeline, one, instance, selected)
        except (KeyboardInterrupt, PipelineError) as error:
            if selected.moment is None:
                raise
            since = [] if published["since"] is None else ["--since", published["since"]]
            keys = [word for key in batch for word in ("--batch", key)]
            words = [stream, *keys, *since, "--until", selected.moment.isoformat()]
            rest = f"{command} {shlex.join(words)}"
            if isinstance(error, KeyboardInterrupt):
                step = f"Open attempts were closed; to process the rest, run: {rest}"
                raise KeyboardInterrupt(step) from None
            note(f"To process the rest, run: {rest}")
            raise
    if as_json:
        batches = _reprocessed_json(selected, results)
        print_json({"stream": stream, "dry_run": dry_run, "batches": batches})
    else:
        _print_reprocessed(stream, selected, results)
    failed = [each for each in results if not each.is_new]
    for each in failed:
        print_error(each.after.error or "it was not started; see the log of its run in Dagster")
    sys.exit(EXIT_SOME_FAILED if failed else 0)


def _print_reprocessed(
    stream: str, selected: "ReprocessSelection", results: "Sequence[ReprocessResult]"
) -> None:
    if not selected.partitions:
        say(f"{stream}: no published batch is selected.")
        return
    head(stream)
    for (key, status), one in islice(zip_longest(selected.partitions.items(), results), _SHOWN):
        what = f"generation {status.generation}"
        if one is not None:
            new = f"generation {one.after.generation}"
            what = new if one.is_new else f"failed, {what} stays current"
        weight = format_bytes(status.batch.weight)
        say(f"  {key}  files: {status.batch.count:>4}  {weight:>10}  {what}")
    every = len(selected.partitions)
    if every > _SHOWN:
        say(f"  … and {every - _SHOWN} more")
    made = sum(one.is_new for one in results)
    fact("batches", f"{made} of {every} published again" if results else f"{every} to encode")


def _reprocessed_json(
    selected: "ReprocessSelection", results: "Sequence[ReprocessResult]"
) -> list[dict[str, Any]]:
    return [
        {
            "batch_id": key,
            "items": status.batch.count,
            "weight_bytes": status.batch.weight,
            "generation": status.generation if one is None else one.after.generation,
            "is_new": one is not None and one.is_new,
            "error": None if one is None or one.is_new else one.after.error,
        }
        for (key, status), one in zip_longest(selected.partitions.items(), results)
    ]
