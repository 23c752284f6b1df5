"""Entry points of the package; `batch-pipeline` also runs as `python -m batch_pipeline`."""

import atexit
import io
import os
import sys
from importlib import import_module


class _Exit:
    """The exit code of the command; None while it runs or if it raised an exception."""

    def __init__(self) -> None:
        self.code: int | None = None
        self._pid = os.getpid()

    def now(self) -> None:
        """Exit the process without finalizing the interpreter, which takes half a second."""
        if self.code is None or os.getpid() != self._pid:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            return  # the interpreter reports it
        os._exit(self.code)


def main() -> None:
    """Import the command line and run it; Ctrl-C ends the import without a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", errors="replace"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Its encoding may lack characters of file names; standard error already escapes them.
        sys.stdout.reconfigure(errors="backslashreplace")
    end = _Exit()
    # Handlers run in reverse order of registration. Registered first, this handler runs after all
    # others, and after all non-daemon threads have ended.
    atexit.register(end.now)
    try:
        from batch_pipeline.cli import main as run
    except KeyboardInterrupt:  # importing takes about half a second
        sys.exit(_interrupted())
    try:
        run()
        end.code = 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            end.code = error.code or 0
        raise


def tap() -> None:
    """Run the Singer tap."""
    _run_singer("tap")


def target() -> None:
    """Run the Singer target."""
    _run_singer("target")


def _run_singer(plugin: str) -> None:
    from batch_pipeline.model.errors import ConfigurationError, requires_extra

    try:
        with requires_extra("singer", f"`{plugin}-batch-pipeline`"):
            module = import_module(f"batch_pipeline.cli.{plugin}")
    except ConfigurationError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:  # importing the Singer SDK takes more than a second
        sys.exit(_interrupted())
    module.main()


def _interrupted() -> int:
    sys.stderr.write("Error: Interrupted before the command started. Nothing was changed.\n")
    return 130


if __name__ == "__main__":
    main()
