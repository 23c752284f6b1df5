"""Shared parts of commands: arguments, options, opening the pipeline, choosing streams.

No slow module is imported here, because shell completion waits for the import.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from batch_pipeline.cli.console import exit_with, note, print_error
from batch_pipeline.model.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from batch_pipeline.app import Pipeline
    from batch_pipeline.model.stream import Stream


class Suggestions(click.Group):
    """Group that suggests the nearest command for an unknown name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command."""
        names = self.list_commands(ctx)
        meant = did_you_mean(args[0], names)
        if meant and args[0] not in names and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}.{meant}")
        return super().resolve_command(ctx, args)


def _complete_stream(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    given = ctx.params.get("stream") or ()
    return [name for name in stream_names() if name.startswith(incomplete) and name not in given]


all_streams = click.argument("stream", nargs=-1, shell_complete=_complete_stream)
one_stream = click.argument("stream", shell_complete=_complete_stream)
# Each stream has a job of its name; the names of other jobs are only in the database.
one_job = click.argument("job", shell_complete=_complete_stream)
optional_job = click.argument("job", required=False, shell_complete=_complete_stream)
dry_run = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, and change nothing."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _split(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> object:
    names = [name.strip() for value in values for name in value.split(",")]
    if "" in names:
        raise click.BadParameter("a name between commas is empty.", context, option)
    return tuple(dict.fromkeys(names))


some_batches = click.option(
    "--batch",
    metavar="BATCHES",
    multiple=True,
    callback=_split,
    help="Only these partition keys, id ranges or numbers, separated by commas; may be repeated.",
)

_LEFT_OUT = "batch_pipeline.left_out"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def removed_option(
    name: str, instead: str, *, is_flag: bool = True
) -> Callable[[_Command], _Command]:
    """Refuse an option of earlier releases with a sentence that names its replacement."""

    def refuse(context: click.Context, _: click.Parameter, value: object) -> None:
        if value:
            raise click.UsageError(f"The option {name} was removed. {instead}", context)

    return click.option(
        name, is_flag=is_flag, hidden=True, expose_value=False, callback=refuse, help="Removed."
    )


@contextmanager
def opened() -> Iterator["Pipeline"]:
    """Open the pipeline that the environment describes, until the block ends."""
    from batch_pipeline.app import Pipeline

    with closing(Pipeline.from_environment()) as pipeline:
        yield pipeline


def chosen(pipeline: "Pipeline", names: tuple[str, ...]) -> "list[Stream]":
    """Return the streams of these names, or all with valid files if no name is given.

    Invalid files of other streams are reported: as errors at the end of the command if all streams
    were meant, else as notes.

    Raises:
        StreamFileError, ConfigurationError: the file of a named stream, or every file, is invalid.
        UnknownStreamError: no stream has one of these names.
    """
    if not names:
        streams = [*pipeline.usable_streams.values()]
        click.get_current_context().meta[_LEFT_OUT] = pipeline.stream_file_errors
        return streams
    streams = [pipeline.stream(name) for name in dict.fromkeys(names)]
    for error in pipeline.stream_file_errors:
        note(str(error))
    return streams


@contextmanager
def left_out_reported(context: click.Context) -> Iterator[None]:
    """Report the stream files that a command skipped, and exit with code 1 if there are any."""
    try:
        yield
    except (PipelineError, SystemExit) as error:
        if not context.meta.get(_LEFT_OUT):
            raise
        if isinstance(error, PipelineError):
            print_error(str(error))
    if errors := context.meta.get(_LEFT_OUT):
        from batch_pipeline.config.stream_file import invalid_files_error

        exit_with([invalid_files_error(errors)])


VARIABLE = "_BATCH_PIPELINE_COMPLETE"  # set by shell completion
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def stream_names() -> list[str]:
    """Read the names of streams from their files, in the order of the files.

    Only the names are read, so that completion is quick; other keys may be invalid.
    """
    import yaml

    from batch_pipeline.model.errors import SettingError

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        files = sorted(_streams_folder().glob("*/defs.yaml"))
    except (OSError, RuntimeError, SettingError):
        return []
    names = []
    for file in files:
        # Completion reports no errors: `doctor` does that.
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError, yaml.YAMLError):
            name = loader(file.read_bytes()).get_single_data()["attributes"]["stream"]
            if _NAME.fullmatch(name):
                names.append(name)
    return names


def _streams_folder() -> Path:
    """Return the streams folder; the settings are read only if needed, since that is slow."""
    named, here = os.environ.get("BATCH_PIPELINE_STREAMS"), Path.cwd() / "streams"
    if named:
        return Path(named).expanduser()
    if here.is_dir() and not os.environ.get("BATCH_PIPELINE_ENV_FILE"):
        return here
    from batch_pipeline.config.environment import load_settings

    return load_settings(environment=os.environ).streams
