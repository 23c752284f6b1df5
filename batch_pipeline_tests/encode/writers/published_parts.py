"""Manifests with part files on disk, written by the writers of the package."""

from pathlib import Path
from typing import Any

from batch_pipeline.encode.chunks import Table
from batch_pipeline.encode.writers.json_lines import Lines, LineWriter
from batch_pipeline.encode.writers.outputs import open_output
from batch_pipeline.model.encoding import Compression, Encoding, Format
from batch_pipeline.model.location import to_path
from batch_pipeline.model.manifest import Manifest
from batch_pipeline.model.schema import RecordSchema
from batch_pipeline.model.stream import PartLimits
from batch_pipeline_tests.encode.writers.part_factories import names
from batch_pipeline_tests.factories import manifest, stream

ENCODINGS = [
    Encoding(format=Format.JSONL, compression=Compression.GZIP),
    Encoding(format=Format.JSONL, compression=Compression.ZSTD),
    Encoding(format=Format.JSONL, compression=Compression.NONE),
    Encoding(format=Format.PARQUET, compression=Compression.SNAPPY),
    Encoding(format=Format.PARQUET, compression=Compression.GZIP),
    Encoding(format=Format.PARQUET, compression=Compression.ZSTD),
    Encoding(format=Format.PARQUET, compression=Compression.NONE),
    Encoding(format=Format.ARROW, compression=Compression.NONE),
    Encoding(format=Format.ARROW, compression=Compression.ZSTD),
    Encoding(format=Format.ORC, compression=Compression.ZSTD),
    Encoding(format=Format.ORC, compression=Compression.NONE),
]
GZIP = ENCODINGS[0]


def encoding_id(encoding: Encoding) -> str:
    return f"{encoding.format}-{encoding.compression}"


def published_table(root: Path, table: Table, known: RecordSchema, encoding: Encoding) -> Manifest:
    """Write a table to part files of an encoding and return their manifest."""
    root.mkdir(exist_ok=True)
    output = open_output(names(root, encoding.suffix), stream(encoding=encoding), known)
    output.write(table)
    return manifest(encoding=encoding, schema=known, part_files=output.close())


def published_lines(
    root: Path, *records: bytes, encoding: Encoding = GZIP, each: int = 2, **facts: Any
) -> Manifest:
    """Write lines of JSON to part files of at most `each` records and return their manifest."""
    root.mkdir(exist_ok=True)
    limits = PartLimits(max_records=each)
    writer = LineWriter(names(root, encoding.suffix), limits, encoding.compression)
    writer.append(Lines.of(records))
    return manifest(encoding=encoding, part_files=writer.close(), **facts)


def part_paths(published: Manifest) -> list[Path]:
    return [Path(to_path(part.uri)) for part in published.part_files]
