"""Configuration of the target, and the landings of streams.

The Singer SDK validates a config by `CONFIG_SCHEMA`; `read_config` also rejects unknown keys and
values that no schema can describe. A `StreamLanding` is where the records of a stream land.
"""

import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batch_pipeline.model.encoding import PART_FORMATS, Compression, Encoding, Format
from batch_pipeline.model.errors import ConfigurationError, InvalidValueError, did_you_mean, require
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
from batch_pipeline.model.stream import STREAM_NAME, PartLimits, SourceFormat
from batch_pipeline.singer.parser import SINGER_FORMATS
from batch_pipeline.singer.plugin import BATCH_CONFIG, PIPELINE_SETTINGS, setting

if TYPE_CHECKING:
    from batch_pipeline.inventory.meta_tables.own_table import OwnMetaTable

CONFIG_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **PIPELINE_SETTINGS,
        "landing_root": setting(
            "string",
            "Folder of landings for streams without a file (default: landing below the home "
            "folder).",
        ),
        "create_streams": setting(
            "boolean", "Write a stream file for a Singer stream that has none (default true)."
        ),
        "stream_names": setting(
            "object",
            "Maps Singer streams to streams here, where the names differ.",
            additionalProperties={"type": "string", "minLength": 1},
        ),
        "format": setting(
            "string", "Files that RECORDs are written to: jsonl (default) or parquet."
        ),
        "compression": setting(
            "string",
            "jsonl: gzip (default), zstd or none; parquet: snappy (default), zstd, gzip or none.",
        ),
        "max_records": setting("integer", "Maximum records per file (default 100000)."),
        "max_bytes": setting(
            "integer", "Maximum bytes per file before compression (default 134217728)."
        ),
        "max_age_seconds": setting(  # the SDK passes environment variables of numbers as text
            "number string", "Maximum age of an open file, in seconds (default 300)."
        ),
        "max_line_bytes": setting(
            "integer",
            "Maximum length of a line of input or of a BATCH file, in bytes (default 67108864).",
        ),
        "batch_files": setting(
            "string",
            "Files of BATCH messages: register (default; where they lie) or copy (into the "
            "landing).",
        ),
        "max_expansion": setting(
            "integer",
            "Maximum expansion ratio of a BATCH file, checked from 64 MiB on (default 250).",
        ),
        "batch_roots": setting(
            "array",
            "Folders and s3://bucket/prefix where files of BATCH messages may be; / allows any "
            "file.",
            items={"type": "string"},
        ),
        "batch_config": setting(
            "object",
            "storage.root: where this process finds the files of BATCH messages.",
            **BATCH_CONFIG,
        ),
    },
}
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME_LENGTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds(PartLimits):
    """The limits of a file that records are written to."""

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
    read_limits: ReadLimits = field(default_factory=ReadLimits)
    batch_roots: Roots = field(default_factory=lambda: Roots(uris=(), key="batch_roots"))
    copies_batch_files: bool = False
    batch_root: str | None = None  # `storage.root` of `batch_config`


def read_config(written: Mapping[str, Any], known: Mapping[str, Any]) -> TargetConfig:
    """Read a config that fits `CONFIG_SCHEMA`; `known` are all keys, including those of the SDK.

    Raises:
        ConfigurationError: a key is unknown or has an invalid value; the message names the key.
    """
    settings = {key: value for key, value in written.items() if value is not None}
    for key in settings:
        if key not in known:
            # Without the value, which may be a secret under a mistyped key.
            meant = did_you_mean(key, known) or f" Known keys: {', '.join(known)}."
            raise ConfigurationError(
                f"`{key}` is not a key of the target's config.{meant} Nothing was read from the "
                f"tap. Correct or remove the key."
            )
    batch_files = settings.get("batch_files", "register")
    require(batch_files in ("register", "copy"), "batch_files", batch_files, "register or copy")
    method = settings.get("load_method", "append-only")
    require(method == "append-only", "load_method", method, "append-only: files are only added")
    names = settings.get("stream_names", {})
    for stream, name in names.items():
        pattern = f"to match {STREAM_NAME.pattern}"
        require(STREAM_NAME.fullmatch(name), f"stream_names.{stream}", name, pattern)
    default = ReadLimits()
    return TargetConfig(
        home=_path(settings, "home"),
        streams_folder=_path(settings, "streams_folder"),
        inventory_conn=settings.get("inventory_conn"),
        landing_root=_path(settings, "landing_root"),
        create_streams=settings.get("create_streams", True),
        stream_names=names,
        encoding=_encoding(settings),
        bounds=_bounds(settings),
        read_limits=ReadLimits(
            max_record_bytes=_count(settings, "max_line_bytes", default.max_record_bytes),
            max_expansion=_count(settings, "max_expansion", default.max_expansion),
        ),
        batch_roots=Roots(
            uris=tuple(_root(root) for root in settings.get("batch_roots", ())), key="batch_roots"
        ),
        copies_batch_files=batch_files == "copy",
        batch_root=_batch_root((settings.get("batch_config") or {}).get("storage")),
    )


def _encoding(settings: Mapping[str, Any]) -> Encoding:
    named = settings.get("format", "jsonl")
    require(named in SINGER_FORMATS, "format", named, " or ".join(SINGER_FORMATS))
    compression = settings.get("compression", PART_FORMATS[Format(named)].compressions[0])
    require(compression in list(Compression), "compression", compression, ", ".join(Compression))
    return Encoding(format=Format(named), compression=Compression(compression))


def _bounds(settings: Mapping[str, Any]) -> Bounds:
    default = Bounds()
    records = _count(settings, "max_records", default.max_records)
    return Bounds(
        max_records=min(records, _count(settings, "batch_size_rows", records)),
        max_bytes=_count(settings, "max_bytes", default.max_bytes),
        max_age_seconds=_seconds(settings.get("max_age_seconds", default.max_age_seconds)),
    )


def _seconds(value: float | Decimal | str) -> float:
    with suppress(ArithmeticError, ValueError):  # too large, a signaling NaN, or other text
        if 0 < (seconds := float(value)) < inf:
            return seconds
    raise InvalidValueError("max_age_seconds", value, "a number of seconds, such as 300")


def _count(settings: Mapping[str, Any], key: str, default: int) -> int:
    value = settings.get(key, default)
    require(type(value) is int and value >= 1, key, value, "a whole number of 1 or more")
    return int(value)


def _path(settings: Mapping[str, Any], key: str) -> Path | None:
    value = settings.get(key)
    if value is None:
        return None
    require(value, key, value, "a path")
    expected = "a local path; only a stream file with `source.uri: s3://…` lands in a bucket"
    require(not scheme_of(value), key, value, expected)
    return _absolute(key, value)


def _batch_root(storage: Mapping[str, Any] | None) -> str | None:
    """Return `storage.root` of `batch_config`, with an absolute path if it is local."""
    if storage is None:
        return None
    key = "batch_config.storage.root"
    root: Any = storage.get("root")
    require(root, key, root, "a URL or a path")
    return root if scheme_of(root) else str(_absolute(key, root))


def _root(written: str) -> str:
    key, expected = "batch_roots", "a folder or s3://bucket/prefix"
    require(written, key, written, expected)
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
