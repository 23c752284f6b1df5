"""The services of `dev`: watched until a service ends or a stop is requested."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from batch_pipeline.defs.instance.servers import Service, watch
from batch_pipeline.model.errors import RetryableError


def service(name: str, failure: Callable[[], str | None]) -> Service:
    """Return a service with its own log."""
    return Service(name=name, log=Path(f"/logs/{name}.log"), failure=failure)


def test_watch_returns_when_stop_is_set() -> None:
    stop = Event()
    watch([service("webserver", stop.set)], stop, pause_seconds=0)


def test_watch_reports_an_ended_service_with_exit_code_and_log() -> None:
    daemon = service("daemon", lambda: "ended with exit code 137")
    with pytest.raises(RetryableError, match="All other services were stopped") as raised:
        watch([service("webserver", lambda: None), daemon], Event(), pause_seconds=0)
    assert str(raised.value) == (
        "The daemon ended with exit code 137. Published batches are not affected. All other "
        "services were stopped. See /logs/daemon.log, then start `batch-pipeline dev` again."
    )


def test_watch_reports_the_first_of_two_ended_services() -> None:
    services = [service(name, lambda: "ended") for name in ("database", "Spark")]
    with pytest.raises(RetryableError, match="The database ended"):
        watch(services, Event(), pause_seconds=0)
