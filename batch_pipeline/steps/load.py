"""Station 9: bring what is published and not yet loaded into one target, in order.

What a target is and how it acknowledges is its loader's to know. Nothing is believed to be loaded
that was not acknowledged, and nothing is sent before its files are what was published.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Protocol, runtime_checkable
from uuid import UUID

from batch_pipeline.model.errors import (
    ConfigurationError,
    ConflictError,
    PartFileChangedError,
    PipelineError,
    RetryableError,
    TargetFailedError,
    Unloaded,
)
from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.load import Claim, Load, Loaded, Loading
from batch_pipeline.model.manifest import PartFile
from batch_pipeline.model.stream import Stream
from batch_pipeline.ports import Loader

LEASE = timedelta(minutes=5)
ATTEMPTS = 3
AT_ONCE = 16
IN_A_ROW = 3
Look = Callable[[PartFile], str | None]


@runtime_checkable
class GroupLoader(Protocol):
    """A loader whose start-up is worth sharing: it takes several generations in one go."""

    def load_together(
        self, loadings: Sequence[Loading], storage_root: str
    ) -> Generator[Loaded, None, None]:
        """Bring generations into the target in their order; gives each when it is acknowledged.

        Raises:
            PipelineError: the first one that was not given yet was not loaded, the rest neither.
        """
        ...


class Loads(Protocol):
    """The record of what targets have acknowledged. Each call is one transaction."""

    def due(
        self,
        stream: Stream,
        target: str,
        *,
        only: Collection[str] | None,
        held_up: Collection[str],
    ) -> Iterator[Loading]:
        """Read the newest generations that a target has not acknowledged, in publishing order.

        `only` are names of batches, None for all; jobs that `held_up` names are read no further.
        """
        ...

    def claim(
        self,
        stream: str,
        target: str,
        loadings: Sequence[Loading],
        *,
        run_id: str,
        lease: timedelta,
    ) -> AbstractContextManager[Claim | None]:
        """Start a load of generations and keep others off the stream's target until the end.

        Those that somebody has loaded by now are left out; None when there are no others.

        Raises:
            LoadRunningError: somebody else loads this stream into the target.
        """
        ...

    def succeed(self, load: Load, loaded: Loaded, then: Loading | None) -> Load | None:
        """Record that a generation is loaded and start the load of the next one, if any.

        Asking again gives the same.

        Raises:
            ConflictError: the load is somebody else's by now; nothing was changed.
        """
        ...

    def fail(self, load: Load, error: BaseException) -> None:
        """Close a running load with what it came to."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dock:
    """What loading a stream into one target needs.

    `look` says what is wrong with a part file, None when it is as it was published. With
    `in_order` nothing of a job is loaded before what was published earlier is. `only` are the
    names of the batches to load, None for all that are due.
    """

    stream: Stream
    target: str
    loads: Loads
    loader: Loader
    look: Look
    run_id: str
    in_order: bool
    attempts: int = ATTEMPTS
    only: Collection[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one generation: it is loaded, or there is an error, or it had to wait.

    `gives_up` tells that no more are tried, since the target itself seems to be broken.
    """

    loading: Loading
    loaded: Loaded | None = None
    error: PipelineError | None = None
    gives_up: bool = False

    @property
    def waits(self) -> bool:
        """Whether it was not tried, because one that must come before it failed."""
        return self.loaded is None and self.error is None


def load(dock: Dock) -> Iterator[Outcome]:
    """Load everything that is due; gives each generation when it is settled.

    A failed one is tried again as often as `attempts` says; then those behind it go on, or wait if
    they have to come in order. When a target fails with three in a row that it never failed with
    before, the load ends; what failed in earlier loads keeps nobody from trying what is behind it.

    Raises:
        LoadRunningError: somebody else loads this stream into the target.
        ConfigurationError, RetryableError: nothing of it can be loaded, or not now.
    """
    in_a_row = 0
    with closing(_settled(dock)) as outcomes:
        for outcome in outcomes:
            if outcome.loaded is not None:
                in_a_row = 0
            elif isinstance(outcome.error, TargetFailedError) and not outcome.loading.failed_before:
                in_a_row += 1
            if in_a_row == IN_A_ROW:
                yield replace(outcome, gives_up=True)
                return
            yield outcome


def _settled(dock: Dock) -> Generator[Outcome, None, None]:
    held_up: set[str] = set()
    due = dock.loads.due(dock.stream, dock.target, only=dock.only, held_up=held_up)
    size = AT_ONCE if isinstance(dock.loader, GroupLoader) else 1
    while group := list(islice(due, size)):
        free = [one for one in group if one.manifest.batch.job not in held_up]
        yield from (Outcome(loading=one) for one in group if one not in free)
        yield from _load_group(dock, free, held_up)


def _load_group(dock: Dock, group: list[Loading], held_up: set[str]) -> Iterator[Outcome]:
    """Load generations together; from the first failure on, one by one.

    `held_up` are the jobs whose batches wait for one that failed.
    """
    problems = [_problem(dock, one) for one in group]
    settled: set[UUID] = set()
    if len(group) > 1 and not any(problems):
        settled = yield from _try_together(dock, group)
    for one, problem in zip(group, problems, strict=True):
        if one.manifest.token in settled:
            continue
        if one.manifest.batch.job in held_up:
            yield Outcome(loading=one)
            continue
        outcome = _load_one(dock, one, problem)
        if outcome.error is not None and dock.in_order:
            held_up.add(one.manifest.batch.job)
        yield outcome


def _try_together(dock: Dock, group: Sequence[Loading]) -> Generator[Outcome, None, set[UUID]]:
    """Give what is loaded of a group and return the tokens of that; errors wait for a try."""
    settled: set[UUID] = set()
    try:
        for outcome in _attempt(dock, group):
            yield outcome
            settled.add(outcome.loading.manifest.token)
    except (ConfigurationError, ConflictError, RetryableError):
        raise
    except PipelineError:
        return settled  # one of them is to blame: alone each tells for itself
    return settled


def _load_one(dock: Dock, one: Loading, problem: str | None) -> Outcome:
    error: PipelineError | None = None
    for _ in range(dock.attempts):
        try:
            (outcome,) = _attempt(dock, [one], problem)
        except (ConfigurationError, ConflictError, RetryableError):
            raise
        except PipelineError as raised:
            error = raised
            if isinstance(raised, PartFileChangedError):
                break  # no try mends it
        else:
            return outcome
    return Outcome(loading=one, error=error)


def _attempt(dock: Dock, group: Sequence[Loading], problem: str | None = None) -> Iterator[Outcome]:
    """Claim generations and load them in one go; each is recorded when it is acknowledged.

    `problem` is what is wrong with the files of the only one.
    """
    stream, target = dock.stream.name, dock.target
    with dock.loads.claim(stream, target, group, run_id=dock.run_id, lease=LEASE) as claim:
        wanted = () if claim is None else claim.loadings
        for one in group:
            if one not in wanted:  # somebody has loaded it by now
                already = Loaded(records=one.manifest.records, already=True)
                yield Outcome(loading=one, loaded=already)
        if claim is None:
            return
        running = claim.load
        try:
            with closing(_acknowledged(dock, wanted, problem)) as acknowledged:
                for number, loaded in enumerate(acknowledged):
                    failpoint("load.acknowledged")
                    following = wanted[number + 1] if number + 1 < len(wanted) else None
                    started = _record(dock, running, loaded, following)
                    yield Outcome(loading=wanted[number], loaded=loaded)
                    running = running if started is None else started
        except BaseException as error:
            with suppress(RetryableError):  # why it failed is what counts; the lease runs out
                dock.loads.fail(running, error)
            raise


def _record(dock: Dock, running: Load, loaded: Loaded, then: Loading | None) -> Load | None:
    try:
        return dock.loads.succeed(running, loaded, then)
    except RetryableError:
        # The commit may have happened and only its reply been lost: asking again tells.
        return dock.loads.succeed(running, loaded, then)


def _acknowledged(
    dock: Dock, wanted: Sequence[Loading], problem: str | None
) -> Generator[Loaded, None, None]:
    if problem is not None:
        unloaded = Unloaded(target=dock.target, stream=dock.stream.name, batch=wanted[0].label)
        raise PartFileChangedError(unloaded, problem)
    root = dock.stream.storage.root
    if isinstance(dock.loader, GroupLoader):
        yield from dock.loader.load_together(wanted, root)
    else:
        for one in wanted:
            yield dock.loader.load(one, root)


def _problem(dock: Dock, one: Loading) -> str | None:
    found = (dock.look(part) for part in one.manifest.part_files)
    return next((problem for problem in found if problem is not None), None)
