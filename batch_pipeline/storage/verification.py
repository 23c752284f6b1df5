"""Verification of published part files: are they there, and are they what was published?

A store that is unreachable, or refuses, says nothing about its files: that is an error, not an
answer. Contents are read once, the end of a columnar file twice; memory is a block.
"""

import hashlib
import io
from dataclasses import dataclass
from typing import BinaryIO

from typing_extensions import Buffer

from batch_pipeline.model.encoding import PART_FORMATS, Compression, Format, format_of_file
from batch_pipeline.model.location import shown
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.storage.errors import part_file_unreachable, reason_of
from batch_pipeline.storage.filesystem import digest, filesystem_of, is_about_file
from batch_pipeline.storage.part_formats import table_codec
from batch_pipeline.storage.part_formats.jsonl import DECOMPRESSION_ERRORS, count_lines

_BLOCK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is in a file; `damage` says why its records cannot all be read.

    `records` is None with a damage, and if the name does not say how to read them.
    """

    sha256: str
    records: int | None = None
    damage: str | None = None


def read_contents(uri: str) -> Contents:
    """Read all bytes of a file or an object and count its records.

    Raises:
        InvalidValueError: the URI names neither.
        OSError: it is not there or cannot be read.
    """
    stated = format_of_file(uri)
    with filesystem_of(uri).open(uri) as file:
        hashing = _HashingReader(file)
        buffered = io.BufferedReader(hashing, _BLOCK)
        records, damage = None, None
        if stated is not None and not PART_FORMATS[stated[0]].is_columnar:
            records, damage = _count_lines(buffered, stated[1])
        while hashing.read(_BLOCK):
            pass  # what the reader of lines left
        if stated is not None and PART_FORMATS[stated[0]].is_columnar:
            file.seek(0)
            records, damage = _count_rows(file, stated[0])
        return Contents(sha256=hashing.sha256, records=records, damage=damage)


class _HashingReader(io.RawIOBase):
    """A file that hashes what is read of it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._sum = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._file.read(len(view))
        view[: len(data)] = data
        self._sum.update(data)
        return len(data)


def _count_lines(file: BinaryIO, compression: Compression) -> tuple[int | None, str | None]:
    try:
        return count_lines(file, compression), None
    except DECOMPRESSION_ERRORS as error:
        return None, str(error)


def _count_rows(file: BinaryIO, file_format: Format) -> tuple[int | None, str | None]:
    import pyarrow as pa  # 0.2 s

    try:
        return table_codec(file_format).count_rows(file), None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # an error of the system or the store; Arrow's own have no number
        return None, str(error).strip()


def size_problem(part: PartFile) -> str | None:
    """Return what is wrong with a file by its size alone; nothing is opened.

    A SHA-256 that the store knows is compared, too.

    Raises:
        RetryableError: its store is unreachable now, or refuses.
    """
    return _unopened_problem(part)[0]


def checksum_problem(part: PartFile) -> str | None:
    """Return what is wrong with a file by all of its bytes; memory is constant.

    Raises:
        RetryableError: its store is unreachable now, or refuses.
    """
    return size_problem(part) or _read_problem(part)


def verify_contents(part: PartFile) -> str | None:
    """Return what is wrong with a file by all of its bytes, and by the number of its records.

    Raises:
        RetryableError: its store is unreachable now, or refuses.
    """
    problem = size_problem(part)
    if problem is not None:
        return problem
    try:
        found = read_contents(part.uri)
    except OSError as error:
        return _unreadable(part, error)
    inside = None
    if found.damage is not None:
        inside = f"cannot be read to its end ({found.damage})"
    elif found.records is not None and found.records != part.records:
        inside = f"has other records: {found.records:,}, published: {part.records:,}"
    other = _sum_problem(part, found.sha256)
    if other is None:
        return None if inside is None else f"{shown(part.uri)} {inside}"
    return other if inside is None else f"{other}, and {inside}"


def content_problem(part: PartFile) -> str | None:
    """Return what is wrong with a file by all of its bytes, unless the store vouches for them.

    Raises:
        RetryableError: its store is unreachable now, or refuses.
    """
    problem, is_compared = _unopened_problem(part)
    return problem if problem is not None or is_compared else _read_problem(part)


def problem_before_reading(part: PartFile) -> str | None:
    """Return what is wrong with a file whose reader will compare its SHA-256 again.

    Nothing is fetched from a store for that.

    Raises:
        RetryableError: its store is unreachable now, or refuses.
    """
    return checksum_problem(part) if filesystem_of(part.uri).is_local else size_problem(part)


def _unopened_problem(part: PartFile) -> tuple[str | None, bool]:
    """Return what is wrong without opening it, and whether the SHA-256 was compared."""
    place = shown(part.uri)
    try:
        facts = filesystem_of(part.uri).head(part.uri, checksum=True)
    except FileNotFoundError:
        return f"{place} is missing", False
    except OSError as error:
        ensure_store_answered(part.uri, error)
        return f"{place} cannot be looked at ({reason_of(error)})", False
    if facts.size_bytes != part.size_bytes:
        problem = f"{place} has {facts.size_bytes:,} B, published: {part.size_bytes:,} B"
        return problem, False
    if facts.sha256 is None:
        return None, False
    return _sum_problem(part, facts.sha256), True


def _read_problem(part: PartFile) -> str | None:
    try:
        found = digest(part.uri)
    except OSError as error:
        return _unreadable(part, error)
    return _sum_problem(part, found)


def _unreadable(part: PartFile, error: OSError) -> str:
    ensure_store_answered(part.uri, error)
    return f"{shown(part.uri)} cannot be read ({reason_of(error)})"


def ensure_store_answered(uri: str, error: OSError) -> None:
    """Check that an error is about a file, and not about its whole store.

    Raises:
        RetryableError: its store is unreachable now, or refuses.
    """
    if not is_about_file(uri, error):
        raise part_file_unreachable(uri, reason_of(error)) from error


def _sum_problem(part: PartFile, found: str) -> str | None:
    if found == part.sha256:
        return None
    place = shown(part.uri)
    return f"{place} has the SHA-256 {found[:12]}…, {part.sha256[:12]}… was published"
