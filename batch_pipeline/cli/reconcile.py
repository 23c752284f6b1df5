"""The command `reconcile`: closes what crashes left open, plans late items, settles restores."""

import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from batch_pipeline.cli.console import complain, head, print_json, say
from batch_pipeline.cli.exit_codes import exit_code
from batch_pipeline.cli.options import all_streams, as_json, chosen, dry_run, opened, removed_option
from batch_pipeline.cli.progress import progress
from batch_pipeline.config.units import parse_time
from batch_pipeline.model.audit import Audit
from batch_pipeline.model.errors import PipelineError
from batch_pipeline.model.manifest_file import Discarded
from batch_pipeline.model.progress import start_step

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.model.stream import Stream
    from batch_pipeline.pipeline.reconcile import Reconciled

_USUAL_AGE = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReconcileOptions:
    discard: bool
    dry_run: bool
    audits: bool
    since: timedelta | None


@dataclass(slots=True, kw_only=True)
class _Result:
    """What came of one stream; `error` is what ended it before its time."""

    stream: str
    discarded: Discarded | None = None
    reconciled: "Reconciled | None" = None
    audit: Audit | None = None
    errors: list[PipelineError] = field(default_factory=list)


def _instead_of_adopt() -> str:
    return (
        "Restore the inventory to a later point in time, or use --discard: it sets the manifests "
        "aside and continues from the backup. See docs/operating/restore.md."
    )


@click.command()
@all_streams
@removed_option("--adopt", _instead_of_adopt)
@click.option("--discard", is_flag=True, help="Set manifests aside that the inventory lacks.")
@click.option(
    "--since",
    metavar="TIME",
    help="Audit batches published at this time or later. Default: 7 days ago.",
)
@click.option("--all", "everything", is_flag=True, help="All published batches.")
@click.option("--no-audit", is_flag=True, help="Do not audit.")
@removed_option("--days", lambda: "Use --since TIME, or --no-audit for none.", is_flag=False)
@dry_run
@as_json
def reconcile(
    stream: tuple[str, ...],
    discard: bool,
    dry_run: bool,
    as_json: bool,
    **audit: Any,
) -> None:
    """Bring the inventory of STREAM and its storage back in step, of all streams or the ones named.

    Attempts without a process are closed and missing manifest files written. The audit compares
    what published batches read with what the meta table holds now: items that appeared below the
    bookmark are planned as batches of the job STREAM.late; items that are gone and batches whose
    weight has changed are reported, which is no error.

    Where the storage has manifests that the inventory does not know, it was restored from
    an older backup: the stream is paused and nothing is done. With --discard these manifests are
    moved to `discarded` below the storage root, and what they held is published again. To keep
    them, restore the inventory to a later point in time instead.

    \b
    Example:
      batch-pipeline reconcile orders --discard --dry-run
    """
    if dry_run and not discard:
        raise click.UsageError("--dry-run needs --discard.")
    since = _audit_since(**audit)
    audits = not audit["no_audit"]
    asked = _ReconcileOptions(discard=discard, dry_run=dry_run, audits=audits, since=since)
    with opened() as pipeline, progress():
        results = [_reconcile(pipeline, one, asked) for one in chosen(pipeline, stream)]
    if as_json:
        print_json({"dry_run": dry_run, "streams": [_report(one) for one in results]})
    else:
        for one in results:
            _print(one, asked)
    errors = [error for one in results for error in one.errors]
    for error in errors:
        complain(str(error))
    sys.exit(exit_code(errors) if errors else 0)


def _audit_since(*, since: str | None, everything: bool, no_audit: bool) -> timedelta | None:
    """Return the age of the oldest batches to audit; None takes all."""
    if sum((since is not None, everything, no_audit)) > 1:
        raise click.UsageError("Choose one of --since TIME, --all and --no-audit.")
    if since is None:
        return None if everything else _USUAL_AGE
    return datetime.now(UTC) - parse_time(since, name="--since")


def _reconcile(pipeline: "Pipeline", stream: "Stream", asked: _ReconcileOptions) -> _Result:
    """Settle what is to be settled, then do what the hourly job does."""
    from batch_pipeline.pipeline.reconcile import reconcile as reconcile_step
    from batch_pipeline.pipeline.restore_check import (
        discard_unknown_manifests,
        ensure_inventory_current,
    )

    start_step(stream.name, "reconciling")
    result = _Result(stream=stream.name)
    try:
        if asked.discard:
            now = datetime.now(UTC)
            result.discarded = discard_unknown_manifests(
                pipeline.database, stream, now=now, dry_run=asked.dry_run
            )
        if asked.dry_run:
            return result
        ensure_inventory_current(pipeline.database, stream)
        database, storage = pipeline.database, pipeline.storage(stream)
        result.reconciled = reconcile_step(
            stream.name, database.attempts, database.manifests, storage
        )
        result.errors += result.reconciled.troubles
        if asked.audits:
            result.audit = pipeline.audit(stream, asked.since)
    except PipelineError as error:  # the other streams have their own troubles
        result.errors.append(error)
    return result


def _report(one: _Result) -> dict[str, Any]:
    done, audit = one.reconciled, one.audit
    return {
        "stream": one.stream,
        "discarded": None if one.discarded is None else asdict(one.discarded),
        "attempts_closed": None if done is None else done.attempts,
        "pointers_written": None if done is None else done.pointers,
        "audit": None if audit is None else {"clean": audit.is_clean, **asdict(audit)},
        "errors": [str(error) for error in one.errors],
    }


def _print(one: _Result, asked: _ReconcileOptions) -> None:
    head(one.stream)
    if one.discarded is not None:
        _print_discarded(one.discarded, dry_run=asked.dry_run)
    if one.reconciled is not None:
        done = one.reconciled
        say(f"  attempts closed: {done.attempts}, manifest files written: {done.pointers}")
    for sentence in () if one.audit is None else one.audit.sentences():
        say(f"  {sentence}")
    if one.errors:
        say("  stopped by an error, which is told at the end")


def _print_discarded(done: Discarded, *, dry_run: bool) -> None:
    if not done.manifests:
        say("  The inventory knows every manifest of the storage: nothing to discard.")
        return
    to = "that would be moved below" if dry_run else "moved below"
    say(f"  manifests {to} {done.folder}: {done.manifests}")
    say(f"    records that may be in targets, which get them again: {done.records:,}")
    if done.unread:
        say(f"    manifests that could not be read, whose records are not counted: {done.unread}")
