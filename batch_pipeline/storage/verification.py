"""Verification of published files: do they exist, and do they match what was published?

A store that is unreachable or refuses access says nothing about its files: that raises an error and
is not a result. Contents are read once, the end of a columnar file twice; memory use is one block.
"""

import hashlib
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Buffer

from batch_pipeline.model.encoding import PART_FORMATS, Format, format_of_file
from batch_pipeline.model.errors import RetryableError
from batch_pipeline.model.location import shown
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.status import PublishedBatch
from batch_pipeline.storage.filesystem import (
    FileFacts,
    digest,
    filesystem_of,
    is_about_file,
    local_file,
    reason_of,
)
from batch_pipeline.storage.part_formats import table_codec
from batch_pipeline.storage.part_formats.jsonl import DECOMPRESSION_ERRORS, count_lines
from batch_pipeline.storage.part_storage import parse_manifest_object

_BLOCK = 2**20


class UnusablePartError(Exception):
    """A part file that is missing or differs from what was published; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a file; `damage` says why not all of its records can be read.

    `records` is None if the file is damaged, or if its name does not say how to read it.
    """

    sha256: str
    records: int | None = None
    damage: str | None = None


def read_contents(uri: str) -> Contents:
    """Read all bytes of a file or an object and count its records.

    Raises:
        InvalidValueError: the URI does not name a file or an object.
        OSError: it does not exist or cannot be read.
    """
    stated = format_of_file(uri)
    is_columnar = stated is not None and PART_FORMATS[stated[0]].is_columnar
    records, damage = None, None
    with filesystem_of(uri).open(uri) as file:
        hashing = _HashingReader(file)
        if stated is not None and not is_columnar:
            try:
                records = count_lines(io.BufferedReader(hashing, _BLOCK), stated[1])
            except DECOMPRESSION_ERRORS as error:
                damage = str(error)
        while hashing.read(_BLOCK):
            pass  # the bytes that counting lines left unread
        if stated is not None and is_columnar:
            file.seek(0)
            records, damage = _count_rows(file, stated[0])
    return Contents(sha256=hashing.sum.hexdigest(), records=records, damage=damage)


def _count_rows(file: BinaryIO, file_format: Format) -> tuple[int | None, str | None]:
    import pyarrow as pa  # 0.2 s

    try:
        return table_codec(file_format).count_rows(file), None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # an error of the system or the store; Arrow's own errors have no errno
        return None, str(error).strip()


class _HashingReader(io.RawIOBase):
    """A file that hashes the bytes that are read from it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.sum = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._file.read(len(view))
        view[: len(data)] = data
        self.sum.update(data)
        return len(data)


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
    if facts.sha256 is not None:
        return None
    try:
        return _sum_problem(part, digest(part.uri))
    except OSError as error:
        return store_problem(part.uri, error, "read")


def problem_before_reading(part: PartFile) -> str | None:
    """Return what is wrong with a file whose reader will compare its SHA-256 again.

    No content is fetched from a store.

    Raises:
        RetryableError: its store is unreachable now, or refuses access.
    """
    return content_problem(part) if filesystem_of(part.uri).is_local else size_problem(part)


@contextmanager
def verified_file(part: PartFile) -> Iterator[Path]:
    """Provide a path where a part file with its published SHA-256 can be read.

    Raises:
        UnusablePartError: it is missing, cannot be read, or has another SHA-256.
        RetryableError: its store is unreachable now, or refuses access.
    """
    with ExitStack() as copy:
        try:
            path = copy.enter_context(local_file(part.uri))
            with path.open("rb") as file:
                problem = _sum_problem(part, hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            problem = store_problem(part.uri, error, "read")
        if problem is not None:
            raise UnusablePartError(problem)
        yield path


def verify_contents(part: PartFile) -> str | None:
    """Return what is wrong with a file, judged by all of its bytes and its number of records.

    Raises:
        RetryableError: its store is unreachable now, or refuses access.
    """
    problem = size_problem(part)
    if problem is not None:
        return problem
    try:
        contents = read_contents(part.uri)
    except OSError as error:
        return store_problem(part.uri, error, "read")
    other, inside = _sum_problem(part, contents.sha256), None
    if contents.damage is not None:
        inside = f"cannot be read to its end ({contents.damage})"
    elif contents.records is not None and contents.records != part.records:
        inside = f"has a record count of {contents.records:,}, published: {part.records:,}"
    if inside is None:
        return other
    return f"{shown(part.uri)} {inside}" if other is None else f"{other}, and {inside}"


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
