"""The text of a new stream file: the usual keys, each with a comment that says what to change."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from batch_pipeline.config.stream_attributes import alternatives
from batch_pipeline.config.units import format_bytes
from batch_pipeline.model.encoding import Format

_PLAIN = re.compile(r"[A-Za-z0-9_./:+-]+", re.ASCII)
_NOTES = {
    "stream": "what its assets and its BATCH messages are called",
    "source.uri": "the folder where files land: a path, relative to this file, or file:///…",
    "source.include": "patterns of file names, such as orders-*.csv",
    "source.exclude": "patterns of file names that are left out",
    "source.format": "csv, jsonl, json, parquet, avro; auto looks into each file",
    "source.options": "how text files are written",
    "batch.max_weight": "size of a batch's files together; a heavier file is a batch of its own",
    "batch.max_count": "files in a batch",
    "key_properties": "columns that together identify a record",
    "encoding.format": alternatives(Format),
    "storage.root": "where the encoded files are written",
}
_USUAL: dict[str, Any] = {
    "source": {"include": ["*"]},
    "batch": {"max_weight": 64 * 2**20, "max_count": 100},
    "key_properties": [],
    "encoding": {"format": "jsonl", "compression": "gzip"},
}
_ORDER = ("stream", "source", "batch", "key_properties", "encoding", "storage", "on_bad_record")
_SECTIONS = {"source": ("uri", "include", "exclude", "format", "options")}


def stream_text(
    component: str,
    attributes: Mapping[str, Any],
    *,
    notes: Mapping[str, str] | None = None,
    heading: Sequence[str] = (),
) -> str:
    """Write a stream file: the keys given, and the usual ones that are not.

    `notes` are comments by dotted key, instead of the usual ones or beside keys that have none;
    `heading` are lines of a comment above the attributes.
    """
    comments = _NOTES | dict(notes or {})
    both = {key: _merged(_USUAL.get(key), attributes.get(key)) for key in _ORDER}
    lines = [f"type: {component}", "", *(f"# {_line(one)}" for one in heading), "attributes:"]
    for key, value in both.items():
        if value is None:
            continue
        if not isinstance(value, Mapping):
            lines.append(f"  {key}: {_written(value)}{_comment(comments, key)}")
            continue
        lines.append(f"  {key}:{_comment(comments, key)}")
        names = _SECTIONS.get(key, tuple(value))
        for name in (one for one in names if one in value):
            written = _size(value[name]) if name == "max_weight" else _written(value[name])
            lines.append(f"    {name}: {written}{_comment(comments, f'{key}.{name}')}")
    return "\n".join(lines) + "\n"


def _merged(usual: Any, given: Any) -> Any:
    if isinstance(usual, Mapping) and isinstance(given, Mapping):
        return {**usual, **given}
    return usual if given is None else given


def _comment(comments: Mapping[str, str], key: str) -> str:
    return f"  # {_line(comments[key])}" if key in comments else ""


def _line(text: str) -> str:
    """Keep a comment to its line, and to characters that YAML takes."""
    return "".join(one if one.isprintable() else " " for one in text)


def _written(value: Any) -> str:
    if isinstance(value, str):
        return _scalar(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(json.dumps(one, ensure_ascii=False) for one in value) + "]"
    return json.dumps(value)


def _size(size_bytes: int) -> str:
    return format_bytes(size_bytes).replace(" ", "")


def _scalar(word: str) -> str:
    is_plain = _PLAIN.fullmatch(word) and yaml.safe_load(word) == word
    return word if is_plain else json.dumps(word, ensure_ascii=False)
