"""Looks at pointer files of published batches: do they say what the inventory says?

A pointer file is read as what anybody may have written there: bounded, and as JSON alone.
"""

from batch_pipeline.domain.location import shown
from batch_pipeline.domain.manifest import PartFile
from batch_pipeline.domain.published import PublishedBatch
from batch_pipeline.files.looks import check_access
from batch_pipeline.files.pointers import pointer_values
from batch_pipeline.stores.failures import reason_of
from batch_pipeline.stores.reading import open_uri

_BYTES_OF_FILE = 2**13  # more than an entry of a file takes
_BYTES_OF_REST = 2**26  # a schema of some thousand columns, and the items of its origin


def pointer_problem(one: PublishedBatch) -> str | None:
    """Say what is wrong with the pointer file of a batch.

    Raises:
        PartFileUnreachableError: its store cannot be asked now, or refuses.
    """
    if one.pointer_uri is None:
        return "its pointer file is not written yet; `batch-pipeline reconcile` writes it"
    place = shown(one.pointer_uri)
    most = _BYTES_OF_REST + _BYTES_OF_FILE * len((*one.part_files, *one.quarantine_files))
    try:
        with open_uri(one.pointer_uri) as file:
            text = file.read(most + 1)
    except FileNotFoundError:
        return f"{place} is missing"
    except OSError as error:
        check_access(one.pointer_uri, error)
        return f"{place} cannot be read ({reason_of(error)})"
    if len(text) > most:
        return f"{place} has more than {most:,} bytes, which no pointer file of this batch has"
    problem = _difference(text, one)
    return None if problem is None else f"{place} {problem}"


def _difference(text: bytes, one: PublishedBatch) -> str | None:
    written = pointer_values(text)
    if written is None:
        return "is no JSON"
    if written.get("token") != str(one.token):
        return "is not of the attempt that is published"
    if written.get("generation") != one.generation:
        return "tells another generation"
    for key, files in (
        ("part_files", one.part_files),
        ("quarantine_files", one.quarantine_files),
    ):
        if _told(written.get(key)) != [_fact(part) for part in files]:
            return f"tells other {key} than the inventory"
    records = written.get("records")
    told = records.get("written") if isinstance(records, dict) else None
    return None if told == one.batch.written else "tells other counters than the inventory"


def _fact(part: PartFile) -> tuple[object, ...]:
    return part.uri, part.records, part.size_bytes, part.sha256


def _told(entries: object) -> list[tuple[object, ...]]:
    """Give the facts of entries; keys that a later release may add are left out."""
    names = ("uri", "records", "size_bytes", "sha256")
    some = entries if isinstance(entries, list) else []
    return [tuple(one.get(name) for name in names) if isinstance(one, dict) else () for one in some]
