"""The files of BATCH messages, read with nothing of the product: records, and how they are packed.

Only `file://` URIs, whose path is taken as it stands, as the Singer SDK takes it.
"""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from pyarrow import orc

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd", b"PA": "parquet", b"AR": "arrow", b"OR": "orc"}


def path_of(uri: str) -> Path:
    """Give the path that a URI names."""
    return Path(uri.removeprefix("file://"))


def packing(data: bytes, file_format: str) -> str:
    """Tell how a file is compressed, by its bytes; `unknown` where they do not say."""
    start = _MAGIC.get(data[:2], "none")
    if file_format == "jsonl":
        return start
    if file_format == "parquet" and start == "parquet":
        found = pq.ParquetFile(io.BytesIO(data)).metadata
        if not found.num_row_groups:
            return "unknown"
        codec = str(found.row_group(0).column(0).compression).lower()
        return "none" if codec == "uncompressed" else codec
    return "unknown" if start == file_format else f"not {file_format}"


def records(data: bytes, file_format: str, compression: str | None) -> list[dict[str, Any]]:
    """Read all records of a file by its label."""
    if file_format == "parquet":
        return list(pq.read_table(io.BytesIO(data)).to_pylist())
    if file_format == "arrow":
        return list(pa.ipc.open_file(io.BytesIO(data)).read_all().to_pylist())
    if file_format == "orc":
        return list(orc.ORCFile(io.BytesIO(data)).read().to_pylist())
    if compression == "gzip":
        data = gzip.decompress(data)
    elif compression == "zstd":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return [json.loads(line) for line in data.splitlines()]
