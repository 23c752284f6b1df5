"""Which file of a storage root is garbage, judged by its name, its age and what is known of its
attempt. Pure rules: nothing is listed, read or deleted here, and what no rule recognises is kept.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from batch_pipeline.domain.batch import AttemptStatus
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.stored_file import (
    AttemptFile,
    Folder,
    Named,
    PointerFile,
    StoredFile,
)
from batch_pipeline.domain.stream import Storage, Stream

SHORTEST_GRACE = timedelta(hours=24)
LEASES_OF_GRACE = 10
UNKNOWN_FOR = timedelta(days=7)

FILES_REMOVED_AT = "files_removed_at"  # a fact of an attempt: when its files were given up
QUARANTINE_REMOVED_AT = "quarantine_removed_at"  # the same of quarantine files alone


class Reason(StrEnum):
    """Why a file is garbage."""

    UNPUBLISHED = "unpublished"  # its attempt ended and published nothing
    UNLISTED = "unlisted"  # its attempt is published, and the manifest does not list it
    SUPERSEDED = "superseded"  # a newer generation took its place, long enough ago
    LOADED = "loaded"  # all targets of its stream have it, long enough
    QUARANTINED = "quarantined"  # records set aside, of a generation that stays, long enough ago
    TEMPORARY = "temporary"  # a probe, or a pointer file that was never finished
    UNKNOWN = "unknown"  # no attempt of the inventory wrote it: deleted on request only


OF_GENERATIONS = frozenset(  # marked first
    {Reason.SUPERSEDED, Reason.LOADED, Reason.QUARANTINED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """When the files of a generation were marked for deletion, which follows at once."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAttempt:
    """What the inventory says of an attempt; times are those of the database's clock.

    `replaced_at` is when a newer generation of its batch was published. `unread` tells that a job
    which goes on from what this one publishes has not read it yet. `acknowledged` has the time at
    which each target has got it and still has it; `held` tells that it is being loaded, or that its
    stream is paused. `given_up` tells that its files were to go before, `quarantine_given_up` that
    those of quarantine were. `file_names` are those that its manifest lists.
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
    given_up: bool = False
    quarantine_given_up: bool = False
    file_names: frozenset[str] = frozenset()

    def loaded_at(self, targets: Collection[str]) -> datetime | None:
        """Give when the last of targets got it; None unless there are some and all have it."""
        if not targets or not self.acknowledged.keys() >= set(targets):
            return None
        return max(self.acknowledged[target] for target in targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The stream whose garbage is looked for.

    `jobs` are names of its jobs by how names of their files begin, without what could be another
    stream's of the same storage root. Probes belong to a root: one of its streams takes them.
    `targets` are those that the stream has now.
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
        """Tell a stream from others; `jobs` are names of known jobs by stream."""
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
    """A file that may go, why, and for one of a generation the attempts that are marked before."""

    file: StoredFile
    reason: Reason
    attempt_ids: tuple[int, ...] = ()


def judge(
    file: StoredFile, named: Named, known: Sequence[KnownAttempt], owner: Owner, now: datetime
) -> Garbage | None:
    """Tell whether a file is garbage of a stream, and why; None means that it stays.

    `known` are the attempts, of whatever stream, that the name can mean; `now` is the database's.
    """
    if now - file.modified_at <= SHORTEST_GRACE:
        return None  # whoever writes it may still be at it
    if isinstance(named, AttemptFile):
        return _of_attempt(file, named, known, owner, now)
    if isinstance(named, PointerFile):
        return _of_pointer(file, named, known, owner, now)
    is_probe = owner.takes_probes and not file.size_bytes
    return Garbage(file=file, reason=Reason.TEMPORARY) if is_probe else None


def _of_attempt(
    file: StoredFile,
    named: AttemptFile,
    known: Sequence[KnownAttempt],
    owner: Owner,
    now: datetime,
) -> Garbage | None:
    if not known:
        return _unknown(file, named.head, owner, now)
    meant = [one for one in known if (one.ids, one.number) == (named.ids, named.number)]
    if len(meant) != 1:  # tokens that begin alike
        return None
    [one] = meant
    is_mine = one.stream == owner.stream and named.head == owner.storage.prefix + one.job
    reason = _reason(file, one, owner, now) if is_mine and _is_over(one, now) else None
    if reason is None:
        return None
    ids = (one.id,) if reason in OF_GENERATIONS else ()
    return Garbage(file=file, reason=reason, attempt_ids=ids)


def _reason(file: StoredFile, one: KnownAttempt, owner: Owner, now: datetime) -> Reason | None:
    """Tell why a file of an attempt that is over is garbage."""
    if one.status is not AttemptStatus.SUCCEEDED:
        return Reason.UNPUBLISHED
    if file.name not in one.file_names:
        return Reason.UNLISTED
    reason = _of_generation(one, owner, now)
    if reason is None and file.folder is Folder.QUARANTINE:
        keep = owner.storage.keep_quarantine
        is_due = one.quarantine_given_up or _is_past(one.ended_at, keep, one, now)
        return Reason.QUARANTINED if is_due else None
    return reason


def _of_generation(one: KnownAttempt, owner: Owner, now: datetime) -> Reason | None:
    """Tell why files of a published generation may go; one reason is enough."""
    is_replaced = one.replaced_at is not None
    if one.given_up:  # somebody was stopped in the middle
        return Reason.SUPERSEDED if is_replaced else Reason.LOADED
    if one.unread or not _is_over(one, now):
        return None
    if _is_past(one.replaced_at, owner.storage.keep_superseded, one, now):
        return Reason.SUPERSEDED
    if one.held or not _is_past(one.loaded_at(owner.targets), owner.storage.keep_loaded, one, now):
        return None
    return Reason.LOADED


def _of_pointer(
    file: StoredFile,
    named: PointerFile,
    known: Sequence[KnownAttempt],
    owner: Owner,
    now: datetime,
) -> Garbage | None:
    if named.head not in owner.jobs:
        return None
    if not named.finished:
        return Garbage(file=file, reason=Reason.TEMPORARY)
    if not known:
        return _unknown(file, named.head, owner, now)
    reasons = {_of_generation(one, owner, now) for one in known}
    if None in reasons:
        return None
    reason = Reason.LOADED if Reason.LOADED in reasons else Reason.SUPERSEDED
    return Garbage(file=file, reason=reason, attempt_ids=tuple(one.id for one in known))


def _unknown(file: StoredFile, head: str, owner: Owner, now: datetime) -> Garbage | None:
    if head not in owner.jobs or now - file.modified_at <= UNKNOWN_FOR:
        return None
    return Garbage(file=file, reason=Reason.UNKNOWN)


def _grace(one: KnownAttempt) -> timedelta:
    return max(LEASES_OF_GRACE * one.lease, SHORTEST_GRACE)


def _is_over(one: KnownAttempt, now: datetime) -> bool:
    """Tell whether an attempt ended so long ago that nothing of its process can be left."""
    if one.status is AttemptStatus.RUNNING or one.ended_at is None:
        return False
    return now - one.ended_at > _grace(one)


def _is_past(
    since: datetime | None, keep: timedelta | None, one: KnownAttempt, now: datetime
) -> bool:
    """Tell whether something happened longer ago than the stream keeps a generation after it."""
    if since is None or keep is None:
        return False
    return now - since > max(keep, _grace(one))


def _heads(stream: Stream, jobs: Mapping[str, Iterable[str]]) -> dict[str, str]:
    names = {stream.name, *jobs.get(stream.name, ())}
    return {stream.storage.prefix + name: name for name in names}
