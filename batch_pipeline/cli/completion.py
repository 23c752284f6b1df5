"""The command `completion`, and the values that a shell completes."""

import os
import re
from contextlib import suppress
from pathlib import Path, PurePath

import click
from click.shell_completion import get_completion_class

VARIABLE = "_BATCH_PIPELINE_COMPLETE"
_PROGRAM = "batch-pipeline"
_SHELLS = ("bash", "zsh", "fish")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print the script that lets a shell complete commands, options and names of streams.

    Without an argument it is the script for the shell that $SHELL names. Nothing is changed: put it
    where your shell reads it. Names of streams come from the streams folder; no database is asked.
    What is completed is the command `batch-pipeline` on the PATH.

    \b
    Example:
      batch-pipeline completion bash

    \b
    To have it in every new shell:
      echo 'eval "$(batch-pipeline completion bash)"' >> ~/.bashrc
      echo 'eval "$(batch-pipeline completion zsh)"' >> ~/.zshrc
      batch-pipeline completion fish > ~/.config/fish/completions/batch-pipeline.fish
    """
    wanted = shell or PurePath(os.environ.get("SHELL", "")).name
    made = get_completion_class(wanted) if wanted in _SHELLS else None
    if made is None:
        problem = f"SHELL is {wanted}" if wanted else "the variable SHELL is not set"
        raise click.UsageError(f"No script for this shell: {problem}. Name bash, zsh or fish.")
    script = made(ctx.find_root().command, {}, _PROGRAM, VARIABLE).source()
    click.echo(script.strip("\n"))


def stream_names() -> list[str]:
    """Read the names of streams from their files, in the order of these; judges no file.

    Neither the stream's other keys nor the database is looked at, so that nobody waits.
    """
    import yaml

    from batch_pipeline.domain.errors import SettingError

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        files = sorted(_streams_folder().glob("*/defs.yaml"))
    except (OSError, RuntimeError, SettingError):
        return []
    names = []
    for file in files:
        # Whoever presses a key is not told what is wrong with a file: `doctor` does that.
        with suppress(OSError, ValueError, LookupError, TypeError, RecursionError, yaml.YAMLError):
            name = loader(file.read_bytes()).get_single_data()["attributes"]["stream"]
            if _NAME.fullmatch(name):
                names.append(name)
    return names


def _streams_folder() -> Path:
    """Give the streams folder of the settings, which are read where it is not plain without them:
    reading them takes as long as all the rest.
    """
    named, here = os.environ.get("BATCH_PIPELINE_STREAMS"), Path.cwd() / "streams"
    if named:
        return Path(named).expanduser()
    if here.is_dir() and not os.environ.get("BATCH_PIPELINE_ENV_FILE"):
        return here
    from batch_pipeline.settings.environment import load_settings

    return load_settings(environment=os.environ).streams
