"""The streams of a soak, and files for them of which every record can be found again.

Nothing is written here: what lands when is the business of `arrivals`.
"""

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WAREHOUSE = "SOAK_WAREHOUSE_URL"  # the variable with the URL of the loaded feed's database
SCHEMA = "public"
LOADED = "sales"
TORN = "torn"  # in lines that are no records, and in no others
_SOME = {"max_bad_records": 1_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A stream whose files have so many records each; `files_a_second` land, on average.

    `write` makes a file of ids, with bad records after some of them.
    """

    name: str
    suffix: str
    files_a_second: float
    records: range
    write: Callable[[Sequence[int], int], bytes]
    attributes: Mapping[str, Any] = field(default_factory=dict)


def csv_file(ids: Sequence[int], bad: int) -> bytes:
    """Write csv with a header; each bad record is a line that was torn off."""
    lines = ["id,name,amount,note"]
    for place, one in enumerate(ids):
        lines.append(f'{one},"name of {one}",{one % 1000}.25,{_note(one)}')
        if place < bad:
            lines.append(f"{TORN}{one}")
    return "\n".join([*lines, ""]).encode()


def packed_csv_file(ids: Sequence[int], bad: int) -> bytes:
    """Write csv as above, compressed."""
    return gzip.compress(csv_file(ids, bad), compresslevel=1, mtime=0)


def jsonl_file(ids: Sequence[int], bad: int) -> bytes:
    """Write a JSON object a line; each bad record is one that was torn off."""
    lines = []
    for place, one in enumerate(ids):
        lines.append(json.dumps({"id": one, "kind": f"kind {one % 7}", "note": _note(one)}))
        if place < bad:
            lines.append(f'{{"id": {one}, "{TORN}')
    return "\n".join([*lines, ""]).encode()


def _note(one: int) -> str:
    """Return text that is the same for the same record, and does not compress well."""
    return f"{random.Random(one).getrandbits(320):x}"  # noqa: S311 - text to fill files with


FEEDS = (
    Feed(
        name="orders",
        suffix=".csv",
        files_a_second=0.5,
        records=range(20, 60),
        write=csv_file,
        attributes={"batch": {"max_count": 20}},
    ),
    Feed(
        name="events",
        suffix=".jsonl",
        files_a_second=0.3,
        records=range(100, 400),
        write=jsonl_file,
        attributes={
            "source": {"include": ["*.jsonl"], "format": "jsonl"},
            "encoding": {"format": "parquet", "compression": "snappy"},
        },
    ),
    Feed(
        name="bulk",
        suffix=".csv.gz",
        files_a_second=0.4,
        records=range(50, 500),
        write=packed_csv_file,
        attributes={
            "batch": {"max_weight": "64KiB", "min_weight": "32KiB", "max_wait": "15s"},
        },
    ),
    Feed(
        name=LOADED,
        suffix=".csv",
        files_a_second=0.3,
        records=range(20, 100),
        write=csv_file,
        attributes={
            "targets": {"warehouse": {"postgres": {"conn": f"${WAREHOUSE}", "schema": SCHEMA}}}
        },
    ),
)


def attributes_of(feed: Feed) -> dict[str, Any]:
    """Return what the stream file says beside the usual."""
    return {"on_bad_record": _SOME, **feed.attributes}
