"""The function that inspects an executor: its Python, its modules, its packed archive.

The function must run on executors that lack this package, so it must not refer to the package: it
is a nested function with its own imports, which cloudpickle sends by value. It only collects facts;
`executor_diagnostics` judges them on the driver.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from batch_pipeline.spark.packed_archive import ARCHIVE_FOLDER, NOTE_NAME, TASK_DISTRIBUTIONS

_TASK_MODULE = "batch_pipeline.spark.frames"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorReport:
    """The facts that a probe collected on its executor.

    `import_error` is why a module that is there cannot be imported. `package_digest` is None when
    the package was not imported, `archive_note` when the executor uses no packed archive.
    """

    task_id: int
    host: str
    python: str
    platform: str
    missing_modules: tuple[str, ...]
    import_error: str | None
    package_digest: str | None
    archive_note: dict[str, Any] | None


def required_modules() -> list[str]:
    """Return the modules that tasks import and the driver has."""
    return ["batch_pipeline", *filter(is_importable, TASK_DISTRIBUTIONS.values())]


def is_importable(module: str) -> bool:
    """Return whether this process can import a module."""
    if module in sys.modules:
        return True
    with suppress(ImportError, ValueError):  # its parent is missing, or is no package
        return importlib.util.find_spec(module) is not None
    return False


def make_probe(extra_modules: Sequence[str] = ()) -> Callable[[int], str]:
    """Return the function that returns the JSON of an `ExecutorReport` on an executor."""
    modules = list(dict.fromkeys([*required_modules(), *extra_modules]))
    task_module, note_name, archive_folder = _TASK_MODULE, NOTE_NAME, ARCHIVE_FOLDER

    def probe(_number: int) -> str:
        import importlib
        import importlib.util
        import json
        import platform
        import socket
        import sys
        from pathlib import Path

        from pyspark import SparkFiles, TaskContext

        def is_missing(name: str) -> bool:
            try:
                return importlib.util.find_spec(name) is None
            except (ImportError, ValueError):
                return True

        archive = Path(SparkFiles.getRootDirectory(), archive_folder)
        if archive.is_dir() and str(archive) not in sys.path:
            sys.path.insert(1, str(archive))
        import_error = digest = note = None
        missing = [name for name in modules if is_missing(name)]
        if "batch_pipeline" not in missing:
            spec = importlib.util.find_spec("batch_pipeline")
            folder = Path(spec.origin or "").parents[1] if spec is not None else Path()
            note_file = folder / note_name
            note = json.loads(note_file.read_text()) if note_file.is_file() else None
        if not missing:
            try:
                importlib.import_module(task_module)
                packed_archive = importlib.import_module("batch_pipeline.spark.packed_archive")
                digest = packed_archive.package_digest()
            except ImportError as error:
                import_error = str(error)
        context = TaskContext.get()
        return json.dumps(
            {
                "task_id": -1 if context is None else context.taskAttemptId(),
                "host": socket.gethostname(),
                "python": platform.python_version(),
                "platform": f"{sys.platform}-{platform.machine()}",
                "missing_modules": missing,
                "import_error": import_error,
                "package_digest": digest,
                "archive_note": note,
            }
        )

    return probe
