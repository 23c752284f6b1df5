"""What a pointer file is called and what is in it. Nothing is read or written here."""

import json

from batch_pipeline.domain.errors import PointerTakenError
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.stream import Storage


def pointer_name(storage: Storage, manifest: Manifest) -> str:
    """Give the name of the pointer file of a manifest, which no other one has."""
    batch = f"{storage.prefix}{manifest.stream}-{manifest.batch.key}"
    return f"{batch}.g{manifest.generation}.json"


def pointer_text(manifest: Manifest) -> str:
    """Write a manifest as its pointer file holds it."""
    return json.dumps(manifest.to_json(), ensure_ascii=False, indent=2) + "\n"


def check_pointer(there: bytes, manifest: Manifest, uri: str) -> None:
    """Check that a pointer file, also one that another release has written, is a manifest's.

    Raises:
        PointerTakenError: it is another attempt's, which an inventory never gives the same
            generation, unless it was restored from an older backup.
    """
    try:
        written = json.loads(there)
    except ValueError:
        written = None
    if not isinstance(written, dict) or written.get("token") != str(manifest.token):
        reason = (
            "the pointer file of another attempt has its name; if the inventory was restored from "
            "an older backup, move that file away"
        )
        raise PointerTakenError(uri, reason)
