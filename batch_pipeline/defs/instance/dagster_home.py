"""The Dagster instance of a home: its configuration, its streams, and runs that a crash left."""

import hashlib
import platform
import time
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.instance.ref import InstanceRef

from batch_pipeline.app import Pipeline
from batch_pipeline.config.home import Home
from batch_pipeline.defs.instance.launcher import LocalRunLauncher
from batch_pipeline.defs.instance.private_api import report_dead
from batch_pipeline.defs.names import DRAIN_TAG, files_key, loaded_key
from batch_pipeline.defs.partitions import backfills_of, batches_of
from batch_pipeline.defs.runs import BEGUN, CREATED, close_silent_runs
from batch_pipeline.model.errors import SettingError
from batch_pipeline.model.stream import Stream
from batch_pipeline.spark.java import write_file

_CONFIGURATION = "dagster.yaml"
_SELECTORS = {"storage", "run_launcher"}


def prepare_dagster_home(home: Home) -> Path:
    """Create the folder for DAGSTER_HOME, and write its dagster.yaml.

    The settings in `dagster.yaml` of the home itself override those of the package, key by key;
    sections that select a class replace the package's.

    Raises:
        SettingError: that file is not valid YAML, or not a mapping.
    """
    text = (files("batch_pipeline.defs.instance") / _CONFIGURATION).read_text()
    own = _own_settings(home.path / _CONFIGURATION)
    if own:
        text = yaml.safe_dump(_merged(yaml.safe_load(text), own), sort_keys=False)
    write_file(home.dagster / _CONFIGURATION, text)  # for this user only: it may hold secrets
    return home.dagster


def open_instance(home: Home) -> dg.DagsterInstance:
    """Open the instance; use it as a context manager.

    Raises:
        SettingError: Dagster refuses `dagster.yaml` of the home.
    """
    folder = prepare_dagster_home(home)
    try:
        return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(folder)))
    except dg.DagsterInvalidConfigError as error:
        own = home.path / _CONFIGURATION
        if not own.exists():
            raise
        problem = next(iter(error.error_messages), error.message)
        raise _invalid_settings(own, problem.partition("\n")[0].rstrip(".")) from error


def _own_settings(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"not valid YAML: {str(error).partition(chr(10))[0]}"
        raise _invalid_settings(path, problem) from error
    if own is None or isinstance(own, dict):
        return own or {}
    raise _invalid_settings(path, "not a mapping of settings")


def _invalid_settings(path: Path, problem: str) -> SettingError:
    step = "Write sections as in Dagster's own dagster.yaml, or remove the file."
    return SettingError("dagster.yaml", str(path), problem, step)


def _merged(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(settings[key], value)
        for key, value in own.items()
        if key not in _SELECTORS and isinstance(value, dict) and isinstance(settings.get(key), dict)
    }
    return {**settings, **own, **both}


def forget_stream(pipeline: Pipeline, stream: Stream) -> None:
    """Delete a stream from the inventory and from Dagster; its files are kept."""
    pipeline.database.delete_stream(stream.name)
    partitioned = (batches_of(stream), backfills_of(stream))
    with open_instance(pipeline.home) as instance:
        for asset in partitioned:
            for key in instance.get_dynamic_partitions(asset.set_name):
                instance.delete_dynamic_partition(asset.set_name, key)
        keys = [files_key(stream), loaded_key(stream), *(one.asset_key for one in partitioned)]
        known = [key for key in keys if instance.has_asset_key(key)]
        if known:
            instance.wipe_assets(known)


def command_run_tags(pipeline: Pipeline) -> dict[str, str]:
    """Return the tag of a run in the process that holds the lock of a home."""
    home = f"{platform.node()}:{pipeline.settings.home}"
    return {DRAIN_TAG: hashlib.sha256(home.encode()).hexdigest()[:16]}


def close_abandoned_runs(pipeline: Pipeline, instance: dg.DagsterInstance) -> int:
    """Report runs that a crash left unfinished as failed; return their number.

    A run whose cancellation was interrupted is cancelled, and so are its batches. The caller holds
    the home's lock, so no run of this home's commands is active. An embedded database has only runs
    of this home, but some may be those of a `dagster dev`, which does not take the lock; in a
    shared database, runs of other homes are closed only after a long silence. Queued runs, which
    the daemon launches, are not changed.
    """
    filters = [dg.RunsFilter(tags=dict(command_run_tags(pipeline)), statuses=CREATED)]
    if pipeline.settings.inventory_conn is None:
        filters.append(dg.RunsFilter(statuses=BEGUN))
    launcher = instance.run_launcher
    left = {
        run.run_id: run
        for one in filters
        for run in instance.get_runs(one)
        if not (isinstance(launcher, LocalRunLauncher) and launcher.is_alive(run))
    }
    for run in left.values():
        report_dead(instance, run)
    return len(left) + close_silent_runs(pipeline, instance, time.time())
