"""The files of `batch_pipeline/deploy`, read for the tests."""

import json
from importlib.resources import files
from typing import Any

import yaml

FOLDER = files("batch_pipeline") / "deploy"


def text(name: str) -> str:
    """Give the text of a file."""
    return (FOLDER / name).read_text(encoding="utf-8")


def values(name: str) -> Any:
    """Give what a YAML or JSON file says."""
    return json.loads(text(name)) if name.endswith(".json") else yaml.safe_load(text(name))


def names() -> list[str]:
    """Give the names of all files."""
    return sorted(one.name for one in FOLDER.iterdir())
