"""Which reader reads what a task wants of a file: all of it, a part, or the item's own range."""

from batch_pipeline.spark.read.csv_slices import CsvSliceReader
from batch_pipeline.spark.read.ranges import in_lines_of_file, open_range
from batch_pipeline.spark.read.readers import Reader, open_reader
from batch_pipeline.spark.read.sources import OpenSource
from batch_pipeline.spark.task_values import TaskSpec


def reader_of(source: OpenSource, spec: TaskSpec) -> Reader:
    """Make the reader of an open file; the lines that it tells are those of the whole file.

    Raises:
        BadFileError: the file cannot be read that way.
    """
    csv_slice, stream = spec.csv_slice, spec.stream
    options, limits = stream.source.csv, stream.read_limits
    reader: Reader
    if csv_slice is not None:
        reader = CsvSliceReader(source.file, csv_slice, options, limits, source.bad_file)
    elif source.range is not None:
        reader = open_range(source, source.range, stream)
    else:
        reader = open_reader(source, stream)
    return reader if source.range is None else in_lines_of_file(reader, source, source.range)
