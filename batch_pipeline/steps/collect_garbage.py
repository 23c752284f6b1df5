"""Collecting garbage: files that no manifest needs are listed, judged by the inventory, deleted.

The order is what makes it safe beside everything else: files are listed first and the inventory is
asked afterwards, so whoever wrote a file is known by then; only what can never become live again is
named; and files of superseded generations are marked in the inventory before they go.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.garbage import Garbage, KnownAttempt, Owner, Reason, judge
from batch_pipeline.domain.stored_file import (
    AttemptFile,
    Folder,
    Named,
    PointerFile,
    StoredFile,
    parse_name,
)
from batch_pipeline.domain.stream import Stream
from batch_pipeline.ports import GarbageInventory, StoredFiles

_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was found of a stream, each list in the order of its paths, and what was deleted.

    `garbage` is the same whether or not it was deleted; `unknown` were left alone.
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
        GarbageLeftError: a file cannot be listed or deleted; the rest is left for next time.
    """
    together = [stream, *others]
    names = inventory.job_names({one.name for one in together})
    owner = Owner.of(stream, together, names)
    found = sorted(_find(owner, inventory, storage), key=_order)
    garbage = tuple(one for one in found if with_unknown or one.reason is not Reason.UNKNOWN)
    unknown = () if with_unknown else tuple(one for one in found if one.reason is Reason.UNKNOWN)
    failpoint("collect.judged")
    removed = [] if dry_run else list(_remove(garbage, inventory, storage))
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
        for file in storage.files()
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
    garbage: Sequence[Garbage], inventory: GarbageInventory, storage: StoredFiles
) -> Iterator[Garbage]:
    """Delete what was listed; give what was still there."""
    superseded = {attempt_id for one in garbage for attempt_id in one.attempt_ids}
    marked = set(inventory.mark_removed(superseded)) if superseded else set()
    failpoint("collect.marked")
    for one in garbage:
        if marked.issuperset(one.attempt_ids):
            failpoint("collect.before_remove")
            if storage.remove(one.file):
                yield one


def _order(one: Garbage) -> tuple[bool, str]:
    """Pointer files go first: none may name files that are gone."""
    return one.file.folder is not Folder.MANIFESTS, one.file.path
