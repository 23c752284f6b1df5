"""Manifest files: their names and contents, and their verification.

A manifest file is the copy of a published manifest beside its part files. It is read as what
anybody may have written there: bounded, and as JSON alone.
"""

import json
from typing import Any

from batch_pipeline.model.errors import ManifestFileTakenError
from batch_pipeline.model.location import shown
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.status import PublishedBatch
from batch_pipeline.storage.filesystem import filesystem_of
from batch_pipeline.storage.verification import store_problem

_ORIGIN = "inventory"
_ENTRY_FACTS = ("uri", "records", "size_bytes", "sha256")
_MAX_ENTRY_BYTES = 2**13  # more than the entry of a part file takes
_MAX_REST_BYTES = 2**26  # a schema of some thousand columns, and the items of its origin


def manifest_file_text(manifest: Manifest) -> str:
    """Return a manifest as its file holds it: indented for people, but its origin in one line."""
    written = manifest.to_json()
    origin = written.pop(_ORIGIN, None)
    text = json.dumps(written, ensure_ascii=False, indent=2)
    if origin is None:
        return f"{text}\n"
    head, in_one_line = text.removesuffix("\n}"), json.dumps(origin, ensure_ascii=False)
    return f'{head},\n  "{_ORIGIN}": {in_one_line}\n}}\n'


def _parse_object(there: bytes) -> dict[str, Any] | None:
    """Return the values of a manifest file; None if it is not valid JSON, or nested too deep.

    JSON that is not an object has no values.
    """
    try:
        written = json.loads(there)
    except (ValueError, RecursionError):
        return None
    return written if isinstance(written, dict) else {}


def check_manifest_file(there: bytes, manifest: Manifest, uri: str) -> None:
    """Check that a manifest file, also one of another release, belongs to a manifest.

    Raises:
        ManifestFileTakenError: it is another attempt's, which an inventory never gives the same
            generation, unless it was restored from an older backup.
    """
    written = _parse_object(there)
    if written is None or written.get("token") != str(manifest.token):
        reason = (
            "the manifest file of another attempt has its name, as after a restore from an older "
            "backup; `batch-pipeline reconcile STREAM --discard` sets that file aside"
        )
        raise ManifestFileTakenError(uri, reason)


def manifest_file_problem(one: PublishedBatch) -> str | None:
    """Return what is wrong with the manifest file of a batch, None if nothing is.

    Raises:
        RetryableError: its store is unreachable now, or refuses.
    """
    if one.pointer_uri is None:
        return "its manifest file is not written yet; `batch-pipeline reconcile` writes it"
    place = shown(one.pointer_uri)
    most = _MAX_REST_BYTES + _MAX_ENTRY_BYTES * len((*one.part_files, *one.quarantine_files))
    try:
        with filesystem_of(one.pointer_uri).open(one.pointer_uri) as file:
            text = file.read(most + 1)
    except OSError as error:
        return store_problem(one.pointer_uri, error, "read")
    if len(text) > most:
        return f"{place} has more than {most:,} bytes, which no manifest file of this batch has"
    problem = _difference(text, one)
    return None if problem is None else f"{place} {problem}"


def _difference(text: bytes, one: PublishedBatch) -> str | None:
    written = _parse_object(text)
    if written is None:
        return "is not JSON"
    if written.get("token") != str(one.token):
        return "belongs to another attempt than the published one"
    if written.get("generation") != one.generation:
        return "has another generation"
    for key in ("part_files", "quarantine_files"):
        stated = [tuple(getattr(part, name) for name in _ENTRY_FACTS) for part in getattr(one, key)]
        if _entry_facts(written.get(key)) != stated:
            return f"has other {key} than the inventory"
    records = written.get("records")
    counted = records.get("written") if isinstance(records, dict) else None
    return None if counted == one.batch.written else "has other counters than the inventory"


def _entry_facts(entries: object) -> list[tuple[object, ...]]:
    """Return the facts of entries; keys that a later release may add are left out."""
    some = entries if isinstance(entries, list) else []
    values = [one if isinstance(one, dict) else {} for one in some]
    return [tuple(one.get(name) for name in _ENTRY_FACTS) for one in values]
