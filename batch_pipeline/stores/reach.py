"""Whether a bucket can be asked at all: one listing of one key; nothing is written."""

from datetime import datetime
from email.utils import parsedate_to_datetime

from batch_pipeline.domain.location import split_object
from batch_pipeline.stores import s3
from batch_pipeline.stores.failures import told


def look_at_bucket(uri: str) -> datetime | None:
    """Ask for one key below a prefix; give the store's own time, where it tells one.

    Raises:
        OSError: the store cannot be asked, or refuses.
    """
    bucket, prefix = split_object(uri)
    with told(uri):
        answer = s3.client().list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    written = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
    try:
        return None if written is None else parsedate_to_datetime(written)
    except ValueError:
        return None
