"""The command `run`: everything that has landed, until nothing is left."""

import sys

import click

from batch_pipeline.cli.console import print_json
from batch_pipeline.cli.options import all_streams, as_json, chosen, opened
from batch_pipeline.cli.progress import progress


@click.command()
@all_streams
@as_json
def run(stream: tuple[str, ...], as_json: bool) -> None:
    """Register, plan, encode and publish until nothing is left.

    Takes all streams, or the ones named. What is wrong with one stream does not keep the others
    from going on. Batches that failed before are tried once more, and batches of backfills and late
    items are encoded, too.

    Stream files that cannot be used are reported and left out; of streams that are not named they
    are notes only.

    Exit codes: 1 when something is yours to fix, 3 when some batches failed or a stream stopped
    unexpectedly, 75 when the rest is paused or has to wait.

    \b
    Example:
      batch-pipeline run orders
    """
    from batch_pipeline.cli.run_output import (
        print_error,
        print_result,
        result_json,
        run_streams,
    )

    with opened() as pipeline:
        streams = chosen(pipeline, stream)
        with progress():
            results = run_streams(pipeline, streams, command="batch-pipeline run")
        if as_json:
            print_json({"streams": [result_json(pipeline, result) for result in results]})
        else:
            for result in results:
                print_result(pipeline, pipeline.stream(result.stream), result)
        code = print_error(results)
    sys.exit(code)
