"""Manifests whose part files are on disk, written by the product's own writers."""

from pathlib import Path
from typing import Any

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.location import to_path
from batch_pipeline.domain.manifest import Manifest
from batch_pipeline.domain.schema import RecordSchema
from batch_pipeline.domain.stream import PartLimits
from batch_pipeline.spark.chunks import Table
from batch_pipeline.spark.write.line_parts import Lines, line_writer
from batch_pipeline.spark.write.outputs import open_output
from batch_pipeline_tests.factories import manifest, stream
from batch_pipeline_tests.unit.part_scene import names

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
]
GZIP = ENCODINGS[0]


def shown(encoding: Encoding) -> str:
    """Name an encoding in the list of tests."""
    return f"{encoding.format}-{encoding.compression}"


def published_table(root: Path, table: Table, known: RecordSchema, encoding: Encoding) -> Manifest:
    """Write a table to part files of any encoding and give their manifest."""
    root.mkdir(exist_ok=True)
    output = open_output(names(root, encoding.suffix), stream(encoding=encoding), known)
    output.write(table)
    return manifest(encoding=encoding, schema=known, part_files=output.close())


def published_lines(
    root: Path, *records: bytes, encoding: Encoding = GZIP, each: int = 2, **facts: Any
) -> Manifest:
    """Write lines of JSON to part files of at most `each` records and give their manifest."""
    root.mkdir(exist_ok=True)
    limits = PartLimits(max_records=each)
    writer = line_writer(names(root, encoding.suffix), limits, encoding.compression)
    writer.append(Lines.of(records))
    return manifest(encoding=encoding, part_files=writer.close(), **facts)


def paths(one: Manifest) -> list[Path]:
    """Give the places of a manifest's part files."""
    return [Path(to_path(part.uri)) for part in one.part_files]
