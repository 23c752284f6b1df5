"""Detection of the BATCH files that an installed Singer target reads, without sending it messages.

`probe` returns the `Capabilities` of a target. It does not rely on what a target declares or
prints: BATCH is not among the SDK's default capabilities of targets, so `--about` omits it for
targets that read the files; some targets that declare it ignore the message, print the STATE and
exit with 0; and a trial batch would leave a table behind. Instead, a program run by the target's
own Python inspects the class that would receive the files. If that class is unknown, the target
receives RECORD messages.
"""

import importlib
import inspect
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from batch_pipeline.model.location import scheme_of
from batch_pipeline.model.manifest import Manifest

_TIMEOUT_SECONDS = 120
# Unlike a script, a program given by `-c` imports from the current folder first.
_IMPORTS = """
from __future__ import annotations
import sys
sys.path = [folder for folder in sys.path if folder]
import importlib, json
from importlib import metadata, util
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The files of BATCH messages that a target reads, and the reason for this answer.

    `encodings` are `format+compression`, or `format` for all its compressions. `stores` are the
    schemes of the URIs that the target opens, in addition to local files.
    """

    encodings: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    reason: str

    def can_read(self, manifest: Manifest) -> bool:
        """Return whether the target can read all part files of a manifest in place."""
        file_format, compression = manifest.encoding.format, manifest.encoding.compression
        names = {file_format.value, f"{file_format.value}+{compression.value}"}
        schemes = {scheme_of(part.uri) for part in manifest.part_files}
        return not names.isdisjoint(self.encodings) and schemes <= {"", "file", *self.stores}


def probe(command: Sequence[str]) -> Capabilities:
    """Return the capabilities of the target that a command line starts."""
    script = shutil.which(command[0])
    interpreter = None if script is None else _interpreter(Path(script))
    if script is None or interpreter is None:
        return Capabilities(reason=f"{command[0]!r} is not a script of a Python environment")
    functions = [inspect.getsource(function) for function in _TARGET_FUNCTIONS]
    program = "\n".join((_IMPORTS, *functions, "_print_answer()"))
    try:
        answer = subprocess.run(
            [interpreter, "-c", program, Path(script).name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
        encodings, stores, reason = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError) as error:
        return Capabilities(reason=f"its classes cannot be read ({type(error).__name__})")
    return Capabilities(encodings=tuple(encodings), stores=tuple(stores), reason=reason)


def _interpreter(script: Path) -> str | None:
    """Return the Python interpreter named in the first lines of a console script, if any."""
    try:
        with script.open("rb") as file:
            head = file.read(1_024)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    first, second = (os.fsdecode(line).strip() for line in (head + b"\n\n").split(b"\n")[:2])
    words = first[2:].split()
    if words[:1] == ["/bin/sh"] and second.startswith("'''exec'"):  # written for long paths
        with suppress(ValueError):
            words = shlex.split(second.removeprefix("'''exec'"))[:1]
    is_python = len(words) == 1 and "python" in Path(words[0]).name
    return words[0] if is_python and Path(words[0]).is_file() else None


# The functions below are sent as source code to the target's Python, which may be an older version
# and does not have this package. They use the standard library and, if it is installed, the SDK.


def _print_answer() -> None:
    encodings, reason = _encodings(sys.argv[1])
    stores = ["s3"] if util.find_spec("s3fs") is not None else []
    sys.stdout.write("\n" + json.dumps([encodings, stores, reason]) + "\n")


def _encodings(script: str) -> tuple[list[str], str]:
    """Return the encodings that the sinks of a console script's target read, and the reason."""
    points = [point for each in metadata.distributions() for point in each.entry_points]
    named = [point for point in points if (point.group, point.name) == ("console_scripts", script)]
    if not named:
        return [], "no installed package has this command"
    if util.find_spec("singer_sdk") is None:
        return [], "it is not built with the Singer SDK"
    from singer_sdk.target_base import Target

    target = _target_class(named[0].value, Target)
    if target is None:
        return [], "its target class was not found"
    sink = getattr(target, "default_sink_class", None)
    if _overrides(target, "get_sink_class") or not isinstance(sink, type):
        return [], "its sinks are chosen when it runs"
    return _encodings_of_sink(sink)


def _target_class(entry_point: str, base: type) -> Any:
    """Return the class on the path of an entry point, or else the only target of its module."""
    module_name, _, path = entry_point.partition(":")
    module: Any = importlib.import_module(module_name.strip())
    value = module
    for name in path.split("[")[0].strip().split("."):
        value = getattr(value, name, None)
        if isinstance(value, type) and issubclass(value, base):
            return value
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    targets = [cls for cls in classes if issubclass(cls, base) and not _is_of_sdk(cls)]
    return targets[0] if len(targets) == 1 else None


def _encodings_of_sink(sink: type) -> tuple[list[str], str]:
    from singer_sdk.sinks import BatchSink

    if _overrides(sink, "process_batch_files"):
        return ["jsonl+gzip"], f"{sink.__name__} reads BATCH files itself"
    if not hasattr(sink, "process_batch_files") or not issubclass(sink, BatchSink):
        return [], f"{sink.__name__} processes single records and would lose BATCH messages"
    if _overrides(sink, "process_record"):
        return [], f"{sink.__name__} writes records elsewhere than BATCH files"
    has_pyarrow = util.find_spec("pyarrow") is not None
    encodings = ["jsonl+gzip", "jsonl+none", *["parquet"] * has_pyarrow]
    return encodings, f"{sink.__name__} writes whole batches"


def _overrides(cls: type, method: str) -> bool:
    """Return whether the class that defines a method is not part of the SDK."""
    origin = next((base for base in cls.__mro__ if method in vars(base)), None)
    return origin is not None and not _is_of_sdk(origin)


def _is_of_sdk(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "singer_sdk"


_TARGET_FUNCTIONS = (
    _print_answer,
    _encodings,
    _target_class,
    _encodings_of_sink,
    _overrides,
    _is_of_sdk,
)
