"""The command `run`: everything that has landed, until nothing is left."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import complain, head, note, print_json, progress, say
from batch_pipeline.cli.exit_codes import EXIT_SOME_FAILED, exit_code
from batch_pipeline.cli.options import all_streams, as_json, chosen, opened
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model.batch import Batch, stream_batch_key
from batch_pipeline.model.errors import JobPausedError, LandingTroubleError, PipelineError
from batch_pipeline.model.location import shown
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.stream import Source, Stream
from batch_pipeline.pipeline.idle import RunResult, Work, find_work

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline


@click.command()
@all_streams
@as_json
def run(stream: tuple[str, ...], as_json: bool) -> None:
    """Register, plan, encode and publish until nothing is left.

    Processes all streams, or the given ones. An error in one stream does not stop the others.
    Failed batches are tried again. Batches of backfills and of late items are encoded, too.

    Invalid stream files are reported and skipped. If streams are given, invalid files of other
    streams are only notes.

    Exit codes: 1 if there is something for you to fix, 3 if some batches failed or a stream stopped
    unexpectedly, 75 if the rest is paused or has to wait.

    \b
    Example:
      batch-pipeline run orders
    """
    with opened() as pipeline:
        streams = chosen(pipeline, stream)
        with progress():
            results = run_streams(pipeline, streams, command="batch-pipeline run")
        if as_json:
            print_json({"streams": [result_json(pipeline, result) for result in results]})
        else:
            for result in results:
                print_result(pipeline, pipeline.stream(result.stream), result)
        code = print_error(results)
    sys.exit(code)


def run_streams(
    pipeline: "Pipeline", streams: Sequence[Stream], *, command: str
) -> list[RunResult]:
    """Process streams until nothing is left, alone at work on the home.

    Raises:
        RetryableError: another command works on the home.
    """
    work, results = _find_work(pipeline, streams, command)
    if work is Work.NONE:
        return results
    if work is Work.BATCHES:
        from batch_pipeline.spark.session import start_session

        start_session(pipeline.spark)  # its JVM starts during the imports
    from batch_pipeline.defs.in_process import open_exclusively, run_until_idle

    with open_exclusively(pipeline, command) as instance:
        return list(run_until_idle(pipeline, streams, instance))


def _find_work(
    pipeline: "Pipeline", streams: Sequence[Stream], command: str
) -> tuple[Work, list[RunResult]]:
    """Return what is left to do, without importing Dagster, and the results if it is nothing."""
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


def manifests(pipeline: "Pipeline", drained: RunResult) -> list[Manifest]:
    """Read the manifests that a drain published."""
    read = (pipeline.database.manifests.of_batch(one.batch) for one in drained.published)
    return [manifest for manifest in read if manifest is not None]


def print_error(results: Sequence[RunResult]) -> int:
    """Print each batch and stream that failed, and return the exit code.

    A paused stream is not an error: its code is left only where nothing is wrong with the others.
    """
    failed = [one for result in results for one in result.failed]
    ended = [result.error for result in results if result.error is not None]
    errors = [error for error in ended if not isinstance(error, JobPausedError)]
    reasons = [
        one.error or f"{one.batch.job}: batch {one.batch.key} is {one.state}." for one in failed
    ]
    for reason in dict.fromkeys([*map(str, errors), *reasons]):
        complain(reason)
    paused = [error for error in ended if isinstance(error, JobPausedError)]
    for error in paused:
        note(str(error))
    if errors:
        return exit_code(errors)
    return EXIT_SOME_FAILED if failed else exit_code(paused) if paused else 0


def result_json(pipeline: "Pipeline", drained: RunResult) -> dict[str, Any]:
    """Describe a drain for programs."""
    return {
        "stream": drained.stream,
        "files_found": drained.files_found,
        "files_changed": drained.files_changed,
        "items_registered": drained.items_registered,
        "batches_planned": drained.batches_planned,
        "published": [manifest.to_json() for manifest in manifests(pipeline, drained)],
        "failed": [
            {
                "job": one.batch.job,
                "batch_id": one.batch.key,
                "attempts": one.attempts,
                "error": one.error,
            }
            for one in drained.failed
        ],
        "error": None if drained.error is None else str(drained.error),
    }


def print_result(pipeline: "Pipeline", stream: Stream, drained: RunResult) -> None:
    """Print what a drain did, station by station."""
    head(drained.stream)
    _print_arrivals(stream, drained)
    if isinstance(drained.error, JobPausedError):
        say("  stopped     since the job is paused")
    elif isinstance(drained.error, LandingTroubleError):
        say("  skipped     something that landed (see the end)")
    elif drained.error is not None:
        say("  stopped     by an error (see the end)")
    elif not drained.statuses:
        say("  nothing left to encode")
    if not drained.statuses:
        return
    done = manifests(pipeline, drained)
    _print_plan(drained)
    _print_encoded(done)
    for one in drained.failed:
        key, of = _key_and_job(drained, one.batch)
        say(f"  failed      {key}{of}, attempt {one.attempts} (reason: see the end)")
    root = shown(stream.storage.root)
    say(f"  7 publish   manifests: {len(done)}, in {root}/manifests")


def _print_arrivals(stream: Stream, drained: RunResult) -> None:
    if not isinstance(stream.source, Source):
        say(f"  1 land      rows of {stream.source.place}, a meta table of your own")
        return
    say(f"  1 land      files: {drained.files_found}, in {shown(stream.source.uri)}")
    say(f"  2 register  new items: {drained.items_registered}")
    if changed := drained.files_changed:
        say(
            f"              files changed after they were registered: {changed}; "
            f"`batch-pipeline plan {drained.stream}` names them"
        )


def _print_plan(drained: RunResult) -> None:
    say(f"  3 plan      new batches: {drained.batches_planned}; encoded now:")
    shown = drained.statuses if len(drained.statuses) <= 12 else drained.statuses[:10]
    for one in shown:
        weight = format_bytes(one.batch.weight)
        key, of = _key_and_job(drained, one.batch)
        say(f"              {key}  files: {one.batch.count:>4}  {weight:>10}{of}")
    if len(shown) < len(drained.statuses):
        say(f"              … and {len(drained.statuses) - len(shown)} more")
    say("  4 partition each batch is a partition of the Dagster asset of that key")


def _key_and_job(drained: RunResult, batch: Batch) -> tuple[str, str]:
    """Return the partition key, and for a backfill its job."""
    if batch.job == drained.stream or batch.item_ids is not None:
        return stream_batch_key(batch, drained.stream), ""
    return batch.key, f"  {batch.job}"


def _print_encoded(done: Sequence[Manifest]) -> None:
    attempts = max((manifest.attempt for manifest in done), default=0)
    say(f"  5 claim     attempts succeeded: {len(done)} (highest number {attempts})")
    parts = sum(len(manifest.part_files) for manifest in done)
    size = format_bytes(sum(manifest.size_bytes for manifest in done))
    read = sum(manifest.records_read for manifest in done)
    written = sum(manifest.records for manifest in done)
    bad = sum(manifest.records_quarantined for manifest in done)
    say(f"  6 encode    part files: {parts}, {size}")
    say(f"              records: {read} read = {written} written + {bad} quarantined")
