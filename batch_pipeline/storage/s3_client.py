"""The clients of S3 and SQS, and the translation of their failures to `OSError`s.

Clients are configured by AWS's own environment: keys, profile, region, endpoint
(`AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`), `AWS_MAX_ATTEMPTS`, `AWS_RETRY_MODE`. One client
serves all threads; a forked process creates its own. boto3 is imported on first use, which takes
half a second.
"""

import errno
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from batch_pipeline.storage.filesystem import NO_BUCKET, OTHER_VERSION, UnreachableError

# Per request. The waits between attempts take up to 71 s in total if the store is busy, else 7 s.
ATTEMPTS = 8
# Per request without any response: each attempt waits for these full timeouts.
SILENT_ATTEMPTS = 2
CONNECT_SECONDS = 10
ANSWER_SECONDS = 30

_lock = threading.RLock()  # a failure to create a client calls `forget`


def new_client(
    service: str = "s3",
    *,
    region: str | None = None,
    endpoint: str | None = None,
    profile: str | None = None,
) -> Any:
    """Return a new client for S3 or another service; None means the environment's value.

    Raises:
        UnreachableError: the configuration is not valid, or names a profile that does not exist.
    """
    with translate_store_errors(f"{service}://"):
        try:
            return _configured(service, region, endpoint, profile)
        except ValueError as error:  # an invalid number, or an endpoint that is not a URL
            text = f"{_BAD_SETTINGS}: {without_user(str(error))}"
            raise UnreachableError(errno.EINVAL, text, f"{service}://") from _showable(error)


@cache
def _loader(data_path: str | None) -> Any:
    """Return a loader of AWS's service descriptions; clients share it, because parsing is slow."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


@cache
def _created(service: str, region: str | None) -> Any:
    return new_client(service, region=region)


def client(service: str = "s3", region: str | None = None) -> Any:
    """Return the client of this process, created on first use and again after `forget`."""
    with _lock:  # otherwise each thread might create one
        return _created(service, region)


def forget() -> None:
    """Make the next use read the environment and AWS's files again."""
    with _lock:
        _created.cache_clear()


def _reset_after_fork() -> None:
    """Drop the clients and the lock, which another thread of the parent may hold forever."""
    global _lock  # noqa: PLW0603 - the child of a fork has one thread
    _lock = threading.RLock()
    _created.cache_clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def _configured(service: str, region: str | None, endpoint: str | None, profile: str | None) -> Any:
    import boto3
    import botocore.session
    from botocore.config import Config

    core = botocore.session.Session(profile=profile)
    core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
    is_counted = core.get_config_variable("max_attempts") is not None
    retries = {} if is_counted else {"total_max_attempts": ATTEMPTS}
    config = Config(
        retries={"mode": core.get_config_variable("retry_mode") or "standard", **retries},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        max_pool_connections=32,
        # Uploads carry their SHA-256; a second checksum costs time, and not all stores support it.
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
    """Stop retrying after a few requests without any response."""
    from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

    is_silent = isinstance(caught_exception, ConnectTimeoutError | ReadTimeoutError)
    if caught_exception is not None and is_silent and attempts >= SILENT_ATTEMPTS:
        raise caught_exception


def _retry_conflict(most: int, attempts: int, response: Any, **_: Any) -> float | None:
    """Retry after a conflict of two writers; the response does not say which one has won."""
    code = None if response is None else response[1].get("Error", {}).get("Code")
    if code in {"ConditionalRequestConflict", "OperationAborted"} and attempts < most:
        return 0.05 * float(2**attempts)
    return None


_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
_BAD_SETTINGS = "AWS's settings are not valid"
_NO_REASON = "the store gives no reason (400): wrong region or expired credentials?"
_BUSY = (errno.EBUSY, "the store is busy")

# The meanings of codes of S3, SQS and STS: an errno, which decides the class, and a text. The
# response to a HEAD has only a status.
_MEANINGS: dict[str, tuple[int, str]] = {
    "NoSuchBucket": (errno.ENOENT, NO_BUCKET),
    "AWS.SimpleQueueService.NonExistentQueue|QueueDoesNotExist": (
        errno.ENOENT,
        "there is no such queue",
    ),
    "InvalidObjectState": (errno.EACCES, "it is archived; restore it first"),
    "NoSuchUpload": (
        errno.ENOENT,
        "the upload no longer exists: it was aborted, or is complete",
    ),
    "404|NoSuchKey|NotFound": (errno.ENOENT, os.strerror(errno.ENOENT)),
    "412|PreconditionFailed": (errno.EEXIST, OTHER_VERSION),
}
_ACCESS_MEANINGS: dict[str, tuple[int, str]] = {
    "AuthFailure|ExpiredToken(Exception)?|MissingAuthenticationToken|SignatureDoesNotMatch|"
    "Invalid(AccessKeyId|ClientTokenId|IdentityToken|Security|SignatureException|Token)|"
    "TokenRefreshRequired|UnrecognizedClientException": (
        errno.EACCES,
        f"the store does not accept the credentials; {_CREDENTIALS}",
    ),
    "RequestTimeTooSkewed|RequestExpired": (
        errno.EACCES,
        "the clock of this machine differs from the store's; synchronize it",
    ),
    "409|ConditionalRequestConflict|OperationAborted|RequestTimeout|SlowDown": _BUSY,
    "(Throttling|RequestThrottled|RequestLimitExceeded).*": _BUSY,
}
_REGION_CODES = {"301", "307", "AuthorizationHeaderMalformed", "PermanentRedirect"}
_CREDENTIAL_REQUESTS = ("AssumeRole", "CreateToken", "GetRoleCredentials")  # for credentials

# The permission that a policy must allow, if its name differs from the request's.
_RIGHTS = {
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "ListObjectsV2": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "DeleteMessageBatch": "DeleteMessage",
    "DeleteObjects": "DeleteObject",
    "CompleteMultipartUpload": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
}
_QUEUE_REQUESTS = {"DeleteMessageBatch", "ReceiveMessage"}


@contextmanager
def translate_store_errors(uri: str) -> Iterator[None]:
    """Raise every failure of a store in the block as an `OSError` that names the URI.

    Raises:
        FileNotFoundError: there is no such object, or no such bucket (`is_missing_bucket`).
        FileExistsError: a condition on its absence, or on its version, did not hold.
        PermissionError: the store refuses this request.
        UnreachableError: it is unreachable. If credentials are the reason, the next use of a client
            reads them again.
    """
    from botocore import exceptions as known
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except known.ClientError as error:
        raise _of_response(error, uri) from error
    except known.ParamValidationError as error:
        raise OSError(errno.EINVAL, " ".join(str(error).split()), uri) from error
    except (HTTPError, known.IncompleteReadError, known.ResponseStreamingError) as error:
        text = f"the connection was lost ({_first_line(error)})"
        raise UnreachableError(errno.ECONNRESET, text, uri) from error
    except ResponseParserError as error:
        raise unreachable(uri) from error
    except known.BotoCoreError as error:
        text = _of_no_response(error)
        raise UnreachableError(errno.EHOSTUNREACH, text, uri) from _showable(error)


def unreachable(uri: str) -> UnreachableError:
    """Return the error for a server that is not a store, or not a queue."""
    kind = "an SQS queue" if uri.startswith("http") else "an S3 server"
    text = f"the server at this address is not {kind}; set AWS_ENDPOINT_URL to the address of one"
    return UnreachableError(errno.EPROTO, text, uri)


def without_user(text: str) -> str:
    """Remove user and password from URLs in a text: an endpoint or a proxy may have them."""
    return re.sub(r"(?<=//)[^\s\"']*@|(?<!\S)[^\s\"'/]+:[^\s\"'/]*@", "", text)


def _showable(error: Exception) -> Exception | None:
    """Return an error that may be shown as a cause; None if its text holds a password."""
    return error if without_user(str(error)) == str(error) else None


def _of_response(error: Any, uri: str) -> OSError:
    details, metadata = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    code, message = str(details.get("Code", "")), str(details.get("Message", "")).rstrip(".")
    status = int(metadata.get("HTTPStatusCode", 0))
    meaning = _meaning(_MEANINGS, code)
    if meaning is not None:
        return OSError(*meaning, uri)
    of_access = _of_access(error, code, status, message)
    if of_access is not None:
        if of_access[0] == errno.EACCES:
            forget()  # newer credentials may be available now
        return UnreachableError(*of_access, uri)
    if status in {401, 403}:
        return PermissionError(errno.EACCES, _refusal(error.operation_name, code), uri)
    # A key of KMS that is disabled or pending deletion refuses access, with the status 400.
    number = errno.EACCES if code.startswith("KMS.") else errno.EIO
    return OSError(number, f"the store answers {code}: {message}", uri)


def _meaning(meanings: dict[str, tuple[int, str]], code: str) -> tuple[int, str] | None:
    return next((found for codes, found in meanings.items() if re.fullmatch(codes, code)), None)


def _of_access(error: Any, code: str, status: int, message: str) -> tuple[int, str] | None:
    """Return errno and text of a problem with access as a whole; None if there is none."""
    metadata = error.response.get("ResponseMetadata", {})
    if code in _REGION_CODES:
        region = error.response.get("Error", {}).get("Region")
        region = region or metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region")
        where = f"the region {region}; set AWS_REGION={region}" if region else "another region"
        return errno.EINVAL, f"the bucket is in {where}"
    meaning = _meaning(_ACCESS_MEANINGS, code)
    if meaning is None and (status == 429 or (status >= 500 and status != 501)):
        meaning = _BUSY
    if meaning is not None:
        requests = 1 + int(metadata.get("RetryAttempts", 0))
        return meaning[0], f"{meaning[1]} ({code}, after {requests} requests)"
    if error.operation_name.startswith(_CREDENTIAL_REQUESTS):
        answered = f"it answers {error.operation_name} by {code}: {message}"
        return errno.EACCES, f"AWS returns no credentials: {answered}"
    return (errno.EACCES, _NO_REASON) if code == "400" else None  # a HEAD has no error text


def _refusal(operation: str, code: str) -> str:
    service = "sqs" if operation in _QUEUE_REQUESTS else "s3"
    text = f"the store refuses {service}:{_RIGHTS.get(operation, operation)} ({code})"
    if operation in {"GetObject", "HeadObject"}:
        text += ", or there is none and s3:ListBucket is refused"
    return text


def _of_no_response(error: Exception) -> str:
    from botocore import exceptions as known

    text = _first_line(error)
    if isinstance(error, known.NoRegionError):
        return "no region is known; set AWS_REGION"
    if isinstance(error, known.HTTPClientError | known.ConnectionError):
        return f"it does not answer ({text})"
    forget()  # AWS's files and variables may exist, or be correct, next time
    if isinstance(error, known.NoCredentialsError):
        return f"no credentials were found; {_CREDENTIALS}"
    return f"{_BAD_SETTINGS}: {text}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return without_user(lines[0].rstrip("."))
