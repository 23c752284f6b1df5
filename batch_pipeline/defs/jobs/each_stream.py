"""Doing something for each stream of a run's choice: one that fails does not stop the others."""

from collections.abc import Callable, Mapping, Sequence

import dagster as dg

from batch_pipeline.model.errors import PipelineError, UnknownStreamError
from batch_pipeline.model.stream import Stream

Counts = Mapping[str, int]


def chosen(streams: Sequence[Stream], names: Sequence[str]) -> list[Stream]:
    """Pick streams by name; all where no name is given.

    Raises:
        Failure: there is no such stream.
    """
    by_name = {stream.name: stream for stream in streams}
    for name in names:
        if name not in by_name:
            error = UnknownStreamError(name, tuple(by_name), "this code location")
            raise dg.Failure(str(error), allow_retries=False) from error
    return [by_name[name] for name in names] if names else list(streams)


def do_for_each(
    context: dg.OpExecutionContext, streams: Sequence[Stream], do: Callable[[Stream], Counts]
) -> None:
    """Call for each stream; show a line of its counts in the log and their sums on the run.

    Raises:
        Failure: at the end, with the reasons by stream, when it failed for some.
    """
    sums: dict[str, int] = {}
    failures: dict[str, str] = {}
    for stream in streams:
        try:
            counts = do(stream)
        except PipelineError as error:
            context.log.warning("%s: %s", stream.name, error)
            failures[stream.name] = str(error)
            continue
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        context.log.info("%s: %s", stream.name, said)
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count
    told = {"streams": len(streams) - len(failures), **sums}
    if failures:
        others = "the others are done" if told["streams"] else "nothing was done"
        raise dg.Failure(
            f"Streams failed: {len(failures)} of {len(streams)}, {others}: "
            f"{'; '.join(f'{name}: {reason}' for name, reason in failures.items())}",
            metadata={**told, **{f"failed: {name}": why for name, why in failures.items()}},
            allow_retries=False,
        )
    context.add_output_metadata(told)
