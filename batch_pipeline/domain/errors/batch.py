"""Stations 3 to 5: batches that cannot be planned, claimed, split, released or published."""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import ConfigurationError, ConflictError, InvariantError


@dataclass(eq=False)
class OverlapError(InvariantError):
    """The database refused a batch whose ids another batch of the job holds."""

    stream: str
    detail: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: the database refused a batch that overlaps another one "
            f"({self.detail}). Nothing was written. Please report this with the output of "
            f"`batch-pipeline status`."
        )


@dataclass(eq=False)
class StreamStoppedError(InvariantError):
    """An exception that nobody expected ended the work on a stream; `log` has its traceback."""

    stream: str
    problem: str
    log: str | None

    def sentence(self) -> str:
        log = "" if self.log is None else f" with the traceback in {self.log}"
        return (
            f"{self.stream}: an unexpected error stopped this stream: {self.problem}. What was "
            f"published before stays published. Run the command again to go on with the rest of "
            f"the stream; if it fails again, please report this{log}."
        )


@dataclass(eq=False)
class UnknownBatchError(ConfigurationError):
    """A partition key names no planned batch."""

    stream: str
    key: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: {self.key!r} is no planned batch. Nothing was claimed. Pick a "
            f"partition that the planner made (`batch-pipeline status {self.stream}` lists "
            f"them). One that `roll-up` of an earlier release made stands for several: pick those."
        )


@dataclass(eq=False)
class AttemptRunningError(ConflictError):
    """A live attempt already works on the batch."""

    stream: str
    key: str
    number: int
    run_id: str

    def sentence(self) -> str:
        return (
            f"{self.stream}: attempt {self.number} of batch {self.key} is running (run "
            f"{self.run_id}). Nothing was claimed. Wait for it to end, or cancel that run and try "
            f"again."
        )


@dataclass(eq=False)
class FencedError(ConflictError):
    """The attempt lost its claim; what it wrote does not count."""

    stream: str
    key: str
    number: int

    def sentence(self) -> str:
        return (
            f"{self.stream}: attempt {self.number} of batch {self.key} lost its claim and "
            f"published nothing; its files were removed. Another attempt goes on in its place, or "
            f"somebody cancelled it; no action is needed."
        )


@dataclass(eq=False)
class BatchSupersededError(ConflictError):
    """A batch was to be tried that has been split into smaller ones."""

    job: str
    label: str
    parts: tuple[str, ...] = ()  # partition keys of what took its place, where somebody looked

    def sentence(self) -> str:
        if not self.parts:
            return (
                f"{self.job}: batch {self.label} was split into smaller batches. Nothing was "
                f"claimed. Its halves are tried in its place; no action is needed."
            )
        more = f" and {len(self.parts) - 8} more" if len(self.parts) > 8 else ""
        return (
            f"{self.job}: batch {self.label} was split into smaller batches. Nothing was claimed. "
            f"They are tried in its place by themselves; to encode its items by hand, materialize "
            f"the partitions {', '.join(self.parts[:8])}{more} instead."
        )


@dataclass(eq=False)
class BatchIndivisibleError(ConfigurationError):
    """A batch was to be split that cannot be."""

    job: str
    label: str
    problem: str
    next_step: str

    def sentence(self) -> str:
        return (
            f"{self.job}: batch {self.label} cannot be split: {self.problem}. Nothing was changed. "
            f"{self.next_step}"
        )


@dataclass(eq=False)
class BatchReleasedError(ConflictError):
    """A batch was to be released that has been."""

    job: str
    label: str
    number: int
    outcome: str

    def sentence(self) -> str:
        return (
            f"{self.job}: attempt {self.number} of batch {self.label} has been released already, "
            f"as {self.outcome}. That stays. Acquire again for the next batch."
        )


@dataclass(eq=False)
class BatchElsewhereError(ConfigurationError):
    """A batch was to be used outside of the process that acquired it."""

    job: str
    label: str
    process_id: int

    def sentence(self) -> str:
        return (
            f"{self.job}: batch {self.label} belongs to process {self.process_id} and can be "
            f"neither copied, pickled nor released elsewhere. It is left as it was. Hand its items "
            f"over, and release it where it was acquired; or acquire in the process that works."
        )
