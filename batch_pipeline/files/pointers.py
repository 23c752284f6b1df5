"""What a pointer file is called and what is in it. Nothing is read or written here."""

import json
from typing import Any

from batch_pipeline.domain.batch import Attempt
from batch_pipeline.domain.errors import PointerTakenError
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.restored import InventoryOlderError, Newer
from batch_pipeline.domain.stream import Storage

_ORIGIN = "inventory"


def pointer_name(storage: Storage, job: str, key: str, generation: int) -> str:
    """Give the name of the pointer file of a generation of a batch, which no other one has."""
    return f"{storage.prefix}{job}-{key}.g{generation}.json"


def pointer_text(manifest: Manifest) -> str:
    """Write a manifest as its pointer file holds it: for people, but its origin in one line."""
    written = manifest.to_json()
    origin = written.pop(_ORIGIN, None)
    text = json.dumps(written, ensure_ascii=False, indent=2)
    if origin is None:
        return f"{text}\n"
    head, in_one_line = text.removesuffix("\n}"), json.dumps(origin, ensure_ascii=False)
    return f'{head},\n  "{_ORIGIN}": {in_one_line}\n}}\n'


def pointer_values(there: bytes) -> dict[str, Any] | None:
    """Read what anybody may have written as a pointer file; None where it is no JSON.

    JSON that is no object has no values; what is nested too deep to be read counts as no JSON.
    """
    try:
        written = json.loads(there)
    except (ValueError, RecursionError):
        return None
    return written if isinstance(written, dict) else {}


def check_pointer(there: bytes, manifest: Manifest, uri: str) -> None:
    """Check that a pointer file, also one that another release has written, is a manifest's.

    Raises:
        PointerTakenError: it is another attempt's, which an inventory never gives the same
            generation, unless it was restored from an older backup.
    """
    written = pointer_values(there)
    if written is None or written.get("token") != str(manifest.token):
        reason = (
            "the pointer file of another attempt has its name, as after a restore from an older "
            "backup; `batch-pipeline reconcile STREAM --discard` sets that file aside"
        )
        raise PointerTakenError(uri, reason)


def already_there(attempt: Attempt, name: str, root: str) -> InventoryOlderError:
    """Say that the manifest which an attempt is to make is there before it."""
    newer = Newer(stream=attempt.batch.job, jobs={name: attempt.batch.job})
    return InventoryOlderError.of(newer, root)
