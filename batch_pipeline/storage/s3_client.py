"""The S3 client of this process, configured by AWS's own environment: keys, profile, region,
endpoint (`AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`), `AWS_MAX_ATTEMPTS`, `AWS_RETRY_MODE`.

One client serves all threads; a fork makes its own. boto3 is imported on first use, which takes
half a second.
"""

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

# Of one request. While the store is busy the waits between them are up to 71 s in all, else 7 s.
ATTEMPTS = 8
# Of one request without any response: each waits for the whole of these timeouts.
SILENT_ATTEMPTS = 2
CONNECT_SECONDS = 10
ANSWER_SECONDS = 30

_lock = threading.Lock()
_clients: list[Any] = []
_generation = object()  # another one after each `forget`


def client() -> Any:
    """Return the client; no request is made yet.

    Raises:
        UnreachableError: the configuration names a profile that is not there, or makes no sense.
    """
    made = next(iter(_clients), None)  # `forget` may come at any time
    if made is None:
        with _lock:
            made = next(iter(_clients), None)
            if made is None:
                made = new_client()
                _clients.append(made)
    return made


def kept(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that makes a client on first use, and again after each `forget`."""
    held: tuple[object, Any] = (None, None)

    def get() -> Any:
        nonlocal held
        generation, made = held
        if generation is not _generation:
            generation, made = held = (_generation, make())
        return made

    return get


def new_client(
    service: str = "s3",
    *,
    region: str | None = None,
    endpoint: str | None = None,
    profile: str | None = None,
) -> Any:
    """Return a new client, of S3 or of another service; None takes the environment's value.

    Raises:
        UnreachableError: the configuration names a profile that is not there, or makes no sense.
    """
    from batch_pipeline.storage.errors import (
        UnreachableError,
        showable,
        translate_store_errors,
        without_user,
    )

    with translate_store_errors(f"{service}://"):
        try:
            made = _configured(service, region, endpoint, profile)
        except ValueError as error:  # of a number that is none, an endpoint that is no URL
            text = f"AWS's settings do not do: {without_user(str(error))}"
            raise UnreachableError(errno.EINVAL, text, f"{service}://") from showable(error)
    return made


def forget() -> None:
    """Make the next use read the environment, and AWS's files, again; needs no lock."""
    global _generation  # noqa: PLW0603 - another one each time
    _generation = object()
    _clients.clear()


def _reset_after_fork() -> None:
    """Drop the client, and a lock that another thread of the parent may hold for ever."""
    global _lock  # noqa: PLW0603 - the child of a fork has one thread
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def _configured(service: str, region: str | None, endpoint: str | None, profile: str | None) -> Any:
    import boto3
    import botocore.session
    from botocore.config import Config

    core = botocore.session.Session(profile=profile)
    is_counted = core.get_config_variable("max_attempts") is not None
    retries = {} if is_counted else {"total_max_attempts": ATTEMPTS}
    config = Config(
        retries={"mode": core.get_config_variable("retry_mode") or "standard", **retries},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        max_pool_connections=32,
        # What is written has its SHA-256; a second checksum costs time and is unknown to some
        # stores.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="batch-pipeline",
    )
    known = os.environ.get("AWS_REGION") or core.get_config_variable("region")
    session = boto3.session.Session(botocore_session=core, region_name=region or known)
    made = session.client(service, config=config, endpoint_url=endpoint)
    most = made.meta.config.retries["total_max_attempts"]
    made.meta.events.register_first(f"needs-retry.{service}", _stop_without_response)
    made.meta.events.register_first(f"needs-retry.{service}", partial(_retry_conflict, most))
    return made


def _stop_without_response(attempts: int, caught_exception: Exception | None, **_: Any) -> None:
    """Stop repeating after a few requests without any response."""
    from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

    is_silent = isinstance(caught_exception, ConnectTimeoutError | ReadTimeoutError)
    if caught_exception is not None and is_silent and attempts >= SILENT_ATTEMPTS:
        raise caught_exception


def _retry_conflict(most: int, attempts: int, response: Any, **_: Any) -> float | None:
    """Repeat after a collision of two writers; the response does not say which one has won."""
    code = None if response is None else response[1].get("Error", {}).get("Code")
    if code in {"ConditionalRequestConflict", "OperationAborted"} and attempts < most:
        return 0.05 * float(2**attempts)
    return None
