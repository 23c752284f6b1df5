"""Objects of S3-compatible stores.

Reads carry the ETag of one version, so that the store itself detects a replaced object. No part of
an upload is visible before it is complete: small files are one request, larger files are multipart
uploads. S3 verifies each request by its SHA-256.
"""

import base64
import errno
import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import uuid4

from typing_extensions import Buffer

from batch_pipeline.model.failpoint import failpoint
from batch_pipeline.model.location import Roots, split_object, to_object_uri
from batch_pipeline.storage import s3_client
from batch_pipeline.storage.filesystem import (
    FileFacts,
    FileSystem,
    IsKnown,
    ListedFile,
    UnfinishedFile,
    UnreachableError,
    is_missing_bucket,
    register_filesystem,
)
from batch_pipeline.storage.s3_client import translate_store_errors, unreachable

BUFFER_BYTES = 2**18
PART_BYTES = 8 * 2**20  # S3 accepts 10,000 parts, so 80 GB per object
WHOLE_BYTES = 4 * 2**20  # objects up to this size are read by one request, and held in memory
_SKIP_BYTES = 2**20  # a forward seek up to this distance reads the bytes in between
_PIECE_BYTES = 2**20  # per read of a whole object: a connection reset loses one piece
_REOPENINGS = 4
_PARALLEL_PARTS = 3  # parts sent at once; these and the next part are held in memory
_MARK = "batch-pipeline-upload"
_CREATE_ATTEMPTS = 4
_PAGE_KEYS = {"IsTruncated", "KeyCount", "Name"}  # every store returns at least one of them
_MAX_DELETED = 1000  # keys that S3 accepts in one request


@dataclass(frozen=True, slots=True)
class S3FileSystem(FileSystem):
    """Objects of S3 by `s3://bucket/key`; `client` returns the client for requests.

    Keys have no folders: a prefix is any beginning of a key.
    """

    client: Callable[[], Any] = s3_client.client
    has_events = True

    def list(
        self,
        prefix: str,
        *,
        after: str = "",
        recursive: bool = True,
        facts_for: Callable[[str], object] | None = None,
        is_known: IsKnown | None = None,
    ) -> Iterator[ListedFile]:
        """List objects; one page is requested ahead, while the previous page is consumed."""
        bucket, start = split_object(prefix)
        folder = start[: start.rfind("/") + 1]
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": start}
        if after:
            request["StartAfter"] = folder + after
        if not recursive:
            request["Delimiter"] = "/"
        for page in _pages(prefix, request, self.client):
            for one in page.get("Contents", ()):
                name, facts = one["Key"][len(folder) :], _facts(one, prefix)
                if is_known is None or not is_known(name, facts.size_bytes, facts.state):
                    yield ListedFile(name, facts if facts_for is None or facts_for(name) else None)

    def head(self, uri: str, *, checksum: bool = False) -> FileFacts:
        more = {"ChecksumMode": "ENABLED"} if checksum else {}
        response = _request(self.client, "head_object", uri, **more)
        return _facts(response, uri, sha256=_checksum(response) if checksum else None)

    def open(self, uri: str, etag: str | None = None) -> "io.BufferedReader[Any]":
        return io.BufferedReader(ObjectReader(uri, etag, client=self.client), BUFFER_BYTES)

    def pin(
        self,
        uri: str,
        *,
        etag: str | None = None,
        roots: Roots | None = None,
    ) -> "PinnedObject":
        return PinnedObject(ObjectReader(uri, etag, client=self.client))

    def create(self, uri: str) -> "ObjectUpload":
        return ObjectUpload(uri, self.client)

    def put(self, uri: str, data: bytes) -> None:
        _put(self.client, uri, data)

    def create_if_absent(self, uri: str, data: bytes) -> bool:
        for _ in range(_CREATE_ATTEMPTS):
            try:
                _put(self.client, uri, data, IfNoneMatch="*")
            except FileExistsError:
                with suppress(FileNotFoundError), self.open(uri) as there:
                    return there.read(len(data) + 1) == data
                # The file was removed in the meantime: try again.
            else:
                return True
        raise UnreachableError(errno.EBUSY, "other processes keep writing and deleting it", uri)

    def delete(self, *uris: str) -> None:
        if len(uris) == 1:
            _request(self.client, "delete_object", uris[0])
            return
        for first in range(0, len(uris), _MAX_DELETED):
            some = uris[first : first + _MAX_DELETED]
            bucket, _ = split_object(some[0])
            keys = [{"Key": split_object(uri)[1]} for uri in some]
            with translate_store_errors(some[0]):
                response = self.client().delete_objects(
                    Bucket=bucket, Delete={"Objects": keys, "Quiet": True}
                )
            for refused in response.get("Errors", ()):
                self.delete(to_object_uri(bucket, refused["Key"]))  # its error says why

    def unfinished(self, prefix: str) -> Iterator[UnfinishedFile]:
        """List the multipart uploads that are neither complete nor aborted."""
        bucket, start = split_object(prefix)
        folder = start[: start.rfind("/") + 1]
        with translate_store_errors(prefix):
            pages = self.client().get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=bucket, Prefix=start):
                for one in page.get("Uploads", ()):
                    name = one["Key"][len(folder) :]
                    if "/" in name:
                        continue  # not all stores support Delimiter here, and uploads are few
                    yield UnfinishedFile(
                        uri=to_object_uri(bucket, one["Key"]),
                        name=name,
                        started_at=one["Initiated"].astimezone(UTC),
                        upload_id=one["UploadId"],
                    )

    def abort_unfinished(self, file: UnfinishedFile) -> bool:
        try:
            _request(self.client, "abort_multipart_upload", file.uri, UploadId=file.upload_id)
        except FileNotFoundError as error:
            if is_missing_bucket(error):
                raise
            return False
        return True

    def ping(self, uri: str) -> datetime | None:
        """Request one key below a prefix; return the store's own time, if it reports one."""
        bucket, prefix = split_object(uri)
        with translate_store_errors(uri):
            response = self.client().list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
        written = response["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
        try:
            return None if written is None else parsedate_to_datetime(written)
        except ValueError:
            return None


class ObjectReader(io.RawIOBase):
    """One version of an object: the current one when it is opened, or that of an ETag.

    `facts` are those of this version. Opening starts the download, and all bytes after the position
    where reading began arrive as one stream. A connection that breaks off is reopened at the
    position that it reached. `errors` records failures, because a consumer may mistake them for
    damage.
    """

    def __init__(
        self,
        uri: str,
        etag: str | None = None,
        facts: FileFacts | None = None,
        client: Callable[[], Any] = s3_client.client,
    ) -> None:
        """Open an object; with known `facts`, no request is made before it is read."""
        super().__init__()
        self.uri = uri
        self.client = client
        self.errors: list[OSError] = []
        self._position = self._body_position = 0
        self._body: Any = None
        if facts is None:
            response = self._get(etag)
            self._body = response["Body"]
            try:
                facts = _facts(response, uri)
            except OSError:
                self.close()
                raise
        self.facts = facts

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the offset of the next byte, without a request to the store."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.facts.size_bytes}
        position = start[whence] + offset
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.uri)
        self._position = position
        return position

    def readinto(self, buffer: Buffer) -> int:
        """Read the next bytes from the store, at most as many as the buffer holds.

        Raises:
            FileExistsError: another version has replaced it.
            OSError: the object is gone or cannot be read.
        """
        view = memoryview(buffer).cast("B")
        data = self._read_next(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Read the rest; the inherited method reads 8 KB at a time, which doubles the time.

        The rest is read in pieces, because a connection reset loses the piece that is being read.
        """
        return b"".join(iter(lambda: self._read_next(_PIECE_BYTES), b""))

    def close(self) -> None:
        """Release the connection."""
        if not self.closed:
            self._drop_body()
        super().close()

    def _read_next(self, most: int) -> bytes:
        """Read the next bytes from the store, at most `most`; none at the end."""
        wanted = min(most, self.facts.size_bytes - self._position)
        if wanted <= 0:
            return b""
        try:
            data = self._read_here(wanted)
        except OSError as error:
            self.errors.append(error)
            raise
        self._position += len(data)
        self._body_position = self._position
        return data

    def _read_here(self, wanted: int) -> bytes:
        for _ in range(_REOPENINGS):
            self._go_to_position()
            data = self._read_body(wanted)
            if data:
                return data
        text = f"the connection is lost every time at byte {self._position:,}"
        raise UnreachableError(errno.ECONNRESET, text, self.uri)

    def _go_to_position(self) -> None:
        ahead = self._position - self._body_position
        if self._body is not None and 0 < ahead <= _SKIP_BYTES:
            self._body_position += len(self._read_body(ahead))
        if self._body is not None and self._body_position == self._position:
            return
        self._drop_body()
        self._body = self._get(self.facts.etag, Range=f"bytes={self._position}-")["Body"]
        self._body_position = self._position

    def _read_body(self, wanted: int) -> bytes:
        """Continue reading; return no bytes if the connection broke off."""
        data = b""
        with suppress(UnreachableError), translate_store_errors(self.uri):
            data = self._body.read(wanted)
        if not data:
            self._drop_body()
        return data

    def _get(self, etag: str | None, **more: str) -> Any:
        """Request one version; without an ETag, the current one."""
        only = {} if etag is None else {"IfMatch": f'"{etag}"'}
        return _request(self.client, "get_object", self.uri, **only, **more)

    def _drop_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


class PinnedObject:
    """One version of an object; a small one is read at once and held in memory."""

    def __init__(self, reader: ObjectReader) -> None:
        self.facts = reader.facts
        self._reader = reader
        self._is_opened = False
        self._whole: bytes | None = None
        if self.facts.size_bytes <= WHOLE_BYTES:
            with reader:
                self._whole = reader.readall()

    @property
    def error(self) -> OSError | None:
        """The first store failure during a read."""
        return next(iter(self._reader.errors), None)

    def open(self) -> "io.BufferedReader[Any]":
        """Open this version at its start; the first call sends no new request."""
        if self._whole is not None:
            return io.BufferedReader(io.BytesIO(self._whole))
        first, reader = self._reader, self._reader
        if self._is_opened:
            reader = ObjectReader(first.uri, facts=first.facts, client=first.client)
            reader.errors = first.errors
        self._is_opened = True
        return io.BufferedReader(reader, BUFFER_BYTES)

    def check_unchanged(self) -> None:
        """Raise the first error of a read; each request was for this version only."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Release the connection."""
        self._reader.close()


class ObjectUpload:
    """An object that is being written; not thread-safe."""

    def __init__(self, uri: str, client: Callable[[], Any] = s3_client.client) -> None:
        self.uri = uri
        self._client = client
        self._mark = uuid4().hex
        self._buffer = bytearray()
        self._upload_id: str | None = None
        self._parts: list[dict[str, Any]] = []
        self._sending: deque[Future[dict[str, Any]]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._is_finished = False
        self._may_be_visible = False

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
            OSError: the store does not accept them.
        """
        self._buffer += data
        while len(self._buffer) > PART_BYTES:
            self._send(bytes(memoryview(self._buffer)[:PART_BYTES]))
            del self._buffer[:PART_BYTES]

    def finish(self) -> None:
        """Send the rest; this makes a small object visible, but not a larger one.

        Raises:
            OSError: the store does not accept it.
        """
        rest = bytes(self._buffer)
        self._buffer.clear()
        if self._upload_id is None:
            self._may_be_visible = True
            _put(self._client, self.uri, rest, Metadata={_MARK: self._mark})
        else:
            if rest:
                self._send(rest)
            while self._sending:
                self._collect_part()
            self._stop_threads()
        self._is_finished = True

    def commit(self) -> None:
        """Make a finished object visible; repeated calls are harmless.

        Raises:
            OSError: the store fails to do so, or the upload was aborted concurrently.
        """
        if not self._is_finished:
            raise OSError(errno.EINVAL, "not all of its bytes were sent", self.uri)
        if self._upload_id is None:
            return
        failpoint("upload.before_complete")
        self._may_be_visible = True
        try:
            self._request(
                "complete_multipart_upload",
                UploadId=self._upload_id,
                MultipartUpload={"Parts": self._parts},
            )
        except FileNotFoundError:
            # The response to an earlier request may have been lost; the object names its writer.
            if not self._is_there():
                raise
        self._upload_id = None

    def abort(self) -> bool:
        """Remove what was sent, even if it is complete; return whether nothing is left.

        An object from another writer stays. Does not raise.
        """
        self._is_finished = False
        self._stop_threads()
        self._buffer.clear()
        with suppress(OSError):
            if self._upload_id is not None:
                self._request("abort_multipart_upload", UploadId=self._upload_id)
        try:
            if self._may_be_visible and self._is_there():
                self._request("delete_object")
        except OSError:
            return False
        return True

    def _send(self, data: bytes) -> None:
        if self._upload_id is None:
            response = self._request(
                "create_multipart_upload",
                ChecksumAlgorithm="SHA256",
                Metadata={_MARK: self._mark},
            )
            self._upload_id = response["UploadId"]
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_PARALLEL_PARTS, thread_name_prefix="upload")
        number = len(self._parts) + len(self._sending) + 1
        self._sending.append(self._threads.submit(self._upload_part, number, data))
        if len(self._sending) >= _PARALLEL_PARTS:
            self._collect_part()

    def _upload_part(self, number: int, data: bytes) -> dict[str, Any]:
        checksum = _sha256(data)
        response = self._request(
            "upload_part",
            UploadId=self._upload_id,
            PartNumber=number,
            Body=data,
            ChecksumSHA256=checksum,
        )
        return {"PartNumber": number, "ETag": response["ETag"], "ChecksumSHA256": checksum}

    def _collect_part(self) -> None:
        self._parts.append(self._sending.popleft().result())

    def _stop_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._threads = None
        self._sending.clear()

    def _is_there(self) -> bool:
        """Return whether the object exists and was written by this upload."""
        try:
            response = self._request("head_object")
        except FileNotFoundError:
            return False
        return bool(response["Metadata"].get(_MARK) == self._mark)

    def _request(self, operation: str, **more: Any) -> Any:
        return _request(self._client, operation, self.uri, **more)


def _request(client: Callable[[], Any], operation: str, uri: str, **more: Any) -> Any:
    """Request an operation on one object."""
    bucket, key = split_object(uri)
    with translate_store_errors(uri):
        return getattr(client(), operation)(Bucket=bucket, Key=key, **more)


def _put(client: Callable[[], Any], uri: str, data: bytes, **more: Any) -> None:
    response = _request(
        client,
        "put_object",
        uri,
        Body=data,
        ChecksumAlgorithm="SHA256",  # without it, some stores verify the sum but do not keep it
        ChecksumSHA256=_sha256(data),
        **more,
    )
    if "ETag" not in response:
        raise unreachable(uri)


def _sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def _pages(
    uri: str, parameters: Mapping[str, Any], client: Callable[[], Any]
) -> Iterator[Mapping[str, Any]]:
    """Yield the pages of a listing; the next one is requested while a page is consumed."""

    def requested() -> Iterator[Mapping[str, Any]]:
        with translate_store_errors(uri):
            for page in client().get_paginator("list_objects_v2").paginate(**parameters):
                if not _PAGE_KEYS & page.keys():
                    raise unreachable(uri)
                yield page

    pages = requested()
    with ThreadPoolExecutor(1, thread_name_prefix="listing") as ahead:
        coming = ahead.submit(next, pages, None)
        while (page := coming.result()) is not None:
            coming = ahead.submit(next, pages, None)
            yield page


def _facts(response: Mapping[str, Any], uri: str, sha256: str | None = None) -> FileFacts:
    """Return the facts of an object from a listing, a HEAD, or a GET of the whole object.

    Raises:
        UnreachableError: it is not a response of S3.
    """
    if "LastModified" not in response:
        raise unreachable(uri)
    etag = response.get("ETag")
    return FileFacts(
        size_bytes=response["Size"] if "Size" in response else response["ContentLength"],
        # Some stores return fractions in listings, but never for a single object.
        modified_at=response["LastModified"].astimezone(UTC).replace(microsecond=0),
        etag=None if etag is None else etag.strip('"'),
        version=response.get("VersionId"),
        sha256=sha256,
    )


def _checksum(response: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 that the store keeps for a whole object, in hexadecimal digits.

    For an object that was sent in parts, it keeps the checksum of the parts' checksums, which is of
    no use here. Such checksums end with the number of parts, but not in all stores.
    """
    written = response.get("ChecksumSHA256")
    is_of_parts = "-" in f"{written}{response.get('ETag')}"
    if written is None or is_of_parts or response.get("ChecksumType") == "COMPOSITE":
        return None
    return base64.b64decode(written).hex()


S3 = S3FileSystem()
register_filesystem("s3", S3)
