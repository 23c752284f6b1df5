"""The keys of a stream file as pydantic models, with the text of their reference page.

Shape, units and defaults live here; which values go together is the domain's to say. No file is
read: `to_stream` only needs to know the folder that relative paths start at.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from batch_pipeline.domain.dagster_rules import DagsterRules
from batch_pipeline.domain.encoding import Compression, Encoding, Format
from batch_pipeline.domain.planning import Limits
from batch_pipeline.domain.record_rules import OnNonfinite
from batch_pipeline.domain.stream import PartLimits, Storage, Stream
from batch_pipeline.settings.record_attributes import (
    LineageValue,
    MappingAttributes,
    OnBadFileAttributes,
    OnBadFileValue,
    OnBadRecordAttributes,
    ReadLimitAttributes,
    SchemaAttributes,
)
from batch_pipeline.settings.section import Section
from batch_pipeline.settings.source_attributes import SourceAttributes
from batch_pipeline.settings.stream_values import (
    Count,
    Duration,
    Location,
    Size,
    Text,
    absolute_uri,
    stream_name,
)
from batch_pipeline.settings.target_attributes import TargetAttributes, TargetName


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
    target_seconds: Annotated[float, Field(strict=True)] | None = Field(
        None,
        description="How long a batch should take, 1 to 86400 seconds: how much to put into one "
        "is learned from those before, at least a 64th of max_weight (default: max_weight).",
    )

    def check(self) -> None:
        self.to_domain()

    def to_domain(self) -> Limits:
        """Give the domain's form."""
        return Limits(**{name: getattr(self, name) for name in type(self).model_fields})


_USUAL = {
    Format.JSONL: Compression.GZIP,
    Format.PARQUET: Compression.SNAPPY,
    Format.ARROW: Compression.NONE,
}


class EncodingAttributes(Section):
    """What BATCH files are; Singer's `batch_config.encoding`."""

    format: Format = Field(Format.JSONL, description="jsonl (default), parquet or arrow.")
    compression: Compression | None = Field(
        None,
        description="jsonl: gzip (default), zstd or none; parquet: snappy (default), zstd, gzip or "
        "none; arrow: none (default) or zstd.",
    )
    level: Annotated[int, Field(strict=True)] | None = Field(
        None, description="gzip 0 to 9, zstd 1 to 19 (default: the fastest that is worth it)."
    )

    def check(self) -> None:
        self.to_domain()

    def to_domain(self) -> Encoding:
        """Give the domain's form."""
        compression = self.compression or _USUAL[self.format]
        return Encoding(format=self.format, compression=compression, level=self.level)


class StorageAttributes(Section):
    """Where part files go; Singer's `batch_config.storage`."""

    root: Location = Field(
        "./batches",
        description="Where part files go: a folder, by a file:///… URI or by a path, relative to "
        "the stream file; or s3://bucket/prefix (default ./batches).",
    )
    prefix: str = Field("", description="Start of every file name (default: none).")
    keep_superseded: Duration | None = Field(
        None,
        description="How long files of a generation stay once a newer one is published, at least "
        "24h (seconds, or with a unit such as 30d; default: for ever).",
    )
    keep_loaded: Duration | None = Field(
        None,
        description="How long files of a generation stay once all `targets` have it, at least 24h "
        "(seconds, or with a unit such as 30d; default: for ever).",
    )
    keep_quarantine: Duration | None = Field(
        None,
        description="How long quarantine files stay once their generation is published, at least "
        "24h (seconds, or with a unit such as 90d; default: as long as its other files).",
    )
    archive: Location | None = Field(
        None,
        description="Where files of generations are moved to when one of these times is over: a "
        "folder, by a file:///… URI or by a path, relative to the stream file; or "
        "s3://bucket/prefix (default: they are deleted).",
    )

    def check(self) -> None:
        self.to_domain(Path("/"))

    def to_domain(self, base: Path) -> Storage:
        """Give the domain's form, with relative paths starting at `base`."""
        return Storage(
            root=absolute_uri(self.root, base),
            prefix=self.prefix,
            keep_superseded=self.keep_superseded,
            keep_loaded=self.keep_loaded,
            keep_quarantine=self.keep_quarantine,
            archive=None if self.archive is None else absolute_uri(self.archive, base),
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
        50, description="Batches that one run encodes, at most (default 50)."
    )
    runs_at_once: Count = Field(
        10, description="Runs that sensors keep queued or running, at most (default 10)."
    )
    group: Text | None = Field(None, description="Asset group (default: the name of the stream).")
    owners: tuple[Text, ...] = Field(
        (), description="E-mail addresses, or team:name (default: none)."
    )
    tags: dict[Text, str] = Field({}, description="Tags of the assets (default: none).")
    schedule: Text | None = Field(
        None,
        description="Cron line that says when to look for new files (default: all the time).",
    )
    timezone: Text = Field("UTC", description="Time zone of the schedule (default UTC).")
    pool: Text | None = Field(
        None, description="Dagster pool whose limit holds for the runs (default: none)."
    )
    max_backlog_age: Duration = Field(
        timedelta(hours=1),
        description="How long the oldest item may wait before a check says so (default 1h).",
    )
    max_quarantined_ratio: float = Field(
        0.0, description="Share of quarantined records above which a check says so (default 0)."
    )

    def check(self) -> None:
        self.to_domain()

    def to_domain(self) -> DagsterRules:
        """Give the domain's form."""
        return DagsterRules(**{name: getattr(self, name) for name in type(self).model_fields})


class StreamAttributes(MappingAttributes):
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
    schema_: SchemaAttributes = Field(
        SchemaAttributes(), alias="schema", description="The columns, and how they may change."
    )
    on_bad_record: OnBadRecordAttributes = Field(
        OnBadRecordAttributes(), description="How many malformed records a batch may have."
    )
    on_bad_file: OnBadFileValue = Field(
        OnBadFileAttributes(),
        description="A file that cannot be used: fail its batch (default), or skip or quarantine "
        "it and publish the rest; one word, or one each for missing, changed and corrupt.",
    )
    on_nonfinite: OnNonfinite = Field(
        OnNonfinite.QUARANTINE,
        description="NaN and infinities where JSON is written: quarantine the record (default), or "
        "write null or a string.",
    )
    transform: Text | None = Field(
        None, description="package.module:function of yours, DataFrame to DataFrame, run on Spark."
    )
    lineage: LineageValue = Field(
        (), description="Columns added to each record; true for those that Singer targets expect."
    )
    read_limits: ReadLimitAttributes = Field(
        ReadLimitAttributes(), description="What a task is willing to read."
    )
    part_files: PartFilesAttributes = Field(
        PartFilesAttributes(), description="Bounds of one part file."
    )
    dagster: DagsterAttributes = Field(
        DagsterAttributes(), description="How Dagster runs the stream."
    )
    targets: dict[TargetName, TargetAttributes] = Field(
        {}, description="Where published batches are loaded, by a name of your own (default: none)."
    )

    def check(self) -> None:
        if self.schema_.file is None:
            self.to_stream(Path("/"))  # else the file stays closed until its folder is known

    def to_stream(self, base: Path) -> Stream:
        """Give the domain's stream; `base` is the folder of the stream file."""
        stream = Stream(
            name=self.stream,
            source=self.source.to_domain(base),
            limits=self.batch.to_domain(),
            encoding=self.encoding.to_domain(),
            storage=self.storage.to_domain(base),
            key_properties=self.key_properties,
            schema=self.schema_.to_domain(base),
            on_bad_record=self.on_bad_record.to_domain(),
            on_bad_file=self.on_bad_file.to_domain(),
            on_nonfinite=self.on_nonfinite,
            mapping=self.mapping(),
            transform=self.transform,
            lineage=self.lineage,
            read_limits=self.read_limits.to_domain(),
            part_limits=PartLimits(
                max_records=self.part_files.max_records, max_bytes=self.part_files.max_bytes
            ),
            dagster=self.dagster.to_domain(),
            targets=tuple(one.to_domain(name) for name, one in self.targets.items()),
        )
        return stream if stream.mapping.is_identity else _mapped(stream)


def _mapped(stream: Stream) -> Stream:
    """Check the mapping, and keep what it makes of name and keys.

    Raises:
        InvalidValueError: the mapping is not valid.
    """
    from batch_pipeline.spark.map.mapper import Mapper  # loads Arrow

    mapper = Mapper.of(stream)
    if mapper is None:
        return stream
    keys = mapper.key_properties(stream.key_properties)
    alias = None if mapper.alias == stream.name else mapper.alias
    mapped_keys = None if keys == stream.key_properties else keys
    return replace(stream, alias=alias, mapped_keys=mapped_keys)
