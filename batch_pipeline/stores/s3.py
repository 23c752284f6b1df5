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

# Of one request. Where the store is busy the waits between them are up to 71 s in all, else 7 s.
ATTEMPTS = 8
# Of one request without any answer: each waits for the whole of these.
SILENT_ATTEMPTS = 2
CONNECT_SECONDS = 10
ANSWER_SECONDS = 30

_lock = threading.Lock()
_clients: list[Any] = []
_times = object()  # another one after each `forget`


def client() -> Any:
    """Give the client; nothing is asked of the store yet.

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
    """Give what makes a client of one's own on first use, and again after each `forget`."""
    held: tuple[object, Any] = (None, None)

    def given() -> Any:
        nonlocal held
        times, made = held
        if times is not _times:
            times, made = held = (_times, make())
        return made

    return given


def new_client(
    service: str = "s3",
    *,
    region: str | None = None,
    endpoint: str | None = None,
    profile: str | None = None,
) -> Any:
    """Give a client of one's own, of S3 or of another service; what is None is the environment's.

    Raises:
        UnreachableError: the configuration names a profile that is not there, or makes no sense.
    """
    from batch_pipeline.stores.failures import UnreachableError, showable, told, without_user

    with told(f"{service}://"):
        try:
            made = _configured(service, region, endpoint, profile)
        except ValueError as error:  # of a number that is none, an endpoint that is no URL
            text = f"AWS's settings do not do: {without_user(str(error))}"
            raise UnreachableError(errno.EINVAL, text, f"{service}://") from showable(error)
    return made


def forget() -> None:
    """Let the next use read the environment, and AWS's files, again; needs no lock."""
    global _times  # noqa: PLW0603 - another one each time
    _times = object()
    _clients.clear()


def _start_anew() -> None:
    """Leave the client, and a lock that another thread may hold for ever, to the parent."""
    global _lock  # noqa: PLW0603 - the child of a fork has one thread
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_start_anew)


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
    made.meta.events.register_first(f"needs-retry.{service}", _end_silence)
    made.meta.events.register_first(f"needs-retry.{service}", partial(_try_again, most))
    return made


def _end_silence(attempts: int, caught_exception: Exception | None, **_: Any) -> None:
    """Ask no more after a few requests that nothing answered."""
    from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

    is_silent = isinstance(caught_exception, ConnectTimeoutError | ReadTimeoutError)
    if caught_exception is not None and is_silent and attempts >= SILENT_ATTEMPTS:
        raise caught_exception


def _try_again(most: int, attempts: int, response: Any, **_: Any) -> float | None:
    """Repeat after a collision of two writers; the answer says nothing about who has won."""
    code = None if response is None else response[1].get("Error", {}).get("Code")
    if code in {"ConditionalRequestConflict", "OperationAborted"} and attempts < most:
        return 0.05 * float(2**attempts)
    return None
