"""The late-arrival audit: what appeared, went or changed below the bookmarks of streams."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from batch_pipeline.cli.console import head, print_json, say
from batch_pipeline.cli.progress import progress
from batch_pipeline.cli.streams import all_streams, as_json, chosen, opened
from batch_pipeline.domain.audit import Audit
from batch_pipeline.domain.progress import turn_to


@click.command()
@all_streams
@click.option(
    "--days",
    metavar="DAYS",
    type=click.IntRange(min=1, max=36_500),
    default=7,
    show_default=True,
    help="Look at batches published within so many days.",
)
@click.option("--all", "everything", is_flag=True, help="All published batches.")
@as_json
def audit(stream: tuple[str, ...], days: int, everything: bool, as_json: bool) -> None:
    """Compare what published batches of STREAM read with what its meta table holds now.

    Takes all streams, or the ones named. Items that appeared below the bookmark are planned as
    batches of the job STREAM.late; items that are gone and batches whose weight has changed are
    reported. Finding something is no error: the exit code is 0.

    \b
    Example:
      batch-pipeline audit orders --days 30
    """
    from batch_pipeline.settings.restored import check_not_older

    since = None if everything else timedelta(days=days)
    found: dict[str, Audit | None] = {}
    with opened() as pipeline, progress():
        streams = chosen(pipeline, stream)
        for asked in streams:
            check_not_older(pipeline, asked)
        for asked in streams:
            turn_to(asked.name, "auditing")
            found[asked.name] = pipeline.audit(asked, since)
    if as_json:
        print_json({"streams": [_report(name, one) for name, one in found.items()]})
        return
    for name, one in found.items():
        _print(name, one)


def _report(name: str, found: Audit | None) -> dict[str, Any]:
    if found is None:
        return {"stream": name, "planned": False}
    facts = asdict(found)
    del facts["job"]
    return {"stream": name, "planned": True, "clean": found.is_clean, **facts}


def _print(name: str, found: Audit | None) -> None:
    head(name)
    for sentence in ["Nothing is planned yet."] if found is None else found.sentences():
        say(f"  {sentence}")
