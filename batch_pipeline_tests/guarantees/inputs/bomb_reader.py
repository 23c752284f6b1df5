"""Reads files as a task does, in a process of its own: `… FILE …`; tells what came of each, and how
much memory they took at most.
"""

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


def outcome(path: Path) -> str:
    """Read all of a file; gives why it is bad, or how many records it has."""
    described, records = stream(), 0
    try:
        with open_source(LandedFile(location=to_uri(path)), described) as source:
            for chunk in open_reader(source, described).chunks():
                records += len(chunk.record_numbers)
    except BadFileError as error:
        return error.reason
    return f"{records} records"


def _peak_mib() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None  # `getrusage` begins with what the parent had
    return int(found[1]) >> 10


if __name__ == "__main__":
    before = _peak_mib()
    told = {}
    for path in map(Path, sys.argv[1:]):
        told[path.name] = [outcome(path), _peak_mib() - before]
    print(json.dumps(told))  # noqa: T201 - who started this reads it
