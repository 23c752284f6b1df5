"""Bringing bytes that are there already to another place of a store, whole or not at all."""

import errno
from pathlib import Path
from typing import IO, Any

from batch_pipeline.domain.location import is_object, split_object, to_path
from batch_pipeline.stores import s3
from batch_pipeline.stores.facts import look
from batch_pipeline.stores.failures import UnreachableError, told
from batch_pipeline.stores.upload import PART_BYTES, ObjectUpload, put_new

_MOST_AT_ONCE = 5 * 2**30  # S3 copies no more in one request


def send(source: str, target: str) -> None:
    """Copy a file or an object to an object, which is not there before all of it is.

    From object to object the store copies by itself.

    Raises:
        InvalidValueError: a URI names neither.
        OSError: the source cannot be read, or the store does not take it.
    """
    if is_object(source):
        _copy(source, target)
        return
    with Path(to_path(source)).open("rb") as file:
        octets = file.read(PART_BYTES + 1)
        if len(octets) > PART_BYTES:
            _send_parts(octets, file, target)
        elif not put_new(target, octets):
            raise FileExistsError(errno.EEXIST, "another file has its name there", target)


def _send_parts(first: bytes, rest: IO[bytes], target: str) -> None:
    upload = ObjectUpload(target)
    try:
        upload.write(first)
        while octets := rest.read(PART_BYTES):
            upload.write(octets)
        upload.seal()
    except BaseException:
        upload.abort()
        raise
    upload.complete()


def _copy(source: str, target: str) -> None:
    from boto3.exceptions import Boto3Error
    from boto3.s3.transfer import TransferConfig

    bucket, key = split_object(source)
    into, name = split_object(target)
    given: dict[str, Any] = {"ChecksumAlgorithm": "SHA256"}
    etag = look(source).etag
    if etag is not None:
        given["CopySourceIfMatch"] = f'"{etag}"'
    with told(target):
        try:
            s3.client().copy(
                {"Bucket": bucket, "Key": key},
                into,
                name,
                ExtraArgs=given,
                Config=TransferConfig(multipart_threshold=_MOST_AT_ONCE),
            )
        except Boto3Error as error:
            raise UnreachableError(errno.EIO, f"it cannot be copied ({error})", target) from error
