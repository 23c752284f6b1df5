"""The text form of a batch: `<first>-<last>`, both zero-padded so that text order is id order.

Dagster accepts any text as a dynamic partition key, so this codec is the only guard.
"""

import re

from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.id_range import IdRange

WIDTH = 12
_EXPECTED = f"two ids of {WIDTH} digits joined by '-', as in 000000000001-000000000060"
_KEY = re.compile(
    rf"([0-9]{{{WIDTH}}}|[1-9][0-9]{{{WIDTH},18}})-([0-9]{{{WIDTH}}}|[1-9][0-9]{{{WIDTH},18}})"
)


def partition_key(id_range: IdRange) -> str:
    """Write a range of non-negative ids as a key; ids above 12 digits keep all their digits.

    Raises:
        InvalidValueError: an id is negative.
    """
    if id_range.first_id < 0:
        raise InvalidValueError("id range", str(id_range), "non-negative ids")
    return f"{id_range.first_id:0{WIDTH}d}-{id_range.last_id:0{WIDTH}d}"


def parse_partition_key(key: str) -> IdRange:
    """Read a key that `partition_key` wrote; every other text is refused.

    Raises:
        InvalidValueError: the text is not exactly such a key.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise InvalidValueError("partition key", key, _EXPECTED)
    return IdRange(first_id=int(match[1]), last_id=int(match[2]))
