"""The command `report`: one HTML file that tells where streams stand, with charts."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from batch_pipeline.cli.console import print_json, say, visible
from batch_pipeline.cli.streams import all_streams, as_json, chosen, opened
from batch_pipeline.domain.batch import BatchState
from batch_pipeline.domain.errors import OF_ONE_META_TABLE
from batch_pipeline.domain.stream import Stream
from batch_pipeline.domain.words import count_of

if TYPE_CHECKING:
    from batch_pipeline.report.stream_report import StreamReport
    from batch_pipeline.settings.pipeline import Pipeline


@click.command()
@all_streams
@click.option(
    "--output",
    type=click.File("w", encoding="utf-8", lazy=True, atomic=True),
    required=True,
    help="The file to write, or - for standard output; one that is there is replaced.",
)
@click.option(
    "--last",
    type=click.IntRange(min=1, max=1_000),
    default=100,
    show_default=True,
    help="Go back so many published batches of each stream.",
)
@as_json
def report(stream: tuple[str, ...], output: TextIO, last: int, as_json: bool) -> None:
    """Write an HTML page of where streams stand.

    One file that needs nothing else, not even a network, of all streams or the ones named: backlog
    with its past and a forecast, throughput, sizes of batches, quarantine, batches by state, the
    newest failures. Nothing is changed.

    \b
    Example:
      batch-pipeline report --output report.html
    """
    from batch_pipeline.report.page import page
    from batch_pipeline.settings.units import format_bytes

    with opened() as pipeline:
        reports = [_report(pipeline, one, last) for one in chosen(pipeline, stream)]
        place = pipeline.database.location
    text = page(reports, place=place, at=datetime.now(UTC), shown=visible)
    output.write(text)
    if output.name == "-":
        return
    if as_json:
        print_json({"output": output.name, "streams": [_as_json(one) for one in reports]})
        return
    for one in reports:
        if one.problem is not None:
            say(f"{one.stream}: {one.problem}")
    size = format_bytes(len(text.encode()))
    say(f"{output.name}: {size}, {count_of(len(reports), 'stream')}. Open it in a browser.")


def _report(pipeline: "Pipeline", stream: Stream, last: int) -> "StreamReport":
    from batch_pipeline.report.stream_report import StreamReport

    database = pipeline.database
    standing = problem = None
    try:
        standing = database.standings.standing(stream.name, pipeline.meta_table(stream))
    except OF_ONE_META_TABLE as error:  # the inventory still tells the rest
        problem = str(error)
    return StreamReport(
        stream=stream.name,
        source=stream.source.place,
        work=database.recent_works.of_stream(stream.name, newest=last),
        standing=standing,
        states=database.standings.states(stream.name),
        problem=problem,
        paused=database.jobs.paused(stream.name),
        learned=database.learned_limits.of_stream(stream.name, stream.limits).learned,
    )


def _as_json(one: "StreamReport") -> dict[str, Any]:
    told, waiting = one.forecast, one.waiting
    return {
        "stream": one.stream,
        "problem": one.problem,
        "items_waiting": waiting.items,
        "bytes_waiting": waiting.size_bytes,
        "outlook": told.outlook.value,
        "seconds_of_work_left": None
        if told.empty_after is None
        else told.empty_after.total_seconds(),
        "bytes_per_second_done": told.capacity,
        "bytes_per_second_planned": told.arrivals,
        "quarantined_ratio": one.work.quarantined_ratio,
        "batches": {state.value: one.states.get(state, 0) for state in BatchState},
        "failures": len(one.work.failures),
    }
