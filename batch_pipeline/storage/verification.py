"""Verification of published files: do they exist, and do they match what was published?

A store that is unreachable or refuses access says nothing about its files: that raises an error and
is not a result. Contents are read once; memory use is constant.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from batch_pipeline.model.errors import RetryableError
from batch_pipeline.model.location import shown
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.status import PublishedBatch
from batch_pipeline.storage.filesystem import (
    FileFacts,
    digest,
    filesystem_of,
    is_about_file,
    reason_of,
)
from batch_pipeline.storage.local import local_file
from batch_pipeline.storage.part_storage import parse_manifest_object


class UnusablePartError(Exception):
    """A part file that is missing or differs from what was published; the text says why."""


def size_problem(part: PartFile) -> str | None:
    """Return what is wrong with a file, judged by its size; the file is not opened.

    A SHA-256 that the store knows is compared, too.

    Raises:
        RetryableError: its store is unreachable now, or refuses access.
    """
    facts = _facts(part)
    return facts if isinstance(facts, str) else None


def content_problem(part: PartFile) -> str | None:
    """Return what is wrong with a file's bytes, without reading them if the store has a SHA-256.

    Memory use is constant.

    Raises:
        RetryableError: its store is unreachable now, or refuses access.
    """
    facts = _facts(part)
    if isinstance(facts, str):
        return facts
    return _read_problem(part) if facts.sha256 is None else None


def problem_before_reading(part: PartFile) -> str | None:
    """Return what is wrong with a file whose reader will compare its SHA-256 again.

    No content is fetched from a store.

    Raises:
        RetryableError: its store is unreachable now, or refuses access.
    """
    return content_problem(part) if filesystem_of(part.uri).is_local else size_problem(part)


@contextmanager
def verified_file(part: PartFile, folder: Callable[[], Path] | None = None) -> Iterator[Path]:
    """Provide a path where a part file with its published SHA-256 can be read.

    A temporary copy is created below the folder that `folder` returns, and is not deleted there.

    Raises:
        UnusablePartError: it is missing, cannot be read, or has another SHA-256.
        RetryableError: its store is unreachable now, or refuses access.
    """
    with ExitStack() as copy:
        try:
            path = copy.enter_context(local_file(part.uri, folder=folder))
            with path.open("rb") as file:
                problem = _sum_problem(part, hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            problem = store_problem(part.uri, error, "read")
        if problem is not None:
            raise UnusablePartError(problem)
        yield path


def verify_contents(part: PartFile) -> str | None:
    """Return what is wrong with a file, judged by its size and by reading all of its bytes.

    Memory use is constant. Records are not counted: published bytes determine them.

    Raises:
        RetryableError: its store is unreachable now, or refuses access.
    """
    return size_problem(part) or _read_problem(part)


def store_problem(uri: str, error: OSError, verb: str) -> str:
    """Return what is wrong with a file that cannot be read or accessed, as `verb` says.

    Raises:
        RetryableError: the error is not about the file: its store is unreachable now, or refuses
            access.
    """
    if isinstance(error, FileNotFoundError):
        return f"{shown(uri)} is missing"
    if not is_about_file(uri, error):
        raise RetryableError(
            f"The part file {uri} cannot be read now ({reason_of(error)}). Nothing "
            f"indicates damage; no batch was marked as sent or loaded. Run again when the store "
            f"can be reached."
        ) from error
    return f"{shown(uri)} cannot be {verb} ({reason_of(error)})"


def _facts(part: PartFile) -> FileFacts | str:
    """Return the facts of a file, or what is wrong with it without opening it."""
    try:
        facts = filesystem_of(part.uri).head(part.uri, checksum=True)
    except OSError as error:
        return store_problem(part.uri, error, "accessed")
    if facts.size_bytes != part.size_bytes:
        size = f"{facts.size_bytes:,} B, published: {part.size_bytes:,} B"
        return f"{shown(part.uri)} has {size}"
    return (facts.sha256 and _sum_problem(part, facts.sha256)) or facts


def _read_problem(part: PartFile) -> str | None:
    """Return what is wrong with the bytes of a file, which are read."""
    try:
        return _sum_problem(part, digest(part.uri))
    except OSError as error:
        return store_problem(part.uri, error, "read")


def _sum_problem(part: PartFile, sha256: str) -> str | None:
    if sha256 == part.sha256:
        return None
    sums = f"{sha256[:12]}…, {part.sha256[:12]}… was published"
    return f"{shown(part.uri)} has the SHA-256 {sums}"


_ENTRY_FACTS = ("uri", "records", "size_bytes", "sha256")
_MAX_ENTRY_BYTES = 2**13  # more than the entry of a part file takes
_MAX_REST_BYTES = 2**26  # a schema of some thousand columns, and the items of its origin


def manifest_file_problem(one: PublishedBatch) -> str | None:
    """Return what is wrong with the manifest file of a batch, None if nothing is.

    Raises:
        RetryableError: its store is unreachable now, or refuses access.
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
    written = parse_manifest_object(text)
    if written is None:
        return "is not JSON"
    if written.get("token") != str(one.token):
        return "belongs to an attempt other than the published one"
    if written.get("generation") != one.generation:
        return "has another generation"
    for key in ("part_files", "quarantine_files"):
        stated = [tuple(getattr(part, name) for name in _ENTRY_FACTS) for part in getattr(one, key)]
        if _entry_facts(written.get(key)) != stated:
            return f"has other {key} than the inventory"
    records = written.get("records")
    counted = records.get("written") if isinstance(records, dict) else None
    return None if counted == one.batch.written else "has counters that differ from the inventory's"


def _entry_facts(entries: object) -> list[tuple[object, ...]]:
    """Return the facts of entries; keys that a later release may add are left out."""
    some = entries if isinstance(entries, list) else []
    values = [one if isinstance(one, dict) else {} for one in some]
    return [tuple(one.get(name) for name in _ENTRY_FACTS) for one in values]
