"""Load published generations that a target does not have yet, in publishing order.

A generation counts as loaded only when the target has acknowledged it. Part files are verified
before they are sent.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from uuid import UUID

from batch_pipeline.model.errors import (
    ConfigurationError,
    ConflictError,
    FilesRemovedError,
    ItemIdsMissingError,
    PartFileChangedError,
    PipelineError,
    RetryableError,
    TargetFailedError,
    Unloaded,
    repeat_once,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.load import ALL_JOBS, Loaded, Loading
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.stream import Stream

if TYPE_CHECKING:
    from batch_pipeline.inventory.loads import TargetLoads

LEASE = timedelta(minutes=5)
ATTEMPTS = 3
AT_ONCE = 16
IN_A_ROW = 3
FileCheck = Callable[[PartFile], str | None]


class Loader(Protocol):
    """A loader of published batches into one target."""

    def load(self, loading: Loading) -> Loaded:
        """Load one published generation into the target, exactly once.

        The generation is loaded only when the target has acknowledged it.

        Raises:
            PipelineError: it was not loaded; the message describes the state of the target.
        """

    def close(self) -> None:
        """Close connections and processes; nothing can be loaded afterwards."""


@runtime_checkable
class GroupLoader(Protocol):
    """A loader that takes several generations at once, because starting it is expensive."""

    def load_together(self, loadings: Sequence[Loading]) -> Generator[Loaded, None, None]:
        """Load generations in order; yield each result when the target acknowledges it.

        Raises:
            PipelineError: the first generation without a result and those after it are not loaded.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadContext:
    """The components that load a stream into one target.

    `problem_of` returns the problem with a part file, or None. With `in_order` a generation of a
    job waits until those published before it are loaded, and all jobs wait if the stream has
    backfills. Without, only a generation with the same items waits. `only` has the names of the
    batches to load; None means all pending ones.
    """

    stream: Stream
    target: str
    loads: "TargetLoads"
    loader: Loader
    problem_of: FileCheck
    run_id: str
    in_order: bool
    attempts: int = ATTEMPTS
    only: Collection[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one generation: it was loaded, failed with an error, or had to wait.

    `gives_up` is set on the last outcome if the load stops because the target keeps failing.
    """

    loading: Loading
    loaded: Loaded | None = None
    error: PipelineError | None = None
    gives_up: bool = False

    @property
    def waits(self) -> bool:
        """Whether it was not tried because a generation that must be loaded first has failed."""
        return self.loaded is None and self.error is None


def load(context: LoadContext) -> Iterator[Outcome]:
    """Load all pending generations; yield an outcome for each.

    A generation that fails is tried up to `attempts` times. Later generations are loaded, or wait
    if the order matters. The load stops when three generations in a row fail that had never failed
    before; generations that failed in earlier loads do not count.

    Raises:
        LoadRunningError: another process loads this stream into the target.
        ConfigurationError, RetryableError: nothing can be loaded, or not at the moment.
    """
    in_a_row = 0
    with closing(_outcomes(context)) as outcomes:
        for outcome in outcomes:
            if outcome.loaded is not None:
                in_a_row = 0
            elif isinstance(outcome.error, TargetFailedError) and not outcome.loading.failed_before:
                in_a_row += 1
            if in_a_row == IN_A_ROW:
                yield replace(outcome, gives_up=True)
                return
            yield outcome


@dataclass(slots=True, kw_only=True)
class _HeldUp:
    """The jobs and items whose later batches wait for a failed batch.

    A batch with item ids may have items in common with a batch of any job: loaded after it, the
    failed one would put old records back.
    """

    in_order: bool
    jobs: set[str] = field(default_factory=set)  # or ALL_JOBS
    items: set[int] = field(default_factory=set)

    def has(self, one: Loading) -> bool:
        """Return whether a generation has to wait; if so, others with its items wait as well."""
        if not self.jobs.isdisjoint({ALL_JOBS, one.manifest.batch.job}):
            return True
        if self.items.isdisjoint(one.item_ids):
            return False
        self.items.update(one.item_ids)
        return True

    def add(self, failed: Loading, error: PipelineError) -> None:
        """Hold up what has to wait for a failed generation; a refused one holds up only its job."""
        is_refused = isinstance(error, ItemIdsMissingError | FilesRemovedError)
        item_ids = () if is_refused else failed.item_ids
        if self.in_order:
            self.jobs.add(ALL_JOBS if item_ids else failed.manifest.batch.job)
        else:
            self.items.update(item_ids)


def _outcomes(context: LoadContext) -> Generator[Outcome, None, None]:
    held_up = _HeldUp(in_order=context.in_order)
    pending = context.loads.due(
        context.stream, context.target, only=context.only, held_up=held_up.jobs
    )
    size = AT_ONCE if isinstance(context.loader, GroupLoader) else 1
    while group := list(islice(pending, size)):
        free = [one for one in group if not held_up.has(one)]
        yield from (Outcome(loading=one) for one in group if one not in free)
        yield from _load_group(context, free, held_up)


def _replaced_by(context: LoadContext, one: Loading) -> list[str]:
    """Return the loaded batches whose records a generation replaces, although they are newer.

    They are to be loaded again. A batch that was refused does not hold up later ones, and a person
    may load a batch before earlier ones.

    Raises:
        FilesRemovedError: the files of such a batch were deleted.
    """
    if not one.item_ids:
        return []
    stream, target = context.stream.name, context.target
    newer = context.loads.with_later(stream, [one.label], loaded_into=target)[1:]
    if newer:
        context.loads.check_files_kept(stream, target, newer)
    return newer


def _load_group(context: LoadContext, group: list[Loading], held_up: _HeldUp) -> Iterator[Outcome]:
    """Load generations together; after a failure, load the rest one by one."""
    problems = [_problem(context, one) for one in group]  # once, not for each attempt
    settled: set[UUID] = set()
    if len(group) > 1 and not any(problems):
        settled = yield from _try_together(context, group)
    for one, problem in zip(group, problems, strict=True):
        if one.manifest.token in settled:
            continue
        if held_up.has(one):
            yield Outcome(loading=one)
            continue
        outcome = _load_one(context, one, problem)
        if outcome.error is not None:
            held_up.add(one, outcome.error)
        yield outcome


def _try_together(
    context: LoadContext, group: Sequence[Loading]
) -> Generator[Outcome, None, set[UUID]]:
    """Load a group at once; yield what succeeds and return its tokens; do not raise."""
    settled: set[UUID] = set()
    try:
        for one in group:
            _replaced_by(context, one)  # before the claim, whose first load would get the error
        for outcome in _attempt(context, group):
            yield outcome
            settled.add(outcome.loading.manifest.token)
    except FilesRemovedError:
        return settled
    except (ConfigurationError, ConflictError, RetryableError):
        raise
    except PipelineError:
        return settled  # loading one by one identifies the failing generation
    return settled


def _load_one(context: LoadContext, one: Loading, problem: str | None) -> Outcome:
    error: PipelineError | None = None
    for _ in range(context.attempts):
        try:
            (outcome,) = _attempt(context, [one], problem)
        except FilesRemovedError as removed:
            return Outcome(loading=one, error=removed)
        except (ConfigurationError, ConflictError, RetryableError):
            raise
        except PipelineError as raised:
            error = raised
            if isinstance(raised, ItemIdsMissingError | PartFileChangedError):
                break  # repeating cannot help
        else:
            return outcome
    return Outcome(loading=one, error=error)


def _attempt(
    context: LoadContext, group: Sequence[Loading], problem: str | None = None
) -> Iterator[Outcome]:
    """Claim generations and load them together; record each when it is acknowledged.

    `problem` describes a problem with the files of a single generation.
    """
    stream, target = context.stream.name, context.target
    with context.loads.claim(stream, target, group, run_id=context.run_id, lease=LEASE) as claim:
        wanted = () if claim is None else claim.loadings
        for one in group:
            if one not in wanted:  # another process has loaded it
                already = Loaded(records=one.manifest.records, already=True)
                yield Outcome(loading=one, loaded=already)
        if claim is None:
            return
        running = claim.load
        try:
            replaced = [_replaced_by(context, one) for one in wanted]
            with closing(_acknowledged(context, wanted, problem)) as acknowledged:
                for number, loaded in enumerate(acknowledged):
                    failpoint("load.acknowledged")
                    following = wanted[number + 1] if number + 1 < len(wanted) else None
                    succeed = partial(
                        context.loads.succeed,
                        running,
                        loaded,
                        following,
                        replaced=replaced[number],
                    )
                    running = repeat_once(succeed) or running
                    yield Outcome(loading=wanted[number], loaded=loaded)
        except BaseException as error:
            with suppress(RetryableError):  # keep the first error; the lease expires
                context.loads.fail(running, error)
            raise


def _acknowledged(
    context: LoadContext, wanted: Sequence[Loading], problem: str | None
) -> Generator[Loaded, None, None]:
    if problem is not None:
        unloaded = Unloaded(
            target=context.target, stream=context.stream.name, batch=wanted[0].label
        )
        raise PartFileChangedError(unloaded, problem)
    if isinstance(context.loader, GroupLoader):
        yield from context.loader.load_together(wanted)
    else:
        for one in wanted:
            yield context.loader.load(one)


def _problem(context: LoadContext, one: Loading) -> str | None:
    found = (context.problem_of(part) for part in one.manifest.part_files)
    return next((problem for problem in found if problem is not None), None)
