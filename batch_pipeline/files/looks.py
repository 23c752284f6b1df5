"""Looks at part files that are published: are they there, and are they what was published?

A store that cannot be asked now, or refuses, says nothing about its files: no answer but an error.
"""

from batch_pipeline.domain.errors import PartFileUnreachableError
from batch_pipeline.domain.location import is_object, shown
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.files.contents import read_contents
from batch_pipeline.stores.checksums import look_with_sum
from batch_pipeline.stores.copies import digest
from batch_pipeline.stores.failures import reason_of, tells_of_file


def size_problem(part: PartFile) -> str | None:
    """Say what is wrong with a file by its size alone; nothing is opened.

    Where a store tells the SHA-256 of an object, that is compared, too.

    Raises:
        PartFileUnreachableError: its store cannot be asked now, or refuses.
    """
    return _told_problem(part)[0]


def checksum_problem(part: PartFile) -> str | None:
    """Say what is wrong with a file by all of its bytes; memory is constant.

    Raises:
        PartFileUnreachableError: its store cannot be asked now, or refuses.
    """
    return size_problem(part) or _read_problem(part)


def deep_problem(part: PartFile) -> str | None:
    """Say what is wrong with a file by all of its bytes, and by the records that are in it.

    Raises:
        PartFileUnreachableError: its store cannot be asked now, or refuses.
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
    """Say what is wrong with a file by all of its bytes, without fetching what a store vouches for.

    Raises:
        PartFileUnreachableError: its store cannot be asked now, or refuses.
    """
    problem, is_compared = _told_problem(part)
    return problem if problem is not None or is_compared else _read_problem(part)


def problem_before_reading(part: PartFile) -> str | None:
    """Say what is wrong with a file that whoever reads it compares with its SHA-256 once more.

    Of an object nothing is fetched for that.

    Raises:
        PartFileUnreachableError: its store cannot be asked now, or refuses.
    """
    return size_problem(part) if is_object(part.uri) else checksum_problem(part)


def _told_problem(part: PartFile) -> tuple[str | None, bool]:
    """Say what is wrong by what can be known unopened, and whether that was the SHA-256."""
    place = shown(part.uri)
    try:
        facts, kept_sum = look_with_sum(part.uri)
    except FileNotFoundError:
        return f"{place} is missing", False
    except OSError as error:
        check_access(part.uri, error)
        return f"{place} cannot be looked at ({reason_of(error)})", False
    if facts.size_bytes != part.size_bytes:
        problem = f"{place} has {facts.size_bytes:,} B, published: {part.size_bytes:,} B"
        return problem, False
    if kept_sum is None:
        return None, False
    return _sum_problem(part, kept_sum), True


def _read_problem(part: PartFile) -> str | None:
    try:
        found = digest(part.uri)
    except OSError as error:
        return _unreadable(part, error)
    return _sum_problem(part, found)


def _unreadable(part: PartFile, error: OSError) -> str:
    check_access(part.uri, error)
    return f"{shown(part.uri)} cannot be read ({reason_of(error)})"


def check_access(uri: str, error: OSError) -> None:
    """Check that an error tells of a file, and not of a store as a whole.

    Raises:
        PartFileUnreachableError: its store cannot be asked now, or refuses.
    """
    if is_object(uri) and not tells_of_file(error):
        raise PartFileUnreachableError(uri, reason_of(error)) from error


def _sum_problem(part: PartFile, found: str) -> str | None:
    if found == part.sha256:
        return None
    place = shown(part.uri)
    return f"{place} has the SHA-256 {found[:12]}…, {part.sha256[:12]}… was published"
