"""What S3 itself knows of the bytes of an object: it keeps their SHA-256 if it was given it.

Of an object that was sent in parts it keeps a sum of the parts' sums, which says nothing here.
"""

import base64

from batch_pipeline.domain.location import is_object, split_object
from batch_pipeline.stores import s3
from batch_pipeline.stores.facts import FileFacts, look
from batch_pipeline.stores.failures import told


def look_with_sum(uri: str) -> tuple[FileFacts, str | None]:
    """Give the facts of a file or an object, and its SHA-256 where the store tells it.

    The sum is in hexadecimal digits. Nothing is read for it: a disk tells none.

    Raises:
        InvalidValueError: the URI names neither a file nor an object.
        OSError: it is not there, or cannot be looked at.
    """
    if not is_object(uri):
        return look(uri), None
    bucket, key = split_object(uri)
    with told(uri):
        answer = s3.client().head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    facts = FileFacts.of_answer(answer, uri)
    written = answer.get("ChecksumSHA256")
    # Of what came in parts the sums end with their number; not all stores write that.
    is_of_parts = answer.get("ChecksumType") == "COMPOSITE" or "-" in f"{written}{facts.etag}"
    if written is None or is_of_parts:
        return facts, None
    return facts, base64.b64decode(written).hex()
