"""Judges facts of a stream as a whole: facts in, verdict out. Reads and changes nothing."""

from collections.abc import Sequence
from datetime import timedelta

from batch_pipeline.domain.audit import Audit
from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.published import Recent
from batch_pipeline.domain.standing import Amount, SchemaStep, Standing, Stuck, Tiling
from batch_pipeline.domain.verdict import Check, Verdict, in_words

_FOR_A_PERSON = (BatchState.FAILED, BatchState.DEAD)


def judge_quarantine(recent: Sequence[Recent], limit: float) -> Verdict:
    """Judge the share of records that the last batches quarantined, all of them together."""
    read = sum(one.read for one in recent)
    quarantined = sum(one.quarantined for one in recent)
    ratio = quarantined / read if read else 0.0
    numbers = {
        "batches_checked": len(recent),
        "records_read": read,
        "records_quarantined": quarantined,
        "quarantined_ratio": ratio,
        "max_quarantined_ratio": limit,
    }
    if not recent:
        return _nothing(Check.QUARANTINE, numbers)
    shares = (
        f"quarantined records: {quarantined:,} of {read:,} ({ratio:.2%}), last batches: "
        f"{len(recent)}"
    )
    if ratio <= limit:
        found = f"Yes: {shares}; {limit:.2%} are allowed."
        return Verdict(check=Check.QUARANTINE, passed=True, found=found, numbers=numbers)
    worst = max(recent, key=lambda one: one.quarantined_ratio)
    return Verdict(
        check=Check.QUARANTINE,
        passed=False,
        found=f"No: {shares}; {limit:.2%} are allowed.",
        worst=f"batch {worst.label} with {worst.quarantined:,} of {worst.read:,}",
        next_step="Look at its quarantine file, which has each record with its reason; correct the "
        "source, or set `dagster.max_quarantined_ratio` to what is normal.",
        numbers=numbers,
    )


def judge_schema(step: SchemaStep | None) -> Verdict:
    """Judge whether the newest batch was published with the schema of the one before."""
    if step is None:
        return _nothing(Check.SCHEMA_DRIFT, {"schema_version": 0, "schema_changes": 0})
    numbers = {"schema_version": step.version, "schema_changes": len(step.changes)}
    if step.version_before is None or step.version == step.version_before:
        found = f"Yes: batch {step.newest} has schema version {step.version}"
        alone = "" if step.before else ", and there is none before"
        found = f"{found}{alone}."
        return Verdict(check=Check.SCHEMA_DRIFT, passed=True, found=found, numbers=numbers)
    said = "; ".join(change.sentence for change in step.changes[:10])
    more = "; …" if len(step.changes) > 10 else ""
    return Verdict(
        check=Check.SCHEMA_DRIFT,
        passed=False,
        found=f"No: batch {step.newest} has schema version {step.version}, batch {step.before} "
        f"version {step.version_before}: {said or 'no column differs'}{more}.",
        worst=None if not step.changes else step.changes[0].sentence,
        next_step="Earlier files stay valid, since schemas only widen. Tell who reads them, or "
        "declare the schema with `evolution: fail` to stop such files.",
        numbers=numbers,
    )


def judge_backlog(standing: Standing, stuck: Stuck, limit: timedelta) -> Verdict:
    """Judge how long items wait and batches have been failed."""
    waiting, oldest = standing.waiting, standing.oldest
    numbers: dict[str, int | float] = {
        "items_unpublished": waiting.items,
        "bytes_unpublished": waiting.size_bytes,
        "batches_failed": standing.batches(BatchState.FAILED),
        "batches_dead": standing.batches(BatchState.DEAD),
        "batches_stuck": stuck.batches,
        "max_backlog_age_seconds": limit.total_seconds(),
        "oldest_unpublished_seconds": 0.0 if oldest is None else round(oldest.total_seconds(), 1),
    }
    too_old = oldest is not None and oldest > limit
    answer = "No" if too_old or stuck.batches else "Yes"
    found = f"{answer}: {_waiting_in_words(standing)}"
    if waiting.items:
        since = "" if oldest is None else f", the oldest for {in_words(oldest)}"
        found += f"{since}; allowed: {in_words(limit)}"
    found += "."
    if stuck.batches:
        found += f" Batches failed or dead for longer than that: {stuck.batches:,}."
    if not (too_old or stuck.batches):
        return Verdict(check=Check.BACKLOG, passed=True, found=found, numbers=numbers)
    return Verdict(
        check=Check.BACKLOG,
        passed=False,
        found=found,
        worst=_longest(standing, stuck),
        next_step=_backlog_step(stuck),
        numbers=numbers,
    )


def _waiting_in_words(standing: Standing) -> str:
    """Say what waits, and apart from it what only a person takes further, as `jobs` counts it."""
    stopped = [(state, standing.states.get(state, Amount())) for state in _FOR_A_PERSON]
    count = standing.waiting.items - sum(amount.items for _, amount in stopped)
    said = [f"items that wait: {count:,}" if count else "nothing waits"]
    for state, amount in stopped:
        if amount.batches:
            said.append(f"batches {state}: {amount.batches:,} (items: {amount.items:,})")
    return ", ".join(said)


def _longest(standing: Standing, stuck: Stuck) -> str:
    if stuck.first is not None:
        return f"batch {stuck.first}" + (f" ({stuck.error})" if stuck.error else "")
    unplanned, planned = standing.not_planned_for, standing.not_published_for
    if planned is not None and (unplanned is None or planned >= unplanned):
        return f"batch {standing.oldest_batch}, planned {in_words(planned)} ago"
    return "items that no batch has yet"


def _backlog_step(stuck: Stuck) -> str:
    if stuck.paused is not None:
        reason = f" ({stuck.paused})" if stuck.paused else ""
        return f"The stream is paused{reason}; `batch-pipeline jobs resume` lets it go on."
    if stuck.batches:
        return (
            "Correct what the error names, then materialize the partition, or "
            "`batch-pipeline jobs retry` the job."
        )
    return "See whether the sensor runs and runs are started; `batch-pipeline status` tells more."


def judge_coverage(tiling: Tiling, audit: Audit | None) -> Verdict:
    """Judge ranges of batches and what they saw; `audit` is None while nothing is planned."""
    if audit is None:
        return _nothing(Check.COVERAGE, {"batches_checked": 0})
    late, broken = audit.late.count + audit.refused.count, tiling.overlaps + tiling.holes
    numbers = {
        "batches_checked": tiling.batches,
        "batches_compared": audit.batches,
        "batches_left_out": audit.left_out,
        "overlaps": tiling.overlaps,
        "holes": tiling.holes,
        "items_in_two_batches": tiling.doubled_items,
        "items_late": late,
        "items_gone": audit.missing.count,
    }
    looked = f"batches: {tiling.batches:,}, compared with the table: {audit.batches:,}"
    if audit.other_table:
        return Verdict(
            check=Check.COVERAGE,
            passed=False,
            found=f"No: {audit.other_table[0]}.",
            worst="the ids of the batches mean rows of another table",
            next_step="`batch-pipeline reconcile` says what to do.",
            numbers=numbers,
        )
    if not (late or broken or tiling.doubled_items):
        found = f"Yes: {looked}."
        return Verdict(check=Check.COVERAGE, passed=True, found=found, numbers=numbers)
    found = (
        f"No: overlaps: {tiling.overlaps}, holes: {tiling.holes}, items in two batches: "
        f"{tiling.doubled_items}, items that no batch saw: {late} ({looked})."
    )
    if broken or tiling.doubled_items:
        worst, step = tiling.worst, "This must not happen: please report it."
    else:
        unseen = audit.late if audit.late.count else audit.refused
        worst = f"items {unseen}, which appeared after their ids had been planned"
        step = "`batch-pipeline reconcile` plans them as late batches."
    return Verdict(
        check=Check.COVERAGE,
        passed=False,
        found=found,
        worst=worst,
        next_step=step,
        numbers=numbers,
    )


def _nothing(check: Check, numbers: dict[str, int | float]) -> Verdict:
    found = "There is nothing to judge yet: nothing is published or planned."
    return Verdict(check=check, passed=True, found=found, numbers=numbers)
