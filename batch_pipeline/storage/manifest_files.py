"""Manifest files: their names and contents, and those of a storage root listed and verified.

A manifest file is the copy of a published manifest beside its part files. It is read as what
anybody may have written there: bounded, and as JSON alone.
"""

import errno
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from batch_pipeline.model.batch import Attempt
from batch_pipeline.model.errors import ManifestFileTakenError, StorageUnavailableError
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.garbage import Folder
from batch_pipeline.model.location import join_uri, shown
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.manifest_file import (
    InventoryOlderError,
    ManifestUnfitError,
    UnknownManifests,
)
from batch_pipeline.model.published import PublishedBatch
from batch_pipeline.model.stream import Storage
from batch_pipeline.storage.errors import OTHER_VERSION, raise_as
from batch_pipeline.storage.filesystem import FileSystem, filesystem_of, no_facts
from batch_pipeline.storage.verification import store_problem

DISCARDED = "discarded"
_ORIGIN = "inventory"
_ENTRY_FACTS = ("uri", "records", "size_bytes", "sha256")
_MAX_ENTRY_BYTES = 2**13  # more than the entry of a part file takes
_MAX_REST_BYTES = 2**26  # a schema of some thousand columns, and the items of its origin


@dataclass(frozen=True, slots=True)
class ManifestFiles:
    """The folder `manifests` of a storage root."""

    storage: Storage

    @property
    def root(self) -> str:
        """The URI of the storage root."""
        return self.storage.root

    def names(self, start: str) -> Iterator[str]:
        """List the names that begin so; a root that is gone has none.

        Nothing is opened. Links and folders are left out.

        Raises:
            StorageUnavailableError: they cannot be listed.
        """
        # Writing to a root that is gone reports it.
        with self._unlisted(), suppress(FileNotFoundError, NotADirectoryError):
            for one in self._files.list(self._uri(start), recursive=False, facts_for=no_facts):
                if not one.is_link:
                    yield one.name

    def read(self, name: str, most: int) -> bytes:
        """Read a manifest file.

        Raises:
            ManifestUnfitError: it is not there, or has more bytes than `most`.
            StorageUnavailableError: it cannot be read.
        """
        with self._unlisted():
            try:
                with self._files.open(self._uri(name)) as file:
                    text = file.read(most + 1)
            except FileNotFoundError as error:
                raise ManifestUnfitError(name, "it is not there any more") from error
        if len(text) > most:
            raise ManifestUnfitError(name, f"it has more than {most} bytes")
        return text

    def set_aside(self, name: str, mark: str) -> bool:
        """Move a manifest file to `discarded/<mark>/manifests`; return whether it was there.

        Nothing is overwritten. The file is copied first, so that after a crash it may be in both
        places.

        Raises:
            StorageUnavailableError: it cannot be moved, or was written again, and stays.
        """
        source = self._uri(name)
        folder = join_uri(self.discarded(mark), Folder.MANIFESTS)
        with self._unlisted():
            try:
                pinned = self._files.pin(source)
                with pinned.open() as file:
                    text = file.read()
            except FileNotFoundError:
                return False
            self._files.make_folder(folder, parents=True)
            if not self._files.create_if_absent(join_uri(folder, name), text):
                raise FileExistsError(errno.EEXIST, "another file has its name there", source)
            self._files.sync_folder(folder)
            failpoint("discard.copied")
            try:
                if self._files.head(source) != pinned.facts:
                    raise FileExistsError(errno.EEXIST, OTHER_VERSION, source)
            except FileNotFoundError:
                return False  # another process moved it
            self._files.delete(source)
            self._files.sync_folder(self._uri(""))
        return True

    def discarded(self, mark: str) -> str:
        """Return the URI of the folder that a mark stands for."""
        return join_uri(self.root, f"{DISCARDED}/{mark}")

    @property
    def _files(self) -> FileSystem:
        return filesystem_of(self.root)

    def _uri(self, name: str) -> str:
        return join_uri(self.root, f"{Folder.MANIFESTS}/{name}")

    def _unlisted(self) -> AbstractContextManager[None]:
        return raise_as(partial(_unlisted, self._uri("")))


def _unlisted(uri: str, reason: str) -> StorageUnavailableError:
    text = (
        f"The manifests in {uri} cannot be looked at ({reason}), so nobody knows whether the "
        f"inventory is as new as they are. Nothing was planned. Make it readable, then try again."
    )
    return StorageUnavailableError(uri, reason, text)


def manifest_file_name(storage: Storage, job: str, key: str, generation: int) -> str:
    """Return the name of the manifest file of a generation of a batch, which is unique."""
    return f"{storage.prefix}{job}-{key}.g{generation}.json"


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


def already_there(attempt: Attempt, name: str, root: str) -> InventoryOlderError:
    """Return the error that the manifest file of an attempt is there before the attempt."""
    newer = UnknownManifests(stream=attempt.batch.job, jobs={name: attempt.batch.job})
    return InventoryOlderError.of(newer, root)


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
        return "is no JSON"
    if written.get("token") != str(one.token):
        return "belongs to another attempt than the published one"
    if written.get("generation") != one.generation:
        return "has another generation"
    for key, files in {
        "part_files": one.part_files,
        "quarantine_files": one.quarantine_files,
    }.items():
        stated = [tuple(getattr(part, name) for name in _ENTRY_FACTS) for part in files]
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
