"""Run by the Python of a Singer target, not by ours: says what is installed and who gets files.

Only the standard library of old Pythons is there for sure, and whatever the target brought. Takes
`version` or `classes` and the name of a console script; prints one line of JSON.
"""

import importlib
import json
import sys
from importlib import metadata, util
from typing import Any

_OURS_TO_TRUST = "singer_sdk"


def _find(name: str) -> Any:
    """Find the distribution and the entry point of a console script."""
    for distribution in metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group == "console_scripts" and entry.name == name:
                return distribution, entry
    return None, None


def _version(distribution: Any) -> str:
    names = [f"{distribution.metadata['Name']} {distribution.version}"]
    for name in ("singer-sdk", "pyarrow", "s3fs"):
        try:
            names.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            names.append(f"no {name}")
    return ", ".join(names)


def _target_class(entry: Any, base: type) -> Any:
    """Find the class of the target: in the path of the entry point, or the one in its module."""
    module_name, _, path = entry.value.partition(":")
    module = importlib.import_module(module_name.strip())
    found: Any = module
    for name in path.split("[")[0].strip().split("."):
        found = getattr(found, name, None)
        if isinstance(found, type) and issubclass(found, base):
            return found
    own = [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, base) and not _is_of_sdk(one)
    ]
    return own[0] if len(own) == 1 else None


def _is_of_sdk(one: type) -> bool:
    return one.__module__.split(".")[0] == _OURS_TO_TRUST


def _origin(one: type, method: str) -> Any:
    """Give the class in whose body a method is that a class has."""
    return next((base for base in one.__mro__ if method in vars(base)), None)


def _is_own(one: type, method: str) -> bool:
    origin = _origin(one, method)
    return origin is not None and not _is_of_sdk(origin)


def _readable(entry: Any) -> "tuple[list[str], str]":
    """Give the encodings that the target's sinks read, and why."""
    if util.find_spec(_OURS_TO_TRUST) is None:
        return [], "it is not made with the Singer SDK"
    from singer_sdk.sinks import BatchSink
    from singer_sdk.target_base import Target

    target = _target_class(entry, Target)
    if target is None:
        return [], "its target class was not found"
    sink = getattr(target, "default_sink_class", None)
    if _is_own(target, "get_sink_class") or not isinstance(sink, type):
        return [], "its sinks are chosen when it runs"
    return _readable_by(sink, BatchSink)


def _readable_by(sink: type, batch_sink: type) -> "tuple[list[str], str]":
    if _is_own(sink, "process_batch_files"):
        return ["jsonl+gzip"], f"{sink.__name__} reads BATCH files itself"
    if not hasattr(sink, "process_batch_files") or not issubclass(sink, batch_sink):
        return [], f"{sink.__name__} takes record by record and would lose BATCH messages"
    if _is_own(sink, "process_record"):
        return [], f"{sink.__name__} puts records elsewhere than where BATCH files go"
    encodings = ["jsonl+gzip", "jsonl+none"]
    if util.find_spec("pyarrow") is not None:
        encodings.append("parquet")
    return encodings, f"{sink.__name__} writes whole batches"


def _main(what: str, name: str) -> None:
    distribution, entry = _find(name)
    if entry is None:
        answer: Any = {"why": "no installed package has this command"}
    elif what == "version":
        answer = {"version": _version(distribution)}
    else:
        encodings, why = _readable(entry)
        stores = ["s3"] if util.find_spec("s3fs") is not None else []
        answer = {"encodings": encodings, "stores": stores, "why": why}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
