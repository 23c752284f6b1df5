"""The command `verify`: the checks that Dagster shows, without Dagster, and manifest files."""

import sys
from typing import Any

import click

from batch_pipeline.cli.console import head, print_json, say
from batch_pipeline.cli.exit_codes import EXIT_SOME_FAILED
from batch_pipeline.cli.options import all_streams, as_json, chosen, opened
from batch_pipeline.cli.progress import progress
from batch_pipeline.model.checks import Check, CheckResult
from batch_pipeline.model.progress import start_step

_NEWEST = 1_000


@click.command()
@all_streams
@click.option("--deep", is_flag=True, help="Read every file: SHA-256 and records.")
@click.option(
    "--last",
    metavar="COUNT",
    type=click.IntRange(min=1),
    default=_NEWEST,
    show_default=True,
    help="Look at so many published batches, newest first.",
)
@click.option("--all", "everything", is_flag=True, help="All published batches.")
@as_json
def verify(stream: tuple[str, ...], deep: bool, last: int, everything: bool, as_json: bool) -> None:
    """Ask of STREAM what its asset checks in Dagster ask, and whether manifest files are right.

    Takes all streams, or the ones named. Nothing is changed.

    Exit codes: 3 when an answer is no.

    \b
    Example:
      batch-pipeline verify orders --deep
    """
    from batch_pipeline.pipeline.verify import Scope, verify_stream

    scope = Scope(newest=None, since=None) if everything else Scope(newest=last)
    checks = [check for check in Check if deep or check is not Check.CHECKSUMS]
    found: dict[str, list[CheckResult]] = {}
    with opened() as pipeline, progress():
        for one in chosen(pipeline, stream):
            start_step(one.name, "verifying")
            found[one.name] = list(
                verify_stream(pipeline.database, one, checks, scope, pipeline.meta_table)
            )
    if as_json:
        print_json({"streams": [_report(name, said) for name, said in found.items()]})
    else:
        for name, said in found.items():
            _print(name, said)
    if not all(one.passed for said in found.values() for one in said):
        sys.exit(EXIT_SOME_FAILED)


def _report(name: str, said: list[CheckResult]) -> dict[str, Any]:
    return {
        "stream": name,
        "passed": all(one.passed for one in said),
        "checks": [
            {
                "check": one.check.value,
                "passed": one.passed,
                "severe": one.is_severe,
                "found": one.summary,
                "worst": one.worst,
                "next_step": one.next_step,
                **one.numbers,
            }
            for one in said
        ],
    }


def _print(name: str, said: list[CheckResult]) -> None:
    head(name)
    for one in said:
        mark = "ok  " if one.passed else "FAIL" if one.is_severe else "warn"
        say(f"  {mark} {one.check.value:<13} {one.summary}")
        for more in (one.worst, one.next_step):
            if more is not None:
                say(f"       {'':<13} {more}")
