"""Garbage collection rules: identify a file in a storage root, decide whether it may be deleted.

`parse_name` is the inverse of the file names that encoding and publishing create. `classify`
decides from the file, the known attempts and the retention of the stream. Files are listed and
deleted in `pipeline.collect_garbage`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from batch_pipeline.model.batch import AttemptStatus, IdRange, parse_partition_key
from batch_pipeline.model.encoding import SUFFIXES
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.stream import Storage, Stream

_BATCH = r"(?P<head>[A-Za-z0-9_][A-Za-z0-9_.-]*)-(?P<key>[0-9]{8,19}-[0-9]{8,19})"
_STEM = rf"{_BATCH}-a(?P<number>[1-9][0-9]{{0,17}})-(?P<token>[0-9a-f]{{8}})"
_PART = rf"{_STEM}-[0-9]{{8,}}-[0-9a-f]{{8}}\.(?:{'|'.join(map(re.escape, sorted(SUFFIXES)))})"
_FINISHED = re.compile(_PART)
_UNFINISHED = re.compile(rf"\.{_PART}\.tmp")
_STOP_MARK = re.compile(rf"\.{_STEM}-[0-9a-f]{{8}}\.stop")
_MANIFEST_FILE_TEXT = rf"{_BATCH}\.g(?P<generation>[1-9][0-9]{{0,17}})\.json"
_MANIFEST_FILE = re.compile(_MANIFEST_FILE_TEXT)
_UNFINISHED_MANIFEST_FILE = re.compile(rf"\.{_MANIFEST_FILE_TEXT}-[0-9a-f]{{32}}\.tmp")
_PROBE = re.compile(r"\.probe-[0-9a-f]{32}")


class Folder(StrEnum):
    """Folders of a storage root."""

    ROOT = ""
    QUARANTINE = "quarantine"
    MANIFESTS = "manifests"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """Listed file of a storage root."""

    folder: Folder
    name: str
    size_bytes: int
    modified_at: datetime

    @property
    def path(self) -> str:
        """Return the path below the storage root."""
        return f"{self.folder}/{self.name}" if self.folder else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFile:
    """Parsed name of a part file, quarantine file or stop mark, finished or not.

    `head` is the prefix of the storage and the name of the job, `token` the first 8 digits of the
    attempt's token.
    """

    head: str
    ids: IdRange
    number: int
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """Parsed name of a manifest file; not `finished` while it is being written."""

    head: str
    ids: IdRange
    generation: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Probe:
    """Empty file that was written to test the storage."""


ParsedName = AttemptFile | ManifestFile | Probe


def hidden_name(name: str) -> str:
    """Return the name of a file while it is being written."""
    return f".{name}.tmp"


def shown_name(hidden: str) -> str | None:
    """Return the final name of a file that is being written, None for other names."""
    is_hidden = hidden.startswith(".") and hidden.endswith(".tmp")
    return hidden[1:-4] if is_hidden else None


def parse_name(folder: Folder, name: str) -> ParsedName | None:
    """Parse a file name; return None for files that this product does not write."""
    patterns: Sequence[re.Pattern[str]] = (_FINISHED, _UNFINISHED)
    if folder is Folder.MANIFESTS:
        patterns = (_MANIFEST_FILE, _UNFINISHED_MANIFEST_FILE)
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
        return ManifestFile(head=match["head"], ids=ids, generation=generation, finished=finished)
    number = int(match["number"])
    return AttemptFile(head=match["head"], ids=ids, number=number, token=match["token"])


SHORTEST_GRACE = timedelta(hours=24)
LEASES_OF_GRACE = 10
UNKNOWN_FOR = timedelta(days=7)

FILES_REMOVED_AT = "files_removed_at"  # fact of an attempt: when its files were marked for deletion
QUARANTINE_REMOVED_AT = "quarantine_removed_at"  # the same for quarantine files only


class Reason(StrEnum):
    """Reasons why a file is garbage."""

    UNPUBLISHED = "unpublished"  # the attempt ended without publishing
    UNLISTED = "unlisted"  # the attempt is published, but its manifest does not list the file
    SUPERSEDED = "superseded"  # replaced by a newer generation, retention is over
    LOADED = "loaded"  # loaded into all targets, retention is over
    QUARANTINED = "quarantined"  # quarantine file, retention is over
    TEMPORARY = "temporary"  # a probe or an unfinished manifest file
    UNKNOWN = "unknown"  # of no known attempt: deleted on request only


OF_GENERATIONS = frozenset(  # marked before the deletion
    {Reason.SUPERSEDED, Reason.LOADED, Reason.QUARANTINED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAttempt:
    """Attempt as recorded in the inventory; times are those of the database clock.

    `replaced_at` is the time a newer generation of the batch was published. `unread` states that a
    downstream job has not read it yet. `acknowledged` has the load time of each target that still
    contains it; `held` states that it is being loaded or its stream is paused. `marked` states that
    its files are already marked for deletion, `quarantine_marked` that its quarantine files are.
    `file_names` are the names that its manifest lists.
    """

    id: int
    job: str
    stream: str | None
    ids: IdRange
    number: int
    token: UUID
    status: AttemptStatus
    lease: timedelta
    ended_at: datetime | None = None
    generation: int | None = None
    replaced_at: datetime | None = None
    unread: bool = False
    acknowledged: Mapping[str, datetime] = field(default_factory=dict)
    held: bool = False
    marked: bool = False
    quarantine_marked: bool = False
    file_names: frozenset[str] = frozenset()

    def loaded_at(self, targets: Collection[str]) -> datetime | None:
        """Return the time of the last load into the targets, None unless all have loaded it."""
        if not targets or not self.acknowledged.keys() >= set(targets):
            return None
        return max(self.acknowledged[target] for target in targets)

    def is_over(self, now: datetime) -> bool:
        """Return whether it ended long enough ago that its process cannot still be writing."""
        if self.status is AttemptStatus.RUNNING or self.ended_at is None:
            return False
        return now - self.ended_at > self._grace

    def is_past(self, since: datetime | None, keep: timedelta | None, now: datetime) -> bool:
        """Return whether a retention period that began at `since` is over."""
        return since is not None and keep is not None and now - since > max(keep, self._grace)

    @property
    def _grace(self) -> timedelta:
        return max(LEASES_OF_GRACE * self.lease, SHORTEST_GRACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Stream whose garbage is collected.

    `jobs` are its job names by the prefix of their files, without prefixes that another stream of
    the same storage root could have. Probes belong to no stream: `takes_probes` is set for one
    stream per root. `targets` are the current targets of the stream.
    """

    stream: str
    storage: Storage
    targets: frozenset[str]
    jobs: Mapping[str, str]
    takes_probes: bool

    @classmethod
    def of(
        cls, stream: Stream, others: Iterable[Stream], jobs: Mapping[str, Iterable[str]]
    ) -> "Owner":
        """Build the owner; `others` are all streams, `jobs` the known job names by stream."""
        beside = [
            other
            for other in others
            if other.name != stream.name and other.storage.root == stream.storage.root
        ]
        mine = _heads(stream, jobs)
        taken = {head for other in beside for head in _heads(other, jobs)}
        return cls(
            stream=stream.name,
            storage=stream.storage,
            targets=frozenset(target.name for target in stream.targets),
            jobs={head: job for head, job in mine.items() if head not in taken},
            takes_probes=all(stream.name < other.name for other in beside),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """File that may be deleted, the reason, and the attempts to mark before the deletion."""

    file: StoredFile
    reason: Reason
    attempt_ids: tuple[int, ...] = ()


def classify(
    file: StoredFile, named: ParsedName, known: Sequence[KnownAttempt], owner: Owner, now: datetime
) -> Garbage | None:
    """Return the file as garbage of a stream with the reason, or None if it must be kept.

    `known` are the attempts of any stream that the name may refer to; `now` is the database time.
    """
    age = now - file.modified_at
    if age <= SHORTEST_GRACE:
        return None  # a process may still be writing it
    reason: Reason | None
    if isinstance(named, Probe):
        reason = Reason.TEMPORARY if owner.takes_probes and not file.size_bytes else None
    elif isinstance(named, ManifestFile) and named.head not in owner.jobs:
        reason = None
    elif isinstance(named, ManifestFile) and not named.finished:
        reason = Reason.TEMPORARY
    elif not known:
        reason = Reason.UNKNOWN if named.head in owner.jobs and age > UNKNOWN_FOR else None
    elif isinstance(named, ManifestFile):
        reasons = {_of_generation(one, owner, now) for one in known}
        reason = Reason.LOADED if Reason.LOADED in reasons else Reason.SUPERSEDED
        reason = None if None in reasons else reason
    else:
        known = [one for one in known if (one.ids, one.number) == (named.ids, named.number)]
        reason = _of_attempt(file, named, known, owner, now)
    if reason is None:
        return None
    marked = tuple(one.id for one in known) if reason in OF_GENERATIONS else ()
    return Garbage(file=file, reason=reason, attempt_ids=marked)


def _of_attempt(
    file: StoredFile, named: AttemptFile, known: Sequence[KnownAttempt], owner: Owner, now: datetime
) -> Reason | None:
    """Return why a file of a finished attempt is garbage, None if it is not."""
    if len(known) != 1:  # tokens with the same prefix
        return None
    (one,) = known
    is_mine = one.stream == owner.stream and named.head == owner.storage.prefix + one.job
    if not is_mine or not one.is_over(now):
        return None
    if one.status is not AttemptStatus.SUCCEEDED:
        return Reason.UNPUBLISHED
    if file.name not in one.file_names:
        return Reason.UNLISTED
    reason = _of_generation(one, owner, now)
    if reason is None and file.folder is Folder.QUARANTINE:
        keep = owner.storage.keep_quarantine
        is_due = one.quarantine_marked or one.is_past(one.ended_at, keep, now)
        return Reason.QUARANTINED if is_due else None
    return reason


def _of_generation(one: KnownAttempt, owner: Owner, now: datetime) -> Reason | None:
    """Return why the files of a published generation may be deleted, None if they may not."""
    storage = owner.storage
    if one.marked:  # an earlier deletion was interrupted
        return Reason.LOADED if one.replaced_at is None else Reason.SUPERSEDED
    if one.unread or not one.is_over(now):
        return None
    if one.is_past(one.replaced_at, storage.keep_superseded, now):
        return Reason.SUPERSEDED
    is_due = one.is_past(one.loaded_at(owner.targets), storage.keep_loaded, now)
    return Reason.LOADED if is_due and not one.held else None


def _heads(stream: Stream, jobs: Mapping[str, Iterable[str]]) -> dict[str, str]:
    names = {stream.name, *jobs.get(stream.name, ())}
    return {stream.storage.prefix + name: name for name in names}
