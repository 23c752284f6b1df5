"""`batch_config` as the documentation of the Singer SDK describes it, checked key by key.

Nothing is opened: whether a storage is there is found out by who writes to it.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batch_pipeline.domain.encoding import Compression, Format
from batch_pipeline.domain.errors import InvalidValueError

BATCH_SIZE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStorage:
    """Where BATCH files lie: a URL or path, the beginning of their names, fsspec's parameters."""

    root: str
    prefix: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """What BATCH files are, where they lie, and how many records one has at most."""

    format: Format = Format.JSONL
    compression: Compression | None = Compression.GZIP
    storage: BatchStorage | None = None
    batch_size: int = BATCH_SIZE


def read_batch_config(written: object) -> BatchConfig:
    """Read the value of `batch_config`.

    Raises:
        InvalidValueError: a key is not known, or has a value that it cannot have; names the key.
    """
    given = _object("batch_config", written, ("encoding", "storage", "batch_size"))
    size = given.get("batch_size", BATCH_SIZE)
    if type(size) is not int or size < 1:
        raise InvalidValueError("batch_config.batch_size", size, "a whole number of 1 or more")
    encoding = {"format": "jsonl", "compression": "gzip"}
    if given.get("encoding") is not None:
        encoding = _object("batch_config.encoding", given["encoding"], ("format", "compression"))
    storage = given.get("storage")
    compression = encoding.get("compression")
    return BatchConfig(
        format=Format(_one_of("format", encoding.get("format"), list(Format))),
        compression=None
        if compression is None
        else Compression(_one_of("compression", compression, list(Compression))),
        storage=None if storage is None else _storage(storage),
        batch_size=size,
    )


def _storage(written: object) -> BatchStorage:
    given = _object("batch_config.storage", written, ("root", "prefix", "params"))
    root, prefix, params = given.get("root"), given.get("prefix"), given.get("params")
    if not isinstance(root, str) or not root:
        raise InvalidValueError("batch_config.storage.root", root, "a URL or a path")
    if prefix is not None and not isinstance(prefix, str):
        raise InvalidValueError("batch_config.storage.prefix", prefix, "text")
    if params is not None and not isinstance(params, Mapping):
        raise InvalidValueError("batch_config.storage.params", params, "keys and values")
    return BatchStorage(root=root, prefix=prefix or "", params=dict(params or {}))


def _one_of(key: str, value: object, known: list[Any]) -> str:
    names = [str(one.value) for one in known]
    if not isinstance(value, str) or value not in names:
        expected = f"one of {', '.join(names)}"
        raise InvalidValueError(f"batch_config.encoding.{key}", value, expected)
    return value


def _object(name: str, written: object, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(written, Mapping):
        raise InvalidValueError(name, written, f"an object with {', '.join(known)}")
    for key in written:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            expected = f"no such key; did you mean {near[0]}?" if near else f"only {_list(known)}"
            raise InvalidValueError(f"{name}.{key}", written[key], expected)
    return dict(written)


def _list(known: tuple[str, ...]) -> str:
    return ", ".join(known)
