"""What keeps processes from starting or staying up: the home folder, ports, Dagster's servers."""

from dataclasses import dataclass

from batch_pipeline.domain.errors.base import ConfigurationError, RetryableError


@dataclass(eq=False)
class HomeInUseError(RetryableError):
    """Another process already works on this home."""

    home: str
    holder: str

    def sentence(self) -> str:
        return (
            f"{self.home} is in use by {self.holder}. Nothing was changed. Wait for it to end or "
            f"stop it, or set BATCH_PIPELINE_HOME to another folder."
        )


@dataclass(eq=False)
class HomeUnusableError(ConfigurationError):
    """The home folder cannot be created, written or locked."""

    home: str
    reason: str

    def sentence(self) -> str:
        return (
            f"The home folder {self.home} cannot be used ({self.reason}). Nothing was started. "
            f"Make it writable for this user, or set BATCH_PIPELINE_HOME to another folder on a "
            f"local disk."
        )


@dataclass(eq=False)
class PortInUseError(ConfigurationError):
    """A port that was asked for is taken."""

    port: int

    def sentence(self) -> str:
        return (
            f"Port {self.port} on 127.0.0.1 is taken. Nothing was started. Stop what listens there "
            f"or pass another one: `batch-pipeline dev --port {self.port + 1}`."
        )


@dataclass(eq=False)
class ServiceEndedError(RetryableError):
    """A service of `batch-pipeline dev` ended or does not answer."""

    service: str
    failure: str
    log: str

    def sentence(self) -> str:
        return (
            f"The {self.service} {self.failure}. Published batches are not affected. All other "
            f"services were stopped. See {self.log}, then start `batch-pipeline dev` again."
        )
