"""What a soak found, as lines of text and as figures. Decides nothing."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median, quantiles

from batch_pipeline_tests.guarantees.checker import Kind
from batch_pipeline_tests.guarantees.soak.backlog import Backlog
from batch_pipeline_tests.guarantees.soak.meter import MEBIBYTE, Held
from batch_pipeline_tests.guarantees.soak.samples import Growth, Sample
from batch_pipeline_tests.guarantees.soak.soak_run import Story

WHAT: dict[str, Callable[[Held], float]] = {
    "MiB": lambda held: held.memory,
    "files": lambda held: held.files,
    "threads": lambda held: held.threads,
    "processes": lambda held: held.processes,
}
OF_DATABASE: dict[str, Callable[[Backlog], float]] = {
    "connections": lambda told: told.connections,
    "dead rows": lambda told: told.dead_rows,
    "live rows": lambda told: told.live_rows,
    "database MiB": lambda told: told.database_bytes / MEBIBYTE,
    "items not published": lambda told: told.unpublished,
    "generations not loaded": lambda told: told.not_loaded,
    "unfinished runs": lambda told: told.unfinished_runs,
}


def report(story: Story) -> Iterator[str]:
    """Tell a soak in lines of text."""
    yield from _told_of_load(story)
    yield from _told_of_parts(story)
    yield from _told_of_database(story)
    yield from _told_of_time([*story.samples.samples, story.rest])


def figures_of(story: Story) -> dict[str, float]:
    """Return what the table of promises shows of a soak."""
    counts, samples = story.counts, story.samples
    return {
        "minutes": story.pace.load_seconds / 60,
        "files": story.files,
        "batches": counts.batches,
        "loads": counts.loads,
        "faults": story.faults.done.total(),
        "backfills": story.backfills.launched,
        "files_waiting_at_most": samples.largest_backlog(),
        "seconds_to_drain": story.drained_seconds,
        "lost": story.verdict.count(Kind.LOST),
        "twice": story.verdict.count(Kind.TWICE),
        "unreadable": story.verdict.count(Kind.UNREADABLE),
        "differences_to_Dagster": len(story.drift),
    }


def _told_of_load(story: Story) -> Iterator[str]:
    counts, pace = story.counts, story.pace
    records = sum(len(one.good_ids) for one in story.landed.values())
    bad = sum(one.bad for one in story.landed.values())
    old = sum(one.old_files for one in story.landed.values())
    load = median([one.machine_load for one in story.samples.samples] or [0.0])
    rate = story.files / pace.load_seconds
    yield (
        f"{pace.load_seconds / 60:.1f} minutes: {story.files} files ({rate:.2f} a second, {old} of "
        f"them old), {records} records, {bad} bad ones; {counts.batches} batches, "
        f"{counts.published} generations, {counts.loads} loads, {counts.runs} runs; the load "
        f"of the machine was {load:.1f}"
    )
    done = ", ".join(f"{count} {kind.value}" for kind, count in story.faults.done.items())
    missed = ", ".join(f"{count} {kind.value}" for kind, count in story.faults.missed.items())
    yield f"killed: {done or 'nothing'}; found nothing to kill: {missed or 'never'}"
    yield (
        f"{counts.failed_attempts} attempts failed, {counts.abandoned_attempts} were abandoned; "
        f"backfills: {story.backfills.launched} of {story.backfills.partitions} partitions, "
        f"{story.backfills.refused} refused, {counts.failed_backfills} ended as failed"
    )
    ways = story.latencies
    if len(ways) > 1:
        p95 = quantiles(ways, n=20)[-1]
        yield (
            f"from landed to published: median {median(ways):.1f} s, 95 % within {p95:.1f} s, "
            f"longest {ways[-1]:.1f} s; at most {story.samples.largest_backlog()} files waited, "
            f"none longer than {story.samples.largest_age():.0f} s; drained within "
            f"{story.drained_seconds:.0f} s"
        )
    yield (
        f"differences to Dagster: {len(story.drift)}; generations that it was told of more than "
        f"once: {story.told_twice}; {story.verdict.garbage} files are garbage; judged: "
    )
    yield str(story.verdict)


def _told_of_parts(story: Story) -> Iterator[str]:
    names = " | ".join(f"{what}, oldest" if what == "MiB" else what for what in WHAT)
    yield ""
    yield f"| part | {names} | MiB, all | MiB an hour |"
    yield "|---|" + "---:|" * (len(WHAT) + 2)
    for part in story.samples.parts():
        cells = []
        for what, take in WHAT.items():
            is_of_all = what == "processes"
            one = None if is_of_all else story.samples.of_oldest(part, take)
            cells.append(_cell(story.samples.of_part(part, take) if is_of_all else one))
        together = story.samples.of_part(part, WHAT["MiB"])
        oldest = story.samples.of_oldest(part, WHAT["MiB"])
        slope = "" if oldest is None else f"{oldest.an_hour:+.0f}"
        yield f"| {part} | {' | '.join(cells)} | {_cell(together)} | {slope} |"


def _told_of_database(story: Story) -> Iterator[str]:
    yield ""
    yield "| of the database | first quarter | last quarter | growth % | an hour |"
    yield "|---|---:|---:|---:|---:|"
    for name, take in OF_DATABASE.items():
        one = story.samples.of_database(take)
        yield f"| {name} | {one.first:.1f} | {one.last:.1f} | {_grown(one)} |"


def _told_of_time(samples: Sequence[Sample]) -> Iterator[str]:
    """Return some ten moments and the last one: a comparison of quarters hides what is between."""
    yield ""
    names = ("second", "MiB of all parts", "files waiting", "connections", "temporary files")
    yield f"| {' | '.join(names)} | files of the home |"
    yield "|" + "---:|" * (len(names) + 1)
    for one in [*samples[: -1 : max(len(samples) // 10, 1)], samples[-1]]:
        memory = sum(held.memory for held in one.processes.values())
        told = one.backlog
        waits = "" if told is None else str(one.landed - told.published)
        connections = "" if told is None else str(told.connections)
        cells = [f"{one.seconds:.0f}", f"{memory:.0f}", waits, connections]
        cells += [str(one.temporary_files), str(one.home_files)]
        yield f"| {' | '.join(cells)} |"


def _grown(one: Growth) -> str:
    return f"{one.percent:+.0f} | {one.an_hour:+.0f}"


def _cell(one: Growth | None) -> str:
    return "" if one is None else f"{one.first:.0f} → {one.last:.0f}"
