"""Collecting garbage: files that nobody needs are listed, judged by the inventory, deleted.

The order is what makes it safe beside everything else: files are listed first and the inventory is
asked afterwards, so whoever wrote a file is known by then; only what can never become live again,
or is loaded and not to be kept, is named; and generations are marked in the inventory before their
files are deleted.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Protocol

from batch_pipeline.model.errors import GarbageLeftError
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.garbage import (
    AttemptFile,
    Folder,
    Garbage,
    KnownAttempt,
    ManifestFile,
    Owner,
    ParsedName,
    Reason,
    StoredFile,
    classify,
    parse_name,
)
from batch_pipeline.model.id_range import IdRange
from batch_pipeline.model.progress import track
from batch_pipeline.model.stream import Stream

_AT_ONCE = 5_000


class GarbageInventory(Protocol):
    """What the inventory knows of the files in storages."""

    def now(self) -> datetime:
        """Read the database's clock."""

    def job_names(self, streams: Collection[str]) -> Mapping[str, Collection[str]]:
        """Read the names of the jobs of streams, by stream."""

    def attempts(self, tokens: Collection[str]) -> Sequence[KnownAttempt]:
        """Find the attempts, of all streams, whose tokens begin with 8 digits each."""

    def generations(
        self, stream: str, wanted: Collection[tuple[str, IdRange, int]]
    ) -> Sequence[KnownAttempt]:
        """Find published attempts of a stream by job, range of ids and generation."""

    def mark_superseded(self, attempt_ids: Collection[int]) -> Set[int]:
        """Mark superseded generations, whose files are then deleted.

        Returns the ids of those that are superseded or were marked before.
        """

    def mark_loaded(self, attempt_ids: Collection[int], targets: Collection[str]) -> Set[int]:
        """Remember that files of generations that all targets have go, likewise."""

    def mark_quarantine(self, attempt_ids: Collection[int]) -> Set[int]:
        """Remember that quarantine files of generations go while their other files stay."""


class StoredFiles(Protocol):
    """The files of a storage root."""

    def files(self) -> Iterable[StoredFile]:
        """List the files of the root and the folders that belong to it, in no order.

        Raises:
            GarbageLeftError: a folder cannot be listed.
        """

    def remove(self, file: StoredFile) -> bool:
        """Delete a file; tells whether it was there.

        Raises:
            GarbageLeftError: it cannot be deleted.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was found of a stream, each list in the order of its paths, and what was removed.

    `garbage` is the same whether or not it was removed; `unknown` were left alone.
    """

    stream: str
    garbage: tuple[Garbage, ...] = ()
    unknown: tuple[Garbage, ...] = ()
    removed_files: int = 0
    removed_bytes: int = 0

    def files(self, reason: Reason) -> int:
        """Count the garbage of one kind."""
        return sum(one.reason is reason for one in self.garbage)

    @property
    def size_bytes(self) -> int:
        """Size of all garbage."""
        return sum(one.file.size_bytes for one in self.garbage)


def collect_garbage(
    stream: Stream,
    others: Iterable[Stream],
    inventory: GarbageInventory,
    storage: StoredFiles,
    *,
    with_unknown: bool = False,
    dry_run: bool = False,
) -> Collected:
    """Delete the garbage of a stream; `dry_run` only tells what it is.

    `others` are all streams that may share the storage root. `with_unknown` takes old files of
    attempts that the inventory does not know, too. Safe to repeat, to interrupt, and beside
    workers, publishes and other collectors.

    Raises:
        GarbageLeftError: files cannot be listed or deleted; what is left is left for next
            time. Of several it is the first one that tells, with how many there are.
    """
    together = [stream, *others]
    names = inventory.job_names({one.name for one in together})
    owner = Owner.of(stream, together, names)
    found = sorted(_find(owner, inventory, storage), key=_order)
    garbage = tuple(one for one in found if with_unknown or one.reason is not Reason.UNKNOWN)
    unknown = () if with_unknown else tuple(one for one in found if one.reason is Reason.UNKNOWN)
    failpoint("collect.judged")
    removed = [] if dry_run else list(_remove(garbage, owner, inventory, storage))
    return Collected(
        stream=stream.name,
        garbage=garbage,
        unknown=unknown,
        removed_files=len(removed),
        removed_bytes=sum(one.file.size_bytes for one in removed),
    )


def _find(owner: Owner, inventory: GarbageInventory, storage: StoredFiles) -> Iterator[Garbage]:
    """List and judge some thousand files at a time; only garbage is kept."""
    recognised = (
        (file, named)
        for file in track(storage.files(), "listing files")
        if (named := parse_name(file.folder, file.name)) is not None
    )
    while some := list(islice(recognised, _AT_ONCE)):
        failpoint("collect.listed")
        yield from _judge(some, owner, inventory)


def _judge(
    files: Sequence[tuple[StoredFile, ParsedName]], owner: Owner, inventory: GarbageInventory
) -> Iterator[Garbage]:
    by_token: dict[str, list[KnownAttempt]] = {}
    for one in inventory.attempts(
        {named.token for _, named in files if isinstance(named, AttemptFile)}
    ):
        by_token.setdefault(one.token.hex[:8], []).append(one)
    pointed = {
        (owner.jobs[named.head], named.ids, named.generation)
        for _, named in files
        if isinstance(named, ManifestFile) and named.head in owner.jobs
    }
    by_generation: dict[tuple[str, object, int | None], list[KnownAttempt]] = {}
    for one in inventory.generations(owner.stream, pointed):
        by_generation.setdefault((one.job, one.ids, one.generation), []).append(one)
    now = inventory.now()
    for file, named in files:
        known: Sequence[KnownAttempt] = ()
        if isinstance(named, AttemptFile):
            known = by_token.get(named.token, ())
        elif isinstance(named, ManifestFile) and named.head in owner.jobs:
            job = owner.jobs[named.head]
            known = by_generation.get((job, named.ids, named.generation), ())
        garbage = classify(file, named, known, owner, now)
        if garbage is not None:
            yield garbage


def _remove(
    garbage: Sequence[Garbage], owner: Owner, inventory: GarbageInventory, storage: StoredFiles
) -> Iterator[Garbage]:
    """Delete what was listed; yield what was still there.

    Raises:
        GarbageLeftError: some of it could not go, after all that could is gone.
    """
    marked = _marked(garbage, owner, inventory)
    failpoint("collect.marked")
    errors: list[GarbageLeftError] = []
    pointed: set[int] = set()
    for one in track(garbage, "removing files", total=len(garbage)):
        ids = set(one.attempt_ids)
        if not marked.issuperset(_marks_of(one)):
            continue  # it is to be loaded again by now
        if ids & pointed:
            continue  # a manifest file that could not go names it
        failpoint("collect.before_remove")
        try:
            is_gone = storage.remove(one.file)
        except GarbageLeftError as error:
            errors.append(error)
            if one.file.folder is Folder.MANIFESTS:
                pointed |= ids
            continue
        if is_gone:
            yield one
    if errors:
        first, others = errors[0], len(errors) - 1
        more = f"; other files that cannot be deleted: {others}" if others else ""
        raise replace(first, reason=first.reason + more) from first


_Mark = tuple[bool, int]  # of its quarantine files alone, and the id of an attempt


def _marks_of(one: Garbage) -> list[_Mark]:
    return [(one.reason is Reason.QUARANTINED, attempt_id) for attempt_id in one.attempt_ids]


def _marked(garbage: Sequence[Garbage], owner: Owner, inventory: GarbageInventory) -> set[_Mark]:
    """Mark generations in the inventory; return the marks of those whose files may be deleted."""
    ids: dict[Reason, set[int]] = {}
    for one in garbage:
        ids.setdefault(one.reason, set()).update(one.attempt_ids)
    whole: set[int] = set()
    quarantine: Set[int] = set()
    if superseded := ids.get(Reason.SUPERSEDED):
        whole |= inventory.mark_superseded(superseded)
    if loaded := ids.get(Reason.LOADED):
        whole |= inventory.mark_loaded(loaded, owner.targets)
    if quarantined := ids.get(Reason.QUARANTINED):
        quarantine = inventory.mark_quarantine(quarantined)
    return {(False, one) for one in whole} | {(True, one) for one in quarantine}


def _order(one: Garbage) -> tuple[bool, str]:
    """Manifest files go first: none may name files that are gone."""
    return one.file.folder is not Folder.MANIFESTS, one.file.path
