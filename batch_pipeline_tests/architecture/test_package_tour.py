"""The package docstring is the table of contents: every module that it names exists."""

import re
from pathlib import Path

import pytest

import batch_pipeline

_PACKAGE = Path(batch_pipeline.__file__).parent
_PATHS = re.findall(r"(?<![\w./])(?:\w+/)+(?:\w+\.(?:py|sql))?", batch_pipeline.__doc__ or "")


def test_tour_names_every_step_of_the_lifecycle() -> None:
    lines = (batch_pipeline.__doc__ or "").splitlines()
    steps = [line.split()[1] for line in lines if re.match(r"\d\. ", line)]
    assert steps == [
        "land", "register", "plan", "partition", "claim", "encode", "publish", "emit", "load",
    ]  # fmt: skip
    assert len(_PATHS) > 50


@pytest.mark.parametrize("path", sorted(set(_PATHS)))
def test_path_of_the_tour_exists(path: str) -> None:
    entry = _PACKAGE / path
    assert entry.is_dir() if path.endswith("/") else entry.is_file()
