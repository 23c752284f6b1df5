"""Translation of the failures of stores to `OSError`s of their kind.

What may pass when it is repeated, and what is wrong with the access as a whole, becomes an
`UnreachableError`: it says nothing about an object. Errors of botocore are known by their codes.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from batch_pipeline.model.errors import RetryableError
from batch_pipeline.storage import s3_client

_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
_NOT_ACCEPTED = f"the store does not accept the credentials; {_CREDENTIALS}"
_CLOCK = "the clock of this machine differs from the store's; set it right"
_BUSY = "the store is busy"
_ABSENT = os.strerror(errno.ENOENT)
_NO_REASON = "the store gives no reason (400): is it another region? have credentials expired?"
_NO_UPLOAD = "the upload is not there any more: it was aborted, or is complete"
OTHER_VERSION = "another version of the object is there"

# The codes by which S3, SQS and STS refuse credentials.
_CREDENTIAL_CODES = {
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
_BUSY_CODES = ("Throttling", "RequestThrottled", "RequestLimitExceeded")  # and what begins so
_CREDENTIAL_REQUESTS = ("AssumeRole", "CreateToken", "GetRoleCredentials")  # requests of their own

_NO_BUCKET = "there is no such bucket"
# The meaning of a code of S3: an errno, which decides the class, and a text. The response to a
# HEAD has only a status.
_MEANINGS: dict[str, tuple[int, str]] = {
    "NoSuchBucket": (errno.ENOENT, _NO_BUCKET),
    **dict.fromkeys(
        ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"),
        (errno.ENOENT, "there is no such queue"),
    ),
    "InvalidObjectState": (errno.EACCES, "it is archived; restore it first"),
    "NoSuchUpload": (errno.ENOENT, _NO_UPLOAD),
    **dict.fromkeys(("404", "NoSuchKey", "NotFound"), (errno.ENOENT, _ABSENT)),
    **dict.fromkeys(("412", "PreconditionFailed"), (errno.EEXIST, OTHER_VERSION)),
}
_ACCESS_MEANINGS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(_CREDENTIAL_CODES, (errno.EACCES, _NOT_ACCEPTED)),
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), (errno.EACCES, _CLOCK)),
    **dict.fromkeys(
        ("409", "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "SlowDown"),
        (errno.EBUSY, _BUSY),
    ),
}
_REGION_CODES = {"301", "307", "AuthorizationHeaderMalformed", "PermanentRedirect"}

# The right that a policy has to allow, where its name is not that of the request.
_RIGHTS = {
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
_QUEUE_REQUESTS = {"DeleteMessageBatch", "ReceiveMessage"}


class UnreachableError(ConnectionError):
    """A store does not answer, is too busy, or refuses the credentials."""


def is_missing_bucket(error: OSError) -> bool:
    """Return whether there is no such bucket, which says nothing about any object."""
    return error.strerror == _NO_BUCKET


def reason_of(error: OSError) -> str:
    """Return the reason why the system, or a store, refused."""
    text = error.strerror or str(error) or type(error).__name__
    is_plain = error.errno is not None and text == os.strerror(error.errno)
    return text.lower() if is_plain else text


def concerns_file(error: OSError) -> bool:
    """Return whether a failure of a store says something about the requested file.

    It does not if the store is unreachable or refuses access, or if a disk has no room for a copy.
    """
    is_refused = isinstance(error, UnreachableError | PermissionError)
    return not is_refused and error.errno not in {errno.ENOSPC, errno.EDQUOT}


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
        text = f"the connection broke off ({_first_line(error)})"
        raise UnreachableError(errno.ECONNRESET, text, uri) from error
    except ResponseParserError as error:
        raise unreachable(uri) from error
    except known.BotoCoreError as error:
        raise UnreachableError(errno.EHOSTUNREACH, _of_no_response(error), uri) from showable(error)


def unreachable(uri: str) -> UnreachableError:
    """Return the error that something else than a store, or a queue, answers."""
    kind = "queue of SQS" if uri.startswith("http") else "S3"
    text = f"what answers there is no {kind}; set AWS_ENDPOINT_URL to the address of one"
    return UnreachableError(errno.EPROTO, text, uri)


def without_user(text: str) -> str:
    """Remove user and password from URLs in a text: an endpoint or a proxy may have them."""
    return re.sub(r"(?<=//)[^\s\"']*@|(?<!\S)[^\s\"'/]+:[^\s\"'/]*@", "", text)


def showable(error: Exception) -> Exception | None:
    """Return an error that may be shown as a cause; None if its text holds a password."""
    return error if without_user(str(error)) == str(error) else None


def _of_response(error: Any, uri: str) -> OSError:
    details = error.response.get("Error", {})
    code, message = str(details.get("Code", "")), str(details.get("Message", "")).rstrip(".")
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _MEANINGS:
        return OSError(*_MEANINGS[code], uri)
    of_access = _of_access(error, code, status, message)
    if of_access is not None:
        return UnreachableError(*of_access, uri)
    if status in {401, 403}:
        return PermissionError(errno.EACCES, _refusal(error.operation_name, code), uri)
    return OSError(errno.EIO, f"the store answers {code}: {message}", uri)


def _of_access(error: Any, code: str, status: int, message: str) -> tuple[int, str] | None:
    """Return errno and text of what is wrong with the access as a whole; None if nothing is."""
    requests = 1 + int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0))
    is_busy = status == 429 or (status >= 500 and status != 501) or code.startswith(_BUSY_CODES)
    found = None
    if code in _REGION_CODES:
        found = errno.EINVAL, _in_region(error)
    elif code in _ACCESS_MEANINGS or is_busy:
        number, text = _ACCESS_MEANINGS.get(code, (errno.EBUSY, _BUSY))
        found = number, f"{text} ({code}, after {requests} requests)"
    elif error.operation_name.startswith(_CREDENTIAL_REQUESTS):
        answered = f"it answers {error.operation_name} by {code}: {message}"
        found = errno.EACCES, f"AWS gives no credentials: {answered}"
    elif code == "400":  # a HEAD has no words
        found = errno.EACCES, _NO_REASON
    if found is not None and found[0] == errno.EACCES:
        s3_client.forget()  # those that are there now may be newer
    return found


def _in_region(error: Any) -> str:
    answer = error.response
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = answer.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region")
    where = f"in the region {region}; set AWS_REGION={region}" if region else "in another region"
    return f"the bucket is {where}"


def _refusal(operation: str, code: str) -> str:
    service = "sqs" if operation in _QUEUE_REQUESTS else "s3"
    text = f"the store refuses {service}:{_RIGHTS.get(operation, operation)} ({code})"
    if operation in {"GetObject", "HeadObject"}:
        text += ", or there is none and s3:ListBucket is refused"
    return text


def _of_no_response(error: Exception) -> str:
    from botocore import exceptions as known

    if isinstance(error, (known.NoCredentialsError, *_configuration_errors())):
        s3_client.forget()  # they may be there, or right, the next time
    if isinstance(error, known.NoCredentialsError):
        return f"no credentials were found; {_CREDENTIALS}"
    if isinstance(error, known.NoRegionError):
        return "no region is known; set AWS_REGION"
    text = _first_line(error)
    if isinstance(error, _configuration_errors()):
        return f"AWS's settings do not do: {text}"
    return f"it does not answer ({text})"


def _configuration_errors() -> tuple[type[Exception], ...]:
    """Return the errors about AWS's files and variables, which come before any request."""
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


def part_file_unreachable(uri: str, reason: str) -> RetryableError:
    """Build the error of a part file whose store cannot be asked now, or refuses."""
    return RetryableError(
        f"The part file {uri} cannot be read now ({reason}). Nothing says that it is "
        f"not as it was published, and no batch counts as sent or loaded by this. Let the "
        f"store answer, then run again."
    )
