"""Scripts that users write without the product: `… end_to_end_peers.py WAY CONVERSION IN OUT`.

Each converts the files of a folder with default settings and inferred types.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def convert_by_pyspark(conversion: str, source: Path, target: Path) -> None:
    """Read and write a DataFrame."""
    sql: Any = import_module("pyspark.sql")
    if not any(source.iterdir()):
        return
    spark = sql.SparkSession.builder.getOrCreate()
    if conversion == "csv-parquet":
        frame = spark.read.csv(str(source), header=True, inferSchema=True)
        frame.write.parquet(str(target / "out"))
    else:
        spark.read.json(str(source)).write.json(str(target / "out"), compression="gzip")
    spark.stop()


def convert_by_polars(conversion: str, source: Path, target: Path) -> None:
    """Scan and sink with Polars."""
    polars: Any = import_module("polars")
    if not any(source.iterdir()):
        return
    if conversion == "csv-parquet":
        polars.scan_csv(source / "*.csv").sink_parquet(target / "out.parquet")
    else:
        lines = polars.scan_ndjson(source / "*.jsonl.gz")
        lines.sink_ndjson(target / "out.jsonl.gz", compression="gzip")


def convert_by_duckdb(conversion: str, source: Path, target: Path) -> None:
    """Copy from files to a file with DuckDB."""
    duckdb: Any = import_module("duckdb")
    if not any(source.iterdir()):
        return
    if conversion == "csv-parquet":
        query = f"COPY (FROM read_csv('{source}/*.csv')) TO '{target}/out.parquet'"
    else:
        query = f"COPY (FROM read_json('{source}/*.jsonl.gz')) TO '{target}/out.jsonl.gz'"
    duckdb.sql(query)


PEERS = {
    "pyspark": convert_by_pyspark,
    "polars": convert_by_polars,
    "duckdb": convert_by_duckdb,
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
