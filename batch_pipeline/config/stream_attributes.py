"""The keys of a stream file that say how records are judged, mapped and marked."""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from batch_pipeline.config.attribute_types import (
    Count,
    Duration,
    Location,
    Section,
    Size,
    Text,
    absolute_uri,
    refusal,
    stream_name,
)
from batch_pipeline.config.source_attributes import SourceAttributes
from batch_pipeline.config.target_attributes import TargetAttributes, TargetName
from batch_pipeline.model.encoding import PART_FORMATS, Compression, Encoding, Format
from batch_pipeline.model.errors import InvalidValueError
from batch_pipeline.model.planning import Limits
from batch_pipeline.model.record_rules import (
    BadFileRules,
    BadRecordRules,
    Evolution,
    LineageColumn,
    OnBadFile,
    OnNonfinite,
    ReadLimits,
    RecordMapping,
    SchemaRules,
)
from batch_pipeline.model.schema import schema_of
from batch_pipeline.model.stream import Automation, DagsterRules, PartLimits, Storage, Stream

_SDC = tuple(column for column in LineageColumn if column.value.startswith("_sdc_"))


class SchemaAttributes(Section):
    """The columns of the records, and how they may change."""

    mode: Literal["infer", "declared"] | None = Field(
        None,
        description="infer: from records; declared: by `file` (default: declared with `file`, else "
        "infer).",
    )
    file: Text | None = Field(
        None, description="Path of a JSON Schema of a record, relative to the stream file."
    )
    evolution: Evolution = Field(
        Evolution.ADD,
        description="If records do not fit: add columns and widen types, fail the batch, or rescue "
        "values into `_rescued_data` (default add).",
    )
    sample_records: Count | None = Field(
        None,
        description="Records per task to infer columns from (default: 20,000 of a stream's first "
        "batch, then all). If other records do not fit, the batch is encoded again.",
    )

    def check(self) -> None:
        if self.mode == "declared" and self.file is None:
            raise refusal("is missing; expected the path of a JSON Schema", key="schema.file")
        if self.mode == "infer" and self.file is not None:
            raise refusal("is infer; expected declared beside `schema.file`", key="schema.mode")

    def declared_json(self, base: Path) -> Any:
        """Read the schema file; None where there is none.

        Raises:
            InvalidValueError: it cannot be read.
        """
        if self.file is None:
            return None
        path = base / self.file
        try:
            return json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InvalidValueError(
                "schema.file", str(path), f"a JSON Schema ({reason})"
            ) from error

    def to_model(self, declared_json: Any) -> SchemaRules:
        """Return the model; `declared_json` is the content of the schema file.

        Raises:
            InvalidValueError: it says what no column can be.
        """
        declared = None if self.file is None else schema_of(declared_json)
        return SchemaRules(
            declared=declared, evolution=self.evolution, sample_records=self.sample_records
        )


class OnBadRecordAttributes(Section):
    """How many malformed records are set aside in a quarantine file before the batch fails."""

    max_bad_records: int | None = Field(
        None,
        strict=True,
        ge=0,
        description="Maximum per batch (default: 0, or any number with `max_bad_ratio`).",
    )
    max_bad_ratio: float | None = Field(
        None, ge=0, le=1, description="Maximum share of the records of a batch."
    )


class OnBadFileAttributes(Section):
    """What to do with each kind of bad file: fail, skip or quarantine."""

    missing: OnBadFile = Field(OnBadFile.FAIL, description="A file that is gone.")
    changed: OnBadFile = Field(
        OnBadFile.FAIL, description="A file that differs from what was registered."
    )
    corrupt: OnBadFile = Field(OnBadFile.FAIL, description="A file that cannot be read.")


OnBadFileValue = Annotated[
    OnBadFileAttributes,
    BeforeValidator(
        lambda value: (
            dict.fromkeys(OnBadFileAttributes.model_fields, value)
            if isinstance(value, str)
            else value
        ),
        json_schema_input_type=OnBadFile | OnBadFileAttributes,
    ),
]


LineageValue = Annotated[
    tuple[LineageColumn, ...],
    BeforeValidator(
        lambda value: (_SDC if value else ()) if isinstance(value, bool) else value,
        json_schema_input_type=bool | tuple[LineageColumn, ...],
    ),
]


class ReadLimitAttributes(Section):
    """What a task is willing to read."""

    max_record_bytes: Annotated[Size, Field(ge=1)] = Field(
        64 * 2**20, description="Maximum length of a record (bytes, or with a unit; default 64MiB)."
    )
    max_expansion: Count = Field(
        250, description="Maximum growth of a compressed file, checked from 64MiB on (default 250)."
    )
    max_columns: Count = Field(10_000, description="Maximum number of columns (default 10000).")


class MappingAttributes(Section):
    """Selection, stream maps and flattening, with the names and meanings of the Singer SDK."""

    select: Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        ("*",), description="Patterns of properties; `!` deselects, the last match wins."
    )
    stream_maps: dict[str, Any] = Field(
        {}, description="The Singer SDK's stream maps, by stream (default: none)."
    )
    stream_map_config: dict[str, Any] = Field(
        {}, description="`config` in expressions of stream maps (default: none)."
    )
    flattening_enabled: bool = Field(
        default=False, description="Flatten nested objects (default false)."
    )
    flattening_max_depth: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        None, description="Maximum number of levels (default: all)."
    )
    flattening_separator: Text = Field("__", description="Separator of level names.")

    def mapping(self) -> RecordMapping:
        """Return the model."""
        return RecordMapping(
            **{name: getattr(self, name) for name in MappingAttributes.model_fields}
        )


def alternatives(words: Iterable[str]) -> str:
    """Return words as text, such as `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


_TITLES = alternatives(part_format.title for part_format in PART_FORMATS.values())
_COMPRESSIONS = "; ".join(
    f"of {file_format} {alternatives(part_format.compressions)}"
    for file_format, part_format in PART_FORMATS.items()
)


class EncodingAttributes(Section):
    """What BATCH files are; Singer's `batch_config.encoding`."""

    format: Format = Field(
        Format.JSONL, description=f"What a BATCH file is: {_TITLES} (default jsonl)."
    )
    compression: Compression | None = Field(
        None, description=f"O{_COMPRESSIONS[1:]} (default: the first of these)."
    )
    level: Annotated[int, Field(strict=True)] | None = Field(
        None, description="gzip 0 to 9, zstd 1 to 19 (default: fast)."
    )

    def check(self) -> None:
        self.to_model()

    def to_model(self) -> Encoding:
        """Return the model."""
        compression = self.compression or PART_FORMATS[self.format].compressions[0]
        return self.to(Encoding, compression=compression)


class StorageAttributes(Section):
    """Where part files go; Singer's `batch_config.storage`."""

    root: Location = Field(
        "./batches", description="Folder or s3://bucket/prefix of part files (default ./batches)."
    )
    prefix: str = Field("", description="Prefix of file names (default: none).")
    keep_superseded: Duration | None = Field(
        None,
        description="How long replaced generations are kept, at least 24h (seconds, or with a unit "
        "such as 30d; default: for ever).",
    )
    keep_loaded: Duration | None = Field(
        None,
        description="How long generations are kept after all `targets` loaded them, at least 24h "
        "(seconds, or with a unit such as 30d; default: for ever).",
    )
    keep_quarantine: Duration | None = Field(
        None,
        description="How long quarantine files are kept after publishing, at least 24h (seconds, "
        "or with a unit such as 90d; default: as their generation).",
    )

    def check(self) -> None:
        self.to_model(Path("/"))

    def to_model(self, base: Path) -> Storage:
        """Return the model; relative paths are below `base`."""
        return self.to(Storage, root=absolute_uri(self.root, base))


class PartFilesAttributes(Section):
    """Bounds of one part file."""

    max_records: Count = Field(100_000, description="Maximum number of records (default 100000).")
    max_bytes: Annotated[Size, Field(ge=1)] = Field(
        128 * 2**20,
        description="Maximum uncompressed size (bytes, or with a unit; default 128MiB).",
    )


class BatchAttributes(Section):
    """Bounds of a batch."""

    max_weight: Size = Field(
        64 * 2**20,
        description="Maximum size of its files; a larger file is a batch of its own (bytes, or "
        "with a unit; default 64MiB).",
    )
    max_count: Count = Field(1_000, description="Maximum number of files (default 1000).")
    max_wait: Duration = Field(
        timedelta(minutes=5),
        description="Age of the oldest file at which a batch below `min_weight` is planned "
        "(seconds, or with a unit; default 5m).",
    )
    min_weight: Size = Field(
        0,
        description="A last batch below this size waits for more files (bytes, or with a unit; "
        "default 0).",
    )

    def check(self) -> None:
        self.to(Limits)


class DagsterAttributes(Section):
    """How Dagster runs the stream."""

    automation: Automation | None = Field(
        None,
        description="Default status of sensors and schedules (default: running in `batch-pipeline "
        "dev` and `batch_pipeline.definitions`, else stopped).",
    )
    backfills: bool = Field(
        default=False, description="Define an asset for batches of backfills (default false)."
    )
    spark_resource: Text | None = Field(
        None,
        description="Key of a resource with a `spark_session`, such as a `PySparkResource` "
        "(default: a session of our own).",
    )
    partitions_per_run: Count = Field(
        50, description="Maximum number of batches per run (default 50)."
    )
    runs_at_once: Count = Field(
        10, description="Maximum number of runs that sensors keep queued or running (default 10)."
    )
    group: Text | None = Field(None, description="Asset group (default: the name of the stream).")
    owners: tuple[Text, ...] = Field(
        (), description="E-mail addresses or `team:name` (default: none)."
    )
    tags: dict[Text, str] = Field({}, description="Tags of the assets (default: none).")
    schedule: Text | None = Field(
        None, description="Cron line of polls for new files (default: continuously)."
    )
    timezone: Text = Field("UTC", description="Time zone of the schedule (default UTC).")
    pool: Text | None = Field(
        None, description="Dagster pool of the runs (default: one of its own)."
    )
    max_backlog_age: Duration = Field(
        timedelta(hours=1),
        description="Age of a waiting file at which the check fails (seconds, or with a unit; "
        "default 1h).",
    )
    max_quarantined_ratio: float = Field(
        0.0, description="Share of quarantined records, 0 to 1, at which the check fails."
    )

    def check(self) -> None:
        self.to(DagsterRules)


class StreamAttributes(MappingAttributes):
    """One stream: where its files land, how they are cut into batches, what is written where."""

    stream: Annotated[str, AfterValidator(stream_name)] = Field(description="Name of the stream.")
    source: SourceAttributes = Field(description="Where files land and how they are read.")
    batch: BatchAttributes = Field(BatchAttributes(), description="Limits of a batch.")
    key_properties: tuple[Text, ...] = Field(
        (), description="Columns that identify a record (default: none)."
    )
    encoding: EncodingAttributes = Field(
        EncodingAttributes(), description="Format of part files (default: jsonl with gzip)."
    )
    storage: StorageAttributes = Field(
        StorageAttributes(), description="Where part files go (default ./batches)."
    )
    schema_: SchemaAttributes = Field(
        SchemaAttributes(),
        alias="schema",
        description="Columns, and how they may change (default: inferred).",
    )
    on_bad_record: OnBadRecordAttributes = Field(
        OnBadRecordAttributes(),
        description="Malformed records to quarantine before the batch fails (default: none).",
    )
    on_bad_file: OnBadFileValue = Field(
        OnBadFileAttributes(),
        description="What to do with unusable files: fail the batch, or skip or quarantine the "
        "file (default: fail).",
    )
    on_nonfinite: OnNonfinite = Field(
        OnNonfinite.QUARANTINE,
        description="NaN and infinity in JSON: quarantine the record, or write null or a string "
        "(default quarantine).",
    )
    transform: Text | None = Field(
        None, description="`package.module:function`, from DataFrame to DataFrame (default: none)."
    )
    lineage: LineageValue = Field(
        (), description="Columns added to each record; true: `_sdc_…` (default: none)."
    )
    read_limits: ReadLimitAttributes = Field(
        ReadLimitAttributes(), description="Limits of files that are read."
    )
    part_files: PartFilesAttributes = Field(
        PartFilesAttributes(), description="Limits of part files."
    )
    dagster: DagsterAttributes = Field(
        DagsterAttributes(), description="How Dagster runs the stream."
    )
    targets: dict[TargetName, TargetAttributes] = Field(
        {}, description="Destinations of published batches, by name (default: none)."
    )

    def check(self) -> None:
        if self.schema_.file is None:
            self.to_stream(Path("/"))  # else the file stays closed until its folder is known

    def to_stream(self, base: Path) -> Stream:
        """Return the stream; `base` is the folder of the stream file."""
        declared_json = self.schema_.declared_json(base)
        stream = Stream(
            name=self.stream,
            source=self.source.to_model(base),
            limits=self.batch.to(Limits),
            encoding=self.encoding.to_model(),
            storage=self.storage.to_model(base),
            key_properties=self.key_properties,
            schema=self.schema_.to_model(declared_json),
            on_bad_record=self.on_bad_record.to(BadRecordRules),
            on_bad_file=self.on_bad_file.to(BadFileRules),
            on_nonfinite=self.on_nonfinite,
            mapping=self.mapping(),
            transform=self.transform,
            lineage=self.lineage,
            read_limits=self.read_limits.to(ReadLimits),
            part_limits=self.part_files.to(PartLimits),
            dagster=self.dagster.to(DagsterRules),
            targets=tuple(one.to_model(name) for name, one in self.targets.items()),
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
