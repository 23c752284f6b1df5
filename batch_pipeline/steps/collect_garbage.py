"""Collecting garbage: files that nobody needs are listed, judged by the inventory, deleted.

The order is what makes it safe beside everything else: files are listed first and the inventory is
asked afterwards, so whoever wrote a file is known by then; only what can never become live again,
or is loaded and not to be kept, is named; and generations are marked in the inventory before their
files are deleted, or moved to the archive of the stream.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Protocol

from batch_pipeline.domain.errors import GarbageLeftError
from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.garbage import (
    OF_GENERATIONS,
    Garbage,
    KnownAttempt,
    Owner,
    Reason,
    judge,
)
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.progress import counted
from batch_pipeline.domain.stored_file import (
    AttemptFile,
    Folder,
    Named,
    PointerFile,
    StoredFile,
    parse_name,
)
from batch_pipeline.domain.stream import Stream
from batch_pipeline.domain.words import count_of

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

    def mark_superseded(
        self, attempt_ids: Collection[int], archive: str | None
    ) -> Mapping[int, str | None]:
        """Remember that files of superseded generations go, to an archive or for good.

        Gives those that indeed are superseded, or were marked before, and the archive of each; the
        first mark counts, and nothing is remembered of others.
        """

    def mark_loaded(
        self, attempt_ids: Collection[int], targets: Collection[str], archive: str | None
    ) -> Mapping[int, str | None]:
        """Remember that files of generations that all targets have go, likewise."""

    def mark_quarantine(
        self, attempt_ids: Collection[int], archive: str | None
    ) -> Mapping[int, str | None]:
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

    def archive(self, file: StoredFile, folder: str) -> bool:
        """Move a file to its place below another folder; tells whether it was there.

        Raises:
            NotArchivedError: it cannot be moved, or another file is in its place.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was found of a stream, each list in the order of its paths, and what was removed.

    `garbage` is the same whether or not it was removed; `unknown` were left alone. Of the removed
    files so many went to `archive`, where the stream has one; the others were deleted.
    """

    stream: str
    garbage: tuple[Garbage, ...] = ()
    unknown: tuple[Garbage, ...] = ()
    removed_files: int = 0
    removed_bytes: int = 0
    archive: str | None = None
    archived_files: int = 0

    def files(self, reason: Reason) -> int:
        """Count the garbage of one kind."""
        return sum(one.reason is reason for one in self.garbage)

    @property
    def to_archive(self) -> int:
        """Count the garbage that the stream archives instead of deleting it."""
        if self.archive is None:
            return 0
        return sum(one.reason in OF_GENERATIONS for one in self.garbage)

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
        GarbageLeftError: files cannot be listed, deleted or archived; what is left is left for next
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
        removed_bytes=sum(one.file.size_bytes for one, _ in removed),
        archive=stream.storage.archive,
        archived_files=sum(archive is not None for _, archive in removed),
    )


def _find(owner: Owner, inventory: GarbageInventory, storage: StoredFiles) -> Iterator[Garbage]:
    """List and judge some thousand files at a time; only garbage is kept."""
    recognised = (
        (file, named)
        for file in counted(storage.files(), "listing files")
        if (named := parse_name(file.folder, file.name)) is not None
    )
    while some := list(islice(recognised, _AT_ONCE)):
        failpoint("collect.listed")
        yield from _judge(some, owner, inventory)


def _judge(
    files: Sequence[tuple[StoredFile, Named]], owner: Owner, inventory: GarbageInventory
) -> Iterator[Garbage]:
    by_token: dict[str, list[KnownAttempt]] = {}
    for one in inventory.attempts(
        {named.token for _, named in files if isinstance(named, AttemptFile)}
    ):
        by_token.setdefault(one.token.hex[:8], []).append(one)
    pointed = {
        (owner.jobs[named.head], named.ids, named.generation)
        for _, named in files
        if isinstance(named, PointerFile) and named.head in owner.jobs
    }
    by_generation: dict[tuple[str, object, int | None], list[KnownAttempt]] = {}
    for one in inventory.generations(owner.stream, pointed):
        by_generation.setdefault((one.job, one.ids, one.generation), []).append(one)
    now = inventory.now()
    for file, named in files:
        known: Sequence[KnownAttempt] = ()
        if isinstance(named, AttemptFile):
            known = by_token.get(named.token, ())
        elif isinstance(named, PointerFile) and named.head in owner.jobs:
            job = owner.jobs[named.head]
            known = by_generation.get((job, named.ids, named.generation), ())
        garbage = judge(file, named, known, owner, now)
        if garbage is not None:
            yield garbage


def _remove(
    garbage: Sequence[Garbage], owner: Owner, inventory: GarbageInventory, storage: StoredFiles
) -> Iterator[tuple[Garbage, str | None]]:
    """Delete or archive what was listed; give what was still there, and the archive it is in.

    Raises:
        GarbageLeftError: some of it could not go, after all that could is gone.
    """
    archives = _marked(garbage, owner, inventory)
    failpoint("collect.marked")
    errors: list[GarbageLeftError] = []
    pointed: set[int] = set()
    for one in counted(garbage, "removing files", total=len(garbage)):
        ids, marks = set(one.attempt_ids), _marks_of(one)
        if not archives.keys() >= set(marks):
            continue  # it is to be loaded again by now
        if ids & pointed:
            continue  # a pointer file that could not go names it
        failpoint("collect.before_remove")
        archive = archives[marks[0]] if marks else None
        try:
            is_gone = _remove_file(one.file, archive, storage)
        except GarbageLeftError as error:
            errors.append(error)
            if one.file.folder is Folder.MANIFESTS:
                pointed |= ids
            continue
        if is_gone:
            yield one, archive
    if errors:
        first, others = errors[0], len(errors) - 1
        more = count_of(others, "more file")
        reason = f"{first.reason}; {more} cannot go either" if others else first.reason
        raise replace(first, reason=reason) from first


def _remove_file(file: StoredFile, archive: str | None, storage: StoredFiles) -> bool:
    return storage.remove(file) if archive is None else storage.archive(file, archive)


_Mark = tuple[bool, int]  # of its quarantine files alone, and the id of an attempt


def _marks_of(one: Garbage) -> list[_Mark]:
    return [(one.reason is Reason.QUARANTINED, attempt_id) for attempt_id in one.attempt_ids]


def _marked(
    garbage: Sequence[Garbage], owner: Owner, inventory: GarbageInventory
) -> Mapping[_Mark, str | None]:
    """Mark generations in the inventory; gives those whose files may go, and where to."""
    ids: dict[Reason, set[int]] = {}
    for one in garbage:
        ids.setdefault(one.reason, set()).update(one.attempt_ids)
    archive = owner.storage.archive
    whole: dict[int, str | None] = {}
    quarantine: Mapping[int, str | None] = {}
    if superseded := ids.get(Reason.SUPERSEDED):
        whole |= inventory.mark_superseded(superseded, archive)
    if loaded := ids.get(Reason.LOADED):
        whole |= inventory.mark_loaded(loaded, owner.targets, archive)
    if quarantined := ids.get(Reason.QUARANTINED):
        quarantine = inventory.mark_quarantine(quarantined, archive)
    marks = {(False, attempt_id): where for attempt_id, where in whole.items()}
    return marks | {(True, attempt_id): where for attempt_id, where in quarantine.items()}


def _order(one: Garbage) -> tuple[bool, str]:
    """Pointer files go first: none may name files that are gone."""
    return one.file.folder is not Folder.MANIFESTS, one.file.path
