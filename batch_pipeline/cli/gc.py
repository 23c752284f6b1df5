"""The command `gc`: list and delete files that are no longer needed."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import complain, head, print_json, say
from batch_pipeline.cli.exit_codes import exit_code
from batch_pipeline.cli.options import all_streams, as_json, chosen, dry_run, opened
from batch_pipeline.cli.progress import progress
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model.errors import GarbageLeftError, PipelineError, StorageUnavailableError
from batch_pipeline.model.garbage import Garbage, Reason
from batch_pipeline.model.progress import start_step

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.model.stream import Stream
    from batch_pipeline.pipeline.collect_garbage import Collected

_SHOWN = 20
_BECAUSE = {
    Reason.UNPUBLISHED: "of attempts that ended without publishing",
    Reason.UNLISTED: "of published attempts whose manifest does not list them",
    Reason.SUPERSEDED: "of generations that newer ones replaced",
    Reason.LOADED: "of generations that all targets have",
    Reason.QUARANTINED: "of records that were set aside, long enough ago",
    Reason.TEMPORARY: "temporary, of processes that are gone",
    Reason.UNKNOWN: "of attempts that the inventory does not know",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _GcOptions:
    dry_run: bool
    with_unknown: bool


@click.command()
@all_streams
@click.option(
    "--unknown",
    is_flag=True,
    help="Also delete files, older than 7 days, of attempts that the inventory does not know.",
)
@dry_run
@as_json
def gc(stream: tuple[str, ...], unknown: bool, dry_run: bool, as_json: bool) -> None:
    """Delete what nobody needs of STREAM's storage, of all streams or the ones named.

    Taken are files of attempts that ended a day ago or more and were not published, what is left
    of processes that are gone, and generations that were replaced longer ago than the stream's
    storage.keep_superseded or loaded into all its targets longer ago than storage.keep_loaded.
    Quarantine files go after storage.keep_quarantine. What else is live, and files of others, are
    never touched.

    \b
    Example:
      batch-pipeline gc orders --dry-run
    """
    asked = _GcOptions(dry_run=dry_run, with_unknown=unknown)
    done: dict[str, Collected] = {}
    failed: dict[str, PipelineError] = {}
    with opened() as pipeline, progress():
        every = pipeline.streams  # all of them: streams may share a storage
        for one in chosen(pipeline, stream):
            start_step(one.name, "collecting garbage")
            try:
                done[one.name] = _collect(pipeline, one, every.values(), asked)
            except (GarbageLeftError, StorageUnavailableError) as error:  # the others have theirs
                failed[one.name] = error
    if as_json:
        reports = [_report(of_stream, asked) for of_stream in done.values()]
        errors = [{"stream": name, "error": str(why)} for name, why in failed.items()]
        print_json({"streams": reports + errors})
    else:
        for of_stream in done.values():
            _print(of_stream, asked)
    for name, why in failed.items():
        complain(f"{name}: {why}")
    sys.exit(exit_code(failed.values()) if failed else 0)


def _collect(
    pipeline: "Pipeline", stream: "Stream", every: "Iterable[Stream]", asked: _GcOptions
) -> "Collected":
    return pipeline.collect_garbage(
        stream,
        every,
        with_unknown=asked.with_unknown,
        dry_run=asked.dry_run,
    )


def _report(one: "Collected", asked: _GcOptions) -> dict[str, Any]:
    return {
        "stream": one.stream,
        "dry_run": asked.dry_run,
        "garbage": [_file(garbage) for garbage in one.garbage],
        "garbage_bytes": one.size_bytes,
        "removed_files": one.removed_files,
        "removed_bytes": one.removed_bytes,
        "unknown": [_file(garbage) for garbage in one.unknown],
    }


def _file(one: Garbage) -> dict[str, Any]:
    file = one.file
    return {"path": file.path, "size_bytes": file.size_bytes, "reason": one.reason.value}


def _print(one: "Collected", asked: _GcOptions) -> None:
    head(one.stream)
    if not one.garbage:
        say("  Nothing to delete.")
    elif asked.dry_run:
        files, size = len(one.garbage), format_bytes(one.size_bytes)
        say(f"  Files that would be deleted: {files}, {size}; nothing was (dry run):")
    else:
        say(f"  Files deleted: {one.removed_files}, {format_bytes(one.removed_bytes)}:")
    for reason, because in _BECAUSE.items():
        if count := one.files(reason):
            say(f"  {count:>6} {because}")
    if asked.dry_run:
        _print_paths(one.garbage)
    if one.unknown:
        count = len(one.unknown)
        size = format_bytes(sum(unknown.file.size_bytes for unknown in one.unknown))
        say(f"  Files left alone, {_BECAUSE[Reason.UNKNOWN]}: {count}, {size}.")
        say("  If no other inventory's files are stored here, delete them with")
        say(f"  `batch-pipeline gc {one.stream} --unknown`:")
        _print_paths(one.unknown)


def _print_paths(some: tuple[Garbage, ...]) -> None:
    for one in some[:_SHOWN]:
        say(f"    {one.file.path}")
    if len(some) > _SHOWN:
        say(f"    … and {len(some) - _SHOWN} more (--json lists all)")
