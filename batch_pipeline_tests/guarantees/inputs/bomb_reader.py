"""Read files as a task does: `… FILE …` prints the outcome and the peak memory of each as JSON."""

import json
import re
import sys
from pathlib import Path

from batch_pipeline.encode.readers.decoded_file import open_source
from batch_pipeline.encode.readers.formats import open_reader
from batch_pipeline.model.errors import BadFileError
from batch_pipeline.model.item import LandedFile
from batch_pipeline.model.location import to_uri
from batch_pipeline_tests.factories import stream


def read(path: Path) -> str:
    """Read all of a file and return why it is bad, or how many records it has."""
    orders, records = stream(), 0
    try:
        with open_source(LandedFile(location=to_uri(path)), orders) as source:
            for chunk in open_reader(source, orders).chunks():
                records += len(chunk.record_numbers)
    except BadFileError as error:
        return error.reason
    return f"{records} records"


def _peak_mib() -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None  # `getrusage` begins with the peak of the parent
    return int(match[1]) >> 10


if __name__ == "__main__":
    before = _peak_mib()
    paths = map(Path, sys.argv[1:])
    outcomes = {path.name: [read(path), _peak_mib() - before] for path in paths}
    print(json.dumps(outcomes))  # noqa: T201 - the parent reads it
