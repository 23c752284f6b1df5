"""Configuration of the target, and the interfaces of landings.

`read_config` validates Singer's config and rejects unknown keys. `StreamLandings` maps a stream to
its `StreamLanding`.
"""

import os
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from batch_pipeline.model.encoding import PART_FORMATS, Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, did_you_mean
from batch_pipeline.model.location import (
    S3_SCHEMES,
    Roots,
    as_s3,
    scheme_of,
    split_object,
    to_path,
    to_uri,
)
from batch_pipeline.model.record_rules import ReadLimits
from batch_pipeline.model.stream import STREAM_NAME, SourceFormat
from batch_pipeline.singer.parser import (
    MAX_LINE_BYTES,
    SINGER_FORMATS,
)

if TYPE_CHECKING:
    from batch_pipeline.inventory.meta_tables.own_table import OwnMetaTable

# Errors of reading a config file, which the SDK parses with `simplejson`.
CONFIG_READ_ERRORS: tuple[type[Exception], ...] = (
    FileNotFoundError,
    import_module("simplejson").JSONDecodeError,
)
_KEYS: dict[str, tuple[Any, str]] = {
    "home": ("string", "Home folder (default: BATCH_PIPELINE_HOME, else .batch_pipeline)."),
    "streams_folder": (
        "string",
        "Folder of stream files (default: BATCH_PIPELINE_STREAMS, else streams).",
    ),
    "inventory_conn": (
        "string",
        "Postgres URL of the inventory (default: BATCH_PIPELINE_INVENTORY_CONN, else embedded).",
    ),
    "landing_root": (
        "string",
        "Folder of landings for streams without a file (default: landing below the home folder).",
    ),
    "create_streams": (
        "boolean",
        "Write a stream file for a Singer stream that has none (default true).",
    ),
    "stream_names": ("object", "Maps Singer streams to streams here, where the names differ."),
    "format": ("string", "Files that RECORDs are written to: jsonl (default) or parquet."),
    "compression": (
        "string",
        "jsonl: gzip (default), zstd or none; parquet: snappy (default), zstd, gzip or none.",
    ),
    "max_records": ("integer", "Maximum records per file (default 100000)."),
    "max_bytes": ("integer", "Maximum bytes per file before compression (default 134217728)."),
    "max_age_seconds": ("number", "Maximum age of an open file, in seconds (default 300)."),
    "max_line_bytes": (
        "integer",
        "Maximum length of a line of input or of a BATCH file, in bytes (default 67108864).",
    ),
    "batch_files": (
        "string",
        "Files of BATCH messages: register (default; where they lie) or copy (into the landing).",
    ),
    "max_expansion": (
        "integer",
        "Maximum expansion ratio of a BATCH file, checked from 64 MiB on (default 250).",
    ),
    "batch_roots": (
        "array",
        "Folders and s3://bucket/prefix where files of BATCH messages may be; / allows any file.",
    ),
    "batch_config": (
        "object",
        "storage.root: where this process finds the files of BATCH messages.",
    ),
}
CONFIG_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        key: {"type": [kind, "null"], "description": text} for key, (kind, text) in _KEYS.items()
    },
}
CONFIG_SCHEMA["properties"]["inventory_conn"]["secret"] = True
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME_LENGTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of a file that records are written to."""

    max_records: int = 100_000
    max_bytes: int = 128 * 2**20
    max_age_seconds: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """The validated configuration of the target. Folders are absolute."""

    home: Path | None = None
    streams_folder: Path | None = None
    inventory_conn: str | None = field(default=None, repr=False)
    landing_root: Path | None = None
    create_streams: bool = True
    stream_names: Mapping[str, str] = field(default_factory=dict)
    encoding: Encoding
    bounds: Bounds = field(default_factory=Bounds)
    max_line_bytes: int = MAX_LINE_BYTES
    max_expansion: int = 250
    batch_roots: Roots = field(default_factory=lambda: Roots(uris=(), key="batch_roots"))
    copies_batch_files: bool = False
    batch_root: str | None = None  # `storage.root` of `batch_config`


def read_config(written: Mapping[str, Any], known: Mapping[str, Any]) -> TargetConfig:
    """Validate the config; `known` are all allowed keys, including those of the SDK.

    Raises:
        ConfigurationError: a key is unknown or has an invalid value; the message names the key.
    """
    settings = {key: value for key, value in written.items() if value is not None}
    for key in settings:
        if key not in known:
            raise _unknown_key(key, key, known)
    batch_files = settings.get("batch_files", "register")
    if batch_files not in ("register", "copy"):
        raise InvalidValueError("batch_files", batch_files, "register or copy")
    return TargetConfig(
        home=_path(settings, "home"),
        streams_folder=_path(settings, "streams_folder"),
        inventory_conn=settings.get("inventory_conn"),
        landing_root=_path(settings, "landing_root"),
        create_streams=_flag(settings, "create_streams", default=True),
        stream_names=_stream_names(settings.get("stream_names", {})),
        encoding=_encoding(settings),
        bounds=_bounds(settings),
        max_line_bytes=_count(settings, "max_line_bytes", MAX_LINE_BYTES),
        max_expansion=_count(settings, "max_expansion", ReadLimits().max_expansion),
        batch_roots=_roots(settings),
        copies_batch_files=batch_files == "copy",
        batch_root=read_batch_config(settings.get("batch_config", {})),
    )


def _encoding(settings: Mapping[str, Any]) -> Encoding:
    named = settings.get("format", "jsonl")
    if named not in SINGER_FORMATS:
        raise InvalidValueError("format", named, " or ".join(SINGER_FORMATS))
    compression = settings.get("compression", PART_FORMATS[Format(named)].compressions[0])
    if compression not in list(Compression):
        raise InvalidValueError("compression", compression, ", ".join(Compression))
    return Encoding(format=Format(named), compression=Compression(compression))


def _bounds(settings: Mapping[str, Any]) -> Bounds:
    default = Bounds()
    records = _count(settings, "max_records", default.max_records)
    age = settings.get("max_age_seconds", default.max_age_seconds)
    if not _is_positive(age):
        raise InvalidValueError("max_age_seconds", age, "a number of seconds, such as 300")
    return Bounds(
        max_records=min(records, _count(settings, "batch_size_rows", records)),
        max_bytes=_count(settings, "max_bytes", default.max_bytes),
        max_age_seconds=float(age),
    )


def _is_positive(value: object) -> bool:
    """Return whether a value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False
    try:
        return isfinite(value) and value > 0
    except (ArithmeticError, ValueError):  # too large, or a signaling NaN
        return False


def _count(settings: Mapping[str, Any], key: str, default: int) -> int:
    value = settings.get(key, default)
    if type(value) is not int or value < 1:
        raise InvalidValueError(key, value, "a whole number of 1 or more")
    return value


def _flag(settings: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = settings.get(key, default)
    if not isinstance(value, bool):
        raise InvalidValueError(key, value, "true or false")
    return value


def _path(settings: Mapping[str, Any], key: str) -> Path | None:
    value = settings.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise InvalidValueError(key, value, "a path")
    if scheme_of(value):
        expected = "a local path; only a stream file with `source.uri: s3://…` lands in a bucket"
        raise InvalidValueError(key, value, expected)
    return _absolute(key, value)


def read_batch_config(written: object) -> str | None:
    """Validate the value of `batch_config` and return its `storage.root`.

    Raises:
        InvalidValueError: a key is unknown or has an invalid value; the message names the key.
    """
    key = "batch_config"
    settings = _object(key, written, ("encoding", "storage", "batch_size"))
    _count({f"{key}.batch_size": settings.get("batch_size", 1)}, f"{key}.batch_size", 1)
    if settings.get("encoding") is not None:
        name = f"{key}.encoding"
        encoding = _object(name, settings["encoding"], ("format", "compression"))
        _check(f"{name}.format", encoding.get("format"), Format)
        if encoding.get("compression") is not None:
            _check(f"{name}.compression", encoding["compression"], Compression)
    if settings.get("storage") is None:
        return None
    name = f"{key}.storage"
    storage = _object(name, settings["storage"], ("root", "prefix", "params"))
    root, prefix, params = storage.get("root"), storage.get("prefix"), storage.get("params")
    if not isinstance(root, str) or not root:
        raise InvalidValueError(f"{name}.root", root, "a URL or a path")
    if prefix is not None and not isinstance(prefix, str):
        raise InvalidValueError(f"{name}.prefix", prefix, "text")
    if params is not None and not isinstance(params, Mapping):
        raise InvalidValueError(f"{name}.params", params, "keys and values")
    return root if scheme_of(root) else str(_absolute(f"{name}.root", root))


def _object(name: str, written: object, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(written, Mapping):
        raise InvalidValueError(name, written, f"an object with {', '.join(known)}")
    for key in written:
        if key not in known:
            raise _unknown_key(f"{name}.{key}", key, known)
    return written


def _unknown_key(name: str, key: object, known: Collection[str]) -> ConfigurationError:
    """Build the error without the value, which may be a secret under a mistyped key."""
    meant = did_you_mean(key, known) or f" Known keys: {', '.join(known)}."
    return ConfigurationError(
        f"`{name}` is not a key of the target's config.{meant} Nothing was read from the tap. "
        f"Correct or remove the key."
    )


def _check(name: str, value: object, known: type[StrEnum]) -> None:
    if not isinstance(value, str) or value not in set(known):
        raise InvalidValueError(name, value, f"one of {', '.join(known)}")


def _roots(settings: Mapping[str, Any]) -> Roots:
    key, written = "batch_roots", settings.get("batch_roots", [])
    if not isinstance(written, list | tuple):
        raise InvalidValueError(key, written, "a list of folders and of s3://bucket/prefix")
    return Roots(uris=tuple(_root(key, root) for root in written), key=key)


def _root(key: str, written: object) -> str:
    expected = "a folder or s3://bucket/prefix"
    if not isinstance(written, str) or not written:
        raise InvalidValueError(key, written, expected)
    try:
        if scheme_of(written) in S3_SCHEMES:
            split_object(as_s3(written))
            return as_s3(written).rstrip("/")
        path = Path(to_path(written)) if scheme_of(written) else _absolute(key, written)
        return to_uri(os.path.normpath(path.absolute()))
    except InvalidValueError as error:
        shown_value = "a text with an @" if "@" in written else written  # it may hold a password
        # An error under another name concerns the path itself, not this setting.
        expected_form = error.expected if error.name == key else expected
        raise InvalidValueError(key, shown_value, expected_form) from error


def _absolute(key: str, written: str) -> Path:
    """Return the absolute path; `~` and `~user` are home folders of this machine."""
    try:
        path = Path(written).expanduser().absolute()
    except RuntimeError as error:
        expected = "an absolute path such as /data/here, or one whose ~ names a user here"
        raise InvalidValueError(key, written, expected) from error
    try:
        to_uri(path)
    except (InvalidValueError, UnicodeEncodeError) as error:
        raise InvalidValueError(key, written, "a path that a folder can have") from error
    return path


def _stream_names(written: object) -> dict[str, str]:
    if not isinstance(written, Mapping):
        raise InvalidValueError("stream_names", written, "Singer stream to stream here")
    for name, value in written.items():
        if not isinstance(value, str) or not value:
            raise InvalidValueError(f"stream_names.{name}", value, "the name of a stream")
    return dict(written)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedStream:
    """A stream as its SCHEMA describes it; `name` is the tap's name after stream maps."""

    name: str
    schema: Mapping[str, Any]
    key_properties: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLanding:
    """The landing of a stream, the meta table that lists its files, and the accepted format.

    `stream` is the name of the stream that the files feed, `root` the URI of a folder or key
    prefix.
    """

    stream: str
    root: str
    format: SourceFormat
    registry: "OwnMetaTable"


class StreamLandings(Protocol):
    """The landings of all streams."""

    def landing_of(self, stream: AnnouncedStream) -> StreamLanding:
        """Return the landing of a stream; create it if there is none.

        Raises:
            ConfigurationError: the landing does not accept the stream or cannot be created.
        """
        ...

    def close(self) -> None:
        """Release opened resources."""
        ...


def stream_name(name: str) -> str:
    """Return the pipeline's name for a Singer stream: unchanged if it is valid."""
    if STREAM_NAME.fullmatch(name):
        return name
    plain = _INVALID_CHARACTERS.sub("_", name).lstrip(".-")[:_MAX_NAME_LENGTH] or "stream"
    return f"{plain}-{zlib.crc32(name.encode('utf-8', 'surrogatepass')):08x}"


def unusable_landing(stream: str, problem: str) -> ConfigurationError:
    """Build the error for a stream whose stream file has no landing for a tap's records."""
    return ConfigurationError(
        f"The stream {stream!r} {problem}. Nothing was landed. Change its stream "
        f"file, or name another stream for it in `stream_names` of the target."
    )
