"""Writing one object: nothing of it can be seen before it is complete, and aborting leaves nothing.

Small ones are one request. Larger ones are multipart uploads, whose parts travel on threads of
their own while the next bytes are made; S3 checks each request by its SHA-256.
"""

import base64
import errno
import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

from batch_pipeline.domain.failpoint import failpoint
from batch_pipeline.domain.location import split_object
from batch_pipeline.stores import s3
from batch_pipeline.stores.failures import UnreachableError, not_the_store, told
from batch_pipeline.stores.reading import open_uri

PART_BYTES = 8 * 2**20  # S3 takes 10,000 parts, so 80 GB of an object
_TRAVELLING = 3  # parts that are sent at once; so many are held in memory, and the next one
_MARK = "batch-pipeline-upload"
_TRIES = 4
_Given = TypeVar("_Given")


class ObjectUpload:
    """An object that is being written; not for two threads at once."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._bucket, self._key = split_object(uri)
        self._mark = uuid4().hex
        self._held = bytearray()
        self._upload_id: str | None = None
        self._parts: list[dict[str, Any]] = []
        self._travelling: deque[Future[dict[str, Any]]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._is_sealed = False
        self._may_be_visible = False

    def write(self, octets: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
            OSError: the store does not take them.
        """
        self._held += octets
        while len(self._held) > PART_BYTES:
            self._send(bytes(memoryview(self._held)[:PART_BYTES]))
            del self._held[:PART_BYTES]

    def seal(self) -> None:
        """Send what is held back; a small object is complete with that, a larger one not yet.

        Raises:
            OSError: the store does not take it.
        """
        rest = bytes(self._held)
        self._held.clear()
        if self._upload_id is None:
            self._may_be_visible = True
            _put(self.uri, rest, Metadata={_MARK: self._mark})
        else:
            if rest:
                self._send(rest)
            while self._travelling:
                self._take_arrived()
            self._end_threads()
        self._is_sealed = True

    def complete(self) -> None:
        """Make a sealed object visible; once more does no harm.

        Raises:
            OSError: the store does not make it so, or the upload was aborted meanwhile.
        """
        if not self._is_sealed:
            raise OSError(errno.EINVAL, "not all of its bytes were sent", self.uri)
        if self._upload_id is None:
            return
        failpoint("upload.before_complete")
        self._may_be_visible = True
        try:
            self._ask(
                s3.client().complete_multipart_upload,
                UploadId=self._upload_id,
                MultipartUpload={"Parts": self._parts},
            )
        except FileNotFoundError:
            # The answer to an earlier request may have been lost; the object says who wrote it.
            if not self._is_complete():
                raise
        self._upload_id = None

    def abort(self) -> bool:
        """Take back what was sent, also when it is complete; tells whether nothing of it is there.

        What another writer has put there stays. Raises nothing.
        """
        self._is_sealed = False
        self._end_threads()
        self._held.clear()
        with suppress(OSError):
            if self._upload_id is not None:
                self._ask(s3.client().abort_multipart_upload, UploadId=self._upload_id)
        try:
            if self._may_be_visible and self._is_there():
                remove(self.uri)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _send(self, octets: bytes) -> None:
        if self._upload_id is None:
            answer = self._ask(
                s3.client().create_multipart_upload,
                ChecksumAlgorithm="SHA256",
                Metadata={_MARK: self._mark},
            )
            self._upload_id = answer["UploadId"]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_TRAVELLING, thread_name_prefix="upload")
        number = len(self._parts) + len(self._travelling) + 1
        self._travelling.append(self._threads.submit(self._sent, number, octets))
        if len(self._travelling) >= _TRAVELLING:
            self._take_arrived()

    def _sent(self, number: int, octets: bytes) -> dict[str, Any]:
        checksum = _sha256(octets)
        answer = self._ask(
            s3.client().upload_part,
            UploadId=self._upload_id,
            PartNumber=number,
            Body=octets,
            ChecksumSHA256=checksum,
        )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": checksum}

    def _take_arrived(self) -> None:
        self._parts.append(self._travelling.popleft().result())

    def _end_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        self._travelling.clear()

    def _is_complete(self) -> bool:
        with suppress(FileNotFoundError):
            return self._is_there()
        return False

    def _is_there(self) -> bool:
        with told(self.uri):
            answer = s3.client().head_object(Bucket=self._bucket, Key=self._key)
        return bool(answer["Metadata"].get(_MARK) == self._mark)

    def _ask(self, request: Callable[..., _Given], **given: Any) -> _Given:
        with told(self.uri):
            return request(Bucket=self._bucket, Key=self._key, **given)


def put(uri: str, octets: bytes) -> None:
    """Write a small object, in place of what has its name.

    Raises:
        OSError: the store does not take it.
    """
    _put(uri, octets)


def put_new(uri: str, octets: bytes) -> bool:
    """Write a small object unless there is one of its name; tells whether it was written.

    One that is there with the same bytes counts as written: it may be our own, whose answer was
    lost.

    Raises:
        OSError: the store does not take it.
    """
    for _ in range(_TRIES):
        try:
            _put(uri, octets, IfNoneMatch="*")
        except FileExistsError:
            with suppress(FileNotFoundError):  # removed again: try to be the next one
                return _holds(uri, octets)
        else:
            return True
    raise UnreachableError(errno.EBUSY, "others write and remove it all the time", uri)


def _holds(uri: str, octets: bytes) -> bool:
    with open_uri(uri) as there:
        return there.read(len(octets) + 1) == octets


def remove(uri: str) -> None:
    """Delete an object, if it is there.

    Raises:
        OSError: the store does not delete it.
    """
    bucket, key = split_object(uri)
    with told(uri):
        s3.client().delete_object(Bucket=bucket, Key=key)


def _put(uri: str, octets: bytes, **given: Any) -> None:
    bucket, key = split_object(uri)
    with told(uri):
        answer = s3.client().put_object(
            Bucket=bucket,
            Key=key,
            Body=octets,
            ChecksumAlgorithm="SHA256",  # without it some stores compare the sum and forget it
            ChecksumSHA256=_sha256(octets),
            **given,
        )
    if "ETag" not in answer:
        raise not_the_store(uri)


def _sha256(octets: bytes) -> str:
    return base64.b64encode(hashlib.sha256(octets).digest()).decode()
