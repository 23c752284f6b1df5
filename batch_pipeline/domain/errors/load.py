"""Station 9: batches that a target does not have, or that nobody knows it to have."""

from dataclasses import dataclass
from datetime import datetime

from batch_pipeline.domain.errors.base import (
    BatchDataError,
    ConfigurationError,
    ConflictError,
    PipelineError,
)


@dataclass(eq=False)
class LoadError(PipelineError):
    """A published batch is not in a target, or nobody knows that it is.

    `log` is the end of what the target said on its standard error.
    """

    target: str
    stream: str
    batch: str

    @property
    def log(self) -> str:
        """The end of what the target said; empty where it said nothing or was not asked."""
        return str(getattr(self, "said", ""))

    def told(self, problem: str, left: str, next_step: str) -> str:
        """Build the sentence that all errors of this family have in common."""
        what = f"batch {self.batch} was not loaded into {self.target}"
        text = f"{self.stream}: {what}: {problem}. {left} {next_step}"
        last = self.log.strip().splitlines()[-1:]
        return f"{text} The last that it said: {last[0].strip()[:500]}" if last else text


_LEFT_IN_PART = "Some of its records may be there; it is not recorded as loaded."
_NOTHING_SENT = "Nothing was sent."


@dataclass(eq=False)
class TargetFailedError(LoadError, BatchDataError):
    """A target ended with an exit code other than 0; a negative one is the signal that ended it."""

    exit_code: int
    said: str = ""

    def sentence(self) -> str:
        how = f"exit code {self.exit_code}" if self.exit_code >= 0 else f"signal {-self.exit_code}"
        step = "Correct what the target complains about, then run `batch-pipeline load` again."
        return self.told(f"the target ended with {how}", _LEFT_IN_PART, step)


@dataclass(eq=False)
class TargetSilentError(LoadError, BatchDataError):
    """A target ended well and did not print the STATE that was sent after the batch."""

    said: str = ""

    def sentence(self) -> str:
        problem = "the target ended with exit code 0 but did not print the STATE of this batch"
        step = (
            "Compare its rows with the batch. A target that cannot read BATCH messages gets "
            "`messages: record` in the stream file; then run `batch-pipeline load` again."
        )
        return self.told(problem, _LEFT_IN_PART, step)


@dataclass(eq=False)
class TargetStateError(LoadError, BatchDataError):
    """A target printed something that is no STATE of ours; it was stopped."""

    printed: str
    problem: str
    said: str = ""

    def sentence(self) -> str:
        problem = f"the target printed {self.printed!r:.200}, which {self.problem}; it was stopped"
        step = (
            "Only STATE values belong on a target's standard output. Correct the target or its "
            "configuration, then run `batch-pipeline load` again."
        )
        return self.told(problem, _LEFT_IN_PART, step)


@dataclass(eq=False)
class TargetHangsError(LoadError, BatchDataError):
    """A target neither read nor said nor computed anything for too long; it was stopped."""

    waited: str
    said: str = ""

    def sentence(self) -> str:
        problem = f"the target did nothing for {self.waited} and was stopped"
        step = (
            "See what it waits for (a lock, a network), or raise `timeout` of the target in the "
            "stream file; then run `batch-pipeline load` again."
        )
        return self.told(problem, _LEFT_IN_PART, step)


@dataclass(eq=False)
class TargetStartError(LoadError, ConfigurationError):
    """A target cannot be started as the stream file says."""

    command: str
    reason: str

    def sentence(self) -> str:
        problem = f"{self.command!r} cannot be started ({self.reason})"
        step = (
            "Install the target where `command` names it, or correct the target in the stream "
            "file; then run `batch-pipeline load` again."
        )
        return self.told(problem, _NOTHING_SENT, step)


@dataclass(eq=False)
class TargetRefusedError(LoadError, ConfigurationError):
    """A target cannot take a batch as the stream file says; nothing was tried."""

    problem: str
    next_step: str

    def sentence(self) -> str:
        return self.told(self.problem, _NOTHING_SENT, self.next_step)


@dataclass(eq=False)
class PartFileChangedError(LoadError, BatchDataError):
    """A file of a published batch is gone, or is not what was published."""

    problem: str

    def sentence(self) -> str:
        step = (
            "Materialize its partition again: the next generation takes its place. Then run "
            "`batch-pipeline load` again."
        )
        return self.told(self.problem, _NOTHING_SENT, step)


@dataclass(eq=False)
class UnknownTargetError(ConfigurationError):
    """A target was asked for that the stream file does not describe."""

    stream: str
    target: str | None
    known: tuple[str, ...]

    def sentence(self) -> str:
        known = ", ".join(self.known) or "none"
        asked = "has no target" if self.target is None else f"has no target {self.target!r}"
        return (
            f"The stream {self.stream} {asked} (targets of its stream file: {known}). Nothing was "
            f"loaded. Describe the target below `targets` in the stream file."
        )


@dataclass(eq=False)
class NotLoadedError(ConfigurationError):
    """A batch was to be loaded again that no target has."""

    stream: str
    batch: str
    targets: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"{self.stream}: no batch {self.batch!r} is loaded into {', '.join(self.targets)}. "
            f"Nothing was loaded. Give a batch as `batch-pipeline explain` names its partition; "
            f"one that was never loaded needs no --reload."
        )


@dataclass(eq=False)
class FilesRemovedError(ConfigurationError):
    """A batch was to be loaded whose files were deleted after they were loaded."""

    stream: str
    batch: str
    generation: int
    removed_at: datetime

    def sentence(self) -> str:
        day = f"{self.removed_at:%Y-%m-%d}"
        return (
            f"{self.stream}: the files of batch {self.batch}, generation {self.generation}, were "
            f"deleted on {day}, as `storage` of the stream file says. Nothing was loaded or "
            f"changed. Materialize its partition again: the next generation is loaded into every "
            f"target and takes the place of this one."
        )


@dataclass(eq=False)
class LoadRunningError(LoadError, ConflictError):
    """Somebody else is loading batches of the stream into the target."""

    run_id: str

    def sentence(self) -> str:
        problem = f"run {self.run_id} is loading this stream into the target"
        step = "Wait until it has ended; what it leaves is loaded by the next run."
        return self.told(problem, "Nothing was changed.", step)


@dataclass(eq=False)
class LoadLostError(LoadError, ConflictError):
    """A load was taken over by somebody else while it was under way."""

    def sentence(self) -> str:
        problem = "its claim was taken over, since this run gave no sign of life for too long"
        step = "Run `batch-pipeline load` again: what the other run has loaded is left alone."
        return self.told(problem, _LEFT_IN_PART, step)
