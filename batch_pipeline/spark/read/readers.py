"""Which reader reads a file. The formats themselves are known by the readers."""

from collections.abc import Iterator
from typing import Protocol, assert_never

from batch_pipeline.domain.stream import SourceFormat, Stream
from batch_pipeline.spark.chunks import Chunk
from batch_pipeline.spark.read.avro_reader import AvroReader
from batch_pipeline.spark.read.csv_reader import CsvReader
from batch_pipeline.spark.read.json_reader import JsonReader
from batch_pipeline.spark.read.jsonl_reader import JsonlReader
from batch_pipeline.spark.read.parquet_reader import ParquetReader
from batch_pipeline.spark.read.sources import OpenSource


class Reader(Protocol):
    """The records of one open file."""

    def chunks(self) -> Iterator[Chunk]:
        """Give the records in order, a few MiB at a time.

        Raises:
            BadFileError: the file cannot be read to its end.
        """
        ...


def open_reader(source: OpenSource, stream: Stream) -> Reader:
    """Make the reader for the format that the file has; a part of csv has a reader of its own.

    Raises:
        BadFileError: the file cannot be made one to seek in, which parquet needs.
    """
    limits, bad_file = stream.read_limits, source.bad_file
    match source.format:
        case SourceFormat.JSONL:
            return JsonlReader(source)
        case SourceFormat.JSON:
            return JsonReader(source)
        case SourceFormat.PARQUET:
            file, rule = source.file, stream.on_nonfinite
            return ParquetReader(file, limits, rule, bad_file, source.part)
        case SourceFormat.AVRO:
            return AvroReader(source, limits, stream.on_nonfinite, bad_file)
        case SourceFormat.CSV | SourceFormat.AUTO:
            return CsvReader(source, stream.source.csv, limits)
        case _:
            assert_never(source.format)
