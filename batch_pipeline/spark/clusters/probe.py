"""What a small task tells of the executor that it runs on; nothing of this package has to be there.

Nothing is judged here.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from batch_pipeline.spark.clusters.archive_note import NOTE, PACKED_FOLDER, REQUIRED

_PROBED = "batch_pipeline.spark.frame_tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a probing task found on its executor; `missing` are modules, `broken` why of others."""

    task: int
    host: str
    python: str
    platform: str
    missing: tuple[str, ...]
    broken: str | None
    package: str | None
    note: dict[str, Any] | None


def required() -> list[str]:
    """Name the modules that tasks import, as far as the driver has them."""
    return ["batch_pipeline", *filter(is_here, REQUIRED.values())]


def is_here(module: str) -> bool:
    """Tell whether this process could import a module."""
    if module in sys.modules:
        return True
    with suppress(ImportError, ValueError):  # a package above it is not there, or is no package
        return importlib.util.find_spec(module) is not None
    return False


def probe(added: Sequence[str] = ()) -> Callable[[int], str]:
    """Make the function that tells what an executor is like, and whether it has more modules.

    It is a local one, so that it travels as code: nothing of it has to be there.
    """
    modules = list(dict.fromkeys([*required(), *added]))
    probed, note_name, packed = _PROBED, NOTE, PACKED_FOLDER

    def look(_number: int) -> str:
        import importlib
        import importlib.util
        import json
        import platform
        import socket
        import sys
        from pathlib import Path

        from pyspark import SparkFiles, TaskContext

        def lacks(name: str) -> bool:
            try:
                return importlib.util.find_spec(name) is None
            except (ImportError, ValueError):
                return True

        brought = Path(SparkFiles.getRootDirectory(), packed)
        if brought.is_dir() and str(brought) not in sys.path:
            sys.path.insert(1, str(brought))
        broken = package = note = None
        missing = [name for name in modules if lacks(name)]
        if "batch_pipeline" not in missing:
            spec = importlib.util.find_spec("batch_pipeline")
            folder = Path(spec.origin or "").parents[1] if spec is not None else Path()
            told = folder / note_name
            note = json.loads(told.read_text()) if told.is_file() else None
        if not missing:
            try:
                importlib.import_module(probed)
                there = importlib.import_module("batch_pipeline.spark.clusters.archive_note")
                package = there.package_digest()
            except ImportError as error:
                broken = str(error)
        context = TaskContext.get()
        return json.dumps(
            {
                "task": -1 if context is None else context.taskAttemptId(),
                "host": socket.gethostname(),
                "python": platform.python_version(),
                "platform": f"{sys.platform}-{platform.machine()}",
                "missing": missing,
                "broken": broken,
                "package": package,
                "note": note,
            }
        )

    return look
