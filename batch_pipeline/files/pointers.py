"""What a pointer file is called and what is in it. Nothing is written here."""

import json

from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.stream import Storage


def pointer_name(storage: Storage, manifest: Manifest) -> str:
    """Give the name of the pointer file of a manifest, which no other one has."""
    batch = f"{storage.prefix}{manifest.stream}-{manifest.batch.key}"
    return f"{batch}.g{manifest.generation}.json"


def pointer_text(manifest: Manifest) -> str:
    """Write a manifest as its pointer file holds it."""
    return json.dumps(manifest.to_json(), ensure_ascii=False, indent=2) + "\n"
