"""What the driver of Spark sends to the tasks of a batch, and gets back: bytes of their JSON."""

from datetime import timedelta

import msgspec

from batch_pipeline.domain.item import FoundFile, Item
from batch_pipeline.spark.packing import packed
from batch_pipeline.spark.task_values import TaskReport, TaskSpec
from batch_pipeline_tests.benchmarks.scale_rows import LANDED_AT, LANDING
from batch_pipeline_tests.factories import (
    CONTEXT,
    item_report,
    part_file,
    record_schema,
    stream,
)

_COLUMNS = tuple(f"column_{number:02}" for number in range(20))


def payloads(items: int) -> tuple[int, int, int]:
    """Give tasks, bytes sent and bytes received for a batch of so many items of 100 KB, gzip."""
    listed = [
        Item(
            id=number,
            file=FoundFile(
                location=f"{LANDING}orders-{number:012}.csv.gz",
                size_bytes=100_000,
                modified_at=LANDED_AT + timedelta(seconds=number),
                etag=f"{number:032x}",
            ),
        )
        for number in range(items)
    ]
    works = list(packed(listed, {}))
    sent = received = 0
    for number, work in enumerate(works):
        spec = TaskSpec(
            number=number,
            stem="orders-000000000001-000000010000-a1-0123abcd",
            stream=stream(),
            schema=record_schema(*_COLUMNS),
            items=work.items,
            context=CONTEXT,
        )
        report = TaskReport(
            number=number,
            part_files=(part_file(f"orders-{number:04}-0123abcd-0000.jsonl.gz"),),
            items=tuple(
                item_report(one.id, location=one.file.location, etag=one.file.etag)
                for one in work.items
            ),
        )
        sent += len(msgspec.json.encode(spec))
        received += len(msgspec.json.encode(report))
    return len(works), sent, received
