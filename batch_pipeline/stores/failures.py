"""What goes wrong with stores, said as the operating system says it: by an `OSError` of its kind.

What repeating can help against, and what is wrong with the access as a whole, is an
`UnreachableError`: no object is to blame. Knows errors of botocore by their codes alone.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
_NOT_ACCEPTED = f"the store does not accept the credentials; {_CREDENTIALS}"
_CLOCK = "the clock of this machine differs from the store's; set it right"
_BUSY = "the store is busy"
_ABSENT = os.strerror(errno.ENOENT)
_OTHER_VERSION = "another version of the object is there"

# What a code of S3 means: an errno, which makes the class, and words. HEAD has only a status.
_MEANINGS: dict[str, tuple[int, str]] = {
    "NoSuchBucket": (errno.ENOENT, "there is no such bucket"),
    **dict.fromkeys(("404", "NoSuchKey", "NoSuchUpload", "NotFound"), (errno.ENOENT, _ABSENT)),
    **dict.fromkeys(("412", "PreconditionFailed"), (errno.EEXIST, _OTHER_VERSION)),
}
_FOR_ALL: dict[str, tuple[int, str]] = {
    **dict.fromkeys(
        (
            "AuthFailure",
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidToken",
            "SignatureDoesNotMatch",
            "TokenRefreshRequired",
        ),
        (errno.EACCES, _NOT_ACCEPTED),
    ),
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), (errno.EACCES, _CLOCK)),
    **dict.fromkeys(
        ("409", "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown"),
        (errno.EBUSY, _BUSY),
    ),
}
_ELSEWHERE = {"301", "PermanentRedirect", "AuthorizationHeaderMalformed"}


class UnreachableError(ConnectionError):
    """A store does not answer, is too busy, or does not accept who asks."""


def reason_of(error: OSError) -> str:
    """Say in words why the system, or a store, refused."""
    text = error.strerror or str(error) or type(error).__name__
    is_plain = error.errno is not None and text == os.strerror(error.errno)
    return text.lower() if is_plain else text


@contextmanager
def told(uri: str) -> Iterator[None]:
    """Give every failure of a store in the block as an `OSError` that names the URI.

    Raises:
        FileNotFoundError: there is no such object or bucket.
        FileExistsError: a condition on its absence, or on its version, did not hold.
        PermissionError: the store refuses this to who asks.
        UnreachableError: it cannot be asked.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        raise _of_answer(error, uri) from error
    except BotoCoreError as error:
        raise UnreachableError(errno.EHOSTUNREACH, _unasked(error), uri) from error
    except HTTPError as error:  # of a body that breaks off
        raise UnreachableError(
            errno.ECONNRESET, f"the connection broke off ({error})", uri
        ) from error


def _of_answer(error: Any, uri: str) -> OSError:
    told_error = error.response.get("Error", {})
    answer = error.response.get("ResponseMetadata", {})
    code, status = str(told_error.get("Code", "")), int(answer.get("HTTPStatusCode", 0))
    requests = 1 + int(answer.get("RetryAttempts", 0))
    if code in _ELSEWHERE:
        return UnreachableError(errno.EINVAL, _in_region(error), uri)
    if code in _MEANINGS:
        return OSError(*_MEANINGS[code], uri)
    if code in _FOR_ALL or status >= 500:
        number, text = _FOR_ALL.get(code, (errno.EBUSY, _BUSY))
        return UnreachableError(number, f"{text} ({code}, after {requests} requests)", uri)
    if status in {401, 403}:
        text = f"the store refuses s3:{error.operation_name} ({code})"
        return PermissionError(errno.EACCES, text, uri)
    message = str(told_error.get("Message", "")).rstrip(".")
    return OSError(errno.EIO, f"the store answers {code}: {message}", uri)


def _in_region(error: Any) -> str:
    answer = error.response
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = answer.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region")
    where = f"in the region {region}; set AWS_REGION={region}" if region else "in another region"
    return f"the bucket is {where}"


def _unasked(error: Exception) -> str:
    name = type(error).__name__
    if name in {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"}:
        return f"no credentials were found; {_CREDENTIALS}"
    if name == "NoRegionError":
        return "no region is known; set AWS_REGION"
    text = str(error).strip().rstrip(".")
    return f"it does not answer ({text})"
