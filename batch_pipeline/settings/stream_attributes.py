"""The keys of a stream file as pydantic models, with the text of their reference page.

Shape, units and defaults live here; which values go together is the domain's to say. No file is
read: `to_stream` only needs to know the folder that relative paths start at.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.stream import (
    CsvOptions,
    OnBadFile,
    PartLimits,
    Source,
    SourceFiles,
    SourceFormat,
    Storage,
    Stream,
)
from batch_pipeline.settings.section import Section
from batch_pipeline.settings.stream_values import (
    Count,
    Duration,
    Location,
    Size,
    Text,
    absolute_uri,
    refusal,
    stream_name,
)
from batch_pipeline.settings.table_attributes import TableAttributes


class CsvAttributes(Section):
    """How csv files are written."""

    delimiter: str = Field(",", description="One ASCII character between cells.")
    quote: str = Field(
        '"', description="One ASCII character around cells; inside a cell it is doubled."
    )

    def check(self) -> None:
        self.to_domain()

    def to_domain(self) -> CsvOptions:
        """Give the domain's form."""
        return CsvOptions(delimiter=self.delimiter, quote=self.quote)


class SourceAttributes(Section):
    """Where files land, or the table of your own that lists them, and how they are read."""

    uri: Location | None = Field(
        None, description="Landing folder: a file:///… URI, or a path, relative to the stream file."
    )
    meta_table: TableAttributes | None = Field(
        None, description="In place of uri: a table of your own, one row for each file."
    )
    include: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        ("*",), description="Patterns (*, ?, [abc]); a file is read if its name matches one."
    )
    exclude: tuple[Text, ...] = Field(
        (), description="Patterns; a file whose name matches one is left out."
    )
    format: SourceFormat = Field(
        SourceFormat.AUTO,
        description="What the files contain: csv, jsonl, or auto (decided file by file).",
    )
    options: CsvAttributes = Field(CsvAttributes(), description="How csv files are written.")

    def check(self) -> None:
        if self.meta_table is None and self.uri is None:
            raise refusal("is missing; expected it, or `source.meta_table`", key="source.uri")
        if self.meta_table is None:
            return
        for key in ("uri", "include", "exclude"):
            if key in self.model_fields_set:
                choice = "`source.meta_table.where` chooses rows" if key != "uri" else "one of them"
                problem = f"cannot stand beside `source.meta_table`; expected {choice}"
                raise refusal(problem, key=f"source.{key}")

    def to_domain(self, base: Path) -> SourceFiles:
        """Give the domain's form, with relative paths starting at `base`."""
        if self.meta_table is not None:
            read_as = {"format": self.format, "csv": self.options.to_domain()}
            return self.meta_table.to_domain(base, **read_as)
        return Source(
            uri=absolute_uri(self.uri or ".", base),  # never None here: `check` has refused that
            include=self.include,
            exclude=self.exclude,
            format=self.format,
            csv=self.options.to_domain(),
        )


class BatchAttributes(Section):
    """Bounds of a batch."""

    max_weight: Size = Field(
        64 * 2**20,
        description="Size of all files of a batch together, at most (bytes, or with a unit; "
        "default 64MiB). A heavier file is a batch of its own.",
    )
    max_count: Count = Field(100, description="Files in a batch, at most (default 100).")
    max_wait: Duration = Field(
        timedelta(minutes=5),
        description="How old the oldest file of a batch lighter than min_weight must be before it "
        "is taken anyway (seconds, or with a unit; default 5m).",
    )
    min_weight: Size = Field(
        0,
        description="A last batch lighter than this waits for more files (bytes, or with a unit; "
        "default 0: never waits).",
    )

    def check(self) -> None:
        self.to_domain()

    def to_domain(self) -> Limits:
        """Give the domain's form."""
        return Limits(
            max_weight=self.max_weight,
            max_count=self.max_count,
            min_weight=self.min_weight,
            max_wait=self.max_wait,
        )


class EncodingAttributes(Section):
    """What BATCH files are; Singer's `batch_config.encoding`."""

    format: Format = Field(Format.JSONL, description="jsonl (default) or parquet.")
    compression: Compression | None = Field(
        None,
        description="jsonl: gzip (default) or none; parquet: snappy (default), zstd, gzip or none.",
    )

    def check(self) -> None:
        self.to_domain()

    def to_domain(self) -> Encoding:
        """Give the domain's form."""
        usual = Compression.SNAPPY if self.format is Format.PARQUET else Compression.GZIP
        return Encoding(format=self.format, compression=self.compression or usual)


class StorageAttributes(Section):
    """Where part files go; Singer's `batch_config.storage`."""

    root: Location = Field(
        "./batches",
        description="Folder of the part files: a file:///… URI, or a path, relative to the stream "
        "file (default ./batches).",
    )
    prefix: str = Field("", description="Start of every file name (default: none).")

    def check(self) -> None:
        Storage(root="", prefix=self.prefix)

    def to_domain(self, base: Path) -> Storage:
        """Give the domain's form, with relative paths starting at `base`."""
        return Storage(root=absolute_uri(self.root, base), prefix=self.prefix)


class OnBadRecordAttributes(Section):
    """What becomes of malformed records."""

    max_bad_records: int = Field(
        0,
        strict=True,
        ge=0,
        description="Malformed records per batch that are set aside in a quarantine file; one more "
        "fails the batch (default 0).",
    )


class PartFilesAttributes(Section):
    """Bounds of one part file."""

    max_records: Count = Field(100_000, description="Records, at most (default 100000).")
    max_bytes: Annotated[Size, Field(ge=1)] = Field(
        128 * 2**20,
        description="Uncompressed size, at most (bytes, or with a unit; default 128MiB).",
    )


class DagsterAttributes(Section):
    """How Dagster runs the stream."""

    partitions_per_run: Count = Field(
        16, description="Batches that one run of a backfill encodes, at most (default 16)."
    )


class StreamAttributes(Section):
    """One stream: where its files land, how they are cut into batches, what is written where."""

    stream: Annotated[str, AfterValidator(stream_name)] = Field(
        description="Singer name of the stream: letters, digits, '_', '.' and '-'; at most 100."
    )
    source: SourceAttributes = Field(description="Where files land and how they are read.")
    batch: BatchAttributes = Field(BatchAttributes(), description="Bounds of a batch.")
    key_properties: tuple[Text, ...] = Field(
        (), description="Columns that together identify a record (default: none)."
    )
    encoding: EncodingAttributes = Field(
        EncodingAttributes(), description="What BATCH files are (default: jsonl with gzip)."
    )
    storage: StorageAttributes = Field(
        StorageAttributes(), description="Where part files go (default ./batches)."
    )
    on_bad_record: OnBadRecordAttributes = Field(
        OnBadRecordAttributes(), description="What becomes of malformed records."
    )
    on_bad_file: OnBadFile = Field(
        OnBadFile.FAIL,
        description="A file that cannot be read at all: fail its batch (default), or quarantine it "
        "and publish the rest.",
    )
    part_files: PartFilesAttributes = Field(
        PartFilesAttributes(), description="Bounds of one part file."
    )
    dagster: DagsterAttributes = Field(
        DagsterAttributes(), description="How Dagster runs the stream."
    )

    def check(self) -> None:
        self.to_stream(Path("/"))

    def to_stream(self, base: Path) -> Stream:
        """Give the domain's stream; `base` is the folder of the stream file."""
        return Stream(
            name=self.stream,
            source=self.source.to_domain(base),
            limits=self.batch.to_domain(),
            encoding=self.encoding.to_domain(),
            storage=self.storage.to_domain(base),
            key_properties=self.key_properties,
            max_bad_records=self.on_bad_record.max_bad_records,
            on_bad_file=self.on_bad_file,
            part_limits=PartLimits(
                max_records=self.part_files.max_records, max_bytes=self.part_files.max_bytes
            ),
            partitions_per_run=self.dagster.partitions_per_run,
        )
