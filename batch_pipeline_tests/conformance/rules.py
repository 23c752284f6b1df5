"""What a consumer of BATCH messages may rely on, as rules that tell each line that breaks one.

Nothing here knows the product: facts beyond the Singer SDK's keys are looked at where they are.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from batch_pipeline_tests.conformance.files import packing, path_of, records
from batch_pipeline_tests.conformance.producer import Producer, parsed

_ENCODING_KEYS = {"format", "compression"}


def broken_rules(lines: Sequence[bytes], json_schema: Any = None) -> list[str]:
    """Give what lines break, each with its number; with a JSON Schema every line has to fit it."""
    return [f"line {number}: {problem}" for number, problem in _problems(lines, json_schema)]


def broken_resume(producer: Producer) -> list[str]:
    """Give after which STATE a second run does not give exactly the BATCH messages that follow."""
    whole, sent = parsed(producer.lines()), 0
    batches = [one for one in whole if one["type"] == "BATCH"]
    problems: list[str] = []
    for message in whole:
        sent += message["type"] == "BATCH"
        if message["type"] == "STATE":
            rest = parsed(producer.lines(message["value"]), "BATCH")
            if rest != batches[sent:]:
                problems.append(f"after batch {sent}: {len(rest)} of {len(batches) - sent} come")
    return problems


def _problems(lines: Sequence[bytes], json_schema: Any) -> Iterator[tuple[int, str]]:
    validator = None if json_schema is None else Draft202012Validator(json_schema)
    schemas: dict[str, Mapping[str, Any]] = {}
    unsaid: int | None = None
    for number, line in enumerate(lines, start=1):
        try:
            message = json.loads(line)
            kind = message["type"]
        except (ValueError, TypeError, KeyError) as error:
            yield number, f"is no message ({error!r})"
            continue
        if not line.endswith(b"\n"):
            yield number, "has no end"
        if validator is not None:
            yield from ((number, error.message) for error in validator.iter_errors(message))
        if kind == "SCHEMA":
            schemas[message["stream"]] = message
        elif kind == "STATE":
            unsaid = None
        elif kind in {"BATCH", "RECORD"} and message["stream"] not in schemas:
            yield number, f"{kind} before the SCHEMA of {message['stream']}"
        elif kind == "BATCH":
            if unsaid is not None:
                yield number, f"no STATE after the BATCH of line {unsaid}"
            unsaid = number
            problems = _of_batch(message, schemas[message["stream"]])
            yield from ((number, problem) for problem in problems)
    if unsaid is not None:
        yield len(lines), f"no STATE after the BATCH of line {unsaid}"


def _of_batch(message: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    encoding, manifest = message["encoding"], message["manifest"]
    if strange := encoding.keys() - _ENCODING_KEYS:
        yield f"encoding has the keys {sorted(strange)}, which the SDK refuses"
    count = size = 0
    for place, uri in enumerate(manifest):
        if not uri.startswith("file:///"):
            yield f"{uri} is not absolute"
        elif not path_of(uri).is_file():
            yield f"{uri} is not there, as a path that nothing is decoded in"
        else:
            data = path_of(uri).read_bytes()
            size += len(data)
            if "sha256" in message and hashlib.sha256(data).hexdigest() != message["sha256"][place]:
                yield f"{uri} has another SHA-256"
            found, label = packing(data, encoding["format"]), encoding.get("compression") or "none"
            if found not in (label, "unknown"):
                yield f"{uri} is {found}, and its label {label}"
                continue
            held = records(data, encoding["format"], label)
            count += len(held)
            yield from _of_records(held, schema)
    for name, found_there in (("record_count", count), ("bytes", size)):
        if message.get(name, found_there) != found_there:
            yield f"{name} is {message[name]}, and the files have {found_there}"


def _of_records(held: list[dict[str, Any]], schema: Mapping[str, Any]) -> Iterator[str]:
    strange = {name for record in held for name in record} - schema["schema"]["properties"].keys()
    if strange:
        yield f"records have {sorted(strange)}, which the SCHEMA has not"
    for key in schema["key_properties"]:
        if any(record.get(key) is None for record in held):
            yield f"records have no {key}, which is a key"
