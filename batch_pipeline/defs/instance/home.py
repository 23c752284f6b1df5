"""The Dagster instance of a home."""

from importlib.resources import files
from pathlib import Path

import dagster as dg
from dagster._core.instance.ref import InstanceRef

from batch_pipeline.settings.home import Home

_CONFIGURATION = "dagster.yaml"


def prepare_dagster_home(home: Home) -> Path:
    """Make the folder that DAGSTER_HOME names, unless its dagster.yaml is there already."""
    home.dagster.mkdir(parents=True, exist_ok=True)
    configuration = home.dagster / _CONFIGURATION
    text = (files("batch_pipeline.defs.instance") / _CONFIGURATION).read_text()
    if not configuration.exists() or configuration.read_text() != text:
        configuration.write_text(text)
    return home.dagster


def open_instance(home: Home) -> dg.DagsterInstance:
    """Open the instance; use it as a context manager."""
    return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(prepare_dagster_home(home))))
