"""The `batch-pipeline` command: thin commands over the rooms below.

Exit codes: 0 done, 1 the operator has to fix something, 3 some batches failed while the rest went
on, 75 try again later, 130 interrupted.
"""

import importlib
import logging
import os
import signal
import sys

import click

from batch_pipeline.cli.console import complain
from batch_pipeline.cli.exits import EXIT_INTERRUPTED, exit_code
from batch_pipeline.domain.errors import PipelineError

# Each command and the module of this package that has it.
COMMANDS = {
    "audit": "audit",
    "bisect": "jobs",
    "cancel": "jobs",
    "demo": "demo",
    "dev": "dev",
    "doctor": "doctor",
    "explain": "explain",
    "gc": "gc",
    "init": "init",
    "jobs": "jobs",
    "load": "load",
    "messages": "streams",
    "metrics": "metrics",
    "migrate": "streams",
    "pack": "pack",
    "pause": "jobs",
    "plan": "plan",
    "reconcile": "reconcile",
    "register": "streams",
    "report": "report",
    "resume": "jobs",
    "retry": "jobs",
    "roll-up": "roll_up",
    "run": "streams",
    "status": "streams",
    "verify": "verify",
}


class _Commands(click.Group):
    """Imports the command that is called, and not the others: half a second less to wait."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"batch_pipeline.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="batch-pipeline")
def cli() -> None:
    """Files in, published BATCH manifests out: each file exactly once, in batches that fit.

    Settings come from the environment: BATCH_PIPELINE_HOME, BATCH_PIPELINE_STREAMS,
    BATCH_PIPELINE_INVENTORY_CONN, BATCH_PIPELINE_SPARK_REMOTE, BATCH_PIPELINE_ENV_FILE.
    """


def main() -> None:
    """Run the command line; errors of the operator are one message, never a traceback."""
    _take_termination_for_an_interrupt()
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        complain("Interrupted. Open attempts were closed; run the same command again to go on.")
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output is gone, as in `… | head`: end as every filter does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except PipelineError as error:
        complain(str(error))
        sys.exit(exit_code([error]))
    sys.exit(code)


def _take_termination_for_an_interrupt() -> None:
    """Let a closed terminal or a stopped service end a command as tidily as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has it ignored
            signal.signal(number, signal.default_int_handler)
