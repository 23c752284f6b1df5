"""The command `gc`: files that nobody needs are listed, and deleted or archived."""

import sys
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import click

from batch_pipeline.cli.console import complain, head, print_json, say
from batch_pipeline.cli.exits import exit_code
from batch_pipeline.cli.streams import as_json
from batch_pipeline.domain.errors import GarbageLeftError, PipelineError
from batch_pipeline.domain.garbage import Garbage, Reason
from batch_pipeline.domain.stream import Stream
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.settings.units import format_bytes
from batch_pipeline.steps.collect_garbage import Collected

_SHOWN = 20
_BECAUSE = {
    Reason.UNPUBLISHED: "of attempts that ended without publishing",
    Reason.UNLISTED: "of published attempts whose manifest does not list them",
    Reason.SUPERSEDED: "of generations that newer ones replaced",
    Reason.LOADED: "of generations that all targets have",
    Reason.TEMPORARY: "temporary, of processes that are gone",
    Reason.UNKNOWN: "of attempts that the inventory does not know",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    dry_run: bool
    with_unknown: bool


@click.command(short_help="Delete, or archive, files that nobody needs.")
@click.argument("stream", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option(
    "--unknown",
    is_flag=True,
    help="Also delete files, older than 7 days, of attempts that the inventory does not know.",
)
@as_json
def gc(stream: tuple[str, ...], dry_run: bool, unknown: bool, as_json: bool) -> None:
    """Delete files of STREAM's storage that nobody needs, of all streams or the ones named.

    Taken are files of attempts that ended a day ago or more and were not published, what is left
    of processes that are gone, and generations that were replaced longer ago than the stream's
    storage.keep_superseded or loaded into all its targets longer ago than storage.keep_loaded; with
    storage.archive these are moved there. What else is published and live, and files that are not
    named as this product names them, are never touched.
    """
    asked = _Asked(dry_run=dry_run, with_unknown=unknown)
    done: dict[str, Collected] = {}
    failed: dict[str, PipelineError] = {}
    with closing(Pipeline.from_environment()) as pipeline:
        for one in [pipeline.stream(name) for name in stream or pipeline.streams]:
            try:
                done[one.name] = _collect(pipeline, one, asked)
            except GarbageLeftError as error:  # the other streams have theirs
                failed[one.name] = error
    if as_json:
        reports = [_report(one, asked) for one in done.values()]
        errors = [{"stream": name, "error": str(why)} for name, why in failed.items()]
        print_json({"streams": reports + errors})
    else:
        for collected in done.values():
            _print(collected, asked)
    for name, why in failed.items():
        complain(f"{name}: {why}")
    sys.exit(exit_code(failed.values()) if failed else 0)


def _collect(pipeline: Pipeline, stream: Stream, asked: _Asked) -> Collected:
    return pipeline.collect_garbage(
        stream,
        pipeline.streams.values(),
        with_unknown=asked.with_unknown,
        dry_run=asked.dry_run,
    )


def _report(one: Collected, asked: _Asked) -> dict[str, Any]:
    return {
        "stream": one.stream,
        "dry_run": asked.dry_run,
        "garbage": [_file(garbage) for garbage in one.garbage],
        "garbage_bytes": one.size_bytes,
        "removed_files": one.removed_files,
        "removed_bytes": one.removed_bytes,
        "archive": one.archive,
        "archived_files": one.archived_files,
        "unknown": [_file(garbage) for garbage in one.unknown],
    }


def _file(one: Garbage) -> dict[str, Any]:
    file = one.file
    return {"path": file.path, "size_bytes": file.size_bytes, "reason": one.reason.value}


def _print(one: Collected, asked: _Asked) -> None:
    head(one.stream)
    if not one.garbage:
        say("  Nothing to delete.")
    elif asked.dry_run:
        size = format_bytes(one.size_bytes)
        say(f"  {len(one.garbage)} file(s), {size}, would be deleted; nothing was (dry run):")
    else:
        say(f"  {one.removed_files} file(s), {format_bytes(one.removed_bytes)}, deleted:")
    for reason, because in _BECAUSE.items():
        if count := one.files(reason):
            say(f"  {count:>6} {because}")
    if asked.dry_run and one.to_archive:
        say(f"  {one.to_archive} of them would be moved to {one.archive} instead")
    elif one.archived_files:
        say(f"  {one.archived_files} of them were moved to the archive instead")
    if asked.dry_run:
        _print_paths(one.garbage)
    if one.unknown:
        size = format_bytes(sum(unknown.file.size_bytes for unknown in one.unknown))
        say(f"  {len(one.unknown)} file(s), {size}, {_BECAUSE[Reason.UNKNOWN]}, were left alone.")
        say("  If no other inventory's files are stored here, delete them with")
        say(f"  `batch-pipeline gc {one.stream} --unknown`:")
        _print_paths(one.unknown)


def _print_paths(some: tuple[Garbage, ...]) -> None:
    for one in some[:_SHOWN]:
        say(f"    {one.file.path}")
    if len(some) > _SHOWN:
        say(f"    … and {len(some) - _SHOWN} more (--json lists all)")
