"""The commands `files` and `messages`: what is published, for other programs."""

import sys
from pathlib import Path

import click

from batch_pipeline.cli.console import print_json, say
from batch_pipeline.cli.options import as_json, one_stream, opened
from batch_pipeline.model.batch import stream_batch_key
from batch_pipeline.model.location import shown


@click.command()
@one_stream
@as_json
def files(stream: str, as_json: bool) -> None:
    """List the part files of STREAM's live batches: each landed file once, in its newest version.

    Prints one path or s3:// URI per line. Backfills are omitted, because they repeat records.
    Changes nothing.

    \b
    Example:
      batch-pipeline files orders
    """
    from batch_pipeline.pipeline.read import InventoryBatches

    with opened() as pipeline:
        name = pipeline.stream(stream).name
        manifests = InventoryBatches(pipeline.database).current(name).manifests
    if not as_json:
        for manifest in manifests:
            for part in manifest.part_files:
                say(shown(part.uri))
        return
    print_json(
        {
            "stream": name,
            "files": [
                {
                    "uri": part.uri,
                    "batch": stream_batch_key(manifest.batch, name),
                    "generation": manifest.generation,
                    "format": manifest.encoding.format.value,
                    "compression": manifest.encoding.compression.value,
                    "schema_version": manifest.schema_version,
                    "records": part.records,
                    "size_bytes": part.size_bytes,
                    "sha256": part.sha256,
                }
                for manifest in manifests
                for part in manifest.part_files
            ],
        }
    )


@click.command()
@one_stream
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Start after the bookmark in this file, which a target wrote.",
)
@click.option(
    "--backfills/--no-backfills",
    default=True,
    show_default=True,
    help="Include backfills.",
)
def messages(stream: str, state: Path | None, backfills: bool) -> None:
    """Write SCHEMA, BATCH and STATE lines of STREAM for a Singer target.

    The stream's regular batches come first, then its late arrivals, then its backfills. Each line
    is JSON. Changes nothing.

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
