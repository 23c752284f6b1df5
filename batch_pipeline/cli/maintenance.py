"""The commands `verify`, `reconcile`, `gc` and `migrate`."""

import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import (
    EXIT_SOME_FAILED,
    exit_code,
    exit_with,
    head,
    print_error,
    print_json,
    print_some,
    progress,
    say,
)
from batch_pipeline.cli.options import all_streams, as_json, chosen, dry_run, opened, removed_option
from batch_pipeline.config.units import format_bytes, parse_time
from batch_pipeline.model.audit import Audit
from batch_pipeline.model.checks import Check, CheckResult
from batch_pipeline.model.errors import GarbageLeftError, PipelineError, StorageUnavailableError
from batch_pipeline.model.garbage import Garbage, Reason
from batch_pipeline.model.progress import start_step

if TYPE_CHECKING:
    from batch_pipeline.pipeline.collect_garbage import Collected
    from batch_pipeline.pipeline.reconcile import Discarded, Reconciled

_NEWEST = 1_000


@click.command()
@all_streams
@click.option("--deep", is_flag=True, help="Read all files and check their SHA-256.")
@click.option(
    "--last",
    metavar="COUNT",
    type=click.IntRange(min=1),
    default=_NEWEST,
    show_default=True,
    help="Number of published batches to check, newest first.",
)
@click.option("--all", "everything", is_flag=True, help="All published batches.")
@as_json
def verify(stream: tuple[str, ...], deep: bool, last: int, everything: bool, as_json: bool) -> None:
    """Evaluate the asset checks of STREAM, and compare its manifest files with the inventory.

    Verifies all streams, or the given ones. Also checks that each item below the bookmark is in
    exactly one batch. Changes nothing.

    Exit codes: 3 if a check fails.

    \b
    Example:
      batch-pipeline verify orders --deep
    """
    from batch_pipeline.pipeline.verify import Scope, verify_stream

    scope = Scope(newest=None, since=None) if everything else Scope(newest=last)
    checks = [check for check in Check if deep or check is not Check.CHECKSUMS]
    found: dict[str, list[CheckResult]] = {}
    with opened() as pipeline, progress():
        for one in chosen(pipeline, stream):
            start_step(one.name, "verifying")
            found[one.name] = list(
                verify_stream(pipeline.database, one, checks, scope, pipeline.meta_table)
            )
    if as_json:
        print_json({"streams": [_verified_json(name, results) for name, results in found.items()]})
    else:
        for name, results in found.items():
            _print_verified(name, results)
    if not all(one.passed for results in found.values() for one in results):
        sys.exit(EXIT_SOME_FAILED)


def _verified_json(name: str, results: list[CheckResult]) -> dict[str, Any]:
    return {
        "stream": name,
        "passed": all(one.passed for one in results),
        "checks": [
            {
                "check": one.check.value,
                "passed": one.passed,
                "severe": one.is_severe,
                "found": one.summary,
                "worst": one.worst,
                "next_step": one.next_step,
                **one.numbers,
            }
            for one in results
        ],
    }


def _print_verified(name: str, results: list[CheckResult]) -> None:
    head(name)
    for one in results:
        mark = "ok  " if one.passed else "FAIL" if one.is_severe else "warn"
        say(f"  {mark} {one.check.value:<13} {one.summary}")
        for more in (one.worst, one.next_step):
            if more is not None:
                say(f"       {'':<13} {more}")


@dataclass(slots=True, kw_only=True)
class _Result:
    """Result for one stream; `errors` ended it early, or concern single files."""

    stream: str
    discarded: "Discarded | None" = None
    reconciled: "Reconciled | None" = None
    audit: Audit | None = None
    errors: list[PipelineError] = field(default_factory=list)


_INSTEAD_OF_ADOPT = (
    "Restore the inventory to a later point in time, or use --discard: it moves the "
    "manifests away and continues from the backup. See docs/how_to/back_up_and_restore.md."
)


@click.command()
@all_streams
@removed_option("--adopt", _INSTEAD_OF_ADOPT)
@click.option(
    "--discard", is_flag=True, help="Move manifests that the inventory lacks to `discarded`."
)
@click.option(
    "--since",
    metavar="TIME",
    help="Audit batches published at this time or later. Default: 7 days ago.",
)
@click.option("--all", "everything", is_flag=True, help="All published batches.")
@click.option("--no-audit", is_flag=True, help="Do not audit.")
@removed_option("--days", "Use --since TIME, or --no-audit for none.", is_flag=False)
@dry_run
@as_json
def reconcile(
    stream: tuple[str, ...], discard: bool, dry_run: bool, as_json: bool, **audit: Any
) -> None:
    """Clean up after crashes, and find late and removed items.

    Processes all streams, or the given ones. Closes attempts whose process is gone and writes
    missing manifest files. Then audits published batches against the meta table: items that
    appeared below the bookmark are planned as batches of the job STREAM.late; removed items and
    batches with a changed weight are reported, which is not an error.

    If the storage has manifests that the inventory does not know, the inventory was restored from
    an older backup: the stream is paused and nothing else is done. With --discard these manifests
    are moved to `discarded` below the storage root, and their items are published again. To keep
    them, restore the inventory to a later point in time instead. --dry-run needs --discard.

    \b
    Example:
      batch-pipeline reconcile orders --discard --dry-run
    """
    from batch_pipeline.pipeline.reconcile import (
        discard_unknown_manifests,
        ensure_inventory_current,
    )
    from batch_pipeline.pipeline.reconcile import reconcile as reconcile_step

    if dry_run and not discard:
        raise click.UsageError("--dry-run needs --discard.")
    since = _audit_since(**audit)
    results = []
    with opened() as pipeline, progress():
        for one in chosen(pipeline, stream):
            start_step(one.name, "reconciling")
            result = _Result(stream=one.name)
            results.append(result)
            try:
                database = pipeline.database
                if discard:
                    result.discarded = discard_unknown_manifests(
                        database, one, now=datetime.now(UTC), dry_run=dry_run
                    )
                if dry_run:
                    continue
                ensure_inventory_current(database, one)  # from here on, the same as the hourly job
                done = reconcile_step(
                    one.name, database.attempts, database.manifests, pipeline.storage(one)
                )
                result.reconciled, result.errors = done, [*done.troubles]
                if not audit["no_audit"]:
                    result.audit = pipeline.audit(one, since)
            except PipelineError as error:  # the other streams are still reconciled
                result.errors.append(error)
    if as_json:
        print_json({"dry_run": dry_run, "streams": [_reconciled_json(one) for one in results]})
    else:
        for result in results:
            _print_reconciled(result, dry_run=dry_run)
    exit_with([error for result in results for error in result.errors])


def _audit_since(*, since: str | None, everything: bool, no_audit: bool) -> timedelta | None:
    """Return the age of the oldest batches to audit, or None for all."""
    if sum((since is not None, everything, no_audit)) > 1:
        raise click.UsageError("Choose one of --since TIME, --all and --no-audit.")
    if since is None:
        return None if everything else timedelta(days=7)
    return datetime.now(UTC) - parse_time(since, name="--since")


def _reconciled_json(one: _Result) -> dict[str, Any]:
    done, audit = one.reconciled, one.audit
    return {
        "stream": one.stream,
        "discarded": None if one.discarded is None else asdict(one.discarded),
        "attempts_closed": None if done is None else done.attempts,
        "pointers_written": None if done is None else done.pointers,
        "audit": None if audit is None else {"clean": audit.is_clean, **asdict(audit)},
        "errors": [str(error) for error in one.errors],
    }


def _print_reconciled(one: _Result, *, dry_run: bool) -> None:
    head(one.stream)
    if (discarded := one.discarded) is not None and not discarded.manifests:
        say("  The inventory has every manifest of the storage: nothing to discard.")
    elif discarded is not None:
        to = "that would be moved below" if dry_run else "moved below"
        say(f"  manifests {to} {discarded.folder}: {discarded.manifests}")
        say(f"    records that may be in targets, which receive them again: {discarded.records:,}")
        if discarded.unread:
            unread = "manifests that could not be read, whose records are not counted"
            say(f"    {unread}: {discarded.unread}")
    if (done := one.reconciled) is not None:
        say(f"  attempts closed: {done.attempts}, manifest files written: {done.pointers}")
    for sentence in () if one.audit is None else one.audit.sentences():
        say(f"  {sentence}")
    troubles = () if done is None else done.troubles
    if len(one.errors) > len(troubles):
        say("  stopped by an error (see below)")
    elif troubles:
        say("  some manifest files could not be written (see below)")


_BECAUSE = {
    Reason.UNPUBLISHED: "of attempts that ended without publishing",
    Reason.UNLISTED: "of published attempts whose manifest does not list them",
    Reason.SUPERSEDED: "of generations that newer ones replaced",
    Reason.LOADED: "of generations that all targets have",
    Reason.QUARANTINED: "of quarantined records, past their retention",
    Reason.TEMPORARY: "temporary, of processes that no longer exist",
    Reason.UNKNOWN: "of attempts that the inventory does not know",
}


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
    """Delete files in STREAM's storage that are no longer needed.

    Processes all streams, or the given ones. Deletes files of unpublished attempts that ended at
    least one day ago, files of processes that no longer exist, replaced generations after
    storage.keep_superseded, generations that are loaded into all targets after storage.keep_loaded,
    and quarantine files after storage.keep_quarantine. Other live files, and files of other
    programs, are never touched.

    \b
    Example:
      batch-pipeline gc orders --dry-run
    """
    done: dict[str, Collected] = {}
    failed: dict[str, PipelineError] = {}
    with opened() as pipeline, progress():
        every = pipeline.streams  # all of them: streams may share a storage
        for one in chosen(pipeline, stream):
            start_step(one.name, "collecting garbage")
            try:
                done[one.name] = pipeline.collect_garbage(
                    one, every.values(), with_unknown=unknown, dry_run=dry_run
                )
            except (GarbageLeftError, StorageUnavailableError) as error:
                failed[one.name] = error
    if as_json:
        reports = [_collected_json(of_stream, dry_run=dry_run) for of_stream in done.values()]
        errors = [{"stream": name, "error": str(why)} for name, why in failed.items()]
        print_json({"streams": reports + errors})
    else:
        for of_stream in done.values():
            _print_collected(of_stream, dry_run=dry_run)
    for name, why in failed.items():
        print_error(f"{name}: {str(why).removeprefix(f'{name}: ')}")
    sys.exit(exit_code(failed.values()) if failed else 0)


def _collected_json(one: "Collected", *, dry_run: bool) -> dict[str, Any]:
    return {
        "stream": one.stream,
        "dry_run": dry_run,
        "garbage": [_file(garbage) for garbage in one.garbage],
        "garbage_bytes": one.size_bytes,
        "removed_files": one.removed_files,
        "removed_bytes": one.removed_bytes,
        "unknown": [_file(garbage) for garbage in one.unknown],
    }


def _file(one: Garbage) -> dict[str, Any]:
    file = one.file
    return {"path": file.path, "size_bytes": file.size_bytes, "reason": one.reason.value}


def _print_collected(one: "Collected", *, dry_run: bool) -> None:
    head(one.stream)
    if not one.garbage:
        say("  Nothing to delete.")
    elif dry_run:
        files, size = len(one.garbage), format_bytes(one.size_bytes)
        say(f"  Files that would be deleted: {files}, {size}; nothing was (dry run):")
    else:
        say(f"  Files deleted: {one.removed_files}, {format_bytes(one.removed_bytes)}:")
    for reason, because in _BECAUSE.items():
        if count := one.files(reason):
            say(f"  {count:>6} {because}")
    if dry_run:
        print_some([garbage.file.path for garbage in one.garbage], indent="    ")
    if unknown := [garbage.file for garbage in one.unknown]:
        size = format_bytes(sum(file.size_bytes for file in unknown))
        say(f"  Files kept, {_BECAUSE[Reason.UNKNOWN]}: {len(unknown)}, {size}.")
        say("  If no other inventory's files are stored here, delete them with")
        say(f"  `batch-pipeline gc {one.stream} --unknown`:")
        print_some([file.path for file in unknown], indent="    ")


_ROLES_SQL = Path(__file__).parents[1] / "inventory" / "roles.sql"
_INSTEAD_OF_ROLES = (
    f"After `batch-pipeline migrate`, let an administrator run: "
    f"psql -v ON_ERROR_STOP=1 -f {_ROLES_SQL} DATABASE"
)


@click.command()
@removed_option("--roles", _INSTEAD_OF_ROLES, is_flag=False)
@removed_option("--print", _INSTEAD_OF_ROLES)
@as_json
def migrate(as_json: bool) -> None:
    """Upgrade the inventory schema to the revision of this release.

    The first command that opens an embedded inventory upgrades it; this command does not create
    one. If you use roles, run inventory/roles.sql with psql afterwards, to grant rights on new
    tables.

    \b
    Example:
      batch-pipeline migrate
    """
    with opened() as pipeline:
        before, after, place = pipeline.migrate()
    if as_json:
        print_json({"database": place, "before": before, "after": after})
    elif before == after:
        say(f"The inventory at {place} is already at revision {after}.")
    else:
        say(f"The inventory at {place} was upgraded from revision {before} to {after}.")
