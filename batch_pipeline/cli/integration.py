"""The commands `files`, `messages`, `metrics` and `pack`, for other programs."""

import shlex
import sys
import threading
from contextlib import suppress
from pathlib import Path

import click

from batch_pipeline.cli.console import print_error, print_json, say
from batch_pipeline.cli.options import as_json, one_stream, opened
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model.batch import stream_batch_key
from batch_pipeline.model.errors import requires_extra
from batch_pipeline.model.location import shown


@click.command()
@one_stream
@as_json
def files(stream: str, as_json: bool) -> None:
    """List the part files of STREAM's live batches, each in its newest generation.

    Together they have the records of each landed file once: backfills, which repeat records, are
    omitted. Prints one path or s3:// URI per line. Changes nothing.

    \b
    Example:
      batch-pipeline files orders
    """
    from batch_pipeline.pipeline.published_batches import InventoryBatches

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
                    **manifest.encoding.to_json(),
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
    from batch_pipeline.singer.messages import Bookmark, line, read_bookmark
    from batch_pipeline.singer.messages import messages as message_lines

    with opened() as pipeline:
        one = pipeline.stream(stream)
        bookmark = Bookmark() if state is None else read_bookmark(state, one.name)
        manifests = pipeline.database.manifests
        published = manifests.published_after(
            one.name, bookmark.numbers, backfills=backfills, last=bookmark.last
        )
        for message in message_lines(
            published, stream=one.name, name=one.message_name, bookmark=bookmark
        ):
            sys.stdout.buffer.write(line(message).encode())  # Singer's are UTF-8 in any locale
        sys.stdout.flush()


@click.command()
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=9464,
    show_default=True,
    help="Port to listen on; 0 selects a free one.",
)
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on.",
)
def metrics(port: int, host: str) -> None:
    """Serve backlog, batches, attempts, records, bytes and lag of all streams at /metrics.

    Reads the inventory at each scrape and changes nothing. There is no login: with an address other
    than 127.0.0.1, everyone who can reach it can read stream names and numbers. Restart the command
    to include new streams.

    \b
    Example:
      batch-pipeline metrics --port 9464
    """
    with requires_extra("metrics", "`batch-pipeline metrics`"):
        from batch_pipeline.metrics import InventoryCollector, serving

    with opened() as pipeline:
        collector = InventoryCollector(pipeline=pipeline, report_error=print_error)
        collector.begin()
        with serving(collector, host=host, port=port) as given:
            shown = f"[{host}]" if ":" in host else host
            say(f"Metrics are at http://{shown}:{given}/metrics. Ctrl-C stops.")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--with",
    "added",
    multiple=True,
    metavar="MODULE",
    help="Also pack this module, for example a transform; may be repeated.",
)
@as_json
def pack(file: Path, added: tuple[str, ...], as_json: bool) -> None:
    """Write FILE (.tar.gz) with this release and the packages that Spark tasks import.

    Use it on executors that lack these packages, on the same platform and with the same minor
    version of Python. Set BATCH_PIPELINE_SPARK_PACKED to the file.

    \b
    Example:
      batch-pipeline pack executors.tar.gz --with my_transforms
    """
    from batch_pipeline.spark.executor_archive import build_archive

    file = file.absolute()
    note = build_archive(file, added)
    size_bytes = file.stat().st_size
    if as_json:
        print_json(
            {
                "archive": str(file),
                "size_bytes": size_bytes,
                "python": note.python,
                "platform": note.platform,
                "release": note.release,
                "distributions": dict(note.distributions),
            }
        )
        return
    say(f"{file}: {format_bytes(size_bytes)}, for Python {note.python} on {note.platform}")
    for name, version in {"batch-pipeline": note.release, **note.distributions}.items():
        say(f"  {name} {version}")
    say(f"To use it, set BATCH_PIPELINE_SPARK_PACKED={shlex.quote(str(file))}")
