"""What a file of a storage root is, told by its folder and its name alone: the inverse of the names
that encoding and publishing give. Nothing is listed here, and whose a file is others decide.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from batch_pipeline.domain.encoding import SUFFIXES
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.partition_key import parse_partition_key

_BATCH = r"(?P<head>[A-Za-z0-9_][A-Za-z0-9_.-]*)-(?P<key>[0-9]{12,19}-[0-9]{12,19})"
_STEM = rf"{_BATCH}-a(?P<number>[1-9][0-9]{{0,17}})-(?P<token>[0-9a-f]{{8}})"
_PART = rf"{_STEM}-[0-9]{{8,}}-[0-9a-f]{{8}}\.(?:{'|'.join(map(re.escape, sorted(SUFFIXES)))})"
_FINISHED = re.compile(_PART)
_UNFINISHED = re.compile(rf"\.{_PART}\.tmp")
_STOP_MARK = re.compile(rf"\.{_STEM}-[0-9a-f]{{8}}\.stop")
_POINTER_TEXT = rf"{_BATCH}\.g(?P<generation>[1-9][0-9]{{0,17}})\.json"
_POINTER = re.compile(_POINTER_TEXT)
_UNFINISHED_POINTER = re.compile(rf"\.{_POINTER_TEXT}-[0-9a-f]{{32}}\.tmp")
_PROBE = re.compile(r"\.probe-[0-9a-f]{32}")


class Folder(StrEnum):
    """Where in a storage root a file lies."""

    ROOT = ""
    QUARANTINE = "quarantine"
    MANIFESTS = "manifests"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a storage root as it was listed."""

    folder: Folder
    name: str
    size_bytes: int
    modified_at: datetime

    @property
    def path(self) -> str:
        """Its place below the storage root."""
        return f"{self.folder}/{self.name}" if self.folder else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFile:
    """What the name of a part file, a quarantine file or a stop mark says, finished or not.

    `head` is the prefix of the storage and the name of the job, `token` the first 8 digits of that
    of the attempt.
    """

    head: str
    ids: IdRange
    number: int
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerFile:
    """What the name of a pointer file says; `finished` tells it from one that is being written."""

    head: str
    ids: IdRange
    generation: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """A file that only showed that the storage can be written."""


Named = AttemptFile | PointerFile | Probe


def hidden_name(name: str) -> str:
    """Give the name that a file has while it is written."""
    return f".{name}.tmp"


def shown_name(hidden: str) -> str | None:
    """Give the name that a file gets once it is written; None of one that is not hidden so."""
    is_hidden = hidden.startswith(".") and hidden.endswith(".tmp")
    return hidden[1:-4] if is_hidden else None


def parse_name(folder: Folder, name: str) -> Named | None:
    """Tell what a file is by its name; None for everything that is not written here."""
    patterns: Sequence[re.Pattern[str]] = (_FINISHED, _UNFINISHED)
    if folder is Folder.MANIFESTS:
        patterns = (_POINTER, _UNFINISHED_POINTER)
    elif folder is Folder.ROOT:
        if _PROBE.fullmatch(name):
            return Probe()
        patterns = (_FINISHED, _UNFINISHED, _STOP_MARK)
    match = next(filter(None, (pattern.fullmatch(name) for pattern in patterns)), None)
    if match is None:
        return None
    try:
        ids = parse_partition_key(match["key"])
    except InvalidValueError:
        return None
    if folder is Folder.MANIFESTS:
        generation, finished = int(match["generation"]), not name.startswith(".")
        return PointerFile(head=match["head"], ids=ids, generation=generation, finished=finished)
    number = int(match["number"])
    return AttemptFile(head=match["head"], ids=ids, number=number, token=match["token"])
