"""One task in a process of its own, which tells what came of it and how much memory it took.

Run with a folder, a source format and an output format; the folder holds one file, `landed`.
"""

import json
import sys
from pathlib import Path

from batch_pipeline.domain.encoding import Format
from batch_pipeline.domain.item import FoundFile, Item, modified_at
from batch_pipeline.domain.location import to_uri
from batch_pipeline.domain.stream import SourceFormat
from batch_pipeline_tests.unit.whole_tasks import desk_for, settled


def peak_mib() -> int:
    """Give the most memory that this process ever had; `getrusage` counts its parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) >> 10


def main(folder: str, source: str, output: str) -> None:
    """Encode the file and print what the report says."""
    desk = desk_for(Path(folder), SourceFormat(source), Format(output))
    path = Path(folder) / "landed"
    status = path.stat()
    file = FoundFile(
        location=to_uri(path), size_bytes=status.st_size, modified_at=modified_at(status)
    )
    desk.items.append(Item(id=1, file=file))
    report, _ = settled(desk)
    [item] = report.items
    told = {
        "bad_file": item.bad_file,
        "bad_records": [bad.reason for bad in report.bad_records],
        "written": item.written,
        "peak_mib": peak_mib(),
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
