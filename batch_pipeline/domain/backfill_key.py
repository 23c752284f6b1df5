"""The text form of a backfill's batch: `<name>:<first>-<last>`, in id order within a name.

No name holds a colon, so the first one parts it from the range. Dagster accepts any text as a
dynamic partition key, so this codec is the only guard.
"""

from batch_pipeline.domain.backfill import check_backfill_name
from batch_pipeline.domain.errors import InvalidValueError
from batch_pipeline.domain.id_range import IdRange
from batch_pipeline.domain.partition_key import parse_partition_key, partition_key

_EXPECTED = "the name of a backfill and the range of a batch, as in 2023:000000000020-000000000029"


def backfill_key(name: str, id_range: IdRange) -> str:
    """Write the name of a backfill and a range of non-negative ids as a key.

    Raises:
        InvalidValueError: no backfill can have the name, or an id is negative.
    """
    check_backfill_name(name)
    return f"{name}:{partition_key(id_range)}"


def parse_backfill_key(key: str) -> tuple[str, IdRange]:
    """Read a key that `backfill_key` wrote; every other text is refused.

    Raises:
        InvalidValueError: the text is not exactly such a key.
    """
    name, _, ids = key.partition(":")
    try:
        check_backfill_name(name)
        return name, parse_partition_key(ids)
    except InvalidValueError as error:
        raise InvalidValueError("partition key", key, _EXPECTED) from error
