"""What lies below a prefix of keys: objects in the order of their keys, and unfinished uploads.

Pages are asked for one ahead, while the last one is looked at.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from batch_pipeline.domain.location import split_object, to_object_uri
from batch_pipeline.stores import s3
from batch_pipeline.stores.facts import FileFacts, plain_etag, whole_seconds
from batch_pipeline.stores.failures import not_the_store, told
from batch_pipeline.stores.upload import remove

_OF_PAGES = {"IsTruncated", "KeyCount", "Name"}  # a store tells one of them at least
_MOST_DELETED = 1000  # S3 takes so many keys in one request


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a listing has it; the version of it is not told there."""

    key: str
    facts: FileFacts


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A multipart upload that is neither complete nor aborted."""

    key: str
    upload_id: str
    started_at: datetime


def objects(
    prefix: str,
    *,
    after: str = "",
    folder_only: bool = False,
    client: Callable[[], Any] = s3.client,
) -> Iterator[Listed]:
    """List the objects below a prefix, given as a URI, by key in the order of their bytes.

    Those up to the key `after` are left out. With `folder_only` nothing behind the next slash of a
    key is looked at. `client` gives the client of S3 to ask with.

    Raises:
        OSError: the store cannot be asked, or refuses.
    """
    bucket, start = split_object(prefix)
    given: dict[str, Any] = {"Bucket": bucket, "Prefix": start}
    if after:
        given["StartAfter"] = after
    if folder_only:
        given["Delimiter"] = "/"
    for page in _pages(prefix, given, client):
        for one in page.get("Contents", ()):
            yield Listed(
                one["Key"],
                FileFacts(
                    size_bytes=one["Size"],
                    modified_at=whole_seconds(one["LastModified"]),
                    etag=plain_etag(one.get("ETag")),
                ),
            )


def unfinished_uploads(prefix: str) -> Iterator[Unfinished]:
    """List the multipart uploads below a prefix.

    Raises:
        OSError: the store cannot be asked, or refuses.
    """
    bucket, start = split_object(prefix)
    with told(prefix):
        pages = s3.client().get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=bucket, Prefix=start):
            for one in page.get("Uploads", ()):
                yield Unfinished(one["Key"], one["UploadId"], one["Initiated"].astimezone(UTC))


def abort_upload(bucket: str, upload: Unfinished) -> bool:
    """Abort a multipart upload; tells whether it was there.

    Raises:
        OSError: the store does not do it.
    """
    with told(to_object_uri(bucket, upload.key)):
        try:
            s3.client().abort_multipart_upload(
                Bucket=bucket, Key=upload.key, UploadId=upload.upload_id
            )
        except s3.client().exceptions.NoSuchUpload:
            return False
    return True


def remove_all(bucket: str, keys: list[str]) -> None:
    """Delete objects; one that is not there does no harm.

    Raises:
        OSError: the store does not delete one.
    """
    for first in range(0, len(keys), _MOST_DELETED):
        some = keys[first : first + _MOST_DELETED]
        with told(to_object_uri(bucket, some[0])):
            answer = s3.client().delete_objects(
                Bucket=bucket, Delete={"Objects": [{"Key": key} for key in some], "Quiet": True}
            )
        for refused in answer.get("Errors", ()):
            remove(to_object_uri(bucket, refused["Key"]))  # says why


def _pages(
    uri: str, given: Mapping[str, Any], client: Callable[[], Any]
) -> Iterator[Mapping[str, Any]]:
    def ask(token: str | None) -> Mapping[str, Any]:
        more = {} if token is None else {"ContinuationToken": token}
        with told(uri):
            page: Mapping[str, Any] = client().list_objects_v2(**given, **more)
        if not _OF_PAGES & page.keys():
            raise not_the_store(uri)
        return page

    with ThreadPoolExecutor(1, thread_name_prefix="listing") as ahead:
        coming = ahead.submit(ask, None)
        while True:
            page = coming.result()
            token = page.get("NextContinuationToken")
            if token is None:
                yield page
                return
            coming = ahead.submit(ask, token)
            yield page
