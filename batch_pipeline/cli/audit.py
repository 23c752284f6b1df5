"""The late-arrival audit: what appeared, went or changed below the bookmarks of streams."""

from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from batch_pipeline.cli.console import head, print_json, say
from batch_pipeline.cli.streams import as_json
from batch_pipeline.domain.audit import Audit
from batch_pipeline.settings.pipeline import Pipeline
from batch_pipeline.settings.restored import check_not_older


@click.command(short_help="Find items that appeared late, and plan them.")
@click.argument("stream", nargs=-1)
@click.option(
    "--days",
    type=click.IntRange(min=1, max=36_500),
    default=7,
    show_default=True,
    help="Look at batches published within so many days.",
)
@click.option("--all", "everything", is_flag=True, help="Look at all published batches.")
@as_json
def audit(stream: tuple[str, ...], days: int, everything: bool, as_json: bool) -> None:
    """Compare what published batches of STREAM read with what its meta table holds now.

    Takes all streams, or the ones named. Items that appeared below the bookmark are planned as
    batches of the job STREAM.late; items that are gone and batches whose weight has changed are
    reported. Finding something is no error: the exit code is 0.
    """
    since = None if everything else timedelta(days=days)
    with closing(Pipeline.from_environment()) as pipeline:
        names = stream or tuple(pipeline.streams)
        chosen = [pipeline.stream(name) for name in names]
        for asked in chosen:
            check_not_older(pipeline, asked)
        found = {one.name: pipeline.audit(one, since) for one in chosen}
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
