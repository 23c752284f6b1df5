"""The commands `jobs list`, `pause`, `resume`, `cancel`, `retry` and `split`."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import fact, head, note, print_json, print_some, say
from batch_pipeline.cli.options import (
    Suggestions,
    as_json,
    one_job,
    opened,
    optional_job,
    some_batches,
)
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model.batch import BatchState, BatchStatus
from batch_pipeline.model.errors import ConfigurationError, UnknownJobError, closest, resume_step
from batch_pipeline.model.job import Job, JobReport

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline

on_table = click.option(
    "--meta-table",
    metavar="TABLE",
    help="Meta table of the job, if several jobs share the name.",
)


@contextmanager
def _opened() -> "Iterator[Pipeline]":
    """Open the pipeline; the error for an unknown job also names the known streams."""
    with opened() as pipeline:
        try:
            yield pipeline
        except UnknownJobError as error:
            with suppress(ConfigurationError):  # jobs of the library need no stream files
                error.streams = tuple(pipeline.usable_streams)
            raise


def _words(job: str, meta_table: str | None) -> str:
    """Return the arguments that name a job."""
    return shlex.join([job, *(["--meta-table", meta_table] if meta_table else [])])


class _Jobs(Suggestions):
    """Group that runs `list` if no command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; earlier releases accepted the name of a job in its place."""
        names = self.list_commands(ctx)
        if not (ctx.resilient_parsing or closest(args[0], names)):
            meant = f"batch-pipeline jobs list {shlex.quote(args[0])}"
            ctx.fail(f"No such command {args[0]!r}. Did you mean `{meant}`?")
        return super().resolve_command(ctx, args)


@click.group(cls=_Jobs)
def jobs() -> None:
    """List, pause, resume, cancel, retry or split jobs; `list` is the default.

    Each stream has a job of its name. Backfills, late arrivals and jobs created through the library
    are jobs of their own.

    \b
    Example:
      batch-pipeline jobs list orders
    """


@jobs.command("list")
@optional_job
@on_table
@as_json
def list_jobs(job: str | None, meta_table: str | None, as_json: bool) -> None:
    """List all jobs, or JOB with its unfinished batches.

    Changes nothing.

    \b
    Example:
      batch-pipeline jobs list orders
    """
    with _opened() as pipeline:
        control = pipeline.database.jobs
        reports = control.jobs()
        unfinished: list[BatchStatus] = []
        if job is not None:
            chosen = pipeline.job(job, meta_table)
            reports = [report for report in reports if report.job.id == chosen.id]
            unfinished = control.unfinished(job, chosen.meta_table)
    if as_json:
        of_job = {} if job is None else {"unfinished": [_status(one) for one in unfinished]}
        print_json({"jobs": [_report(report) for report in reports], **of_job})
        return
    for report in reports:
        _print_report(report)
    if not reports:
        say("No jobs yet: `batch-pipeline run` creates one for each stream.")
    lines = [
        f"{one.key} (number {one.batch.id}) {one.state}, attempts: {one.attempts}"
        + (f": {one.error}" if one.error else "")
        for one in unfinished
    ]
    print_some(lines, indent="    ")


@jobs.command()
@one_job
@click.option("--reason", default="", help="Reason shown while the job is paused.")
@on_table
@as_json
def pause(job: str, reason: str, meta_table: str | None, as_json: bool) -> None:
    """Pause JOB.

    Until it is resumed, no new items are planned and none of its batches is started. Backfills and
    late items of a stream can still be planned, but are held back with it. Running attempts
    continue, and partitions can still be materialized by hand in Dagster.

    \b
    Example:
      batch-pipeline jobs pause orders --reason "schema change"
    """
    with _opened() as pipeline:
        table = pipeline.job(job, meta_table).meta_table
        one = pipeline.database.jobs.pause(job, reason, table)
    why = f" ({one.paused})" if one.paused else ""
    text = (
        f"{job} is paused{why}. `batch-pipeline jobs resume {_words(job, meta_table)}` resumes it."
    )
    print_json(_job(one)) if as_json else say(text)


@jobs.command()
@one_job
@on_table
@as_json
def resume(job: str, meta_table: str | None, as_json: bool) -> None:
    """Resume a paused JOB.

    Sensors, `run` and the job's workers plan and start its batches again.

    \b
    Example:
      batch-pipeline jobs resume orders
    """
    with _opened() as pipeline:
        control, table = pipeline.database.jobs, pipeline.job(job, meta_table).meta_table
        one = control.resume(job, table)
        reason = None if one.stream is None else control.paused(one.stream)
    text = f"{job} is resumed."
    if reason is not None:
        step = resume_step(str(one.stream), reason)
        text = f"{job} is resumed, but its stream is still paused. {step}".rstrip()
    print_json(_job(one)) if as_json else say(text)


@jobs.command()
@one_job
@some_batches
@on_table
@as_json
def cancel(job: str, batch: tuple[str, ...], meta_table: str | None, as_json: bool) -> None:
    """Cancel unpublished batches of JOB.

    Running attempts can no longer publish. Published batches are kept, and new items are still
    planned: to prevent that, pause the job first.

    \b
    Example:
      batch-pipeline jobs cancel orders --batch 00000031-00000040
    """
    with _opened() as pipeline:
        control, table = pipeline.database.jobs, pipeline.job(job, meta_table).meta_table
        done = control.cancel(job, *batch, meta_table=table)
    if as_json:
        print_json({"job": job, "batches": done.batches, "attempts": done.attempts})
        return
    if not done.batches and not done.attempts:
        say(f"{job}: nothing to cancel.")
        return
    say(f"{job}: batches cancelled: {done.batches}, attempts cancelled: {done.attempts}.")
    if done.batches:
        say(f"`batch-pipeline jobs retry {_words(job, meta_table)}` retries them.")


@jobs.command()
@one_job
@some_batches
@on_table
@as_json
def retry(job: str, batch: tuple[str, ...], meta_table: str | None, as_json: bool) -> None:
    """Retry failed, dead and cancelled batches of JOB.

    Resets their attempt count. The command does not start them: a sensor, `batch-pipeline run`
    or the job's workers take them before new batches. Published batches are not affected.

    \b
    Example:
      batch-pipeline jobs retry orders
    """
    with _opened() as pipeline:
        control = pipeline.database.jobs
        one = pipeline.job(job, meta_table)
        count = control.retry(job, batches=batch or None, meta_table=one.meta_table)
    if as_json:
        print_json({"job": job, "batches": count})
        return
    text = f"batches that will be retried: {count}." if count else "nothing to retry."
    say(f"{job}: {text}")
    if one.paused is not None and count:
        resume = f"batch-pipeline jobs resume {_words(job, meta_table)}"
        note(f"{job} is paused; `{resume}` lets them start.")


@jobs.command()
@one_job
@click.option("--batch", metavar="BATCH", required=True, help="Partition key, id range or number.")
@on_table
@as_json
def split(job: str, batch: str, meta_table: str | None, as_json: bool) -> None:
    """Split an unpublished batch of JOB into two halves.

    The halves replace the batch and are processed next. Repeat the command to isolate an item that
    fails.

    \b
    Example:
      batch-pipeline jobs split orders --batch 00000031-00000040
    """
    with _opened() as pipeline:
        control = pipeline.database.jobs
        one = pipeline.job(job, meta_table)
        number = control.batch(job, batch, one.meta_table).id  # checked before the table is opened
        ranges = control.split(job, number, pipeline.items_of(one), one.meta_table)
        halves = [pipeline.database.batches.status(half) for half in ranges]
    if as_json:
        print_json({"job": job, "halves": [_batch(half) for half in halves]})
        return
    say(f"{job}: {batch} was replaced by two batches:")
    for half in halves:
        weight = _weight(one, half.batch.weight)
        items = f"items: {half.batch.count:>6}"
        say(f"  {half.key}  {items}  {weight:>10}  number {half.batch.id}")


def _weight(one: Job, weight: int) -> str:
    """Format a weight: in bytes for streams, as a number for jobs with unknown units."""
    return f"weight {weight:,}" if one.stream is None else format_bytes(weight)


def _job(one: Job) -> dict[str, Any]:
    return {
        "job": one.name,
        "meta_table": one.meta_table,
        "kind": one.kind.value,
        "stream": one.stream,
        "paused": one.paused,
    }


def _report(report: JobReport) -> dict[str, Any]:
    return {
        **_job(report.job),
        "parent": report.parent,
        "max_attempts": report.job.max_attempts,
        "bisect": report.job.bisect,
        "publish_count": report.publish_count,
        "finished": report.is_finished,
        "batches": {state.value: report.batches.get(state, 0) for state in BatchState},
        "waiting": {
            "batches": report.waiting_batches,
            "items": report.waiting_items,
            "weight": report.waiting_weight,
        },
    }


def _batch(one: BatchStatus) -> dict[str, Any]:
    return {
        "number": one.batch.id,
        "batch_id": one.key,
        "first_id": one.batch.id_range.first_id,
        "last_id": one.batch.id_range.last_id,
        "items": one.batch.count,
        "weight": one.batch.weight,
    }


def _status(one: BatchStatus) -> dict[str, Any]:
    facts = {"state": one.state.value, "attempts": one.attempts, "error": one.error}
    return {**_batch(one), "job": one.batch.job, **facts}


def _print_report(report: JobReport) -> None:
    one = report.job
    of = f"late arrivals of {report.parent}" if one.kind == "late" else f"{one.kind} job"
    head(one.name)
    fact("meta table", f"{one.meta_table}, {of}")
    if one.paused is not None:
        fact("paused", one.paused or "no reason given")
    weight = _weight(one, report.waiting_weight)
    fact("waiting", f"batches: {report.waiting_batches}, items: {report.waiting_items}, {weight}")
    counts = [f"{report.batches[one]} {one.value}" for one in BatchState if one in report.batches]
    end = " (finished)" if report.is_finished else ""
    fact("batches", f"{', '.join(counts) or 'none'}{end}")
