"""The Dagster instance of a home: the package's settings, and a person's on top of them."""

import os
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.instance.ref import InstanceRef

from batch_pipeline.config.home import Home
from batch_pipeline.model.errors import SettingError

_CONFIGURATION = "dagster.yaml"


def prepare_dagster_home(home: Home) -> Path:
    """Make the folder that DAGSTER_HOME names, and write its dagster.yaml.

    What a person writes to `dagster.yaml` in the home itself is laid over the package's settings,
    key by key.

    Raises:
        SettingError: that file is no mapping.
    """
    home.dagster.mkdir(parents=True, exist_ok=True)
    configuration = home.dagster / _CONFIGURATION
    text = (files("batch_pipeline.defs.instance") / _CONFIGURATION).read_text()
    own = _own_settings(home.path / _CONFIGURATION)
    if own:
        text = yaml.safe_dump(_merged(yaml.safe_load(text), own), sort_keys=False)
    if not configuration.exists() or configuration.read_text() != text:
        _write(configuration, text)
    return home.dagster


def open_instance(home: Home) -> dg.DagsterInstance:
    """Open the instance; use it as a context manager."""
    return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(prepare_dagster_home(home))))


def _write(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all, for this user alone: a person's own
    settings may hold a secret.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(temporary).replace(path)


def _own_settings(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        own = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        own = f"no YAML: {str(error).splitlines()[0]}"
    if own is None or isinstance(own, dict):
        return own or {}
    problem = own if isinstance(own, str) else "not a mapping of settings"
    step = "Write sections as in Dagster's own dagster.yaml, or remove the file."
    raise SettingError("dagster.yaml", str(path), problem, step)


def _merged(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(settings[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(settings.get(key), dict)
    }
    return {**settings, **own, **both}
