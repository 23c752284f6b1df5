"""What goes wrong with stores, said as the operating system says it: by an `OSError` of its kind.

What repeating can help against, and what is wrong with the access as a whole, is an
`UnreachableError`: no object is to blame. Knows errors of botocore by their codes alone.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from batch_pipeline.stores import s3

_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
_NOT_ACCEPTED = f"the store does not accept the credentials; {_CREDENTIALS}"
_CLOCK = "the clock of this machine differs from the store's; set it right"
_BUSY = "the store is busy"
_ABSENT = os.strerror(errno.ENOENT)
_WORDLESS = "the store gives no reason (400): is it another region? have credentials expired?"
_NO_UPLOAD = "the upload is not there any more: it was aborted, or is complete"
OTHER_VERSION = "another version of the object is there"

# What S3, SQS and STS answer where they do not accept who asks.
_OF_CREDENTIALS = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidIdentityToken",
    "InvalidSecurity",
    "InvalidSignatureException",
    "InvalidToken",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "UnrecognizedClientException",
}
_OF_BUSY = ("Throttling", "RequestThrottled", "RequestLimitExceeded")  # and what begins so
_FOR_CREDENTIALS = ("AssumeRole", "CreateToken", "GetRoleCredentials")  # requests of their own

# What a code of S3 means: an errno, which makes the class, and words. HEAD has only a status.
_MEANINGS: dict[str, tuple[int, str]] = {
    "NoSuchBucket": (errno.ENOENT, "there is no such bucket"),
    **dict.fromkeys(
        ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"),
        (errno.ENOENT, "there is no such queue"),
    ),
    "InvalidObjectState": (errno.EACCES, "it is archived; restore it first"),
    "NoSuchUpload": (errno.ENOENT, _NO_UPLOAD),
    **dict.fromkeys(("404", "NoSuchKey", "NotFound"), (errno.ENOENT, _ABSENT)),
    **dict.fromkeys(("412", "PreconditionFailed"), (errno.EEXIST, OTHER_VERSION)),
}
_FOR_ALL: dict[str, tuple[int, str]] = {
    **dict.fromkeys(_OF_CREDENTIALS, (errno.EACCES, _NOT_ACCEPTED)),
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), (errno.EACCES, _CLOCK)),
    **dict.fromkeys(
        ("409", "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown"),
        (errno.EBUSY, _BUSY),
    ),
}
_ELSEWHERE = {"301", "307", "AuthorizationHeaderMalformed", "PermanentRedirect"}

# What a policy has to allow, where that is not called as the request is.
_ALLOWED_AS = {
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "ListObjectsV2": "ListBucket",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "DeleteMessageBatch": "DeleteMessage",
    "DeleteObjects": "DeleteObject",
    **dict.fromkeys(
        (
            "CompleteMultipartUpload",
            "CopyObject",
            "CreateMultipartUpload",
            "UploadPart",
            "UploadPartCopy",
        ),
        "PutObject",
    ),
}
_OF_QUEUES = {"DeleteMessageBatch", "ReceiveMessage"}


class UnreachableError(ConnectionError):
    """A store does not answer, is too busy, or does not accept who asks."""


class NoBucketError(FileNotFoundError):
    """There is no such bucket, which says nothing about any object."""


def reason_of(error: OSError) -> str:
    """Say in words why the system, or a store, refused."""
    text = error.strerror or str(error) or type(error).__name__
    is_plain = error.errno is not None and text == os.strerror(error.errno)
    return text.lower() if is_plain else text


def tells_of_file(error: OSError) -> bool:
    """Tell whether a failure says anything about the one file that was asked for.

    Not where its store cannot be asked or refuses who asks, or where a disk has no room for a copy.
    """
    is_refused = isinstance(error, UnreachableError | PermissionError)
    return not is_refused and error.errno not in {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def told(uri: str) -> Iterator[None]:
    """Give every failure of a store in the block as an `OSError` that names the URI.

    Raises:
        FileNotFoundError: there is no such object or, a `NoBucketError`, bucket.
        FileExistsError: a condition on its absence, or on its version, did not hold.
        PermissionError: the store refuses this to who asks.
        UnreachableError: it cannot be asked. Where credentials are why, the next use of a client
            reads them again.
    """
    from botocore import exceptions as known
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except known.ClientError as error:
        raise _of_answer(error, uri) from error
    except known.ParamValidationError as error:
        raise OSError(errno.EINVAL, " ".join(str(error).split()), uri) from error
    except (HTTPError, known.IncompleteReadError, known.ResponseStreamingError) as error:
        text = f"the connection broke off ({_first_line(error)})"
        raise UnreachableError(errno.ECONNRESET, text, uri) from error
    except ResponseParserError as error:
        raise not_the_store(uri) from error
    except known.BotoCoreError as error:
        raise UnreachableError(errno.EHOSTUNREACH, _unasked(error), uri) from showable(error)


def not_the_store(uri: str) -> UnreachableError:
    """Make the error that says that something else answers than a store, or a queue."""
    kind = "queue of SQS" if uri.startswith("http") else "S3"
    text = f"what answers there is no {kind}; set AWS_ENDPOINT_URL to the address of one"
    return UnreachableError(errno.EPROTO, text, uri)


def without_user(text: str) -> str:
    """Take user and password out of the URLs in a text: an endpoint or a proxy may have them."""
    return re.sub(r"(?<=//)[^\s\"']*@|(?<!\S)[^\s\"'/]+:[^\s\"'/]*@", "", text)


def showable(error: Exception) -> Exception | None:
    """Give an error as the cause of another one; None where its own words hold a password."""
    return error if without_user(str(error)) == str(error) else None


def _of_answer(error: Any, uri: str) -> OSError:
    told_error = error.response.get("Error", {})
    code, message = str(told_error.get("Code", "")), str(told_error.get("Message", "")).rstrip(".")
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _MEANINGS:
        kind = NoBucketError if code == "NoSuchBucket" else OSError
        return kind(*_MEANINGS[code], uri)
    of_access = _of_access(error, code, status, message)
    if of_access is not None:
        return UnreachableError(*of_access, uri)
    if status in {401, 403}:
        return PermissionError(errno.EACCES, _refusal(error.operation_name, code), uri)
    return OSError(errno.EIO, f"the store answers {code}: {message}", uri)


def _of_access(error: Any, code: str, status: int, message: str) -> tuple[int, str] | None:
    """Say what is wrong with the access as a whole, with its errno; None where it is not that."""
    requests = 1 + int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0))
    is_busy = status == 429 or (status >= 500 and status != 501) or code.startswith(_OF_BUSY)
    found = None
    if code in _ELSEWHERE:
        found = errno.EINVAL, _in_region(error)
    elif code in _FOR_ALL or is_busy:
        number, text = _FOR_ALL.get(code, (errno.EBUSY, _BUSY))
        found = number, f"{text} ({code}, after {requests} requests)"
    elif error.operation_name.startswith(_FOR_CREDENTIALS):
        answered = f"it answers {error.operation_name} by {code}: {message}"
        found = errno.EACCES, f"AWS gives no credentials: {answered}"
    elif code == "400":  # a HEAD has no words
        found = errno.EACCES, _WORDLESS
    if found is not None and found[0] == errno.EACCES:
        s3.forget()  # those that are there now may be newer
    return found


def _in_region(error: Any) -> str:
    answer = error.response
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = answer.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region")
    where = f"in the region {region}; set AWS_REGION={region}" if region else "in another region"
    return f"the bucket is {where}"


def _refusal(operation: str, code: str) -> str:
    service = "sqs" if operation in _OF_QUEUES else "s3"
    text = f"the store refuses {service}:{_ALLOWED_AS.get(operation, operation)} ({code})"
    if operation in {"GetObject", "HeadObject"}:
        text += ", or there is none and s3:ListBucket is refused"
    return text


def _unasked(error: Exception) -> str:
    from botocore import exceptions as known

    if isinstance(error, (known.NoCredentialsError, *_configured_wrong())):
        s3.forget()  # they may be there, or right, the next time
    if isinstance(error, known.NoCredentialsError):
        return f"no credentials were found; {_CREDENTIALS}"
    if isinstance(error, known.NoRegionError):
        return "no region is known; set AWS_REGION"
    text = _first_line(error)
    if isinstance(error, _configured_wrong()):
        return f"AWS's settings do not do: {text}"
    return f"it does not answer ({text})"


def _configured_wrong() -> tuple[type[Exception], ...]:
    """Give the errors about files and variables of AWS's, before anything is asked."""
    from botocore import exceptions as known

    return (
        known.ConfigNotFound,
        known.ConfigParseError,
        known.CredentialRetrievalError,
        known.InvalidConfigError,
        known.InvalidRegionError,
        known.InvalidRetryConfigurationError,
        known.PartialCredentialsError,
        known.ProfileNotFound,
        known.SSOError,
        known.TokenRetrievalError,
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return without_user(lines[0].rstrip("."))
