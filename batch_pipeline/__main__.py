"""The command `batch-pipeline`, also as `python -m batch_pipeline`."""

import sys


def main() -> None:
    """Import the command line and run it; Ctrl-C ends the import without a traceback."""
    try:
        from batch_pipeline.cli import main as run
    except KeyboardInterrupt:  # importing takes about half a second
        sys.stderr.write("error: Interrupted before the command started. Nothing was changed.\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
