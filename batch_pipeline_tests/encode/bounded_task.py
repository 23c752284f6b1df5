"""Run one encode task in its own process and print its result and peak memory as JSON.

Run with a folder, a source format and an output format; the folder holds one file, `landed`.
"""

import json
import sys
from pathlib import Path

from batch_pipeline.model.encoding import Format
from batch_pipeline.model.item import Item
from batch_pipeline.model.stream import SourceFormat
from batch_pipeline_tests.encode.task_fixture import encode_with_inferred_schema, quarantining_task
from batch_pipeline_tests.storage_roots import landed_file


def peak_mib() -> int:
    """Return the peak memory of this process; `getrusage` includes the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) >> 10


def main(folder: str, source: str, output: str) -> None:
    task = quarantining_task(Path(folder), SourceFormat(source), Format(output))
    path = Path(folder) / "landed"
    task.items.append(Item(id=1, file=landed_file(path)))
    report, _ = encode_with_inferred_schema(task)
    [item] = report.items
    result = {
        "bad_file": item.bad_file,
        "bad_records": [bad.reason for bad in report.bad_records],
        "written": item.written,
        "peak_mib": peak_mib(),
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
