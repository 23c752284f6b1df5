"""What a file or an object is like now: its size, when it was written, which version it is."""

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from batch_pipeline.domain.item import modified_at
from batch_pipeline.domain.location import is_object, split_object, to_path
from batch_pipeline.stores import s3
from batch_pipeline.stores.failures import not_the_store, told


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Facts of a file; `modified_at` is UTC, of an object in whole seconds.

    `etag` and `version` are those of an object; a version only where the bucket keeps versions.
    """

    size_bytes: int
    modified_at: datetime
    etag: str | None = None
    version: str | None = None
    is_regular: bool = True

    @classmethod
    def of_stat(cls, status: os.stat_result) -> "FileFacts":
        """Give what a disk says of a file."""
        return cls(
            size_bytes=status.st_size,
            modified_at=modified_at(status),
            is_regular=stat.S_ISREG(status.st_mode),
        )

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any], uri: str) -> "FileFacts":
        """Give what S3 says of an object: the answer to a HEAD or a GET of all of it.

        Raises:
            UnreachableError: it is none of S3's.
        """
        if "LastModified" not in answer:
            raise not_the_store(uri)
        return cls(
            size_bytes=answer["ContentLength"],
            modified_at=whole_seconds(answer["LastModified"]),
            etag=plain_etag(answer.get("ETag")),
            version=answer.get("VersionId"),
        )


def look(uri: str, client: Callable[[], Any] = s3.client) -> FileFacts:
    """Ask for the facts of a file or of an object; `client` gives the client to ask with.

    Raises:
        InvalidValueError: the URI names neither.
        OSError: it is not there, or cannot be looked at.
    """
    if not is_object(uri):
        return FileFacts.of_stat(os.stat(to_path(uri)))  # noqa: PTH116 - half the cost of Path.stat
    bucket, key = split_object(uri)
    with told(uri):
        return FileFacts.of_answer(client().head_object(Bucket=bucket, Key=key), uri)


def whole_seconds(told_time: datetime) -> datetime:
    """Leave out fractions, which some stores tell in listings but never of a single object."""
    return told_time.astimezone(UTC).replace(microsecond=0)


def plain_etag(etag: str | None) -> str | None:
    """Take off the quotes that S3 puts around an ETag."""
    return None if etag is None else etag.strip('"')
