"""The services of `batch-pipeline dev`, watched until one of them ends or `dev` is stopped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from batch_pipeline.model.errors import RetryableError

_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server that has to run as long as `dev`; `failure` returns why it does not."""

    name: str
    log: Path
    failure: Callable[[], str | None]


def watch(services: Sequence[Service], stop: Event, pause_seconds: float = _PAUSE_SECONDS) -> None:
    """Wait until `stop` is set.

    Raises:
        RetryableError: a service ended first. The services are checked in order, so that one
            comes before those that depend on it.
    """
    while not stop.wait(pause_seconds):
        for service in services:
            failure = service.failure()
            if failure is not None:
                raise service_ended(service.name, failure, str(service.log))


def service_ended(service: str, failure: str, log: str) -> RetryableError:
    """Build the error of a service that ended or does not answer."""
    return RetryableError(
        f"The {service} {failure}. Published batches are not affected. All other "
        f"services were stopped. See {log}, then start `batch-pipeline dev` again."
    )
