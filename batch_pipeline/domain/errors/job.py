"""Station 3: jobs that are unknown, paused, not what was asked for, or chained in a wrong way."""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import ConfigurationError, RetryableError


@dataclass(eq=False)
class UnknownJobError(ConfigurationError):
    """A job was asked for that the inventory does not know; `streams` may have none yet."""

    job: str
    known: tuple[str, ...]
    streams: tuple[str, ...] = ()

    def sentence(self) -> str:
        known = ", ".join(self.known) or "none"
        if self.job in self.streams:
            return (
                f"The stream {self.job!r} has no job yet, because nothing of it has been planned. "
                f"Nothing was done. `batch-pipeline plan {self.job}` makes its job."
            )
        if self.streams:
            return (
                f"There is no job {self.job!r}, and no stream of this name (jobs: {known}; "
                f"streams: {', '.join(self.streams)}). Nothing was done. Check the name."
            )
        return f"There is no job {self.job!r} (jobs: {known}). Nothing was done. Check the name."


@dataclass(eq=False)
class AmbiguousJobError(ConfigurationError):
    """Jobs of several meta tables have the name that was asked for."""

    job: str
    meta_tables: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"There are jobs {self.job!r} on {', '.join(self.meta_tables)}. Nothing was done. Name "
            f"the meta table too (`--meta-table {self.meta_tables[0]}`)."
        )


@dataclass(eq=False)
class JobChangedError(ConfigurationError):
    """A job exists and is not what was asked for."""

    job: str
    meta_table: str
    problem: str
    next_step: str = ""

    def sentence(self) -> str:
        sentence = (
            f"Job {self.job!r} on {self.meta_table} exists, and {self.problem}. Nothing was done. "
            f"Ids that it has passed would never be looked at again: take another name for the "
            f"job, or ask for what it was made with."
        )
        return f"{sentence} {self.next_step}".rstrip()


@dataclass(eq=False)
class JobPausedError(RetryableError):
    """A job hands out nothing until it is resumed."""

    job: str
    reason: str

    def sentence(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"Job {self.job!r} is paused{why}. Nothing was planned or handed out. "
            f"`batch-pipeline jobs resume {self.job}` lets it go on."
        )


@dataclass(eq=False)
class UnknownJobBatchError(ConfigurationError):
    """A job has no live batch of the name or number that was asked for."""

    job: str
    batch: str

    def sentence(self) -> str:
        return (
            f"Job {self.job!r} has no batch {self.batch!r}. Nothing was done. `batch-pipeline "
            f"jobs list {self.job}` lists those that are not finished, by name and number."
        )


@dataclass(eq=False)
class UpstreamUnclearError(ConfigurationError):
    """A job is to read what another job has published, and it is not clear which."""

    job: str
    problem: str

    def sentence(self) -> str:
        return (
            f"Job {self.job!r} reads what other jobs have published, and {self.problem}. Nothing "
            f"was acquired. Name exactly one, as in "
            f'where=[{{"column": "job", "operator": "=", "value": "…"}}].'
        )


@dataclass(eq=False)
class UpstreamAmbiguousError(ConfigurationError):
    """A job is to read what another job has published, and several jobs have its name."""

    job: str
    upstream: str
    meta_tables: tuple[str, ...]

    def sentence(self) -> str:
        return (
            f"Job {self.job!r} is to read what {self.upstream!r} has published, and there are jobs "
            f"of this name on {', '.join(self.meta_tables)}. Nothing was acquired. Say which: add "
            f'{{"column": "meta_table", "operator": "=", "value": "{self.meta_tables[0]}"}} to '
            f"`where`."
        )


@dataclass(eq=False)
class ChainCycleError(ConfigurationError):
    """Jobs would read, over however many others, what they have published themselves."""

    jobs: tuple[str, ...]

    def sentence(self) -> str:
        chain = " reads ".join(repr(one) for one in self.jobs)
        return (
            f"Jobs would feed themselves for ever: {chain}. Nothing was acquired. Let one of them "
            f"read another job or a meta table of its own."
        )
