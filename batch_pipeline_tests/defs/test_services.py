"""The services of `dev`: watched until one ends or a stop is requested."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from batch_pipeline.defs.instance.servers import Service, watch
from batch_pipeline.model.errors import RetryableError


def service(name: str, failure: Callable[[], str | None]) -> Service:
    """Make a service with a log of its own."""
    return Service(name=name, log=Path(f"/logs/{name}.log"), failure=failure)


def test_watch_all_services_running_returns_when_stop_is_set() -> None:
    stop = Event()
    watch([service("webserver", stop.set)], stop, pause_seconds=0)


def test_watch_service_ended_names_it_with_exit_code_and_log() -> None:
    daemon = service("daemon", lambda: "ended with exit code 137")
    with pytest.raises(RetryableError, match="All other services were stopped") as raised:
        watch([service("webserver", lambda: None), daemon], Event(), pause_seconds=0)
    assert str(raised.value) == (
        "The daemon ended with exit code 137. Published batches are not affected. All other "
        "services were stopped. See /logs/daemon.log, then start `batch-pipeline dev` again."
    )


def test_watch_two_services_ended_names_the_first_in_order() -> None:
    services = [service(name, lambda: "ended") for name in ("database", "Spark")]
    with pytest.raises(RetryableError, match="The database ended"):
        watch(services, Event(), pause_seconds=0)
