"""The command `messages`: what is published, as SCHEMA, BATCH and STATE lines (station 8)."""

import sys
from pathlib import Path

import click

from batch_pipeline.cli.options import one_stream, opened


@click.command()
@one_stream
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Start after the bookmark in this file, as a target printed it.",
)
@click.option(
    "--backfills/--no-backfills",
    default=True,
    show_default=True,
    help="Send batches of backfills, too.",
)
def messages(stream: str, state: Path | None, backfills: bool) -> None:
    """Write SCHEMA, BATCH and STATE lines of STREAM for a Singer target.

    First those of the stream's own batches, then of its late arrivals, then of its backfills. Every
    line is JSON. Nothing is changed.

    \b
    Example:
      batch-pipeline messages orders --state state.json
    """
    from batch_pipeline.singer.bookmarks import Bookmark, read_bookmark
    from batch_pipeline.singer.messages import line
    from batch_pipeline.singer.messages import messages as message_lines

    with opened() as pipeline:
        told = pipeline.stream(stream)
        bookmark = Bookmark() if state is None else read_bookmark(state, told.name)
        manifests = pipeline.database.manifests
        published = manifests.published_after(
            told.name, bookmark.numbers, backfills=backfills, last=bookmark.last
        )
        for message in message_lines(
            published, stream=told.name, name=told.message_name, bookmark=bookmark
        ):
            sys.stdout.write(line(message))
        sys.stdout.flush()
