"""Collects the public names from the code: Python, commands, settings, stream files, Dagster."""

import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click
import dagster as dg

import batch_pipeline
from batch_pipeline.app import Pipeline
from batch_pipeline.cli import SECTIONS, cli, console
from batch_pipeline.cli.tap import BatchPipelineTap
from batch_pipeline.cli.target import TargetBatchPipeline
from batch_pipeline.config.environment import PREFIX, Settings
from batch_pipeline.defs.component import UncheckedAttributes
from batch_pipeline.metrics import InventoryCollector, families, up

_MODULE_OF_NAME = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])")  # modules may move
_QUOTED_TYPE = re.compile(r"(: |-> )'([^']*)'")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def python_names() -> dict[str, str]:
    """Return the public names of the package with signatures, without modules of types."""
    entries = {}
    for name in batch_pipeline.__all__:
        value = getattr(batch_pipeline, name)
        entries[name] = _described(value)
        if inspect.isclass(value):
            for member, inner in _own_members(value):
                entries[f"{name}.{member}"] = _described(inner)
    return entries


def commands() -> dict[str, str]:
    """Return the commands, their arguments and options, and the exit codes."""
    entries = {
        f"exit code {n}": str(code) for n, code in vars(console).items() if n.startswith("EXIT_")
    }
    for name, section in ((name, title) for title, names in SECTIONS.items() for name in names):
        entries[name] = section
        for called, command in _leaves(name):
            entries |= {f"{called} {_spelling(it)}": _rules(it) for it in command.params}
    for singer in (BatchPipelineTap, TargetBatchPipeline):
        entries[singer.name] = ", ".join(
            sorted(capability.value for capability in singer.capabilities)
        )
        config = copy.deepcopy(singer.config_jsonschema)
        singer.append_builtin_config(config)  # as the SDK does, in place, when a plugin starts
        for key, rule in config["properties"].items():
            entries[f"{singer.name} config {key}"] = str(rule.get("type"))
    return entries


def _leaves(name: str) -> Iterator[tuple[str, click.Command]]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    if isinstance(command, click.Group):
        yield from ((f"{name} {inner}", member) for inner, member in command.commands.items())
    else:
        yield name, command


def settings() -> dict[str, str]:
    """Return the environment variables with their defaults."""
    return {
        f"{PREFIX}{name.upper()}": "computed" if field.default_factory else str(field.default)
        for name, field in Settings.model_fields.items()
    }


def stream_file_keys() -> dict[str, Any]:
    """Return the JSON Schema of a stream file, key by key, without titles and descriptions."""
    schema = UncheckedAttributes.model_json_schema()
    entries = {"": {"required": sorted(schema["required"])}}
    entries |= dict(_keys(schema, schema["$defs"], ""))
    return entries


def definitions(loaded: dg.Definitions) -> dict[str, Any]:
    """Return all Dagster definitions with their descriptions and attributes."""
    repository = loaded.get_repository_def()
    entries: dict[str, Any] = dict(_assets(loaded.resolve_asset_graph()))
    for job in repository.get_all_jobs():
        if not job.name.startswith("__"):
            entries[f"job {job.name}"] = {
                "description": job.description,
                "steps": sorted(node.name for node in job.graph.nodes),
                "executor": job.executor_def.name,
            }
    for sensor in repository.sensor_defs:
        entries[f"sensor {sensor.name}"] = {
            "description": sensor.description,
            "every_seconds": sensor.minimum_interval_seconds,
            "status": sensor.default_status.value,
        }
    for schedule in repository.schedule_defs:
        entries[f"schedule {schedule.name}"] = {
            "description": schedule.description,
            "cron": schedule.cron_schedule,
            "timezone": schedule.execution_timezone,
            "job": schedule.job_name,
            "status": schedule.default_status.value,
        }
    return entries | {f"resource {name}": "" for name in loaded.resources or ()}


def _assets(graph: Any) -> Iterator[tuple[str, Any]]:
    for key in graph.get_all_asset_keys():
        node, name = graph.get(key), key.to_user_string()
        tags = {tag: value for tag, value in node.tags.items() if not tag.startswith("dagster/")}
        yield (
            f"asset {name}",
            {
                "description": node.description,
                "kinds": sorted(node.kinds),
                "group": node.group_name,
                "owners": [*node.owners],
                "tags": tags,
                "from": sorted(parent.to_user_string() for parent in node.parent_keys),
                "partitions": getattr(node.partitions_def, "name", None),
                "per_run": getattr(node.backfill_policy, "max_partitions_per_run", None),
            },
        )
        for check in node.check_keys:
            yield f"check {name} {check.name}", "blocking" if graph.get(check).blocking else ""


def metrics(pipeline: Pipeline) -> dict[str, str]:
    """Return the names of the metrics of an inventory with their types and labels."""
    collector = InventoryCollector(pipeline=pipeline, report_error=print)
    collector.begin()
    entries = {}
    for family in (up(is_up=True), *families(collector.scrape())):
        entries[family.name] = family.type
        for sample in family.samples:
            entries[f"{family.name} sample {sample.name}"] = ", ".join(sorted(sample.labels))
    return entries


def _own_members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield public members that classes of this package define, not those of its libraries."""
    for owner in value.__mro__:
        if owner.__module__.startswith("batch_pipeline"):
            yield from ((n, member) for n, member in vars(owner).items() if not n.startswith("_"))
            yield from ((n, "attribute") for n in inspect.get_annotations(owner))


def _described(value: Any) -> str:
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f"class({bases}) {_signature(value)}"
    return _signature(value) if callable(value) else "attribute"


def _signature(value: Any) -> str:
    try:
        signature = str(inspect.signature(value))
    except ValueError:  # an exception without an `__init__` of its own
        return "(*args)"
    text = _QUOTED_TYPE.sub(r"\1\2", signature)
    return _MODULE_OF_NAME.sub("", _ADDRESS.sub("", text))


def _spelling(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.human_readable_name
    return " ".join([*parameter.opts, *parameter.secondary_opts])


def _rules(parameter: click.Parameter) -> str:
    rules = [parameter.type.name]
    if isinstance(parameter.type, click.Choice):
        rules.append("|".join(map(str, parameter.type.choices)))
    if parameter.required:
        rules.append("required")
    if parameter.nargs != 1:
        rules.append(f"nargs {parameter.nargs}")
    if isinstance(parameter, click.Option) and parameter.multiple:
        rules.append("may be repeated")
    if isinstance(parameter, click.Option) and parameter.is_flag:
        rules.append("flag")
    if isinstance(parameter.default, str | int | float):
        rules.append(f"default {parameter.default}")
    return ", ".join(rules)


def _keys(schema: Any, known: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, rule in schema.get("properties", {}).items():
        key = f"{path}{name}"
        yield key, _inlined(rule, known)
        for inner in _objects(rule, known):
            yield from _keys(inner, known, f"{key}.")


def _objects(rule: Any, known: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas of objects in a rule, whose keys are separate entries."""
    if isinstance(rule, list):
        for value in rule:
            yield from _objects(value, known)
    if not isinstance(rule, dict):
        return
    if "$ref" in rule:
        rule = known[rule["$ref"].rpartition("/")[2]]
    if "properties" in rule:
        yield rule
    for key in ("anyOf", "oneOf", "allOf", "items", "additionalProperties", "prefixItems"):
        yield from _objects(rule.get(key), known)


def _inlined(rule: Any, known: Mapping[str, Any]) -> Any:
    """Return a rule with the rules that it refers to, without titles and descriptions."""
    if isinstance(rule, list):
        return [_inlined(value, known) for value in rule]
    if not isinstance(rule, dict):
        return rule
    inner: dict[str, Any] = {}
    if "$ref" in rule:
        target = known[rule["$ref"].rpartition("/")[2]]
        inner = {"keys": "below"} if "properties" in target else _inlined(target, known)
    dropped = {"$ref", "title", "description", "examples"}
    return inner | {key: _inlined(rule[key], known) for key in rule if key not in dropped}
