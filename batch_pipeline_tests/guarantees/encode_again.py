"""The same small files, encoded on so many cores in a process of its own; prints what came out.

`python -m batch_pipeline_tests.guarantees.encode_again FOLDER CORES FILES`
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.manifest import PartFile
from batch_pipeline_tests.spark.encode_fixture import EncodeRun

TYPES = {"id": "integer", "text": "string", "price": "number"}
ENCODINGS = (
    Encoding(format=Format.JSONL, compression=Compression.GZIP),
    Encoding(format=Format.JSONL, compression=Compression.ZSTD),
    Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
    Encoding(format=Format.ARROW, compression=Compression.NONE),
    Encoding(format=Format.ORC, compression=Compression.ZSTD),
)


def content(number: int) -> bytes:
    """Return the bytes of a file: csv or JSON lines, one to five records."""
    uids = range(number * 10, number * 10 + 1 + number % 5)
    if number % 3:
        return b"".join(b'{"text":"x%d","price":%d.5,"id":%d}\n' % (u, u % 7, u) for u in uids)
    return b"id,text,price\n" + b"".join(b"%d,x%d,%d.25\n" % (u, u, u % 5) for u in uids)


def facts_of(parts: Sequence[PartFile]) -> list[tuple[int, int, str]]:
    """Return what makes a part file the same as another one: all but its name."""
    return [(part.records, part.size_bytes, part.sha256) for part in parts]


def main() -> None:
    """Encode in each encoding, twice, and print the part files of each time."""
    from batch_pipeline.spark.session import SparkSettings, close_session, open_session

    folder, cores, files = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    session = open_session(SparkSettings(home=folder / "home", master=f"local[{cores}]"))
    run = EncodeRun(folder, session)
    for number in range(files):
        run.land(content(number))
    found = []
    for encoding in ENCODINGS:
        run.stream = replace(run.stream, encoding=encoding)
        found.append([facts_of(run.encode(**TYPES).part_files) for _ in range(2)])
    close_session()
    print(json.dumps(found))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main()
