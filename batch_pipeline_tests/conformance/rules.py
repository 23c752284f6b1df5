"""Rules for producers of BATCH messages; each line that breaks a rule is reported.

This module uses no product code. Manifests may only contain `file://` URIs, whose paths are not
decoded, as in the Singer SDK.
"""

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jsonschema import Draft202012Validator
from pyarrow.dataset import dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A command line that accepts `--state FILE` and prints Singer messages."""

    command: Sequence[str]
    environment: Mapping[str, str]

    def lines(self, state: Mapping[str, Any] | None = None) -> list[bytes]:
        """Run the command, which must succeed, and return its output lines."""
        with tempfile.TemporaryDirectory() as folder:
            command = list(self.command)
            if state is not None:
                file = Path(folder) / "state.json"
                file.write_text(json.dumps(state), encoding="utf-8")
                command += ["--state", str(file)]
            completed = subprocess.run(
                command,
                cwd=folder,
                env=dict(self.environment),
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=600,
                check=False,
            )
        assert completed.returncode == 0, completed.stderr.decode()
        return completed.stdout.splitlines(keepends=True)


def parsed(lines: Sequence[bytes], kind: str | None = None) -> list[dict[str, Any]]:
    """Parse lines as messages; keep those of one kind, if given."""
    messages = [json.loads(line) for line in lines]
    return [message for message in messages if kind in (None, message["type"])]


_ENCODING_KEYS = {"format", "compression"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd", b"PA": "parquet", b"AR": "arrow", b"OR": "orc"}


def broken_rules(lines: Sequence[bytes], json_schema: Any = None) -> list[str]:
    """Return each broken rule with its line; with a JSON Schema, every line must conform to it."""
    return [f"line {number}: {problem}" for number, problem in _problems(lines, json_schema)]


def broken_resume(producer: Producer, lines: Sequence[bytes], *, every: int = 1) -> list[str]:
    """Return each STATE of a whole run after which another run does not send exactly the rest.

    Only the first one of `every` states is tried.
    """
    batches, sent = parsed(lines, "BATCH"), 0
    states: list[tuple[int, Any]] = []
    for message in parsed(lines):
        sent += message["type"] == "BATCH"
        if message["type"] == "STATE":
            states.append((sent, message["value"]))
    problems: list[str] = []
    for sent, state in states[::every]:
        rest = parsed(producer.lines(state), "BATCH")
        if rest != batches[sent:]:
            expected = len(batches) - sent
            problems.append(f"after batch {sent}: sent {len(rest)} batches, not {expected}")
    return problems


def _problems(lines: Sequence[bytes], json_schema: Any) -> Iterator[tuple[int, str]]:
    validator = None if json_schema is None else Draft202012Validator(json_schema)
    schemas: dict[str, Mapping[str, Any]] = {}
    batch_line: int | None = None  # of the last BATCH, until its STATE
    for number, line in enumerate(lines, start=1):
        try:
            message = json.loads(line)
            kind = message["type"]
        except (ValueError, TypeError, KeyError) as error:
            yield number, f"is not a message ({error!r})"
            continue
        if not line.endswith(b"\n"):
            yield number, "has no line ending"
        if validator is not None:
            yield from ((number, error.message) for error in validator.iter_errors(message))
        if kind == "SCHEMA":
            schemas[message["stream"]] = message
        elif kind == "STATE":
            batch_line = None
        elif kind in {"BATCH", "RECORD"} and message["stream"] not in schemas:
            yield number, f"{kind} before the SCHEMA of {message['stream']}"
        elif kind == "BATCH":
            if batch_line is not None:
                yield number, f"no STATE after the BATCH of line {batch_line}"
            batch_line = number
            problems = _batch_problems(message, schemas[message["stream"]])
            yield from ((number, problem) for problem in problems)
    if batch_line is not None:
        yield len(lines), f"no STATE after the BATCH of line {batch_line}"


def _batch_problems(message: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    encoding, manifest = message["encoding"], message["manifest"]
    if unknown := encoding.keys() - _ENCODING_KEYS:
        yield f"encoding has the keys {sorted(unknown)}, which the SDK rejects"
    format_, declared = encoding["format"], encoding.get("compression") or "none"
    count = size = 0
    for number, uri in enumerate(manifest):
        path = Path(uri.removeprefix("file://"))
        if not uri.startswith("file:///"):
            yield f"{uri} is not absolute"
        elif not path.is_file():
            yield f"{uri} does not exist (its path is not decoded)"
        else:
            size += path.stat().st_size
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if "sha256" in message and digest != message["sha256"][number]:
                yield f"{uri} has a different SHA-256"
            with path.open("rb") as file:
                actual = _MAGIC.get(file.read(2), "none")
            expected = declared if format_ == "jsonl" else format_
            if actual != expected:
                yield f"{uri} is {actual}, declared as {expected}"
                continue
            codec = _parquet_codec(path) if format_ == "parquet" else None
            if codec not in (None, declared):
                yield f"{uri} is {format_} with {codec}, declared with {declared}"
            records = _records(path, format_, declared)
            count += len(records)
            yield from _record_problems(records, schema)
    for name, total in (("record_count", count), ("bytes", size)):
        if message.get(name, total) != total:
            yield f"{name} is {message[name]}, but the files have {total}"


def _record_problems(records: list[dict[str, Any]], schema: Mapping[str, Any]) -> Iterator[str]:
    unknown = {key for record in records for key in record} - schema["schema"]["properties"].keys()
    if unknown:
        yield f"records have {sorted(unknown)}, which are not in the SCHEMA"
    for key in schema["key_properties"]:
        if any(record.get(key) is None for record in records):
            yield f"records lack the key property {key}"


def _parquet_codec(path: Path) -> str | None:
    """Return the compression of the first column of a parquet file; None without rows."""
    metadata = pq.read_metadata(path)
    if not metadata.num_row_groups:
        return None
    codec = str(metadata.row_group(0).column(0).compression).lower()
    return "none" if codec == "uncompressed" else codec


def _records(path: Path, file_format: str, compression: str) -> list[dict[str, Any]]:
    if file_format != "jsonl":
        return list(dataset(path, format=file_format).to_table().to_pylist())
    with pa.input_stream(path, compression=None if compression == "none" else compression) as file:
        return [json.loads(line) for line in file.read().splitlines()]
