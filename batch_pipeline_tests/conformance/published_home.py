"""A home with published batches of two streams, encoded by the real pipeline on a real Spark.

`orders` is encoded from csv to jsonl with gzip: three batches, the second with an additional
column and published twice, and a backfill of the first two files. `parcels` is encoded from jsonl
to parquet, with values of many types, below a folder with spaces and a percent sign in its name.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from batch_pipeline.app import Pipeline
from batch_pipeline.model.backfill import Backfill, Selection
from batch_pipeline.model.batch import IdRange
from batch_pipeline.model.stream import Stream
from batch_pipeline.pipeline.attempt import encode
from batch_pipeline_tests.acceptance.sandbox import Sandbox
from batch_pipeline_tests.factories import limits
from batch_pipeline_tests.spark.encode_fixture import session_of

_ORDERS = {
    f"orders-{number}.csv": (f"order_id,price\n{number}1,{number}.50\n{number}2,2\n").encode()
    for number in (1, 2, 3, 5)
} | {"orders-4.csv": b"order_id,price,note\n41,4.50,late\n", "orders-6.csv": b"order_id\n"}
_PARCELS = b"""\
{"id":1,"sent":true,"weight":12345678901234567890123,"ratio":0.1,"to":{"city":"Z\xc3\xbcrich"}}
{"id":2,"sent":null,"weight":-1,"ratio":2.0,"to":{"city":null,"zip":[8001]}}
"""


@contextmanager
def published_home(folder: Path, url: str) -> Iterator[Sandbox]:
    """Land, encode and publish the files of both streams, which tests only read."""
    sandbox = Sandbox(folder=folder, variables={"BATCH_PIPELINE_INVENTORY_CONN": url})
    sandbox.write_stream("orders", key_properties=["order_id"], batch={"max_count": 2})
    sandbox.write_stream(
        "parcels",
        source={"include": ["*.jsonl"], "format": "jsonl"},
        encoding={"format": "parquet", "compression": "snappy"},
        storage={"root": str(folder / "100% of the batches")},
        key_properties=["id"],
    )
    sandbox.land("orders", _ORDERS)
    sandbox.land("parcels", {"parcels-1.jsonl": _PARCELS})
    pipeline = Pipeline.from_environment(sandbox.environment)
    with session_of("local", folder / "spark") as session, closing(pipeline):
        for stream in pipeline.streams.values():
            _publish_all(pipeline, stream, session)
    yield sandbox


def _publish_all(pipeline: Pipeline, stream: Stream, session: Any) -> None:
    table = pipeline.database.meta_table(stream.name)
    table.register(pipeline.landing(stream, wait=False).found_files())
    pipeline.database.batches.plan(table, stream.limits, drain=True)
    statuses = list(pipeline.database.batches.statuses(stream.name))
    context = pipeline.encode_context(stream, lambda: session)
    if stream.name == "orders":
        selection = Selection(ids=IdRange(first_id=1, last_id=2))
        request = Backfill.of_stream("orders", "2023", selection, limits(max_weight=10**6))
        pipeline.database.backfills.plan(request, table)
        statuses += [*pipeline.database.backfills.statuses("orders.2023", table.name), statuses[1]]
    for status in statuses:
        encode(context, status.batch, run_id="run-1")
