"""The keys of a stream file as pydantic models, with the text of their reference page.

Shape, units and defaults live here; which values go together is the domain's to say. No file is
read: `to_stream` only needs to know the folder that relative paths start at.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from batch_pipeline.model.dagster_settings import DagsterRules
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.record_rules import OnNonfinite
from batch_pipeline.model.schema import schema_of
from batch_pipeline.model.stream import Stream
from batch_pipeline.settings.output_attributes import (
    EncodingAttributes,
    PartFilesAttributes,
    StorageAttributes,
)
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
    Size,
    Text,
    stream_name,
)
from batch_pipeline.settings.target_attributes import TargetAttributes, TargetName


class BatchAttributes(Section):
    """Bounds of a batch."""

    max_weight: Size = Field(
        64 * 2**20,
        description="Size of all files of a batch together, at most; a heavier file is a batch of "
        "its own (bytes, or with a unit; default 64MiB).",
    )
    max_count: Count = Field(100, description="Files in a batch, at most (default 100).")
    max_wait: Duration = Field(
        timedelta(minutes=5),
        description="How old the oldest file of a batch lighter than `min_weight` must be before "
        "it is taken anyway (seconds, or with a unit; default 5m).",
    )
    min_weight: Size = Field(
        0,
        description="A last batch lighter than this waits for more files; 0 never waits (bytes, or "
        "with a unit; default 0).",
    )

    def check(self) -> None:
        self.to_domain()

    def to_domain(self) -> Limits:
        """Give the domain's form."""
        return Limits(**{name: getattr(self, name) for name in type(self).model_fields})


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
        None,
        description="Dagster pool whose limit holds for the runs (default: one of its own).",
    )
    max_backlog_age: Duration = Field(
        timedelta(hours=1),
        description="How long the oldest item may wait before a check says so (seconds, or with a "
        "unit; default 1h).",
    )
    max_quarantined_ratio: float = Field(
        0.0, description="Share of quarantined records, 0 to 1, above which a check says so."
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
        SchemaAttributes(),
        alias="schema",
        description="The columns, and how they may change (default: inferred).",
    )
    on_bad_record: OnBadRecordAttributes = Field(
        OnBadRecordAttributes(),
        description="How many malformed records a batch may have (default: none).",
    )
    on_bad_file: OnBadFileValue = Field(
        OnBadFileAttributes(),
        description="A file that cannot be used: fail its batch, or skip or quarantine it and "
        "publish the rest; one word, or one each for missing, changed and corrupt (default: fail).",
    )
    on_nonfinite: OnNonfinite = Field(
        OnNonfinite.QUARANTINE,
        description="NaN and infinities where JSON is written: quarantine the record, or write "
        "null or a string (default quarantine).",
    )
    transform: Text | None = Field(
        None,
        description="`package.module:function` of yours, DataFrame to DataFrame, run on Spark "
        "(default: none).",
    )
    lineage: LineageValue = Field(
        (),
        description="Columns added to each record; true for those that Singer targets expect, "
        "`_sdc_…` (default: none).",
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
        declared_json = self.schema_.declared_json(base)
        stream = Stream(
            name=self.stream,
            source=self.source.to_domain(base),
            limits=self.batch.to_domain(),
            encoding=self.encoding.to_domain(),
            storage=self.storage.to_domain(base),
            key_properties=self.key_properties,
            schema=self.schema_.to_domain(declared_json),
            on_bad_record=self.on_bad_record.to_domain(),
            on_bad_file=self.on_bad_file.to_domain(),
            on_nonfinite=self.on_nonfinite,
            mapping=self.mapping(),
            transform=self.transform,
            lineage=self.lineage,
            read_limits=self.read_limits.to_domain(),
            part_limits=self.part_files.to_domain(),
            dagster=self.dagster.to_domain(),
            targets=tuple(one.to_domain(name) for name, one in self.targets.items()),
        )
        return stream if stream.mapping.is_identity else _mapped(stream, declared_json)


def _mapped(stream: Stream, declared_json: Any) -> Stream:
    """Check the mapping, and keep what it makes of name, keys and declared columns.

    Raises:
        InvalidValueError: the mapping is not valid.
    """
    from batch_pipeline.encode.mapping.mapper import Mapper  # loads Arrow

    mapper = Mapper.of(stream)
    if mapper is None:
        return stream
    keys = mapper.key_properties
    alias = None if mapper.alias == stream.name else mapper.alias
    mapped_keys = None if keys == stream.key_properties else keys
    stream = replace(stream, alias=alias, mapped_keys=mapped_keys)
    if declared_json is None:
        return stream
    mapped = mapper.schema(declared_json)
    return replace(
        stream,
        schema=replace(stream.schema, declared=schema_of(mapped.schema)),
        mapping=replace(stream.mapping, flat_objects=mapped.objects),
    )
