"""Encodes the same small files on Spark with some number of cores, and prints the part files.

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
    """Return the content of a file: csv or JSON lines with one to five records."""
    uids = range(number * 10, number * 10 + 1 + number % 5)
    if number % 3:
        return b"".join(b'{"text":"x%d","price":%d.5,"id":%d}\n' % (u, u % 7, u) for u in uids)
    return b"id,text,price\n" + b"".join(b"%d,x%d,%d.25\n" % (u, u, u % 5) for u in uids)


def facts_of(parts: Sequence[PartFile]) -> list[tuple[int, int, str]]:
    """Return the facts that equal part files share: everything except the name."""
    return [(part.records, part.size_bytes, part.sha256) for part in parts]


def main() -> None:
    """Encode twice in each encoding, and print the part files."""
    from batch_pipeline.spark.session import SparkSettings, close_session, open_session

    folder, cores, files = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    session = open_session(SparkSettings(home=folder / "home", master=f"local[{cores}]"))
    run = EncodeRun(folder, session)
    for number in range(files):
        run.land(content(number))
    results = []
    for encoding in ENCODINGS:
        run.stream = replace(run.stream, encoding=encoding)
        results.append([facts_of(run.encode(**TYPES).part_files) for _ in range(2)])
    close_session()
    print(json.dumps(results))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
