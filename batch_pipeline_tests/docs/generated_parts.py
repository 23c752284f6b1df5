"""Parts of reference pages that are generated from the code, between two comments of the page."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from batch_pipeline.cli import COMMANDS, SECTIONS, cli
from batch_pipeline.metrics import Scrape, families, up
from batch_pipeline.model.status import Totals
from batch_pipeline_tests.docs.pages import DOCS
from batch_pipeline_tests.regression.snapshots import DATA

_PART = re.compile(r"(<!-- generated: (\w+) -->\n\n).*?(\n\n<!-- end of generated -->)", re.S)
# Pages about commands. The names of the commands are links to them.
_SEE = {
    "init": "../tutorials/first_batches.md",
    "demo": "../tutorials/first_batches.md",
    "reprocess": "../how_to/reprocess_history.md",
    "plan": "../how_to/cut_again.md",
    "messages": "singer.md#messages",
    "files": "../how_to/read_batches.md#in-other-programs",
    "load": "loading.md",
    "jobs": "../how_to/handle_failures.md",
    "verify": "dagster.md#asset-checks",
    "reconcile": "meta_tables.md#late-files",
    "gc": "retention.md#garbage",
    "migrate": "../how_to/upgrade.md",
    "metrics": "metrics.md",
    "pack": "spark.md#executors",
}
# Descriptions of the keys of metadata, in the order of the page.
_MEANINGS = {
    "dagster/partition_row_count": "records written, or loaded.",
    "records_read": "records read from source files.",
    "records_quarantined": "records written to quarantine.",
    "items": "files.",
    "weight_bytes": "their weight.",
    "size_bytes": "bytes of part files.",
    "seconds": "duration of the attempt, or of the loads.",
    "records_per_second": "records written per second.",
    "job": "job of the batch.",
    "attempt": "number of the attempt.",
    "generation": "generation, which is also the data version.",
    "schema": "version of the schema, and its changes.",
    "dagster/column_schema": "columns.",
    "dagster/uri": "manifest file.",
    "source_files": "the first 100, with records read and quarantined.",
    "part_files": "the first 100, with records, bytes and SHA-256.",
    "targets": "targets, with records and the run that loaded.",
    "files_found": "files in the landing.",
    "items_registered": "files registered now.",
    "files_changed": "files that changed after they were registered.",
    "batches_planned": "batches planned now, or waiting.",
    "batches_published": "batches published; likewise other states.",
    "items_waiting": "files in no batch yet.",
    "bytes_waiting": "their bytes.",
    "items_unpublished": "files not published yet.",
    "bytes_unpublished": "their bytes.",
    "oldest_unpublished_seconds": "how long the oldest of them has waited.",
    "oldest_unpublished_since": "when it was registered.",
    "bookmark": "highest planned id.",
    "ceiling": "high watermark.",
    "pace": "records per second and quarantined share of the last 20 batches.",
}
_BOUNDS = re.compile(r"(; )?(\d+<=)?x[<>]=?\d+")  # of numbers, as click shows them
_MAX_SUMMARY = 200
_EVENT = re.compile(r"ASSET_(?P<event>[MO]\w+) orders/(?P<asset>\w+): (?P<key>\S+)")
_EVENTS = (
    ("MATERIALIZATION", "batches", "A batch of `<stream>/batches` or `backfill`"),
    ("MATERIALIZATION", "loaded", "A batch of `<stream>/loaded`"),
    ("MATERIALIZATION", "files", "`<stream>/files` when it is materialized"),
    ("OBSERVATION", "files", "`<stream>/files` when it is observed"),
)


def commands() -> str:
    """Return the commands with their arguments and options, as `-h` shows them.

    Options that several commands share are described once, at the end.
    """
    with click.Context(cli, info_name="batch-pipeline", **cli.context_settings) as context:
        entries = {name: list(_usages(name, context)) for name in COMMANDS}
    options = [one for usages in entries.values() for usage in usages for one in usage.options]
    shared = {option: None for option in options if options.count(option) > 1}
    lists = []
    for section, summaries in SECTIONS.items():
        lines = [
            line for name in summaries for usage in entries[name] for line in usage.lines(shared)
        ]
        lists.append("\n".join([f"## {section}\n", *lines]))
    lines = [f"- `{option.names}`: {option.text}" for option in shared]
    return "\n\n".join([*lists, "\n".join(["## Shared options\n", *lines])])


class _Option(NamedTuple):
    names: str
    text: str


class _Usage(NamedTuple):
    """A command or a subcommand of `jobs`."""

    title: str
    summary: str
    options: list[_Option]

    def lines(self, shared: Container[_Option]) -> Iterator[str]:
        """Yield the list entry of the command, and an entry for each of its own options."""
        also = [f"`{option.names.split()[0]}`" for option in self.options if option in shared]
        yield f"- {self.title}: {self.summary}{f' Takes {_enumeration(also)}.' if also else ''}"
        for option in self.options:
            if option not in shared:
                yield f"  - `{option.names}`: {option.text}"


def _usages(name: str, context: click.Context) -> Iterator[_Usage]:
    command = cli.get_command(context, name)
    assert command is not None, name
    if isinstance(command, click.Group):
        for inner, each in command.commands.items():
            title = f"[`{name} {inner}`]({_SEE[name]}){_arguments(each, context)}"
            yield _Usage(title, each.get_short_help_str(_MAX_SUMMARY), _options(each, context))
        return
    title = f"[`{name}`]({_SEE[name]})" if name in _SEE else f"`{name}`"
    title += _arguments(command, context)
    yield _Usage(title, COMMANDS[name], _options(command, context))


def _arguments(command: click.Command, context: click.Context) -> str:
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    return f" `{' '.join(pieces)}`" if pieces else ""


def _options(command: click.Command, context: click.Context) -> list[_Option]:
    """Return the options in the help, except `--json`, which most commands have."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    records = [option.get_help_record(context) for option in options if option.name != "as_json"]
    return [
        _Option(names, _BOUNDS.sub("", text).replace("  []", "").replace("  [", " ["))
        for names, text in filter(None, records)
    ]


def _enumeration(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def metrics() -> str:
    """Return the metrics with their labels and help texts, as they are served."""
    scrape = Scrape(streams=(), unfinished=(), published={}, not_planned={}, totals=Totals())
    return "\n".join(
        f"- `{metric.name.removeprefix('batch_pipeline_')}{_suffix(metric.type)}`"
        f"{_labels(metric.name)}: {metric.documentation}"
        for metric in (up(is_up=True), *families(scrape))
    )


def _suffix(kind: str) -> str:
    return "_total" if kind == "counter" else ""


def _labels(name: str) -> str:
    """Return the labels of a metric's samples, as served in a run of the product."""
    recorded = json.loads((DATA / "metrics.json").read_text(encoding="utf-8"))
    labels = {
        label
        for sample, names in recorded.items()
        if sample.startswith(f"{name} sample ")
        for label in names.split(", ")
    }
    shown = [label for label in ("stream", "kind", "state", "result") if label in labels]
    return f" ({', '.join(shown)})" if shown else ""


def metadata() -> str:
    """Return the metadata of the events of each asset, as recorded in a run of the product."""
    recorded: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in json.loads((DATA / "dagster_metadata.json").read_text(encoding="utf-8")):
        if match := _EVENT.match(entry):
            recorded[match["event"], match["asset"]].append(match["key"])
    assert recorded["MATERIALIZATION", "backfill"] == recorded["MATERIALIZATION", "batches"]
    lists = []
    for event, asset, title in _EVENTS:
        keys = sorted(recorded[event, asset], key=[*_MEANINGS].index)
        lists.append("\n".join([f"{title}:\n", *(f"- `{key}`: {_MEANINGS[key]}" for key in keys)]))
    return "\n\n".join(lists)


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "metrics": metrics,
    "metadata": metadata,
}
PAGES_WITH_PARTS = [
    DOCS / "reference" / f"{name}.md" for name in ("command_line", "metrics", "dagster")
]


def updated(page: Path) -> str:
    """Return the text of a page with its generated parts updated from the code."""
    return _PART.sub(
        lambda part: f"{part[1]}{PARTS[part[2]]()}{part[3]}", page.read_text(encoding="utf-8")
    )
