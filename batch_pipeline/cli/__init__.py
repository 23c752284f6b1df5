"""The `batch-pipeline` command.

Exit codes: 0 success, 1 an error that the operator must fix, 2 wrong usage, 3 some batches failed,
75 try again later, 130 interrupted.
"""

import gc
import importlib
import logging
import os
import signal
import sys
import threading

import click
from click.shell_completion import CompletionItem

from batch_pipeline.cli.console import exit_on_errors, reader_gone_raised
from batch_pipeline.cli.options import VARIABLE, Suggestions, left_out_reported

# Imported modules are never garbage: scanning them took a tenth of a command's start time.
_GC_THRESHOLD = 50_000


# The commands with their summaries by section, in display order. A summary fits on one line of an
# 80-column terminal.
SECTIONS = {
    "Start": {
        "demo": "Run the pipeline on generated files, step by step.",
        "init": "Create a project for an existing folder of files.",
        "dev": "Start everything, with Dagster's UI, until Ctrl-C.",
        "doctor": "Check the installation and suggest fixes.",
    },
    "Daily work": {
        "run": "Register, plan, encode and publish new files.",
        "reprocess": "Encode and publish batches again.",
        "status": "Show waiting, finished and failed work.",
        "explain": "Show the state and history of a file or batch.",
    },
    "Single steps": {
        "plan": "Register and plan new files, or plan a backfill.",
        "messages": "Write the Singer messages of a stream.",
        "files": "List the part files of a stream's live batches.",
        "load": "Load published batches into the stream's targets.",
    },
    "Jobs": {"jobs": "List, pause, resume, cancel, retry or split jobs."},
    "Checks and maintenance": {
        "verify": "Check published batches and the backlog.",
        "reconcile": "Clean up after crashes, and plan late items.",
        "gc": "Delete files that are no longer needed.",
        "migrate": "Upgrade the inventory schema to this release.",
    },
    "Integration": {
        "metrics": "Serve metrics for Prometheus, until Ctrl-C.",
        "pack": "Pack the Python packages for Spark executors.",
    },
}
COMMANDS = {name: text for commands in SECTIONS.values() for name, text in commands.items()}

# Modules of the commands that are not in a module of the same name.
_MODULES = {
    "reprocess": "run",
    **dict.fromkeys(("files", "messages", "metrics", "pack"), "integration"),
    **dict.fromkeys(("verify", "reconcile", "gc", "migrate"), "maintenance"),
}

# Removed commands of earlier releases, with their replacements.
REMOVED = {
    "completion": (
        f'Add `eval "$({VARIABLE}=bash_source batch-pipeline)"` to ~/.bashrc; for other '
        "shells use zsh_source or fish_source."
    ),
    "report": "Use `status`, the plots of Dagster's asset pages, or `metrics` for Prometheus.",
    "import-pybatchintory": (
        "See docs/how_to/move_from_pybatchintory.md for how to continue a job of pybatchintory."
    ),
    "audit": "Use `batch-pipeline reconcile`, which plans items that appeared late.",
    "register": "Use `batch-pipeline plan`, which registers new files and plans them.",
    "pause": "Use `batch-pipeline jobs pause`.",
    "resume": "Use `batch-pipeline jobs resume`.",
    "cancel": "Use `batch-pipeline jobs cancel`.",
    "retry": "Use `batch-pipeline jobs retry`.",
    "bisect": "Use `batch-pipeline jobs split`.",
    "roll-up": "Choose larger `batch.max_weight` and `batch.max_count`, for fewer partitions.",
}


class _Commands(Suggestions):
    """The group of all commands; imports only the called command, to save half a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"batch_pipeline.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; name the replacement of a removed one."""
        if args[0] in REMOVED and not ctx.resilient_parsing:
            message = f"The command {args[0]!r} was removed. {REMOVED[args[0]]}"
            raise click.UsageError(message, ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Unlike in click, a closed output is not an error."""
        with reader_gone_raised(), left_out_reported(ctx):
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse options. `--help` and `--version` print while they are parsed."""
        with reader_gone_raised():
            return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section."""
        widest = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(widest), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete the name of a command, or an option of the group."""
        names = [
            CompletionItem(name, help=summary)
            for name, summary in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="batch-pipeline")
def cli() -> None:
    """Process landed files exactly once, in batches of bounded size.

    `batch-pipeline COMMAND -h` describes a command. Settings come from the environment:
    BATCH_PIPELINE_HOME, BATCH_PIPELINE_STREAMS, BATCH_PIPELINE_INVENTORY_CONN,
    BATCH_PIPELINE_META_CONN, BATCH_PIPELINE_SPARK_REMOTE, BATCH_PIPELINE_ENV_FILE and others.

    Exit codes: 0 success, 1 configuration error, 2 usage error, 3 some batches failed,
    75 try again later, 130 interrupted.
    """


def main() -> None:
    """Run the command line; operator errors print one message, never a traceback."""
    gc.set_threshold(_GC_THRESHOLD)
    _handle_termination_as_interrupt()
    resend_lost_interrupts()
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    # SQLAlchemy logs the traceback of an interrupted query, whose connection it replaces.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
    with exit_on_errors("Open attempts were closed; run the same command again to continue."):
        try:
            code = cli.main(standalone_mode=False, complete_var=VARIABLE)
        except click.ClickException as error:
            error.show()
            code = error.exit_code
    sys.exit(code)


def _handle_termination_as_interrupt() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
            signal.signal(number, signal.default_int_handler)


def resend_lost_interrupts() -> None:
    """Interrupt the main thread again if Python had to ignore the exception of an interrupt.

    It ignores exceptions in callbacks of weak references and in `__del__`, where the handler of a
    signal may run as well; without this, one Ctrl-C in about fifty has no effect during imports
    and queries.
    """
    report = sys.unraisablehook

    def hook(ignored: "sys.UnraisableHookArgs") -> None:
        if issubclass(ignored.exc_type, Exception | SystemExit | GeneratorExit):
            report(ignored)
        else:  # KeyboardInterrupt, or Dagster's exception; after the callback has returned
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    sys.unraisablehook = hook
