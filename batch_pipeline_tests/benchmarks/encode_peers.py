"""One conversion by a peer in a process of its own; the job comes as JSON on standard input.

Prints the seconds of the conversion, without those of imports and of starting the process or a
Spark session. No project module is imported, so that memory is that of the peer.
"""

import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

_SQL_TYPES = {"integer": "BIGINT", "float": "DOUBLE", "text": "VARCHAR"}
_SDK_BATCH_RECORDS = 10_000
THREADS = 2


def convert_by_sdk(job: dict[str, Any]) -> None:
    """Write the records of the files with the Singer SDK's own batcher."""
    encoder: Any = import_module("singer_sdk.contrib.batch_encoder_jsonl")
    batch: Any = import_module("singer_sdk.helpers._batch")
    config = batch.BatchConfig(
        encoding=batch.JSONLinesEncoding(compression="gzip"),
        storage=batch.StorageTarget(root=Path(job["folder"]).as_uri()),
        batch_size=_SDK_BATCH_RECORDS,
    )
    batcher = encoder.JSONLinesBatcher("tap", "wide", config)
    for _ in batcher.get_batches(_decoded(job["paths"])):
        pass


def _decoded(paths: list[str]) -> Iterator[dict[str, Any]]:
    for path in paths:
        with gzip.open(path, "rb") as lines:
            for line in lines:
                yield json.loads(line)


def convert_by_duckdb(job: dict[str, Any]) -> None:
    """Copy with DuckDB and given types."""
    connection: Any = import_module("duckdb").connect()
    connection.execute(f"SET threads = {THREADS}")
    types = {name: _SQL_TYPES[kind] for name, kind in job["columns"].items()}
    source = {
        "jsonl": f"read_json(?, format = 'newline_delimited', columns = {types})",
        "csv": f"read_csv(?, header = true, auto_detect = false, columns = {types})",
    }[job["source"]]
    to_json = "FORMAT json, COMPRESSION gzip"
    options = to_json if job["to_json"] else "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1"
    target = Path(job["folder"]) / ("out.jsonl.gz" if job["to_json"] else "out.parquet")
    connection.execute(f"COPY (SELECT * FROM {source}) TO '{target}' ({options})", [job["paths"]])  # noqa: S608


def convert_by_polars(job: dict[str, Any]) -> None:
    """Scan and sink with Polars and given types."""
    polars: Any = import_module("polars")
    kinds = {"integer": polars.Int64, "float": polars.Float64, "text": polars.String}
    schema = {name: kinds[kind] for name, kind in job["columns"].items()}
    scan = polars.scan_ndjson if job["source"] == "jsonl" else polars.scan_csv
    frame = scan(job["paths"], schema=schema)
    folder = Path(job["folder"])
    if job["to_json"]:
        frame.sink_ndjson(folder / "out.jsonl.gz", compression="gzip", compression_level=1)
    else:
        frame.sink_parquet(folder / "out.parquet", compression="zstd", compression_level=1)


def convert_by_pyspark(job: dict[str, Any]) -> None:
    """Read and write a DataFrame with Spark, which is given the types."""
    reader = _spark().read.schema(
        ", ".join(
            f"`{name}` {_SQL_TYPES[kind].replace('VARCHAR', 'STRING')}"
            for name, kind in job["columns"].items()
        )
    )
    if job["source"] == "jsonl":
        frame = reader.json(job["paths"])
    else:
        frame = reader.csv(job["paths"], header=True)
    target = str(Path(job["folder"]) / "out")
    if job["to_json"]:
        frame.write.json(target, compression="gzip")
    else:
        frame.write.parquet(target, compression="zstd")


def _spark() -> Any:
    sql: Any = import_module("pyspark.sql")
    return sql.SparkSession.builder.master(f"local[{THREADS}]").getOrCreate()


def _warm_spark() -> None:
    _spark().range(THREADS).collect()


# The conversion of each peer, and its preparation, which is not timed.
PEERS: dict[str, tuple[Callable[[dict[str, Any]], None], Callable[[], object]]] = {
    "sdk": (convert_by_sdk, partial(import_module, "singer_sdk.contrib.batch_encoder_jsonl")),
    "duckdb": (convert_by_duckdb, partial(import_module, "duckdb")),
    "polars": (convert_by_polars, partial(import_module, "polars")),
    "pyspark": (convert_by_pyspark, _warm_spark),
}


def main() -> None:
    """Run one job and print its seconds."""
    job = json.load(sys.stdin)
    convert, prepare = PEERS[job["peer"]]
    prepare()
    started = time.perf_counter()
    convert(job)
    sys.stdout.write(f"{time.perf_counter() - started}")


if __name__ == "__main__":
    main()
