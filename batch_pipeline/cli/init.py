"""The command `init`: create a project for an existing folder of files."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batch_pipeline.cli.console import err, fact, facts, head, note, print_json, print_next, say
from batch_pipeline.cli.options import as_json
from batch_pipeline.config.environment import Settings, load_settings
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model.location import shown

if TYPE_CHECKING:
    from batch_pipeline.config.stream_proposal import Proposal

_SHOWN_COLUMNS = 8
_SHOWN_KINDS = 8


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
@click.option(
    "--from", "place", metavar="PLACE", required=True, help="Folder, or s3://bucket/prefix."
)
@click.option("--name", help="Name of the stream. Default: derived from the files or folder.")
@click.option(
    "--include",
    metavar="PATTERN",
    multiple=True,
    help="Only files with matching names, such as 'a-*.csv'; may be repeated.",
)
@as_json
def init(
    folder: Path, place: str, name: str | None, include: tuple[str, ...], as_json: bool
) -> None:
    """Create a project for an existing folder of files.

    Inspects the files of PLACE, infers format, columns and limits, and writes a stream file,
    dagster.yaml and workspace.yaml into FOLDER (default: the current folder). Prints the number of
    batches that would be planned. Nothing is registered or encoded, and no file is overwritten. In
    an existing project it adds another stream.

    \b
    Example:
      batch-pipeline init shop --from exports
    """
    from batch_pipeline.config.stream_proposal import (
        project_not_made,
        proposal_json,
        propose,
        text_of,
        this_machine,
    )
    from batch_pipeline.defs.scaffold import write_project

    settings = load_settings(environment=os.environ)  # invalid ones are refused before any write
    try:
        there = Path(os.path.normpath(folder.expanduser().absolute()))
    except RuntimeError as error:
        reason = "its ~ names no user's home folder"
        raise project_not_made(str(folder), reason, "Correct the folder.") from error
    with err.status("inspecting the files"):
        proposal = propose(there, place, this_machine(), name=name, include=include)
    ignored = (".batch_pipeline", ".tmp_dagster_home_*", proposal.batches_folder)
    written, kept = write_project(there, proposal.stream, text_of(proposal), ignored=ignored)
    if as_json:
        print_json(
            proposal_json(proposal)
            | {
                "folder": str(there),
                "written": [str(path) for path in written],
                "kept": {str(path): step for path, step in kept.items()},
            }
        )
        return
    _print_found(proposal)
    if written:
        fact("written", ", ".join(str(path.relative_to(there)) for path in written))
    for path, step in kept.items():
        note(f"{path} exists and was not changed; {step}.")
    _print_next(there, proposal, settings)


def _print_found(proposal: "Proposal") -> None:
    head(proposal.stream.name)
    place, source = shown(proposal.stream.source.place), proposal.attributes["source"]
    fact("found", f"{_files(proposal.files_found, proposal.bytes_found)} in {place}")
    fact("selected", f"{proposal.plan.files} {', '.join(source['include'])}: {source['format']}")
    left_out = [f"{one.files} {one.shown}: {one.reason}" for one in proposal.left_out]
    facts("left out", left_out, most=_SHOWN_KINDS)
    sample = proposal.sample
    columns = [f"{one.name} {one.type_text}" for one in sample.columns]
    more = f" … and {len(columns) - _SHOWN_COLUMNS} more" * (len(columns) > _SHOWN_COLUMNS)
    fact("columns", f"{', '.join(columns[:_SHOWN_COLUMNS]) or 'none yet'}{more}")
    fact("", f"records sampled: {sample.records}, of files: {sample.files}")
    limits, plan = proposal.stream.limits, proposal.plan
    fact("limits", f"of a batch: {format_bytes(limits.max_weight)}, files: {limits.max_count}")
    oversized = f", of one heavier file: {plan.oversized}" if plan.oversized else ""
    fact("dry plan", f"{_files(plan.files, plan.weight_bytes)}; batches: {plan.batches}{oversized}")
    for text in proposal.notes:
        note(text)


def _print_next(folder: Path, proposal: "Proposal", settings: Settings) -> None:
    if "streams" in settings.model_fields_set and settings.streams != folder / "streams":
        note(f"BATCH_PIPELINE_STREAMS is {settings.streams}; set it to {folder / 'streams'}.")
    if folder != Path.cwd():
        say(f"Change directory first: cd {shlex.quote(str(folder))}")
    stream = proposal.stream.name
    steps = [
        (f"run {stream}", "register, plan, encode and publish"),
        (f"status {stream}", "waiting, finished and failed work"),
        ("dev", "the same in Dagster's UI, as files land"),
    ]
    other = next((one for one in proposal.left_out if one.is_readable), None)
    if other is not None:
        include = (word for one in other.patterns for word in ("--include", one))
        place = shown(proposal.stream.source.place)
        command = shlex.join(("init", "--from", place, *include))
        steps.append((command, "a stream for another kind of file"))
    print_next(steps)


def _files(count: int, size_bytes: int) -> str:
    return f"files: {count}, {format_bytes(size_bytes)}"
