"""Arguments and options that several commands have, in the same words everywhere.

Nothing heavy is imported here: a shell that completes a command line waits for it.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from batch_pipeline.domain.stream import Stream
    from batch_pipeline.settings.pipeline import Pipeline


def _complete_stream(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    from batch_pipeline.cli.completion import stream_names

    given = ctx.params.get("stream") or ()
    return [name for name in stream_names() if name.startswith(incomplete) and name not in given]


all_streams = click.argument("stream", nargs=-1, shell_complete=_complete_stream)
one_stream = click.argument("stream", shell_complete=_complete_stream)
# Each stream has a job of its name; the names of others only the database knows.
one_job = click.argument("job", shell_complete=_complete_stream)
optional_job = click.argument("job", required=False, shell_complete=_complete_stream)
dry_run = click.option(
    "--dry-run", is_flag=True, help="Only tell what would be done; change nothing."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@contextmanager
def opened() -> Iterator["Pipeline"]:
    """Open the pipeline that the environment describes, until the block ends."""
    from batch_pipeline.settings.pipeline import Pipeline

    with closing(Pipeline.from_environment()) as pipeline:
        yield pipeline


def chosen(pipeline: "Pipeline", names: tuple[str, ...]) -> "list[Stream]":
    """Give the streams of these names, or all where none is named.

    Raises:
        UnknownStreamError: there is no stream of a name.
    """
    return [pipeline.stream(name) for name in names or pipeline.streams]
