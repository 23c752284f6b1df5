"""Endless records of 150 columns, the shape of Singer's test tap for wide streams.

`id`, `rep_key` (the number of the record), then integer, float, UUID and timestamp in turn.
Standard library only: a tap in an environment without this project imports it by its file.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

CHECKED = "column_002"  # an integer column that readers sum up
TEXT = "column_004"  # a text column of which one value is looked at
KINDS = ("integer", "float", "text", "timestamp")
COLUMNS = {f"column_{place:03}": KINDS[(place - 2) % 4] for place in range(2, 150)}
_SEED = 20_261_121
_START = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECONDS_OF_20_YEARS = 20 * 365 * 86_400 * 1_000_000


def records(count: int) -> Iterator[dict[str, Any]]:
    """Generate the first records, always the same ones."""
    random = Random(_SEED)  # noqa: S311 - nothing here is secret
    for number in range(1, count + 1):
        record: dict[str, Any] = {"id": number, "rep_key": number}
        for name, kind in COLUMNS.items():
            if kind == "integer":
                record[name] = int(random.random() * 2_000_000_000)
            elif kind == "float":
                record[name] = random.random()
            elif kind == "text":
                record[name] = _uuid(random.getrandbits(128))
            else:
                record[name] = _timestamp(int(random.random() * _MICROSECONDS_OF_20_YEARS))
        yield record


def _uuid(bits: int) -> str:
    digits = f"{bits:032x}"
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _timestamp(microseconds: int) -> str:
    moment = _START + timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="microseconds")
