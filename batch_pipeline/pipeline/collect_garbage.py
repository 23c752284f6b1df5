"""Delete files of a storage root that are no longer needed.

The order of steps makes this safe while other processes run: files are listed before the inventory
is queried, so that the attempt that wrote a file is known; only files that can never become live
again, or that are loaded and need not be kept, are garbage; and generations are marked in the
inventory before their files are deleted.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

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
from batch_pipeline.model.progress import track
from batch_pipeline.model.stream import Stream

if TYPE_CHECKING:
    from batch_pipeline.inventory.garbage import StoredAttempts
    from batch_pipeline.storage.part_storage import PartFileStorage

_CHUNK = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The garbage of a stream, ordered by path, and the amount that was removed.

    `garbage` is the same with and without `dry_run`; `unknown` files were not removed.
    """

    stream: str
    garbage: tuple[Garbage, ...] = ()
    unknown: tuple[Garbage, ...] = ()
    removed_files: int = 0
    removed_bytes: int = 0

    def files(self, reason: Reason) -> int:
        """Return the number of files that are garbage for a reason."""
        return sum(one.reason is reason for one in self.garbage)

    @property
    def size_bytes(self) -> int:
        """Total size of the garbage."""
        return sum(one.file.size_bytes for one in self.garbage)


def collect_garbage(
    stream: Stream,
    others: Iterable[Stream],
    inventory: "StoredAttempts",
    storage: "PartFileStorage",
    *,
    with_unknown: bool = False,
    dry_run: bool = False,
) -> Collected:
    """Delete the garbage of a stream; with `dry_run` only return it.

    `others` are all streams that may share the storage root. `with_unknown` includes old files of
    attempts that the inventory does not know. Safe to repeat and to interrupt, also while workers
    and other collectors run.

    Raises:
        GarbageLeftError: files cannot be listed or deleted; the next collection tries again. The
            first error is raised, with the number of the others.
    """
    together = [stream, *others]
    names = inventory.job_names({one.name for one in together})
    owner = Owner.of(stream, together, names)
    classified = sorted(_find(owner, inventory, storage), key=_order)
    kept = set() if with_unknown else {Reason.UNKNOWN}
    garbage = tuple(one for one in classified if one.reason not in kept)
    unknown = tuple(one for one in classified if one.reason in kept)
    failpoint("collect.judged")
    removed = [] if dry_run else list(_remove(garbage, owner, inventory, storage))
    return Collected(
        stream=stream.name,
        garbage=garbage,
        unknown=unknown,
        removed_files=len(removed),
        removed_bytes=sum(one.file.size_bytes for one in removed),
    )


def _find(
    owner: Owner, inventory: "StoredAttempts", storage: "PartFileStorage"
) -> Iterator[Garbage]:
    """List files, classify a few thousand at a time, and yield the garbage."""
    recognised = (
        (file, named)
        for file in track(storage.files(), "listing files")
        if (named := parse_name(file.folder, file.name)) is not None
    )
    while some := list(islice(recognised, _CHUNK)):
        failpoint("collect.listed")
        yield from _classify(some, owner, inventory)


def _classify(
    files: Sequence[tuple[StoredFile, ParsedName]], owner: Owner, inventory: "StoredAttempts"
) -> Iterator[Garbage]:
    tokens = {named.token for _, named in files if isinstance(named, AttemptFile)}
    generations = {
        (owner.jobs[named.head], named.ids, named.generation)
        for _, named in files
        if isinstance(named, ManifestFile) and named.head in owner.jobs
    }
    known: defaultdict[object, list[KnownAttempt]] = defaultdict(list)
    for one in inventory.attempts(tokens):
        known[one.token.hex[:8]].append(one)
    for one in inventory.generations(owner.stream, generations):
        known[one.job, one.ids, one.generation].append(one)
    now = inventory.now()
    for file, named in files:
        key: object = None
        if isinstance(named, AttemptFile):
            key = named.token
        elif isinstance(named, ManifestFile):
            key = (owner.jobs.get(named.head), named.ids, named.generation)
        garbage = classify(file, named, known.get(key, ()), owner, now)
        if garbage is not None:
            yield garbage


def _remove(
    garbage: Sequence[Garbage],
    owner: Owner,
    inventory: "StoredAttempts",
    storage: "PartFileStorage",
) -> Iterator[Garbage]:
    """Delete garbage; yield the files that existed.

    Raises:
        GarbageLeftError: some files cannot be deleted; all others were deleted.
    """
    marked = _marked(garbage, owner, inventory)
    failpoint("collect.marked")
    errors: list[GarbageLeftError] = []
    pointed: set[int] = set()
    for one in track(garbage, "removing files", total=len(garbage)):
        ids = set(one.attempt_ids)
        if not marked.issuperset((one.reason is Reason.QUARANTINED, id_) for id_ in ids):
            continue  # after a concurrent change it must be loaded again
        if ids & pointed:
            continue  # it is listed in a manifest file that cannot be deleted
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


_Mark = tuple[bool, int]  # whether only quarantine files are deleted; the id of an attempt


def _marked(garbage: Sequence[Garbage], owner: Owner, inventory: "StoredAttempts") -> set[_Mark]:
    """Mark generations in the inventory; return the marks of those whose files may be deleted."""
    ids: defaultdict[Reason, set[int]] = defaultdict(set)
    for one in garbage:
        ids[one.reason].update(one.attempt_ids)
    marks: set[_Mark] = set()
    if superseded := ids[Reason.SUPERSEDED]:
        marks |= {(False, one) for one in inventory.mark_superseded(superseded)}
    if loaded := ids[Reason.LOADED]:
        marks |= {(False, one) for one in inventory.mark_loaded(loaded, owner.targets)}
    if quarantined := ids[Reason.QUARANTINED]:
        marks |= {(True, one) for one in inventory.mark_quarantine(quarantined)}
    return marks


def _order(one: Garbage) -> tuple[bool, str]:
    """Return a sort key; manifest files are deleted first, so that none lists missing files."""
    return one.file.folder is not Folder.MANIFESTS, one.file.path
